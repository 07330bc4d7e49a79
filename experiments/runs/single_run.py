"""A run: all methods of a configuration, trained, evaluated and compared."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
import dataclasses
import functools
import pathlib
import time

import tensorflow_federated as tff

from algorithms import methods
from base import errors
from base import words
from base.aliases import Json
from experiments.command_line import paths
from experiments.command_line import stopping
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import hyperparameters
from experiments.reporting import results_folder
from experiments.reporting import round_metrics
from experiments.reporting import serialization
from experiments.reporting import tables
from experiments.runs import execution
from experiments.runs import ledgers
from experiments.runs import secret_seeds
from experiments.runs import validation_curves
from personalization import stages
from personalization.judgement import choosing
from personalization.judgement import costs
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import outcomes
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks


def _report_skipped(where: str, client_ids: Sequence[str]) -> None:
  """Says which clients were left out, a few of them by name."""
  if client_ids:
    more = ', …' if len(client_ids) > 5 else ''
    terminal.say(
      f'{where}: left out {words.count(len(client_ids), "clients")} without'
      f' examples: {", ".join(client_ids[:5])}{more}'
    )


def _release_managers(
  folder: results_folder.RunFolder, name: str
) -> tuple[tff.program.ReleaseManager, ...]:
  """Makes the release managers that write a training's metrics."""
  return (
    round_metrics.CsvReleaseManager(folder.metrics_file(name)),
    round_metrics.TensorBoardReleaseManager(folder.tensorboard_dir(name)),
  )


def _train(
  name: str,
  method: methods.Method,
  task: tasks.Task,
  settings: schedules.TrainingSettings,
  folder: results_folder.RunFolder,
  schedule: schedules.Schedule,
  curves: validation_curves.Curves | None,
  sharing: Iterable[str] = (),
) -> tuple[training.Trained, float | None]:
  """Trains; also returns the seconds, None if it continued a checkpoint.

  Args:
    name: The name of the training.
    method: The method.
    task: Its task.
    settings: The settings of the training.
    folder: The folder of the run.
    schedule: The rounds.
    curves: What is measured now and then; None for nothing.
    sharing: The methods of the training.

  Returns:
    The training, and the seconds.
  """
  if not method.trains:
    return training.train(method, task, settings, schedule=schedule), 0.0
  start = time.monotonic()
  began_at = None
  total_rounds = schedule.num_rounds(settings, method.trainer.num_epochs)
  with (
    terminal.progress(f'{name}: training', total_rounds, 'rounds') as show,
    stopping.finishing('this round') as should_stop,
  ):

    def on_checkpoint(round_num: int) -> None:
      nonlocal began_at
      rest = f'after the training of {name}'
      if round_num < total_rounds:
        rest = f'with round {round_num + 1} of {total_rounds} of {name}'
      stopping.say_outlook(f'The same command goes on {rest}.')
      if began_at is None:
        began_at = round_num
        if round_num < total_rounds:
          folder.reopen(name, sharing)
        if 0 < round_num < total_rounds:
          terminal.say(f'{name}: training goes on with round {round_num + 1}')
        elif round_num:
          show(round_num, 'as they are in its last checkpoint')

    def on_round(round_num: int, metrics: Mapping[str, float]) -> None:
      note = f'loss {metrics["loss"]:.4g}'
      if curves and curves.last:
        note += f', validation {next(iter(curves.last.values())):.4g}'
      show(round_num, note)

    trained = training.train(
      method,
      task,
      settings,
      schedule=schedule,
      checkpoint_dir=folder.checkpoint_dir(name),
      callbacks=training.Callbacks(
        release_managers=_release_managers(folder, name),
        on_round=on_round,
        on_checkpoint=on_checkpoint,
        on_file=folder.note_checkpoint,
        should_stop=should_stop,
        evaluate=None if curves is None else curves.evaluate,
      ),
    )
  seconds = time.monotonic() - start - (curves.seconds if curves else 0.0)
  _report_skipped(f'{name}: training', trained.skipped_clients)
  if trained.dropped_clients:
    terminal.say(
      f'{name}: training: dropped'
      f' {words.count(trained.dropped_clients, "updates")} of clients with'
      ' numbers that are not finite'
    )
  if trained.diverged:
    terminal.say(
      f'{name}: training: stopped at round {trained.round}, as it has diverged:'
      f' no update was finite in the last {trained.rounds_without_update}'
      ' rounds'
    )
  return trained, None if began_at else seconds


