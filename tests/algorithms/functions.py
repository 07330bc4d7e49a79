"""Rounds and evaluations of a method by its plain functions, not by TFF.

In a graph of TFF, `tensor == 0` compares objects and is never true. Here the
functions of trainers and personalizers run as TensorFlow's own functions, in
which it compares numbers, so that results differ where a computation does not
do what is written.
"""

import collections
from collections.abc import Sequence
import functools
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import client_work
from algorithms import methods
from algorithms import process
from algorithms import trainers


def _function(function: Any) -> Any:
  return tf.function(function, autograph=False)


def _convert(structure: Any) -> Any:
  return tf.nest.map_structure(tf.convert_to_tensor, structure)


class Functions:
  """Rounds and evaluations of a method, without its computations."""

  def __init__(self, method: methods.Method):
    trainer, personalizer = method.trainer, method.personalizer
    self._method = method
    self._work = _function(
      lambda server, client: trainer.client(trainer.message(server), client)
    )
    self._server = _function(trainer.server)

    def personalize(server: Any, evaluated: Any) -> Any:
      client = trainers.Client(
        evaluated.personalization,
        evaluated.state,
        evaluated.seed,
        evaluated.attributes,
      )
      start = trainer.start(trainer.message(server), client)
      metrics = personalizer.personalize(start, client, evaluated.evaluation)
      for name, data in evaluated.evaluation.items():
        size = client_work.num_examples(data)
        sizes = tf.fill([len(personalizer.candidates)], size)
        for measured, value in start.measured.items():
          metrics[name][measured] = tf.cast(value, tf.float32) * sizes, sizes
      return metrics

    self._personalize = _function(personalize)

  @functools.cached_property
  def _factories(self) -> dict[str, Any]:
    return {
      name: factory or self._method.aggregator
      for name, factory in self._method.trainer.parts.items()
    }

  def _aggregate(self, updates: Sequence[Any]) -> Any:
    """Aggregates updates by TFF's own factories."""
    types = tff.to_type(
      tf.nest.map_structure(
        lambda leaf: tff.TensorType(leaf.dtype.as_numpy_dtype, leaf.shape),
        updates[0],
      )
    )
    aggregate = aggregation.make_process(self._factories, types)
    seeds = [[0, 1]] * len(updates)
    state = aggregate.initialize((seeds[0], collections.OrderedDict()))
    return aggregate.next(state, updates, seeds).result

  def next(
    self, state: process.State, clients: Sequence[trainers.Client]
  ) -> tuple[Any, list[Any]]:
    """Does a round; returns the trainer's S, and the clients' states."""
    server = _convert(state.server)
    results = [self._work(server, _convert(client)) for client in clients]
    updates = [
      collections.OrderedDict(
        (name, _convert(update)) for name, update in result.updates.items()
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
      self._server(server, self._aggregate(updates), sums),
      [
        client.state if result.state is None else result.state
        for client, result in zip(clients, results)
      ],
    )

  def personalize(
    self, state: process.State, clients: Sequence[process.EvaluatedClient]
  ) -> list[Any]:
    """Personalizes and evaluates clients."""
    server = _convert(state.server)
    return [self._personalize(server, _convert(client)) for client in clients]
