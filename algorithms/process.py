"""Makes TFF computations of the pure functions of trainers and personalizers.

It adds all that is the same for every method: placement, broadcast,
aggregation, dropping clients whose update is not finite, and the sums of what
was measured.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import client_work
from algorithms import personalizers
from algorithms import runtime_inputs
from algorithms import trainers
from algorithms.privacy import private_aggregation
from base import aliases
from base import errors
from tasks import task
from tasks.data import batches
from tasks.models import models
from tasks.models import protections

SEED_TYPE = aggregation.SEED_TYPE


class State(NamedTuple):
  """The server's state of a training.

  Attributes:
    server: The trainer's state, S in `Trainer`.
    numbers: The floats of the trainer's settings.
    aggregator: The state of each part's aggregator.
  """

  server: trainers.ServerState
  numbers: runtime_inputs.Numbers
  aggregator: aggregation.State


class Message(NamedTuple):
  """The message of the server to the clients.

  Attributes:
    of_trainer: The trainer's message.
    numbers: The floats of the trainer's settings, packed.
  """

  of_trainer: trainers.Message
  numbers: tf.Tensor


class EvaluatedClient(NamedTuple):
  """A client that is personalized and evaluated.

  Attributes:
    personalization: The examples that it adapts to.
    evaluation: The sets of examples that it is evaluated on, by name.
    state: The state that it keeps from round to round.
    seed: Two int32, for all that is random.
    attributes: Its attributes, such as its group, by name.
  """

  personalization: batches.ClientData
  evaluation: Mapping[str, batches.ClientData]
  state: aliases.ClientState
  seed: aliases.Seed
  attributes: Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Training:
  """The computations of a trainer.

  F is empty, or holds the frozen weights of the model.

  Attributes:
    initialize: `(<seed, seed of noise, numbers, numbers>@SERVER ->
      State@SERVER)`, with the
      numbers of the trainer and those of the aggregator, if it is private.
    initialize_client: `(seed -> C)`, where the seed is the seed of the run and
      the number of the client. Clients to train on have the numbers 0, 1, …;
      held-out clients have the following numbers.
    next: `(<State@SERVER, {Client}@CLIENTS, F@SERVER…> -> <State@SERVER,
      {C}@CLIENTS, training metrics@SERVER>)`.
    parameters_down: The number of parameters that a client receives in a round,
      in the messages of `next`.
    parameters_up: The number of parameters that it sends. If a part of either
      is not needed, as it is for other clients or zero by design (the updates
      of other clusters), the trainer measures the share that is needed:
      'share_received', 'share_sent'.
    model_parameters: The number of parameters of a model of the task.
  """

  initialize: tff.Computation
  initialize_client: tff.Computation
  next: tff.Computation
  parameters_down: int
  parameters_up: int
  model_parameters: int


def is_finite(structure: aliases.Structure) -> tf.Tensor:
  """Tells whether every number in a structure of tensors is finite."""
  leaves = map(tf.convert_to_tensor, tf.nest.flatten(structure))
  floats = [leaf for leaf in leaves if leaf.dtype.is_floating]
  return tf.reduce_all(
    [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in floats]
  )


def count_parameters(type_spec: tff.Type) -> int:
  """Counts the numbers, integers left out, in a value of this type."""
  counts = tff.types.structure_from_tensor_type_tree(
    lambda tensor: (
      np.prod(tensor.shape, dtype=np.int64)
      * np.issubdtype(tensor.dtype, np.floating)
    ),
    type_spec,
  )
  return int(sum(tf.nest.flatten(counts)))


def _attributes_type(
  names: Sequence[str],
) -> collections.OrderedDict[str, tff.Type]:
  size = len(protections.NUMBERS)
  return collections.OrderedDict(
    (
      name,
      tff.TensorType(np.float32, [size])
      if name == task.PROTECTION
      else tff.TensorType(np.int32),
    )
    for name in names
  )


def _frozen_types(model: models.Model) -> list[tff.Type]:
  """Returns the types of further arguments: the frozen weights', if any."""
  if not model.frozen:
    return []
  return [
    tff.to_type(
      collections.OrderedDict(
        (
          name,
          tff.TensorType(
            tf.as_dtype(weight.dtype).as_numpy_dtype, weight.shape
          ),
        )
        for name, weight in model.frozen.items()
      )
    )
  ]


