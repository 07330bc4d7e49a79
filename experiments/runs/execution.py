"""The parts of a run: its task, its runtime and its methods."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
import ssl

import grpc
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import methods
from algorithms import registry as algorithm_registry
from base import errors
from base import inputs
from base import seeds
from base import words
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import manifests
from experiments.reporting import results_folder
from experiments.runs import sources
from personalization import groups
from personalization.judgement import choosing
from personalization.judgement import measurements
from personalization.privacy import ways
from personalization.rounds import training
from tasks import registry as task_registry
from tasks import task as tasks
from tasks.data import downloads
from tasks.models import models
from tff_runtimes import cohort
from tff_runtimes import native
from tff_runtimes import remote

_NOTHING_ELSE = measurements.MeasurementSettings()


def _check_pretraining(config: configs.Config, data_dir: str | None) -> None:
  """Checks that what a task reads of a pretraining is as it was written."""
  for setting in ('weights', 'tokenizer'):
    name = getattr(config.task_settings, setting, None)
    for path in downloads.places(name, data_dir) if name else ():
      for folder in (path, path.parent):
        if folders.PRETRAINING.find(folder):
          manifests.check(folder, is_whole=False)


def read_task(config: configs.Config, data_dir: str | None) -> tasks.Task:
  """Loads the task, whether it can be trained as configured or not."""
  _check_pretraining(config, data_dir)
  loaded = task_registry.load(
    config.task,
    data_dir=data_dir,
    seed=config.training.seed,
    **dataclasses.asdict(config.task_settings),
  )
  # Others are checked when they are needed. What is wrong with a whole file is
  # found here, however large it is.
  for population in (loaded.train, loaded.validation, loaded.test):
    for client_id in population.client_ids[:1]:
      for load in population.sets.values():
        load(client_id)
  return loaded


def load_task(config: configs.Config, data_dir: str | None) -> tasks.Task:
  """Loads the task, and checks that it can be done as configured."""
  loaded = read_task(config, data_dir)
  num_clients = len(loaded.train.client_ids)
  if config.training.clients_per_round > num_clients:
    raise errors.UserError(
      f'clients_per_round is {config.training.clients_per_round}, but'
      f' {loaded.name} has {words.count(num_clients, "clients")} to train on.'
      ' Name a smaller number, or 0 for all.'
    )
  if config.run.choose == 'each' and not loaded.cross_silo:
    raise errors.UserError(
      f"choose is 'each', but clients of {loaded.name} have no validation"
      " examples of their own to choose by. Set choose to 'all'."
    )
  return loaded


def _read_credentials(
  run: user_settings.RunSettings,
) -> grpc.ChannelCredentials | None:
  """Reads the certificates by which workers and this program are known."""
  if run.remote_ca is None:
    return None
  files = run.remote_ca, run.remote_key, run.remote_certificate
  try:
    contents = [file and inputs.read_bytes(file) for file in files]
  except OSError as error:
    raise errors.UserError(
      f'{error.filename} cannot be read: {error.strerror}. It is named by'
      ' remote_ca, remote_key or remote_certificate.'
    ) from error
  # gRPC would only say that it has no address.
  context = ssl.create_default_context()
  wrong = f'{run.remote_ca}, which remote_ca names,'
  try:
    context.load_verify_locations(run.remote_ca)
    if run.remote_certificate is not None:
      wrong = (
        f'{run.remote_certificate} or {run.remote_key}, which'
        ' remote_certificate and remote_key name,'
      )
      context.load_cert_chain(
        run.remote_certificate, run.remote_key, password=''
      )
  except (ssl.SSLError, ValueError) as error:
    reason = getattr(error, 'reason', None) or error
    raise errors.UserError(
      f'{wrong} is not a PEM file as needed ({reason}). Name another one.'
    ) from error
  return grpc.ssl_channel_credentials(*contents)


def _remote_context(
  run: user_settings.RunSettings,
) -> tff.framework.SyncContext:
  """Connects with the workers, one of which has to be there."""
  credentials = _read_credentials(run)
  try:
    return remote.create_remote_context(
      run.remote_workers, credentials, terminal.say
    )
  except remote.WorkerError as error:
    raise errors.UserError(
      f'remote_workers: {error} Is it started, by python -m'
      ' tff_runtimes.worker, and are the address and the certificates right?'
    ) from error


@functools.cache  # Runs of one process share what it has compiled.
def _cohort_context() -> cohort.CohortContext:
  # A core works on a client; several at work on one operation are slower.
  os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')
  os.environ.setdefault('TF_NUM_INTEROP_THREADS', str(os.cpu_count()))
  return cohort.create_cohort_context(trust_xla=True)


def set_runtime(run: user_settings.RunSettings) -> None:
  """Makes a runtime the one that all TFF computations run on.

  Args:
    run: The settings that name the runtime.

  Raises:
    UserError: If a worker cannot be reached.
  """
  context: tff.framework.SyncContext
  if run.runtime == 'native':
    try:
      context = native.create_native_context(run.allow_exposed)
    except native.ExposedWorkerError as error:
      raise errors.UserError(
        f'runtime: {error} Behind a firewall, add --set allow_exposed=true; or'
        ' use the runtime cohort.'
      ) from error
  elif run.runtime == 'remote':
    context = _remote_context(run)
  else:
    context = _cohort_context()
  tff.framework.set_default_context(context)


@functools.cache  # So that methods that aggregate alike can share a program.
def _aggregator(name: str) -> tff.aggregators.AggregationFactory:
  if name == 'robust':
    return tff.learning.robust_aggregator()
  return aggregation.mean()


def choice(
  run: user_settings.RunSettings, metric: str | None = None
) -> choosing.Choice:
  """Makes how candidates are chosen, by a metric if not by the task's."""
  return choosing.Choice(run.choose == 'each', run.offer_baseline, metric)


