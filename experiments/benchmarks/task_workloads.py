"""Training and evaluation of real tasks, and the same in a Keras loop.

Unlike rounds on made-up data, they include reading clients and making batches
of their examples. The bare loop has the first round's batches in memory. All
rounds have the same clients, and thus the same amount of work.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from algorithms import aggregation
from algorithms import methods
from algorithms import registry as algorithm_registry
from base import seeds
from base.aliases import Json
from base.aliases import Structure
from experiments.benchmarks import reference_loops
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.rounds import cohorts
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import registry
from tasks import task as tasks
from tasks.data import populations
from tasks.models import models

# Takes the number of rounds to run, and returns results that should be the same
# for all systems.
Run = Callable[[int], Mapping[str, np.ndarray]]

_SETTINGS = schedules.TrainingSettings(clients_per_round=0)
_NUM_EPOCHS = 20
# Low, as rounding errors grow from step to step, and faster if it is higher.
_LEARNING_RATE = 0.01


def _bare(
  task: tasks.Task, clients: Structure
) -> tuple[reference_loops.Workload, models.Weights]:
  """Returns the task's workload of some clients, and its initial weights."""
  if task.name == 'emnist':
    keras_model, keras_loss = (
      reference_loops.keras_cnn,
      reference_loops.cross_entropy,
    )
  else:
    weights = task.model.init(tf.constant([0, 0]))
    num_words, embedding_size = weights['embedding'].shape
    lstm_size, _ = weights['dense_kernel'].shape
    keras_model, keras_loss = (
      lambda: reference_loops.keras_lstm(num_words, embedding_size, lstm_size),
      reference_loops.word_cross_entropy,
    )
  workload = reference_loops.Workload(
    name=task.name,
    model=task.model,
    clients=clients,
    learning_rate=_LEARNING_RATE,
    keras_model=keras_model,
    keras_loss=keras_loss,
  )
  seed = seeds.pair('model', _SETTINGS.seed)
  return workload, task.model.init(tf.constant(seed))


def _method(task: tasks.Task) -> methods.Method:
  settings = algorithm_registry.make_settings(
    'finetuning',
    {
      'client_learning_rate': _LEARNING_RATE,
      'finetuning_learning_rates': (_LEARNING_RATE,),
      'finetuning_epochs': _NUM_EPOCHS,
    },
  )
  return algorithm_registry.build(
    'finetuning',
    task.model,
    settings,
    aggregation.mean(),
    measurements.evaluation_sets(task),
  )


def rounds(
  name: str,
  num_clients: int,
  data_dir: str,
  bare: bool,
  **task_settings: Json,
) -> Run:
  """Makes rounds of federated averaging on some of a task's clients."""
  task = registry.load(name, data_dir=data_dir, **task_settings)
  some = schedules.sample(
    schedules.TrainingSettings(clients_per_round=num_clients),
    len(task.train.client_ids),
    1,
  )
  population = populations.Population(
    [task.train.client_ids[row] for row in some],
    task.train.sets,
    {name: sizes[some] for name, sizes in task.train.count_examples().items()},
  )
  task = dataclasses.replace(task, train=population)

  if bare:
    _, clients, _ = schedules.Schedule(task, _SETTINGS).make_round(1)
    workload, weights = _bare(task, clients)
    run_round = reference_loops.keras_loop(workload)

    def run_bare(num_rounds: int) -> Mapping[str, np.ndarray]:
      nonlocal weights
      for _ in range(num_rounds):
        weights = run_round(weights)
      return {name: weight.numpy() for name, weight in weights.items()}

    return run_bare

  method = _method(task)
  trained: training.Trained | None = None

  def run(num_rounds: int) -> Mapping[str, np.ndarray]:
    nonlocal trained
    total_rounds = num_rounds + (trained.round if trained else 0)
    settings = dataclasses.replace(_SETTINGS, total_rounds=total_rounds)
    trained = training.train(method, task, settings, start=trained)
    return trained.server_state.server.model

  return run


def evaluations(name: str, num_clients: int, data_dir: str, bare: bool) -> Run:
  """Makes evaluations of clients that fine-tune the initial model."""
  task = registry.load(
    name,
    data_dir=data_dir,
    num_validation_clients=num_clients // 2,
    num_test_clients=num_clients - num_clients // 2,
  )
  if bare:
    sets: dict[str, Structure] = {'personalization': [], 'evaluation': []}
    batch_sizes = task.batch_size, evaluation.BATCH_SIZE
    for clients in evaluation.prepare(task).values():
      for (set_name, data), batch_size in zip(sets.items(), batch_sizes):
        batching = cohorts.Batching(batch_size)
        data += clients.data(set_name, np.arange(len(clients)), batching)
    workload, weights = _bare(task, sets['personalization'])
    finetune = reference_loops.keras_finetuning(
      workload, sets['evaluation'], _NUM_EPOCHS
    )

    def run_bare(num_rounds: int) -> Mapping[str, np.ndarray]:
      for _ in range(num_rounds):
        accuracy, loss = finetune(weights)
      return dict(accuracy=accuracy.numpy(), loss=loss.numpy())

    return run_bare

  method = _method(task)
  trained = training.train(
    method, task, schedules.TrainingSettings(total_rounds=0)
  )

  def run(num_rounds: int) -> Mapping[str, np.ndarray]:
    for _ in range(num_rounds):
      result = evaluation.evaluate(method, trained, task, _SETTINGS)
    return {
      name: np.concatenate([of_clients.values[name] for of_clients in parts])
      for parts in [(result.validation, result.test)]
      for name in ('accuracy', 'loss')
    }

  return run


# The workloads by name. Each takes the folder of the databases, and whether to
# make the bare loop.
WORKLOADS: Mapping[str, Callable[[str, bool], Run]] = {
  'T1': functools.partial(rounds, 'emnist', 50),
  'T2': functools.partial(
    rounds,
    'stackoverflow',
    20,
    # TFF downloads the word counts to this file.
    word_counts='datasets/stackoverflow.word_count',
  ),
  'T3': functools.partial(evaluations, 'emnist', 100),
}


def check(name: str, data_dir: str) -> None:
  """Raises a `UserError` if the data of a workload cannot be loaded."""
  workload = WORKLOADS[name]
  assert isinstance(workload, functools.partial)
  registry.load(workload.args[0], data_dir=data_dir, **workload.keywords)