@dataclasses.dataclass(frozen=True)
class Training:
  """A finished training of a run.

  Attributes:
    name: Its name.
    stage: The method and the task that it was prepared with.
    ended: The state that it ended with.
    seconds: How long it took; None if it continued a checkpoint.
    before: The training whose result it started from, if there is one.
    communication: The parameters that it sent, without those of `before`.
    costs: Its costs for a client, without those of `before`, by group.
  """

  name: str
  stage: stages.Stage
  ended: training.Trained
  seconds: float | None
  before: 'Training | None'
  communication: Mapping[str, float]
  costs: Mapping[int, costs.Cost]


class Trainings:
  """The trainings of a run. Methods with the same training share it."""

  def __init__(
    self,
    built: Mapping[str, methods.Method],
    task: tasks.Task,
    config: configs.Config,
    folder: results_folder.RunFolder,
    populations: evaluation.Populations | None = None,
  ):
    self._task = task
    self._config = config
    self._settings = config.training
    self._folder = folder
    self._populations = populations
    # The methods of each training, which has the name of the first of them.
    self._methods: dict[Hashable, dict[str, methods.Method]] = {}
    for name, method in built.items():
      self._methods.setdefault(method.training_key, {})[name] = method
    self._names = {
      key: next(iter(sharing)) for key, sharing in self._methods.items()
    }
    self._done: dict[Hashable, Training] = {}
    self._secret: bytes | None = None

  def give_secret(self, method: methods.Method) -> methods.Method:
    """Returns a method with the secret seed of its noise, if it has one."""
    if method.guarantee is None or method.guarantee.is_simulated:
      return method
    if self._secret is None:
      # Where trainings are only restored, nothing is drawn.
      self._secret = b'nothing is drawn'
      if self._populations is not None:
        self._secret = secret_seeds.obtain(self._folder.path)
    return dataclasses.replace(method, secret=self._secret)

  def get(self, method: methods.Method, role: str = '') -> Training:
    """Returns the training of a method, after training if this is not yet done.

    Args:
      method: The method.
      role: The name of the training, if no method of the run has it.
    """
    method = self.give_secret(method)
    key = method.training_key
    name = self._names.setdefault(key, role)
    if key not in self._done:
      stage = stages.prepare(
        method,
        self._task,
        self._settings,
        lambda other, role: self.get(other, f'{name}-{role}').ended,
      )
      if stage.found is not None:
        self._folder.write_groups(name, stage.found.values)
      schedule = training.make_schedule(
        stage.method, stage.task, self._settings
      )
      curves = None
      # Without populations, the trainings are only restored.
      if (
        self._settings.rounds_per_evaluation
        and self._populations is not None
        and key in self._methods
      ):
        curves = validation_curves.Curves(
          self._methods[key],
          stage.task,
          self._populations,
          self._config,
          self._folder,
        )
      ended, seconds = _train(
        name,
        stage.method,
        stage.task,
        self._settings,
        self._folder,
        schedule,
        curves,
        self._methods.get(key, ()),
      )
      before = method.predecessor
      communication = self._folder.communication(
        name, stage.method.parameters_down, stage.method.parameters_up
      )
      one_model = stage.method.model_parameters
      of_round = costs.Round(
        communication['parameters_down'] / one_model,
        communication['parameters_up'] / one_model,
        self._folder.passes(name),
      )
      self._done[key] = Training(
        name,
        stage,
        ended,
        seconds,
        None if before is None else self._done[before.training_key],
        communication,
        costs.training_cost(method, schedule, self._settings, of_round),
      )
    return self._done[key]