def _build(
  name: str,
  config: configs.Config,
  task: tasks.Task,
  measurement: measurements.MeasurementSettings,
) -> methods.Method:
  """Builds one of the methods of a configuration."""
  known = task.attributes.get(tasks.GROUP)
  return algorithm_registry.build(
    name,
    task.model,
    config.method_settings[name],
    _aggregator(config.run.aggregator),
    measurements.evaluation_sets(task, measurement),
    num_clients=len(task.train.client_ids),
    num_groups=len(known.names) if known else 0,
  )


def saved_models(
  source: sources.Source, task: tasks.Task
) -> tuple[models.Weights, ...]:
  """Reads the models that a finished run has trained."""
  name, last_round = source.training()
  trainer = _build(name, source.config, task, _NOTHING_ELSE)
  if not trainer.model_places:
    raise errors.UserError(f'{source.name}: {name} has no global model.')
  source.check_frozen_weights(name, task)
  return training.saved_models(
    trainer,
    results_folder.checkpoint_dir(source.run.path, name),
    last_round,
    like=task.model.init(seeds.pair('model')),
  )


def _warmstart(
  built: Mapping[str, methods.Method],
  runs: Sequence[str],
  task: tasks.Task,
) -> dict[str, methods.Method]:
  """Has the methods begin with the models of finished runs."""
  for name, method in built.items():
    if not method.first.model_places:
      raise errors.UserError(
        f'{name} has no global model that could begin with a saved one. Leave'
        ' out the method, or warmstart_from.'
      )
  try:
    first = [
      weights
      for run in runs
      for weights in saved_models(sources.read(run), task)
    ]
  except errors.UserError as error:
    raise errors.UserError(f'warmstart_from: {error}') from error
  for name, method in built.items():
    num_models = len(method.first.model_places)
    if len(first) != num_models:
      raise errors.UserError(
        f'{name} begins with {words.count(num_models, "models")}, but what'
        f' warmstart_from names has {len(first)}: {", ".join(runs)}.'
      )
  return {
    name: dataclasses.replace(method, first_models=first)
    for name, method in built.items()
  }