class _Traced:
  """The computations that a trainer shares with its personalizers."""

  def __init__(self, trainer: trainers.Trainer):
    self.numbers_type = runtime_inputs.type_of(
      runtime_inputs.numbers(trainer.settings)
    )
    self.frozen_types = _frozen_types(trainer.model)
    self.frozen_at_server = [
      tff.FederatedType(t, tff.SERVER) for t in self.frozen_types
    ]

    @tff.tensorflow.computation(SEED_TYPE, self.numbers_type)
    def initialize(
      seed: aliases.Seed, numbers: runtime_inputs.Numbers
    ) -> trainers.ServerState:
      return trainer.bind(numbers).initialize(seed)

    @tff.tensorflow.computation(SEED_TYPE)
    def initialize_client(seed: aliases.Seed) -> aliases.ClientState:
      return trainer.initialize_client(seed)

    self.initialize = initialize
    self.initialize_client = initialize_client
    self.server_type = initialize.type_signature.result
    self.client_type = initialize_client.type_signature.result

    @tff.tensorflow.computation(self.server_type, self.numbers_type)
    def make_message(
      server: trainers.ServerState, numbers: runtime_inputs.Numbers
    ) -> Message:
      of_trainer = trainer.bind(numbers).message(server)
      return Message(of_trainer, runtime_inputs.pack(numbers))

    self.make_message = make_message
    self.message_type = make_message.type_signature.result
    self._trainer = trainer

  def bind(self, message: Message, *frozen: models.Weights) -> trainers.Trainer:
    """Returns the trainer with the numbers of a message and frozen weights."""
    like = runtime_inputs.numbers(self._trainer.settings)
    numbers = runtime_inputs.unpack(message.numbers, like)
    return self._trainer.bind(numbers, *frozen)

  def broadcast(
    self, server: tff.Value, numbers: tff.Value, frozen: Sequence[tff.Value]
  ) -> list[tff.Value]:
    """Returns the message and the frozen weights at the clients."""
    message = tff.federated_map(self.make_message, (server, numbers))
    return [tff.federated_broadcast(value) for value in (message, *frozen)]


def _aggregation(
  aggregator: aggregation.Factory | private_aggregation.Private,
  trainer: trainers.Trainer,
  updates_type: Mapping[str, tff.Type],
) -> aggregation.Process:
  """Makes the process that aggregates a trainer's updates."""
  if not isinstance(aggregator, private_aggregation.Private):
    factories = {
      name: aggregator if factory is None else factory
      for name, factory in trainer.parts.items()
    }
    return aggregation.make_process(factories, updates_type)
  if trainer.why_not_private is not None:
    raise errors.UserError(f'It cannot be private: {trainer.why_not_private}.')
  return private_aggregation.make_process(
    aggregator, trainer.parts, updates_type
  )


def _check_parts(
  trainer: trainers.Trainer, updates: Mapping[str, aggregation.Update]
) -> None:
  """Raises an error if a trainer sends other parts than it declares."""
  if {*updates} != {*trainer.parts}:
    raise ValueError(
      f'The clients of {type(trainer).__name__} send the parts'
      f' {", ".join(updates)} of an update, but its `parts` declares'
      f' {", ".join(trainer.parts)}.'
    )


