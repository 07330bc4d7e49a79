"""Makes the pure functions of a method into TFF computations.

A method is a few functions of tensors: how the server starts, what a client
does in a round, what the server does with the mean of the clients' updates, and
how a client is personalized. What surrounds them is the same for all methods
and is here: placement, broadcast, aggregation, the handling of clients whose
update is not finite, and the sums of what was measured.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from algorithms import algorithm
from tasks.data import batches
from tasks.models import model as model_lib

# The hyperparameters that are numbers, by name.
Numbers = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ClientResult:
  """What a client has at the end of a round.

  Attributes:
    update: What it sends.
    weight: How much that counts in the mean; of the form that the aggregator
      wants, one number unless it is an aggregator of several updates.
    state: What it keeps for its next round.
    loss: The sum of its examples' losses as it trained.
    num_examples: How many examples that were.
    measured: What else is measured, scalars by name. The server is given their
      sums over the clients, and their means are among the training metrics.
  """

  update: Any
  weight: Any
  state: Any
  loss: tf.Tensor
  num_examples: tf.Tensor
  measured: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Method:
  """A method as pure functions; S is the server's, C a client's state.

  Attributes:
    initialize: From a seed and the numbers to S.
    message: What of S is sent to the clients, M.
    client: From M, the numbers, data, C and a seed to a `ClientResult`.
    server: From S, the numbers, the mean update and the sums over the clients
      ('loss', 'num_examples', 'num_clients', 'dropped_clients', 'measured') to
      the next S.
    personalize: From M, the numbers, C, the personalization set, the evaluation
      sets by name, and a seed to each set's metrics, as
      `client_work.evaluate` gives them, with an axis of candidates.
    initialize_client: From a seed to C; by default a client keeps nothing.
    models: Where in S the models are that a training can begin with, as
      `algorithm.Algorithm` has it.
  """

  initialize: Callable[[tf.Tensor, Numbers], Any]
  message: Callable[[Any], Any]
  client: Callable[[Any, Numbers, Any, Any, tf.Tensor], ClientResult]
  server: Callable[[Any, Numbers, Any, Any], Any]
  personalize: Callable[[Any, Numbers, Any, Any, Any, tf.Tensor], Any]
  initialize_client: Callable[[tf.Tensor], Any] = lambda seed: (
    collections.OrderedDict()
  )
  models: Sequence[tuple[str | int, ...]] = ()


def is_finite(structure: Any) -> tf.Tensor:
  """Whether every number in a structure of tensors is finite."""
  leaves = map(tf.convert_to_tensor, tf.nest.flatten(structure))
  floats = [leaf for leaf in leaves if leaf.dtype.is_floating]
  return tf.reduce_all(
    [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in floats]
  )


def choose(condition: tf.Tensor, first: Any, second: Any) -> Any:
  """`first` if the condition holds, or else `second`, of the same structure."""
  return tf.nest.map_structure(
    lambda a, b: tf.where(condition, a, b), first, second
  )


def count_parameters(type_spec: tff.Type) -> int:
  """How many numbers that are not integers a value of this type has."""
  counts = tff.types.structure_from_tensor_type_tree(
    lambda tensor: (
      np.prod(tensor.shape, dtype=np.int64)
      * np.issubdtype(tensor.dtype, np.floating)
    ),
    type_spec,
  )
  return int(sum(tf.nest.flatten(counts)))


def _data_type(model: model_lib.Model) -> tff.StructType:
  return batches.client_data_type(model.example_spec)


def build(
  method: Method,
  *,
  model: model_lib.Model,
  hyperparameters: Any,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
  **description: Any,
) -> algorithm.Algorithm:
  """Makes a method of its functions.

  Args:
    method: The method's functions.
    model: The model they train.
    hyperparameters: Their hyperparameters, a dataclass.
    aggregator: Makes the mean of the clients' updates: private, robust, …
    evaluation_sets: The names of the sets that clients are evaluated on.
    **description: What an `algorithm.Algorithm` has beside computations and
      hyperparameters: candidates, baseline, training, …

  Returns:
    The method.
  """
  numbers = algorithm.numbers(hyperparameters)

  @functools.cache
  def trace() -> algorithm.Computations:
    return _trace(method, model, numbers, aggregator, evaluation_sets)

  return algorithm.Algorithm(
    trace=trace,
    structure=algorithm.structure(hyperparameters),
    hyperparameters=numbers,
    models=tuple(('server', *place) for place in method.models),
    **description,
  )


def _trace(
  method: Method,
  model: model_lib.Model,
  numbers: Mapping[str, np.ndarray],
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Computations:
  """The TFF computations of `method`."""
  numbers_type = tff.to_type(
    collections.OrderedDict(
      (name, tff.TensorType(np.float32, value.shape))
      for name, value in numbers.items()
    )
  )
  data_type = _data_type(model)

  @tff.tensorflow.computation(algorithm.SEED_TYPE, numbers_type)
  def initialize_server(seed, numbers):
    return method.initialize(seed, numbers)

  @tff.tensorflow.computation(algorithm.SEED_TYPE)
  def initialize_client(seed):
    return method.initialize_client(seed)

  server_type = initialize_server.type_signature.result
  client_type = initialize_client.type_signature.result

  @tff.tensorflow.computation(server_type, numbers_type)
  def make_message(server, numbers):
    return method.message(server), numbers

  message_type = make_message.type_signature.result

  @tff.tensorflow.computation(
    message_type,
    collections.OrderedDict(
      data=data_type, state=client_type, seed=algorithm.SEED_TYPE
    ),
  )
  def work(message, client):
    result = method.client(
      *message, client['data'], client['state'], client['seed']
    )
    # A client whose update is not finite sends nothing, and forgets the round.
    finite = is_finite((result.update, result.weight, result.state))
    kept = tf.cast(finite, tf.float32)
    sent = collections.OrderedDict(
      update=result.update,
      weight=result.weight,
      sums=collections.OrderedDict(
        loss=result.loss,
        num_examples=result.num_examples,
        measured=collections.OrderedDict(result.measured),
      ),
    )
    sent = choose(finite, sent, tf.nest.map_structure(tf.zeros_like, sent))
    sent['sums'] |= dict(num_clients=kept, dropped_clients=1.0 - kept)
    return collections.OrderedDict(
      sent, state=choose(finite, result.state, client['state'])
    )

  update_type = work.type_signature.result['update']
  weighted = isinstance(aggregator, tff.aggregators.WeightedAggregationFactory)
  if weighted:
    aggregate = aggregator.create(
      update_type, work.type_signature.result['weight']
    )
  else:
    aggregate = aggregator.create(update_type)

  def make_state(server, numbers, aggregator_state):
    return collections.OrderedDict(
      server=server, hyperparameters=numbers, aggregator=aggregator_state
    )

  @tff.federated_computation(
    tff.FederatedType((algorithm.SEED_TYPE, numbers_type), tff.SERVER)
  )
  def initialize(arguments):
    return tff.federated_zip(
      make_state(
        tff.federated_map(initialize_server, arguments),
        arguments[1],
        aggregate.initialize(),
      )
    )

  state_type = initialize.type_signature.result

  sums_type = work.type_signature.result['sums']

  @tff.tensorflow.computation(server_type, numbers_type, update_type, sums_type)
  def update_server(server, numbers, update, sums):
    return method.server(server, numbers, update, sums)

  @tff.tensorflow.computation(sums_type)
  def make_metrics(sums):
    measured = sums.pop('measured')
    for name, total in measured.items():
      sums[name] = tf.math.divide_no_nan(total, sums['num_clients'])
    sums['loss'] = tf.math.divide_no_nan(sums['loss'], sums['num_examples'])
    return sums

  @tff.federated_computation(
    state_type,
    tff.FederatedType(work.type_signature.parameter[1], tff.CLIENTS),
  )
  def next_round(state, clients):
    server, numbers = state['server'], state['hyperparameters']
    message = tff.federated_broadcast(
      tff.federated_map(make_message, (server, numbers))
    )
    result = tff.federated_map(work, (message, clients))
    weight = [result['weight']] if weighted else []
    mean = aggregate.next(state['aggregator'], result['update'], *weight)
    sums = tff.federated_sum(result['sums'])
    new_server = tff.federated_map(
      update_server, (server, numbers, mean.result, sums)
    )
    return (
      tff.federated_zip(make_state(new_server, numbers, mean.state)),
      result['state'],
      tff.federated_map(make_metrics, sums),
    )

  @tff.tensorflow.computation(
    message_type,
    collections.OrderedDict(
      state=client_type,
      personalization=data_type,
      evaluation=collections.OrderedDict(
        (name, data_type) for name in evaluation_sets
      ),
      seed=algorithm.SEED_TYPE,
    ),
  )
  def personalize_client(message, client):
    return method.personalize(
      *message,
      client['state'],
      client['personalization'],
      client['evaluation'],
      client['seed'],
    )

  @tff.federated_computation(
    state_type,
    tff.FederatedType(
      personalize_client.type_signature.parameter[1], tff.CLIENTS
    ),
  )
  def personalize(state, clients):
    message = tff.federated_broadcast(
      tff.federated_map(
        make_message, (state['server'], state['hyperparameters'])
      )
    )
    return tff.federated_map(personalize_client, (message, clients))

  return algorithm.Computations(
    initialize=initialize,
    initialize_client=initialize_client,
    next=next_round,
    personalize=personalize,
    parameters_down=count_parameters(message_type[0]),
    parameters_up=count_parameters(update_type),
  )
