"""The audit of private runs: what their releases tell, as far as it is seen."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
import secrets
from typing import Any

import numpy as np
import tensorflow as tf

from algorithms import methods
from base import errors
from base import seeds
from base import words
from base.aliases import Json
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.reporting import folders
from experiments.reporting import results_folder
from experiments.reporting.figures import audits
from experiments.reporting.figures import figure
from experiments.runs import execution
from experiments.runs import sources
from personalization.privacy import accounting
from personalization.privacy import canary_clients
from personalization.privacy import canary_examples
from personalization.privacy import membership
from personalization.privacy import one_run
from personalization.privacy import shared_noise
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks
from tasks.data import populations
from tasks.models import models

# The folder and the file of an audit.
_FOLDER, _FILE = 'audit', 'audit.json'
# δ of a bound over the number of canaries, which makes the correction for δ
# small.
_DELTA_OF_ALL = 0.01
# The most clients of each kind whose loss is computed, and their examples.
_MOST_CLIENTS, _MOST_EXAMPLES = 1000, 1000


@dataclasses.dataclass(frozen=True)
class _Training:
  """A private training whose models were released.

  Attributes:
    name: The name for the user, with that of its run if there are several.
    method: The method, with the models that it started from.
    task: Its task, with the groups that it found.
    config: The configuration of its run.
    last: The models after the last round.
  """

  name: str
  method: methods.Method
  task: tasks.Task
  config: configs.Config
  last: tuple[models.Weights, ...]


def _read_runs(name: str) -> dict[str, sources.Source]:
  """Reads the run, or the runs, of a folder, and those that they started from.

  Returns:
    The runs by their names, which are empty for the only run of the folder.

  Raises:
    UserError: If there is none, or one is not finished.
  """
  folder = pathlib.Path(name)
  inner = sorted(path.parent for path in folder.glob('*/results.json'))
  if inner and not (folder / results_folder.RESULTS).exists():
    found = {path.name: sources.read(str(path)) for path in inner}
  else:
    found = {'': sources.read(name)}
  started = list(found.values())
  while started:
    for earlier in started.pop().config.run.warmstart_from:
      if earlier not in found:
        found[earlier] = sources.read(earlier)
        started.append(found[earlier])
  for source in found.values():
    missing = [
      n for n in source.config.method_settings if n not in source.run.methods
    ]
    if missing:
      raise errors.UserError(
        f'{source.run.path} has not finished {", ".join(missing)}. Give the'
        ' same command again before the audit.'
      )
  return found


def _list_trainings(
  source: sources.Source, prefix: str, data_dir: str | None
) -> Iterator[_Training]:
  """Yields the private trainings of a run that have released models."""
  config, run = source.config, source.run
  if config.privacy == ways.NONE:
    return
  task = execution.load_task(config, data_dir)
  # What is trained again has other noise, also if the run's has a secret seed.
  built = {
    name: dataclasses.replace(method, secret=secrets.token_bytes(16))
    for name, method in execution.build_methods(config, task).items()
  }
  like = task.model.init(seeds.pair('model'))
  done: set[str] = set()

  def prepare(
    name: str, method: methods.Method, before: str | None
  ) -> Iterator[_Training]:
    """Yields a training after those that it started from."""
    earlier = method.predecessor
    own_task = task
    if earlier is not None and before is not None:
      yield from prepare(before, earlier, None)
      (model,) = saved(before, earlier)
      method = dataclasses.replace(
        method, first_models=(model,) * len(method.model_places)
      )
      groups = run.path / 'groups' / f'{name}.json'
      if groups.exists():
        own_task = _add_groups(task, groups)
    if name not in done and method.model_places:
      done.add(name)
      of_run = prefix.removesuffix(f':{name}')
      label = f'{of_run}: {name}' if of_run else name
      yield _Training(label, method, own_task, config, saved(name, method))

  def saved(name: str, method: methods.Method) -> tuple[models.Weights, ...]:
    return training.saved_models(
      method,
      results_folder.checkpoint_dir(run.path, name),
      len(run.rounds[name]['round']),
      like,
    )

  for name, result in run.methods.items():
    if result['training'] is None or source.chosen not in (None, name):
      continue
    source.check_frozen_weights(name, task)
    guarantee = built[name].guarantee
    if guarantee is not None and guarantee.epsilon < math.inf:
      yield from prepare(
        result['training'], built[name], result['started_from_training']
      )


def _add_groups(task: tasks.Task, path: pathlib.Path) -> tasks.Task:
  """Returns a task with the groups that a training found for its clients."""
  found = json.loads(path.read_text(encoding='utf-8'))
  names = [str(k) for k in range(max(found.values()) + 1)]
  attributes = {**task.attributes, tasks.GROUP: tasks.Attribute(names, found)}
  return dataclasses.replace(task, attributes=attributes)


def _train(
  what: str,
  method: methods.Method,
  task: tasks.Task,
  settings: schedules.TrainingSettings,
) -> tuple[models.Weights, ...]:
  """Trains, and shows how far it is; returns the models."""
  schedule = training.make_schedule(method, task, settings)
  rounds = schedule.num_rounds(settings, method.trainer.num_epochs)
  with terminal.progress(what, rounds, 'rounds') as show:
    trained = training.train(
      method,
      task,
      settings,
      schedule=schedule,
      callbacks=training.Callbacks(on_round=lambda done, _: show(done)),
    )
  return method.models(trained.server_state)


# Canaries.


def _add_canaries(one: _Training) -> methods.Method:
  """Returns a method with canaries, which are what it protects.

  Raises:
    UserError: If they cannot be seen in its model.
  """
  if ways.ENTRIES[one.config.privacy].of_examples:
    return canary_examples.add_to_method(one.method)
  return canary_clients.add_to_method(one.method)


def _why_no_canaries(one: _Training) -> str | None:
  """Says why canaries cannot be added to a training; None if they can."""
  if one.method.guarantee.is_extrapolated:
    return 'its ε is that of larger rounds than those that are trained'
  if one.method.predecessor is not None:
    return 'it is trained in stages'
  try:
    _add_canaries(one)
  except errors.UserError as error:
    return str(error)
  return None


def _with_clients(
  one: _Training, is_in: Sequence[bool]
) -> tuple[tasks.Task, schedules.TrainingSettings, int]:
  """Adds canaries to the clients, and as many clients to a round.

  Returns:
    The task, how it is trained, and the number of what is protected.
  """
  settings = one.config.training
  task = canary_clients.add_to_task(one.task, is_in)
  before, total = len(one.task.train.client_ids), len(task.train.client_ids)
  n = settings.clients_per_round
  settings = dataclasses.replace(
    settings, clients_per_round=min(round(n * total / before), total)
  )
  return task, settings, total


def _with_examples(
  one: _Training, is_in: Sequence[bool]
) -> tuple[tasks.Task, schedules.TrainingSettings, int]:
  """Makes canaries the examples of a silo, see `_with_clients`.

  Poisson batches are as large a part of it as of the largest silo. Those of
  shuffled passes are the whole: the model shows the noise of all batches of a
  pass, of which the guarantee counts that of one.
  """
  settings, total = one.config.training, len(is_in)
  size = total
  if settings.poisson_batches:
    largest = int(one.task.train.count_examples()['train'].max())
    batch_size = settings.batch_size or one.task.batch_size
    size = max(1, round(total * min(1.0, batch_size / largest)))
  settings = dataclasses.replace(settings, clients_per_round=0, batch_size=size)
  return canary_examples.make_task(one.task, is_in), settings, total


def _with_canaries(
  one: _Training, most: int
) -> tuple[methods.Method, tasks.Task, schedules.TrainingSettings, np.ndarray]:
  """Adds canaries to a training, with its noise.

  Returns:
    The method, its task, how it is trained, and which canaries are in.
  """
  config = one.config
  number = min(most, canary_clients.most(one.method.model_parameters))
  coins = seeds.generator('canaries', config.training.seed, one.name)
  is_in = coins.random(number) < 0.5
  of_examples = ways.ENTRIES[config.privacy].of_examples
  add = _with_examples if of_examples else _with_clients
  task, training_settings, total = add(one, is_in.tolist())
  training_settings = dataclasses.replace(
    training_settings, rounds_per_evaluation=0
  )
  claimed = one.method.guarantee
  assert claimed is not None
  delta = min(
    claimed.delta, _DELTA_OF_ALL / number, accounting.default_delta(total)
  )
  settings: Any = config.privacy_settings
  settings = dataclasses.replace(
    settings, epsilon=None, noise=claimed.noise, delta=delta
  )
  if of_examples:
    settings = dataclasses.replace(settings, counted_as_poisson=False)
  method = ways.apply(
    config.privacy,
    settings,
    one.name,
    _add_canaries(one),
    task,
    training_settings,
  )
  return method, task, training_settings, is_in


def _find_canaries(one: _Training, most: int) -> dict[str, Json]:
  """Trains with canaries, and bounds ε by how many of them are found."""
  method, task, settings, is_in = _with_canaries(one, most)
  seed = seeds.pair('model', settings.seed)
  (first,) = method.models(method.initial_state(seed))
  (last,) = _train(f'{one.name}: canaries', method, task, settings)
  scores, _ = canary_clients.scores(first, last, len(is_in))
  claimed = method.guarantee
  assert claimed is not None
  bound = one_run.find_bound(scores, is_in, claimed.delta)
  return {
    'canaries': len(is_in),
    'delta': claimed.delta,
    'claimed': claimed.epsilon,
    'bound': bound.epsilon,
    'guesses': bound.guesses,
    'right': bound.right,
    'largest_bound': one_run.largest_bound(len(is_in), claimed.delta),
    'normal_bound': one_run.find_normal_bound(scores, is_in, claimed.delta),
    'scores': scores.tolist(),
    'is_in': is_in.tolist(),
  }


# Shared noise.


def _flat(weights: models.Weights) -> np.ndarray:
  return np.concatenate([np.ravel(weights[name]) for name in sorted(weights)])


def _find_changes(one: _Training) -> list[np.ndarray]:
  """Returns the changes of each model, in the release and in its replays."""
  seed = seeds.pair('model', one.config.training.seed)
  first = one.method.models(one.method.initial_state(seed))
  replays = shared_noise.num_replays(one.method.model_parameters)
  released = [one.last]
  for k in range(1, replays + 1):
    # The noise, and who takes part by chance, follow from the task's name.
    task = dataclasses.replace(one.task, name=f'{one.task.name}, replay {k}')
    what = f'{one.name}: replay {k} of {replays}'
    released.append(_train(what, one.method, task, one.config.training))
  return [
    np.array([_flat(last[place]) - _flat(weights) for last in released])
    for place, weights in enumerate(first)
  ]


def _compare(trainings: Sequence[_Training]) -> list[dict[str, Json]]:
  """Compares all models that were released with each other."""
  changes = {
    (one.name, place): found
    for one in trainings
    for place, found in enumerate(_find_changes(one))
  }
  pairs: list[dict[str, Json]] = []
  for (first, second), (a, b) in zip(
    itertools.combinations(changes, 2),
    itertools.combinations(changes.values(), 2),
  ):
    # The same release twice tells no more than once.
    if a.shape[1] != b.shape[1] or np.array_equal(a[0], b[0]):
      continue
    length = min(len(a), len(b))
    found = shared_noise.compare(a[:length], b[:length])
    pairs.append(
      {
        'releases': [_name(*first), _name(*second)],
        'correlation': found.correlation,
        'p_value': found.p_value,
        'shared': found.is_shared,
      }
    )
  return pairs


def _name(training_name: str, place: int) -> str:
  return f'{training_name}, model {place}' if place else training_name


# Membership.


def _losses(
  one: _Training, population: populations.Population, names: Sequence[str]
) -> np.ndarray:
  """Computes the loss of clients at the best of the models for each of them."""
  clients = seeds.generator('audit', one.config.training.seed).permutation(
    list(population.client_ids)
  )
  clients = clients[:_MOST_CLIENTS]
  model = one.task.model
  losses = []
  with terminal.progress(
    f'{one.name}: losses', len(clients), 'clients'
  ) as show:
    for k, client in enumerate(clients, 1):
      of_sets = [population.sets[name](client) for name in names]
      joined = {
        feature: np.concatenate([part[feature] for part in of_sets])
        for feature in of_sets[0]
      }
      batch = populations.take(joined, slice(_MOST_EXAMPLES))
      if populations.num_examples(batch):
        of_models = [
          float(tf.reduce_mean(model.loss(weights, batch)))
          for weights in one.last
        ]
        losses.append(min(of_models))
      show(k)
  return np.array(losses)


def _find_members(one: _Training) -> dict[str, Json]:
  """Measures how well losses tell who was in a training."""
  task = one.task
  # In silos, what is held out are examples of the same clients.
  held_out = ['evaluation'] if task.cross_silo else list(task.test.sets)
  found = membership.measure(
    _losses(one, task.train, ['train']), _losses(one, task.test, held_out)
  )
  return {
    'of': "silos' examples" if task.cross_silo else 'clients',
    'area': found.area,
    'interval': list(found.interval),
    'false': found.false.tolist(),
    'true': found.true.tolist(),
  }


# The program.


def _list_findings(
  canaries: Mapping[str, Mapping[str, Json]],
  pairs: Sequence[Mapping[str, Json]],
) -> list[str]:
  """Lists what contradicts the guarantees."""
  found = []
  for name, result in canaries.items():
    for key, assuming in (
      ('bound', ''),
      ('normal_bound', ' if noise is normal'),
    ):
      if result[key] > result['claimed']:
        found.append(
          f'{name}: ε is at least {result[key]:.4g}{assuming}, but'
          f' {result["claimed"]:.4g} is claimed (δ {result["delta"]:.2g}).'
        )
  for pair in pairs:
    if pair['shared']:
      first, second = pair['releases']
      found.append(
        f'{first} and {second} share noise: what is left of them has a'
        f' correlation of {pair["correlation"]:.2f}, so that their ε do not'
        ' add up.'
      )
  return found


def _print(
  trainings: Sequence[_Training],
  canaries: Mapping[str, Mapping[str, Json]],
  reasons: Mapping[str, str],
  members: Mapping[str, Mapping[str, Json]],
) -> None:
  table = terminal.make_table(
    'what was found of each training',
    'training',
    numbers=(
      'canaries',
      'δ',
      'claimed ε',
      'at least',
      'if noise is normal',
      'members by loss (95% interval)',
    ),
  )
  for one in trainings:
    found, area = canaries.get(one.name), members[one.name]
    claimed = one.method.guarantee
    cells = ['–', f'{claimed.delta:.2g}', f'{claimed.epsilon:.4g}', '–', '–']
    if found is not None:
      cells = [
        str(found['canaries']),
        f'{found["delta"]:.2g}',
        f'{found["claimed"]:.4g}',
        f'{found["bound"]:.4g}',
        f'{found["normal_bound"]:.4g}',
      ]
    low, high = area['interval']
    table.add_row(
      one.name, *cells, f'{area["area"]:.3f} ({low:.3f} to {high:.3f})'
    )
  terminal.print_table(table)
  for name, reason in reasons.items():
    terminal.say(f'{name}: no canaries: {reason}')


def audit(
  name: str, most_canaries: int, data_dir: str | None
) -> tuple[list[str], pathlib.Path]:
  """Audits the private trainings of a folder, and writes what it finds.

  Args:
    name: FOLDER, of a run or of several, or FOLDER:METHOD.
    most_canaries: The largest number of canaries of a training.
    data_dir: The folder of the data sets.

  Returns:
    What contradicts the guarantees, and the folder of the audit.

  Raises:
    UserError: If there is nothing to audit, before any computing.
  """
  runs = _read_runs(name)
  own = [source for key, source in runs.items() if key not in _started(runs)]
  if all(source.config.privacy == ways.NONE for source in own):
    raise errors.UserError(
      f'{name} was trained without privacy, so that there is nothing to audit.'
      ' Train with --privacy.'
    )
  trainings, earlier = (
    [
      one
      for prefix, source in runs.items()
      if (prefix in _started(runs)) == is_earlier
      for one in _list_trainings(source, prefix, data_dir)
    ]
    for is_earlier in (False, True)
  )
  if not trainings:
    raise errors.UserError(
      f'{name} has released no model that was trained with noise, so that there'
      ' is nothing to audit.'
    )
  execution.set_runtime(own[0].config.run)
  output_dir = own[0].run.path
  if len(own) > 1:
    output_dir = output_dir.parent
  output_dir /= _FOLDER
  folders.check_own(output_dir / _FILE, '"canaries"')
  reasons = {}
  canaries = {}
  # Repeats with other seeds are alike.
  first = {repr(one.method.release): one for one in reversed(trainings)}
  for one in reversed(first.values()):
    reason = _why_no_canaries(one)
    if reason is None:
      canaries[one.name] = _find_canaries(one, most_canaries)
    else:
      reasons[one.name] = reason
  compared = [*trainings, *earlier]
  pairs = _compare(compared) if len(compared) > 1 else []
  members = {one.name: _find_members(one) for one in trainings}
  findings = _list_findings(canaries, pairs)
  with errors.writing(output_dir):
    output_dir.mkdir(exist_ok=True)
  folders.write_json(
    output_dir / _FILE,
    {
      'findings': findings,
      'canaries': canaries,
      'without_canaries': reasons,
      'releases': pairs,
      'membership': members,
    },
  )
  for drawn in audits.draw(canaries, members):
    figure.save(drawn, output_dir)
  _print(trainings, canaries, reasons, members)
  if pairs:
    largest = max(abs(pair['correlation']) for pair in pairs)
    terminal.say(
      f'{words.count(len(pairs), "pairs")} of releases were compared; the'
      f' largest correlation is {largest:.2f}.'
    )
  return findings, output_dir


def _started(runs: Mapping[str, sources.Source]) -> set[str]:
  """Names the runs that others started from."""
  return {
    earlier
    for source in runs.values()
    for earlier in source.config.run.warmstart_from
  }


def main(name: str, most_canaries: int, data_dir: str | None) -> int:
  """Audits a folder; returns 1 if something contradicts its guarantees."""
  findings, output_dir = audit(name, most_canaries, data_dir)
  for finding in findings:
    terminal.say(f'FOUND: {finding}')
  if not findings:
    terminal.say('Nothing contradicts the guarantees.')
  terminal.say(f'Written to {output_dir}')
  return 1 if findings else 0