def evaluate(
  name: str,
  method: methods.Method,
  trained: Training,
  task: tasks.Task,
  populations: evaluation.Populations,
  config: configs.Config,
  choice: choosing.Choice,
  folder: results_folder.RunFolder,
) -> tuple[dict[str, Json], outcomes.Outcome]:
  """Evaluates a method, and shows how far it is.

  Args:
    name: The name of the method.
    method: The method.
    trained: Its training.
    task: The task that it is reported on.
    populations: The clients, see `evaluation.prepare`.
    config: The configuration.
    choice: How a candidate is chosen.
    folder: The folder of the results, which has those of the baseline.

  Returns:
    What is written of the evaluation, and its outcome.
  """
  start = time.monotonic()
  baseline, others = config.run.baseline, None
  if baseline and baseline != name and method.baseline is None:
    others = serialization.read_metrics(folder.client_rows(baseline))
  stopping.say_outlook(
    f'The same command goes on with the evaluation of {name}.'
  )
  done = 0
  total = len(task.test.client_ids)
  if not task.cross_silo:
    total += len(task.validation.client_ids)
  total *= len(measurements.personalization_parts(task, config.measurement))
  with terminal.progress(f'{name}: evaluation', total, 'clients') as show:

    def on_cohort(num_clients: int) -> None:
      nonlocal done
      done += num_clients
      show(done)

    evaluated = evaluation.evaluate(
      method,
      trained.ended,
      trained.stage.task,
      config.training,
      on_cohort,
      populations,
      config.measurement,
    )
  _report_skipped(f'{name}: evaluation', evaluated.skipped)
  # Results are by the task's known groups, not by groups that a method found.
  outcome = outcomes.Outcome(
    evaluated, task, config.measurement, choice, others
  )
  result = {
    **serialization.make_result(outcome),
    'hurt_against': None if others is None else baseline,
    'evaluation_seconds': time.monotonic() - start,
  }
  return result, outcome


def _communication(trained: Training) -> dict[str, float]:
  """Counts the parameters that a training sent.

  The total includes the trainings before it.
  """
  counted = dict(trained.communication)
  if trained.before is not None:
    before = _communication(trained.before)
    counted['total_parameters'] += before['total_parameters']
  return counted


def _costs(
  trained: Training,
  method: methods.Method,
  evaluated: evaluation.Evaluation,
  batch_size: int,
) -> dict[str, Json]:
  """Counts a method's costs for a client, by group if there are groups."""
  shared = costs.personalization_cost(
    method, evaluated.num_personalization.tolist(), batch_size
  )
  before = trained.before
  while before is not None:
    # Only the last training differs between groups.
    shared += before.costs[0]
    before = before.before
  attribute = trained.stage.method.trainer.cohort_attribute
  if attribute is None:
    return {'all': dataclasses.asdict(shared + trained.costs[0])}
  names = trained.stage.task.attributes[attribute].names
  # A group without training clients has no rounds, and so no costs of them.
  return {
    name: dataclasses.asdict(shared + trained.costs.get(g, costs.Cost()))
    for g, name in enumerate(names)
  }