def trace_training(
  trainer: trainers.Trainer,
  aggregator: aggregation.Factory | private_aggregation.Private,
) -> Training:
  """Makes the computations of a trainer.

  Args:
    trainer: The trainer.
    aggregator: Aggregates the parts of updates for which the trainer has no
      aggregator of its own.

  Returns:
    The computations.
  """
  traced = _Traced(trainer)
  client_type = tff.to_type(
    trainers.Client(
      data=batches.client_data_type(trainer.model.example_spec),
      state=traced.client_type,
      seed=SEED_TYPE,
      attributes=_attributes_type(trainer.attributes),
    )
  )

  # One argument that is a tuple, as TFF has no `*frozen`.
  @tff.tensorflow.computation(
    (client_type, traced.message_type, *traced.frozen_types)
  )
  def work(arguments: aliases.Structure) -> aliases.Structure:
    client, message, *frozen = arguments
    bound = traced.bind(message, *frozen).protect(client)
    result = bound.client(message.of_trainer, client)
    _check_parts(trainer, result.updates)
    # A client whose update is not finite sends zeros, and keeps its old state.
    state = client.state if result.state is None else result.state
    finite = is_finite((result.updates, state))
    kept = tf.cast(finite, tf.float32)
    sums = trainers.RoundSums(
      loss=result.loss,
      num_examples=client_work.num_examples(client.data),
      measured=collections.OrderedDict(result.measured),
      num_clients=kept,
      dropped_clients=kept,
    )
    sent = tf.nest.map_structure(
      tf.convert_to_tensor, (collections.OrderedDict(result.updates), sums)
    )
    zeros = tf.nest.map_structure(tf.zeros_like, sent)
    updates, sums = client_work.choose(finite, sent, zeros)
    return collections.OrderedDict(
      updates=updates,
      sums=sums._replace(num_clients=kept, dropped_clients=1.0 - kept),
      state=client_work.choose(finite, state, client.state),
      seed=client.seed,
    )

  work_result = work.type_signature.result
  aggregate = _aggregation(aggregator, trainer, work_result['updates'])
  sums_type = work_result['sums']

  @tff.federated_computation(
    tff.FederatedType(
      (
        SEED_TYPE,
        SEED_TYPE,
        traced.numbers_type,
        aggregate.initialize.type_signature.parameter.member[1],
      ),
      tff.SERVER,
    )
  )
  def initialize(arguments: tff.Value) -> tff.Value:
    seed, noise_seed, numbers, of_aggregator = arguments
    return tff.federated_zip(
      State(
        tff.federated_map(traced.initialize, (seed, numbers)),
        numbers,
        aggregate.initialize(tff.federated_zip((noise_seed, of_aggregator))),
      )
    )

  output_type = aggregate.next.type_signature.result

  @tff.tensorflow.computation(
    traced.server_type,
    traced.numbers_type,
    output_type.result.member,
    output_type.measurements.member,
    sums_type,
  )
  def update_server(
    server: trainers.ServerState,
    numbers: runtime_inputs.Numbers,
    result: trainers.Aggregate,
    measured: aliases.Structure,
    exact: trainers.RoundSums,
  ) -> trainers.ServerState:
    sums = aggregate.sums(exact, measured)
    return trainer.bind(numbers).server(server, result, sums)

  @tff.tensorflow.computation(sums_type, output_type.measurements.member)
  def make_metrics(
    sums: trainers.RoundSums, measured: aliases.Structure
  ) -> Mapping[str, tf.Tensor]:
    metrics = collections.OrderedDict(
      loss=tf.math.divide_no_nan(sums.loss, sums.num_examples),
      num_examples=sums.num_examples,
      num_clients=sums.num_clients,
      dropped_clients=sums.dropped_clients,
    )
    for name, total in sums.measured.items():
      metrics[name] = tf.math.divide_no_nan(total, sums.num_clients)
    metrics.update(aggregate.metrics(measured))
    return metrics

  @tff.federated_computation(
    (
      initialize.type_signature.result,
      tff.FederatedType(client_type, tff.CLIENTS),
      *traced.frozen_at_server,
    )
  )
  def next_round(
    arguments: tff.Value,
  ) -> tuple[tff.Value, tff.Value, tff.Value]:
    state, clients, *frozen = arguments
    result = tff.federated_map(
      work, (clients, *traced.broadcast(state.server, state.numbers, frozen))
    )
    output = aggregate.next(state.aggregator, result['updates'], result['seed'])
    sums = tff.federated_sum(result['sums'])
    server = tff.federated_map(
      update_server,
      (state.server, state.numbers, output.result, output.measurements, sums),
    )
    return (
      tff.federated_zip(State(server, state.numbers, output.state)),
      result['state'],
      tff.federated_map(make_metrics, (sums, output.measurements)),
    )

  @tff.tensorflow.computation(SEED_TYPE)
  def init(seed: aliases.Seed) -> models.Weights:
    return trainer.model.init(seed)

  updates = work_result['updates']
  return Training(
    initialize=initialize,
    initialize_client=traced.initialize_client,
    next=next_round,
    parameters_down=count_parameters(traced.message_type.of_trainer),
    parameters_up=sum(count_parameters(part.value) for part in updates),
    model_parameters=count_parameters(init.type_signature.result),
  )


