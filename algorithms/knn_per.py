"""FedAvg + kNN-Per: the global model, mixed with a client's own neighbours.

Marfoq et al. 2022; Motley, section 3.1 and appendix C.4. The global model is
trained by FedAvg. Client m then keeps the representations phi(x_i) and labels
y_i of its personalization set, and predicts for a new x (equations 6 and 7)

  kNN_m(x) = sum_i w_i y_i / sum_i w_i, over the k nearest phi(x_i) to phi(x),
             w_i = exp(-d_i) or 1 / d_i, where d_i = ||phi(x) - phi(x_i)||
  h_m(x)   = c kNN_m(x) + (1 - c) h(x)

where y_i is one-hot in classification, so that both are probabilities. phi is
the model's `embedding`: the features themselves in a linear model, the last but
one layer in others, an LSTM's output. In a language model each word of a
sentence is an x_i, and y_i the word that follows. All coefficients c are
candidates: 0 is FedAvg, 1 is kNN alone.

Words are many, so that nothing here is one-hot. As kNN_m(x) is zero for all
classes but those of the neighbours, the likeliest class of h_m(x) is one of
these, or else the likeliest of h(x).
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
from algorithms import fedavg
from algorithms import process
from base import errors
from base import settings
from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class KnnHyperparameters(settings.Settings):
  """Those of the neighbours."""

  coefficients: tuple[float, ...] = settings.field(
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    'How much the neighbours count against the model: all are tried.',
    minimum=0,
    maximum=1,
  )
  num_neighbors: int = settings.field(
    10, 'The number of neighbours, k.', minimum=1
  )
  neighbor_weights: str = settings.field(
    'exp(-d)',
    'What a neighbour at distance d weighs; with 1/d, an exact match takes'
    ' all.',
    choices=('exp(-d)', '1/d'),
  )


@dataclasses.dataclass(frozen=True)
class Hyperparameters(KnnHyperparameters, fedavg.Hyperparameters):
  """Those of FedAvg and of the neighbours."""


@dataclasses.dataclass(frozen=True)
class Datastore:
  """What a client keeps of its examples, with room for k entries more.

  So that there are k to choose from; those are infinitely far, as padding is.

  Attributes:
    keys: The representations, `[entries, dimension]`.
    targets: The numbers or classes that the entries are, `[entries]`.
    mask: 1 for an entry, 0 for padding.
  """

  keys: tf.Tensor
  targets: tf.Tensor
  mask: tf.Tensor


def store(
  model: model_lib.Model,
  weights: model_lib.Weights,
  data: Any,
  num_neighbors: int,
) -> Datastore:
  """The datastore of all examples in a client's batches, one after another."""

  def entries(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
    examples, mask = client_work.batch(data, step)
    mask = mask[:, tf.newaxis] * model.prediction.mask(examples)
    return (
      model.embedding(weights, examples),
      model.prediction.target(examples),
      tf.reshape(mask, [-1]),
    )

  def with_room(of_steps: tf.Tensor) -> tf.Tensor:
    together = tf.reshape(of_steps, [-1, *of_steps.shape[2:]])
    others = [[0, 0]] * (together.shape.rank - 1)
    return tf.pad(together, [[0, num_neighbors], *others])

  of_steps = tf.map_fn(
    entries,
    tf.range(tf.shape(data.indices)[0]),
    # Only the shapes and types of these entries are used.
    fn_output_signature=tf.nest.map_structure(
      lambda t: tf.TensorSpec(t.shape, t.dtype), entries(tf.constant(0))
    ),
    parallel_iterations=1,
  )
  return Datastore(*map(with_room, of_steps))


def neighbors(
  datastore: Datastore,
  queries: tf.Tensor,
  num_neighbors: int,
  neighbor_weights: str,
) -> tuple[tf.Tensor, tf.Tensor]:
  """The targets of each query's neighbours, and their weights, of sum 1."""
  keys, mask = datastore.keys, datastore.mask
  # ||q||^2 is the same for all neighbours of q. That a product finds them takes
  # less memory than all differences, which are of the dimension's size each.
  squares = tf.reduce_sum(keys**2, 1) - 2 * tf.matmul(
    queries, keys, transpose_b=True
  )
  squares = tf.where(mask > 0, squares, squares.dtype.max)
  _, nearest = tf.math.top_k(-squares, num_neighbors)
  # Of the few, though, the distances are exact: a match is at zero.
  distances = tf.norm(queries[:, tf.newaxis] - tf.gather(keys, nearest), axis=2)

  is_there = tf.gather(mask, nearest)
  if neighbor_weights == '1/d':
    exact = is_there * tf.cast(tf.equal(distances, 0), tf.float32)
    weights = is_there * tf.math.reciprocal_no_nan(distances)
    weights = tf.where(
      tf.reduce_any(exact > 0, 1, keepdims=True), exact, weights
    )
  else:
    # By exp(d_1), the same for all, so that not all of them can vanish.
    weights = is_there * tf.exp(distances[:, :1] - distances)
  weights /= tf.reduce_sum(weights, 1, keepdims=True)
  return tf.gather(datastore.targets, nearest), weights


def mix(
  of_model: tf.Tensor,
  targets: tf.Tensor,
  weights: tf.Tensor,
  coefficients: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """What is predicted with each coefficient: a number, or the likeliest class.

  Args:
    of_model: The model's numbers, `[entries]`, or probabilities, `[entries,
      classes]`.
    targets: The neighbours' numbers or classes, `[entries, neighbors]`.
    weights: The neighbours' weights, likewise.
    coefficients: How much the neighbours count.

  Returns:
    For each coefficient the numbers or classes, `[entries]`.
  """
  if targets.dtype.is_floating:
    of_neighbors = tf.reduce_sum(weights * targets, 1)
    return [c * of_neighbors + (1 - c) * of_model for c in coefficients]
  # Sorted, so that the first class is taken on a tie, as everywhere.
  classes = tf.sort(
    tf.concat([model_lib.largest(of_model)[:, tf.newaxis], targets], 1)
  )
  same = tf.equal(classes[:, :, tf.newaxis], targets[:, tf.newaxis])
  of_neighbors = tf.linalg.matvec(tf.cast(same, weights.dtype), weights)
  of_model = tf.gather(of_model, classes, batch_dims=1)
  return [
    tf.gather(
      classes,
      model_lib.largest(c * of_neighbors + (1 - c) * of_model),
      batch_dims=1,
    )
    for c in coefficients
  ]


def interpolate(
  model: model_lib.Model,
  weights: model_lib.Weights,
  personalization: Any,
  evaluation: Any,
  coefficients: tf.Tensor,
  hyperparameters: KnnHyperparameters,
) -> Any:
  """The metrics of each coefficient, in the order of `candidates`."""
  datastore = store(
    model, weights, personalization, hyperparameters.num_neighbors
  )

  def measure(examples: Any, mask: tf.Tensor) -> Any:
    predictions = mix(
      model.prediction.predict(weights, examples),
      *neighbors(
        datastore,
        model.embedding(weights, examples),
        hyperparameters.num_neighbors,
        hyperparameters.neighbor_weights,
      ),
      tf.unstack(coefficients, len(hyperparameters.coefficients)),
    )
    metrics = [
      client_work.total_metrics(
        model.prediction.metrics(predicted, examples), mask
      )
      for predicted in predictions
    ]
    return tf.nest.map_structure(lambda *totals: tf.stack(totals), *metrics)

  return collections.OrderedDict(
    (name, client_work.sum_over_batches(data, measure))
    for name, data in evaluation.items()
  )


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds FedAvg + kNN-Per."""
  if model.embedding is None or model.prediction is None:
    raise errors.UserError(
      'knn_per needs a model with an embedding to find neighbours in, and'
      " predictions to mix with theirs, which the task's model has not."
    )

  def personalize(weights, numbers, state, personalization, evaluation, seed):
    del state, seed
    return interpolate(
      model,
      weights,
      personalization,
      evaluation,
      numbers['coefficients'],
      hyperparameters,
    )

  coefficients = hyperparameters.coefficients
  return process.build(
    process.Method(
      **fedavg.training_functions(model, hyperparameters),
      personalize=personalize,
    ),
    model=model,
    hyperparameters=hyperparameters,
    aggregator=aggregator,
    evaluation_sets=evaluation_sets,
    candidates=tuple(
      candidates.Candidate(c, 'coefficient', text=f'coefficient {c:g}')
      for c in coefficients
    ),
    baseline=coefficients.index(0.0) if 0.0 in coefficients else None,
    training=fedavg.training_description(hyperparameters),
    steps_to_personalize=False,
  )