class Run:
  """A run whose methods can be trained and evaluated one by one.

  A method that its folder has results of is not evaluated again, and a training
  that was stopped goes on from its last checkpoint.

  Attributes:
    task: The task.
    methods: The methods, by name.
    uses: Their uses of protected data.
  """

  def __init__(
    self,
    config: configs.Config,
    task: tasks.Task,
    folder: results_folder.RunFolder,
  ):
    """Builds all methods, which fails if the task does not suit one.

    Args:
      config: The configuration.
      task: Its task.
      folder: The folder to write to, which has to be open whenever something
        is trained or evaluated.

    Raises:
      UserError: If it cannot be run.
    """
    self.task = task
    built = execution.build_methods(config, task, config.measurement)
    self.uses, self.methods = ledgers.make(config, built)
    self._config = config
    self._folder = folder
    # Before any training, as this fails if there are no clients to evaluate.
    self._populations = evaluation.prepare(
      task, measurement=config.measurement, seed=config.training.seed
    )
    self._trainings = Trainings(
      self.methods, task, config, folder, self._populations
    )

  @functools.cached_property
  def _ledger(self) -> str:
    return ledgers.write_text(self.uses)

  def train(self, name: str) -> Training:
    """Trains a method, if this is not yet done."""
    if self.uses:
      self._folder.write_privacy(self._ledger)
    return self._trainings.get(self.methods[name])

  def evaluate(self, names: Iterable[str]) -> None:
    """Trains and evaluates methods, if this is not yet done."""
    # The baseline comes first, as the others are compared with its clients.
    in_order = filter(None, (self._config.run.baseline, *names))
    for name in dict.fromkeys(in_order):
      if name not in self._folder.results:
        self._evaluate(name)

  def _evaluate(self, name: str) -> None:
    config = self._config
    method = self._trainings.give_secret(self.methods[name])
    trained = self.train(name)
    seconds = trained.seconds
    if trained.name in self._folder.results:
      seconds = self._folder.results[trained.name]['training_seconds']
    measured, outcome = evaluate(
      name,
      method,
      trained,
      self.task,
      self._populations,
      config,
      execution.choice(config.run),
      self._folder,
    )
    result: dict[str, Json] = {
      **measured,
      'training': trained.name if method.trains else None,
      'started_from_training': trained.before and trained.before.name,
      'rounds': trained.ended.round,
      'warmstart_from': list(config.run.warmstart_from),
      'training_seconds': seconds,
      'dropped_updates': trained.ended.dropped_clients,
      'diverged': trained.ended.diverged,
      'skipped_in_training': list(trained.ended.skipped_clients),
      'frozen_weights_sha256': method.trainer.model.frozen_digest,
      'communication': _communication(trained),
      'costs': _costs(
        trained,
        method,
        outcome.evaluated,
        config.training.batch_size or self.task.batch_size,
      ),
      'privacy': serialization.make_guarantee(method.guarantee),
    }
    self._folder.add(name, result, serialization.make_rows(name, outcome))
    hyperparameters.write(
      self._folder.tensorboard_dir(name), name, config.to_dict(), result
    )


def default_folder(config: configs.Config) -> pathlib.Path:
  """Names a folder for a configuration, which no other one has."""
  return paths.user_path(f'results/{config.task}-{config.digest()}')


def run(
  config: configs.Config,
  output_dir: pathlib.Path,
  data_dir: str | None = None,
  set_runtime: Callable[
    [user_settings.RunSettings], None
  ] = execution.set_runtime,
) -> dict[str, results_folder.Result]:
  """Trains and evaluates all methods that are not yet done.

  Args:
    config: The configuration of the run.
    output_dir: The folder to write to.
    data_dir: The folder of the data sets.
    set_runtime: Sets the runtime that all TFF computations run on.

  Raises:
    UserError: If it cannot be run, before any training.
  """
  task = execution.load_task(config, data_dir)
  with results_folder.open_folder(output_dir, config) as folder:
    for name in folder.results:
      terminal.say(f'{name}: done before; delete {output_dir} to do it again')
    if folder.results.keys() == config.method_settings.keys():
      folder.begin(task.encoding)
      return folder.results

    if task.notes:
      terminal.say(task.notes)
    set_runtime(config.run)
    made = Run(config, task, folder)
    compared = execution.compare_sampling(config, task, made.methods)
    if compared:
      terminal.say(compared)
    folder.begin(task.encoding)
    made.evaluate(config.method_settings)
    return folder.results


def refuse_diverged(
  runs: Sequence[Mapping[str, results_folder.Result]],
) -> None:
  """Raises a `UserError` if a method of a finished run has diverged.

  Its training was stopped, or its test metric is not finite.
  """
  diverged = dict.fromkeys(
    name
    for run in runs
    for name, result in run.items()
    if result.get('diverged') or result['test']['mean'] is None
  )
  if diverged:
    raise errors.UserError(
      f'{", ".join(diverged)} diverged: updates, or metrics of test clients,'
      ' are not finite. Set a smaller client_learning_rate or'
      ' server_learning_rate, or look for far too large numbers in the data.'
    )


def main(
  request: user_settings.Request,
  output_dir: pathlib.Path | None,
  data_dir: str | None,
) -> int:
  """Runs a user's request and shows the results; returns the exit status."""
  config = configs.resolve(request)
  terminal.say(request.origin)
  output_dir = output_dir or default_folder(config)
  results = run(config, output_dir, data_dir)
  tables.print_results(results)
  ledgers.show(output_dir)
  terminal.say(f'Written to {output_dir}')
  refuse_diverged([results])
  return 0