def trace_personalization(
  personalizer: personalizers.Personalizer, evaluation_sets: Sequence[str]
) -> tff.Computation:
  """Makes the computation that personalizes and evaluates clients.

  Args:
    personalizer: The personalizer.
    evaluation_sets: The names of the sets that clients are evaluated on.

  Returns:
    `(<S@SERVER, numbers@SERVER, numbers@SERVER, {EvaluatedClient}@CLIENTS,
    F@SERVER…> -> {<set: <metric: statistics>>}@CLIENTS)`, with the numbers of
    the trainer and those of the personalizer; each statistic has a first axis
    of candidates.
  """
  trainer = personalizer.trainer
  traced = _Traced(trainer)
  own_numbers = runtime_inputs.numbers(personalizer.settings)
  own_numbers_type = runtime_inputs.type_of(own_numbers)
  data_type = batches.client_data_type(trainer.model.example_spec)
  client_type = tff.to_type(
    EvaluatedClient(
      personalization=data_type,
      evaluation=collections.OrderedDict(
        (name, data_type) for name in evaluation_sets
      ),
      state=traced.client_type,
      seed=SEED_TYPE,
      attributes=_attributes_type(attribute_names(personalizer)),
    )
  )

  @tff.tensorflow.computation(
    (
      client_type,
      traced.message_type,
      own_numbers_type,
      *traced.frozen_types,
    )
  )
  def work(arguments: aliases.Structure) -> client_work.Metrics:
    evaluated, message, own_numbers, *frozen = arguments
    client = trainers.Client(
      evaluated.personalization,
      evaluated.state,
      evaluated.seed,
      evaluated.attributes,
    )
    bound = traced.bind(message, *frozen).protect(client)
    start = bound.start(message.of_trainer, client)
    if bound.model.recomputes_statistics:
      weights, shared = (
        client_work.recompute_statistics(bound.model, w, client.data)
        if w
        else w
        for w in (start.weights, start.shared)
      )
      start = start._replace(weights=weights, shared=shared)
    metrics = personalizer.bind(bound, own_numbers).personalize(
      start, client, evaluated.evaluation
    )
    for name, data in evaluated.evaluation.items():
      # What is measured of the start becomes a metric that is the same for all
      # examples and candidates.
      size = client_work.num_examples(data)
      sizes = tf.fill([len(personalizer.candidates)], size)
      for measured, value in start.measured.items():
        metrics[name][measured] = tf.cast(value, tf.float32) * sizes, sizes
    return metrics

  @tff.federated_computation(
    (
      tff.FederatedType(traced.server_type, tff.SERVER),
      tff.FederatedType(traced.numbers_type, tff.SERVER),
      tff.FederatedType(own_numbers_type, tff.SERVER),
      tff.FederatedType(client_type, tff.CLIENTS),
      *traced.frozen_at_server,
    )
  )
  def personalize(arguments: tff.Value) -> tff.Value:
    server, numbers, own_numbers, clients, *frozen = arguments
    message, *others = traced.broadcast(server, numbers, frozen)
    return tff.federated_map(
      work,
      (clients, message, tff.federated_broadcast(own_numbers), *others),
    )

  return personalize


def attribute_names(personalizer: personalizers.Personalizer) -> list[str]:
  """Lists the clients' attributes that a method needs."""
  return sorted({*personalizer.trainer.attributes, *personalizer.needs})
