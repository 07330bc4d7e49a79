"""HypCluster, also IFCA: a model for each of k clusters of clients.

Mansour et al. 2020, algorithm 1 (HypCluster), and Ghosh et al. 2020, algorithm
1 with model averaging (IFCA); Motley, sections 3.1 and 4.2. In a round,

  client i:    j <- argmin_j F_i(w_j), over its own training batches
               trains w_j as in FedAvg and sends its update
  the server:  for each cluster j that a client picked:
                 w_j <- ServerOptimizer_j(w_j, mean of these clients' updates)

A cluster that nobody picked stays as it is, and so does its optimizer: else it
would drift on its momentum. A client adapts by picking the cluster of lowest
loss on its personalization set.

All k models start at random, or they would be one. Often all clients still end
up in one cluster ("mode collapse"), so Motley starts warm: for some rounds each
model is trained by itself by FedAvg, on all clients, and the optimizers start
anew after that. Warm for all rounds this is an ensemble of k FedAvg models, of
which each client uses its best. The k models can be saved ones as well.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import algorithm
from algorithms import candidates
from algorithms import client_work
from algorithms import fedavg
from algorithms import process
from algorithms import server_optimizers
from base import settings
from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class Hyperparameters(fedavg.Hyperparameters):
  """Those of FedAvg, and of the clusters."""

  num_clusters: int = settings.field(2, 'The number of clusters, k.', minimum=1)
  # Not an integer: those shape the program, and this need not.
  warmstart_rounds: float = settings.field(
    0.0,
    'For how many rounds FedAvg trains each cluster by itself on all clients,'
    ' before clients pick one.',
    minimum=0,
  )


def _at(stacked: Any, j: int | tf.Tensor) -> Any:
  """One of several structures that are stacked."""
  # Not leaf[j]: XLA would compile the program anew for each j.
  return tf.nest.map_structure(lambda leaf: tf.gather(leaf, j), stacked)


def pick(
  model: model_lib.Model,
  weights: model_lib.Weights,
  data: Any,
  num_clusters: int,
) -> tf.Tensor:
  """argmin_j F(w_j) on a client's data; the first on a tie."""

  def losses(examples: Any, mask: tf.Tensor) -> tf.Tensor:
    # What they would be divided by is the same for all clusters.
    return tf.stack(
      [
        client_work.total_loss(model, _at(weights, j), examples, mask)[0]
        for j in range(num_clusters)
      ]
    )

  losses = client_work.sum_over_batches(data, losses)
  # What has diverged is nobody's best.
  losses = tf.where(tf.math.is_finite(losses), losses, losses.dtype.max)
  return tf.argmin(losses, output_type=tf.int32)


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds HypCluster; each client is evaluated at the cluster it picks."""
  optimizer = server_optimizers.build(hyperparameters.server_optimizer)
  clusters = range(hyperparameters.num_clusters)

  def initialize(seed: tf.Tensor, numbers: process.Numbers) -> Any:
    init = model.random_init or model.init
    seeds = tf.random.experimental.stateless_split(seed, len(clusters))
    models = tuple(init(seeds[j]) for j in clusters)
    return collections.OrderedDict(
      models=models,
      optimizers=tuple(optimizer.initialize(w, numbers) for w in models),
      round=0,
    )

  def message(server: Any) -> Any:
    return collections.OrderedDict(
      models=tf.nest.map_structure(
        lambda *leaves: tf.stack(leaves), *server['models']
      ),
      round=server['round'],
    )

  def is_warmstart(round_num: tf.Tensor, numbers: process.Numbers) -> tf.Tensor:
    return tf.cast(round_num, tf.float32) < numbers['warmstart_rounds']

  def client(
    message: Any,
    numbers: process.Numbers,
    data: Any,
    state: Any,
    seed: tf.Tensor,
  ) -> process.ClientResult:
    del seed  # Nothing here is random.
    models = message['models']
    picked = pick(model, models, data, len(clusters))
    is_picked = tf.equal(tf.range(len(clusters)), picked)
    warmstart = is_warmstart(message['round'], numbers)
    step = client_work.sgd(numbers['client_learning_rate'])

    def body(i: tf.Tensor, updates: Any, total: tf.Tensor) -> Any:
      j = tf.where(warmstart, i, picked)
      trained, loss = client_work.train(model, _at(models, j), data, step)

      def put(update: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        here = tf.equal(tf.range(len(clusters)), j)
        shape = [-1] + [1] * update.shape.rank
        return tf.where(tf.reshape(here, shape), update, updates)

      update = client_work.difference(_at(models, j), trained)
      updates = tf.nest.map_structure(put, update, updates)
      return i + 1, updates, total + loss

    # Each in turn in the warm start, the picked one alone after it.
    turns = tf.where(warmstart, len(clusters), 1)
    _, updates, loss = tf.while_loop(
      lambda i, *_: i < turns,
      body,
      (0, tf.nest.map_structure(tf.zeros_like, models), tf.constant(0.0)),
    )
    weight = tf.where(
      tf.logical_or(warmstart, is_picked),
      fedavg.client_weight(hyperparameters, data),
      0.0,
    )
    return process.ClientResult(
      update=tuple(_at(updates, j) for j in clusters),
      weight=tuple(weight[j] for j in clusters),
      state=state,
      loss=loss / tf.cast(turns, tf.float32),
      num_examples=client_work.num_examples(data),
      measured={
        f'cluster_{j}': tf.cast(is_picked[j], tf.float32) for j in clusters
      }
      | {'share_sent': tf.cast(turns, tf.float32) / len(clusters)},
    )

  def server(
    server: Any, numbers: process.Numbers, update: Any, sums: Any
  ) -> Any:
    warmstart = is_warmstart(server['round'], numbers)
    ends = tf.logical_and(
      warmstart, tf.logical_not(is_warmstart(server['round'] + 1, numbers))
    )
    models, optimizers = [], []
    for j in clusters:
      old = server['models'][j], server['optimizers'][j]
      state, weights = optimizer.next(old[1], old[0], update[j])
      changes = tf.logical_or(warmstart, sums['measured'][f'cluster_{j}'] > 0)
      weights, state = process.choose(changes, (weights, state), old)
      anew = optimizer.initialize(weights, numbers)
      models.append(weights)
      optimizers.append(process.choose(ends, anew, state))
    return collections.OrderedDict(
      models=tuple(models),
      optimizers=tuple(optimizers),
      round=server['round'] + 1,
    )

  def personalize(message, numbers, state, personalization, evaluation, seed):
    del numbers, state, seed
    picked = pick(model, message['models'], personalization, len(clusters))
    metrics = client_work.evaluate_sets(
      model, _at(message['models'], picked), evaluation
    )
    for own in metrics.values():
      # The number of the cluster, as the mean that a metric is.
      _, weight = own['loss']
      own['cluster'] = tf.cast(picked, tf.float32) * weight, weight
    return client_work.only_candidate(metrics)

  return process.build(
    process.Method(
      initialize=initialize,
      message=message,
      client=client,
      server=server,
      personalize=personalize,
      models=tuple(('models', j) for j in clusters),
    ),
    model=model,
    hyperparameters=hyperparameters,
    aggregator=aggregation.each(aggregator),
    evaluation_sets=evaluation_sets,
    candidates=(candidates.Candidate(text='picked cluster'),),
    baseline=None,
    training=f'hypcluster {hyperparameters}',
    steps_to_personalize=False,
  )