def _privately(
  name: str, method: methods.Method, config: configs.Config, task: tasks.Task
) -> methods.Method:
  """Makes a method private, as the configuration has it."""
  if not (method.trains or ways.ENTRIES[config.privacy].of_examples):
    return method
  if config.run.aggregator != 'mean':
    raise errors.UserError(
      f'aggregator must be mean, not {config.run.aggregator}, where training is'
      ' private: privacy aggregates in its own way.'
    )
  made = ways.apply(
    config.privacy,
    config.privacy_settings,
    name,
    method,
    task,
    config.training,
  )
  beyond = made.guarantee.not_covered
  if config.training.rounds_per_evaluation:
    beyond += ('the metrics of validation clients in the course of training',)
  guarantee = dataclasses.replace(made.guarantee, not_covered=beyond)
  return dataclasses.replace(made, guarantee=guarantee)


def compare_sampling(
  config: configs.Config,
  task: tasks.Task,
  built: Mapping[str, methods.Method],
) -> str | None:
  """Says what another way to sample clients would cost, in a sentence.

  Args:
    config: The configuration.
    task: Its task.
    built: Its methods, which are private.

  Returns:
    The sentence, of the first method; None if there is nothing to compare.
  """
  chosen = config.training.client_sampling
  known = ways.ENTRIES[config.privacy].samplings
  others = [other for other in known if other != chosen]
  private = {n: m.guarantee for n, m in built.items() if m.guarantee}
  if len(known) < 2 or not private:
    return None
  other = others[0]
  name, guarantee = next(iter(private.items()))
  settings = config.privacy_settings
  assert isinstance(settings, ways.PrivacySettings)  # As there is a guarantee.
  settings = dataclasses.replace(settings, epsilon=None, noise=guarantee.noise)
  # Not yet private, so that it needs no secret seed.
  method = dataclasses.replace(built[name], guarantee=None)
  of_chosen, of_other = (
    ways.apply(
      config.privacy,
      settings,
      name,
      method,
      task,
      dataclasses.replace(config.training, client_sampling=sampling),
    ).guarantee
    for sampling in (chosen, other)
  )
  if of_chosen.sampling == of_other.sampling or not settings.noise:
    return None
  text = (
    f'{name}: client_sampling={chosen} has ε {of_chosen.epsilon:.3g}; with'
    f' {other}, the same noise would have {of_other.epsilon:.3g}'
  )
  if of_chosen.neighbors != of_other.neighbors:
    text += f' (neighbors: {of_other.neighbors})'
  return f'{text}.'


def build_methods(
  config: configs.Config,
  task: tasks.Task,
  measurement: measurements.MeasurementSettings = _NOTHING_ELSE,
) -> dict[str, methods.Method]:
  """Builds all methods, so that none fails behind the training of another.

  Args:
    config: The configuration.
    task: Its task.
    measurement: What is measured beside the metric; by default nothing.

  Raises:
    UserError: If one cannot do the task.
  """
  built = {
    name: _build(name, config, task, measurement)
    for name in config.method_settings
  }
  for name, method in built.items():
    training.check(method, task, name)
    groups.check(method, task, name)
  if ways.ENTRIES[config.privacy].of_examples:
    if len(measurements.personalization_parts(task, measurement)) > 1:
      raise errors.UserError(
        'personalization_fractions must be empty where examples are protected:'
        ' each is one more use of them, which is not accounted for.'
      )
    if config.training.rounds_per_evaluation:
      raise errors.UserError(
        'rounds_per_evaluation must be 0 where examples are protected: each'
        ' evaluation is one more use of them, which is not accounted for.'
      )
  if config.privacy != ways.NONE:
    built = {
      name: _privately(name, method, config, task)
      for name, method in built.items()
    }
  if config.run.warmstart_from:
    built = _warmstart(built, config.run.warmstart_from, task)
  return built
