"""What it takes to carry out a configuration, in whatever program."""

# Nothing that imports TensorFlow Federated is imported here, see run.py.
import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import logging
import os
import pathlib
from typing import TYPE_CHECKING
import warnings

from absl import logging as absl_logging

from algorithms import registry as algorithm_registry
from base import errors
from base import seeds
from experiments.configuration import config as config_lib
from tasks import registry as task_registry

if TYPE_CHECKING:
  import tensorflow_federated as tff

  from algorithms import method as methods
  from personalization import evaluation
  from personalization import training
  from tasks import task as task_lib
  from tasks.models import models


def silence_imports() -> None:
  """Keeps what TensorFlow has to say about itself from the terminal."""
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  absl_logging.set_verbosity(absl_logging.ERROR)
  logging.getLogger('tensorflow').setLevel(logging.ERROR)
  warnings.filterwarnings('ignore', category=DeprecationWarning)
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')


def load_task(
  config: config_lib.Config, data_dir: str | None
) -> 'task_lib.Task':
  """Loads the task, and checks that it can be done as configured."""
  task = task_registry.load(
    config.task,
    data_dir=data_dir,
    seed=config.options.seed,
    **dataclasses.asdict(config.task_parameters),
  )
  there_are = len(task.train.client_ids)
  if config.options.clients_per_round > there_are:
    raise errors.UserError(
      f'clients_per_round is {config.options.clients_per_round}, but'
      f' {task.name} has {there_are} clients to train on. Name a smaller'
      ' number, or 0 for all.'
    )
  if config.settings.choose == 'each' and not task.cross_silo:
    raise errors.UserError(
      f"choose is 'each', but clients of {task.name} have no validation"
      " examples of their own to choose by. Set choose to 'all'."
    )
  return task


def set_runtime(name: str) -> None:
  """Makes a runtime the one that all TFF computations run on."""
  import tensorflow_federated as tff

  if name == 'native':
    from runtimes import native

    context = native.create_native_context()
  else:
    from runtimes import cohort

    # A core works on a client; that several work on one operation is slower.
    os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')
    os.environ.setdefault('TF_NUM_INTEROP_THREADS', str(os.cpu_count()))

    context = cohort.create_cohort_context()
  tff.framework.set_default_context(context)


@functools.cache  # So that methods that aggregate alike can share a program.
def _aggregator(name: str) -> 'tff.aggregators.AggregationFactory':
  import tensorflow_federated as tff

  if name == 'robust':
    return tff.learning.robust_aggregator()
  # The mean over a round whose clients were all dropped is zero.
  return tff.aggregators.MeanFactory(no_nan_division=True)


def choice(settings: config_lib.Settings) -> 'evaluation.Choice':
  """How the settings have candidates chosen."""
  from personalization import evaluation

  return evaluation.Choice(settings.choose == 'each', settings.offer_baseline)


def _build(
  name: str,
  config: config_lib.Config,
  task: 'task_lib.Task',
  measured: 'evaluation.Measured | None' = None,
) -> 'methods.Method':
  """Builds one of the methods of a configuration."""
  from personalization import evaluation

  return algorithm_registry.build(
    name,
    task.model,
    config.hyperparameters[name],
    _aggregator(config.settings.aggregator),
    evaluation.evaluation_sets(task, measured or evaluation.Measured()),
    num_clients=len(task.train.client_ids),
  )


def _trained_in(source: str) -> tuple[pathlib.Path, str, int]:
  """The folder of a finished run, the training in it, and its last round.

  Args:
    source: FOLDER or FOLDER:METHOD.
  """
  from experiments.reporting import report

  path, method = pathlib.Path(source), None
  if ':' in path.name and not path.is_dir():
    folder, _, method = source.rpartition(':')
    path = pathlib.Path(folder)
  methods = report.read(path).methods
  if method is not None and method not in methods:
    raise errors.unknown('method', method, methods)
  rounds = {
    own['training']: own['rounds']
    for name, own in methods.items()
    if own['training'] is not None and method in (None, name)
  }
  if not rounds:
    raise errors.UserError(f'{source} has trained no global model.')
  if len(rounds) > 1:
    raise errors.UserError(
      f'{path} has trained {" and ".join(rounds)}. Name one of them, as in'
      f' {path}:{next(iter(rounds))}.'
    )
  return path, *rounds.popitem()


def _saved_models(
  source: str, task: 'task_lib.Task'
) -> tuple['models.Weights', ...]:
  """The models that a finished run has trained."""
  from experiments.reporting import output
  from personalization import training

  path, name, last_round = _trained_in(source)
  trainer = _build(name, config_lib.from_file(path / output.CONFIG), task)
  if not trainer.model_places:
    raise errors.UserError(f'{source}: {name} has no global model.')
  return training.saved_models(
    trainer,
    output.checkpoint_dir(path, name),
    last_round,
    like=task.model.init(seeds.pair('model')),
  )


def _warmstart(
  algorithms: Mapping[str, 'methods.Method'],
  sources: Sequence[str],
  task: 'task_lib.Task',
) -> dict[str, 'methods.Method']:
  """Has the methods begin with the models of finished runs."""
  for name, algorithm in algorithms.items():
    if not algorithm.model_places:
      raise errors.UserError(
        f'{name} has no global model that could begin with a saved one. Leave'
        ' out the method, or warmstart_from.'
      )
  try:
    models = [model for path in sources for model in _saved_models(path, task)]
  except errors.UserError as error:
    raise errors.UserError(f'warmstart_from: {error}') from error
  for name, algorithm in algorithms.items():
    if len(models) != len(algorithm.model_places):
      raise errors.UserError(
        f'{name} begins with {len(algorithm.model_places)} models, but there are'
        f' {len(models)} in what warmstart_from names: {", ".join(sources)}.'
      )
  return {
    name: dataclasses.replace(algorithm, first_models=models)
    for name, algorithm in algorithms.items()
  }


def build_algorithms(
  config: config_lib.Config,
  task: 'task_lib.Task',
  measured: 'evaluation.Measured | None' = None,
) -> dict[str, 'methods.Method']:
  """Builds all methods, so that none fails behind the training of another.

  Args:
    config: The configuration.
    task: Its task.
    measured: What is measured beside the metric; nothing if it is not given.

  Returns:
    The methods by name.

  Raises:
    UserError: If one cannot do the task.
  """
  algorithms = {
    name: _build(name, config, task, measured)
    for name in config.hyperparameters
  }
  for name, algorithm in algorithms.items():
    if not (task.cross_silo or algorithm.personalizes_new_clients):
      raise errors.UserError(
        f'{name} can personalize only clients that it was trained on, which'
        f' those to be judged are not in {task.name}. Take a task where they'
        ' are, as school, or leave the method out.'
      )
  if config.settings.warmstart_from:
    algorithms = _warmstart(algorithms, config.settings.warmstart_from, task)
  return algorithms


def hand_over(
  trained: 'training.Trained', algorithm: 'methods.Method'
) -> 'training.Trained':
  """Gives a method what another of the same training has learned.

  What they share does not include how a client is personalized, and the numbers
  that this takes are in the server's state as well.
  """
  state = collections.OrderedDict(
    trained.server_state, hyperparameters=algorithm.hyperparameters
  )
  return dataclasses.replace(trained, server_state=state)
