"""FedAvg and its generalization to any server optimizer (Reddi et al. 2021).

McMahan et al. 2017, algorithm 1, with the clients' mean update given to the
server's optimizer as if it were a gradient:

  client k:    w_k <- w;  for each batch b: w_k <- w_k - eta grad loss(w_k; b)
               Delta_k <- w - w_k
  the server:  w <- ServerOptimizer(w, sum_k n_k Delta_k / sum_k n_k)

With SGD at the server this is FedAvg, with momentum FedAvgM, with Adam FedAdam.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import algorithm
from algorithms import candidates
from algorithms import client_work
from algorithms import process
from algorithms import server_optimizers
from base import settings
from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class Hyperparameters(settings.Settings):
  """Those that are no floats shape the program."""

  client_learning_rate: float = settings.field(
    0.1, "The learning rate of the clients' SGD.", minimum=0
  )
  server_optimizer: str = settings.field(
    'sgd',
    "What the server does with the clients' mean update.",
    choices=server_optimizers.NAMES,
  )
  server_learning_rate: float = settings.field(
    1.0, 'The learning rate of the server.', minimum=0
  )
  server_momentum: float = settings.field(
    0.9, "The server's momentum.", minimum=0, maximum=1
  )
  server_beta_1: float = settings.field(
    0.9, "Adam's decay of the first moment.", minimum=0, maximum=1
  )
  server_beta_2: float = settings.field(
    0.99, "Adam's decay of the second moment.", minimum=0, maximum=1
  )
  server_epsilon: float = settings.field(
    1e-3, 'What Adam adds to the root of the second moment.', above=0
  )
  client_weighting: str = settings.field(
    'examples',
    'Whether a client counts by its number of examples, or as one.',
    choices=('examples', 'uniform'),
  )


def client_weight(hyperparameters: Hyperparameters, data: Any) -> tf.Tensor:
  """n_k, or 1."""
  if hyperparameters.client_weighting == 'uniform':
    return tf.constant(1.0)
  return client_work.num_examples(data)


def training_functions(
  model: model_lib.Model, hyperparameters: Hyperparameters
) -> dict[str, Any]:
  """The functions of `process.Method` that train the global model."""
  optimizer = server_optimizers.build(hyperparameters.server_optimizer)

  def initialize(seed: tf.Tensor, numbers: process.Numbers) -> Any:
    weights = model.init(seed)
    return collections.OrderedDict(
      model=weights, optimizer=optimizer.initialize(weights, numbers)
    )

  def client(
    weights: model_lib.Weights,
    numbers: process.Numbers,
    data: Any,
    state: Any,
    seed: tf.Tensor,
  ) -> process.ClientResult:
    del seed  # Nothing here is random.
    trained, loss = client_work.train(
      model, weights, data, client_work.sgd(numbers['client_learning_rate'])
    )
    return process.ClientResult(
      update=client_work.difference(weights, trained),
      weight=client_weight(hyperparameters, data),
      state=state,
      loss=loss,
      num_examples=client_work.num_examples(data),
    )

  def server(
    server: Any, numbers: process.Numbers, update: Any, sums: Any
  ) -> Any:
    del numbers, sums  # The optimizer's numbers are in its state.
    state, weights = optimizer.next(
      server['optimizer'], server['model'], update
    )
    return collections.OrderedDict(model=weights, optimizer=state)

  return dict(
    initialize=initialize,
    message=lambda server: server['model'],
    client=client,
    server=server,
    models=(('model',),),
  )


def training_description(hyperparameters: Hyperparameters) -> str:
  """Two methods of the same description train the same global model."""
  names = [field.name for field in dataclasses.fields(Hyperparameters)]
  values = {name: getattr(hyperparameters, name) for name in names}
  return f'fedavg {values}'


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds FedAvg; each client is evaluated at the global model."""

  def personalize(weights, numbers, state, personalization, evaluation, seed):
    del numbers, state, personalization, seed
    return client_work.only_candidate(
      client_work.evaluate_sets(model, weights, evaluation)
    )

  return process.build(
    process.Method(
      **training_functions(model, hyperparameters), personalize=personalize
    ),
    model=model,
    hyperparameters=hyperparameters,
    aggregator=aggregator,
    evaluation_sets=evaluation_sets,
    candidates=(candidates.Candidate(text='global'),),
    baseline=0,
    training=training_description(hyperparameters),
  )
