"""Rounds and evaluations of a method by its plain functions, not by TFF.

In a graph of TFF, `tensor == 0` compares objects and is never true. Here the
functions of trainers and personalizers run operation by operation, where it
compares numbers, so that results differ where a computation does not do what is
written.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import client_work
from algorithms import methods
from algorithms import process
from algorithms import runtime_inputs
from algorithms import trainers


def bind(half: Any, *args: Any) -> Any:
  """Returns a trainer or a personalizer whose numbers are tensors."""
  return half.bind(*args, convert(runtime_inputs.numbers(half.settings)))


def convert(structure: Any) -> Any:
  """Makes tensors of the leaves of a structure."""
  return tf.nest.map_structure(tf.convert_to_tensor, structure)


def _aggregate(method: methods.Method, updates: Sequence[Any]) -> Any:
  """Aggregates updates by TFF's own factories."""
  factories = {
    name: factory or method.aggregator
    for name, factory in method.trainer.parts.items()
  }
  types = tff.to_type(
    tf.nest.map_structure(
      lambda leaf: tff.TensorType(leaf.dtype.as_numpy_dtype, leaf.shape),
      updates[0],
    )
  )
  aggregate = aggregation.make_process(factories, types)
  seeds = [[0, 1]] * len(updates)
  state = aggregate.initialize((seeds[0], collections.OrderedDict()))
  return convert(aggregate.next(state, updates, seeds).result)


def next(
  method: methods.Method,
  state: process.State,
  clients: Sequence[trainers.Client],
) -> tuple[Any, list[Any]]:
  """Does a round; returns the trainer's S, and the clients' states."""
  trainer, server = bind(method.trainer), convert(state.server)
  message = trainer.message(server)
  results = [trainer.client(message, convert(client)) for client in clients]
  updates = [
    collections.OrderedDict(
      (name, convert(update)) for name, update in result.updates.items()
    )
    for result in results
  ]
  sums = trainers.RoundSums(
    loss=sum(result.loss for result in results),
    num_examples=sum(
      client_work.num_examples(client.data) for client in clients
    ),
    measured={
      name: sum(result.measured[name] for result in results)
      for name in results[0].measured
    },
    num_clients=tf.constant(float(len(clients))),
    dropped_clients=tf.constant(0.0),
  )
  return (
    trainer.server(server, _aggregate(method, updates), sums),
    [
      client.state if result.state is None else result.state
      for client, result in zip(clients, results)
    ],
  )


def personalize(
  method: methods.Method,
  state: process.State,
  clients: Sequence[process.EvaluatedClient],
) -> list[Any]:
  """Personalizes and evaluates clients."""
  trainer = bind(method.trainer)
  personalizer = bind(method.personalizer, trainer)
  message = trainer.message(convert(state.server))

  def work(evaluated: Any) -> Any:
    client = trainers.Client(
      evaluated.personalization,
      evaluated.state,
      evaluated.seed,
      evaluated.attributes,
    )
    start = trainer.start(message, client)
    metrics = personalizer.personalize(start, client, evaluated.evaluation)
    for name, data in evaluated.evaluation.items():
      size = client_work.num_examples(data)
      sizes = tf.fill([len(method.candidates)], size)
      for measured, value in start.measured.items():
        metrics[name][measured] = tf.cast(value, tf.float32) * sizes, sizes
    return metrics

  return [work(convert(client)) for client in clients]
