"""FedAvg + kNN-Per: the global model, mixed with a client's own neighbors.

Marfoq et al. 2022; Motley, section 3.1 and appendix C.4. The global model is
trained by FedAvg. Client m then keeps the representations phi(x_i) and labels
y_i of its personalization set, and predicts for a new x (equations 6 and 7)

  kNN_m(x) = sum_i w_i y_i / sum_i w_i, over the k nearest phi(x_i) to phi(x),
             w_i = exp(-d_i) or 1 / d_i, where d_i = ||phi(x) - phi(x_i)||,
             or exp(-d_i^2 / n) for an n-dimensional phi(x), as in the authors'
             code; the exponent may have a temperature, as in kNN-LM
             (Khandelwal et al. 2020)
  h_m(x)   = c kNN_m(x) + (1 - c) h(x)

where y_i is one-hot in classification, so that both are probabilities. phi is
the model's `encode`: the features themselves in a linear model, the last but
one layer in others, an LSTM's output. In a language model each word of a
sentence is an x_i, and y_i the word that follows. All coefficients c are
candidates: 0 is FedAvg, 1 is kNN alone.

A vocabulary is large, so that the code makes no one-hot vectors. As kNN_m(x) is
zero for all classes but those of the neighbors, the likeliest class of h_m(x)
is one of these, or else the likeliest of h(x).
"""

from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class KnnPerSettings(settings.Settings):
  """The settings of the neighbors."""

  coefficients: tuple[aliases.Number, ...] = settings.field(
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    'The coefficients c of the neighbors in the mixture; all are tried.',
    minimum=0,
    maximum=1,
  )
  num_neighbors: int = settings.field(
    10, 'The number of neighbors, k.', minimum=1
  )
  neighbor_weights: str = settings.field(
    'exp(-d)',
    'The weight of a neighbor at distance d; with 1/d, only exact matches'
    ' count if there are any. n is the dimension of a representation.',
    choices=('exp(-d)', '1/d', 'exp(-d^2/n)'),
  )
  neighbor_temperature: aliases.Number = settings.field(
    1.0,
    'What d or d^2/n is divided by in exp; language models have large d.',
    above=0,
  )


@dataclasses.dataclass(frozen=True)
class Datastore:
  """The examples of a client as neighbors, and k entries of padding.

  Padding is infinitely far away. With it there are always k entries.

  Attributes:
    keys: The representations, `[entries, dimension]`.
    targets: The numbers or classes of the entries, `[entries]`.
    mask: 1 for an entry, 0 for padding.
  """

  keys: tf.Tensor
  targets: tf.Tensor
  mask: tf.Tensor


def store(
  model: models.Model,
  weights: models.Weights,
  data: batches.ClientData,
  num_neighbors: int,
) -> Datastore:
  """Stores all examples in a client's batches, one after another."""

  def entries(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
    examples, mask = client_work.batch(data, step)
    mask = mask[:, tf.newaxis] * model.entry_mask(examples)
    return (
      model.encode(weights, examples),
      model.target(examples),
      tf.reshape(mask, [-1]),
    )

  def pad(of_steps: tf.Tensor) -> tf.Tensor:
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
  return Datastore(*map(pad, of_steps))


def neighbors(
  datastore: Datastore,
  queries: tf.Tensor,
  num_neighbors: int,
  neighbor_weights: str,
  temperature: aliases.Number = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Finds each query's neighbors: their targets, and weights of sum 1."""
  keys, mask = datastore.keys, datastore.mask
  # ||q||^2 is the same for all neighbors of q, and left out. The product takes
  # less memory than all differences, each of which has the dimension's size.
  squares = tf.reduce_sum(keys**2, 1) - 2 * tf.matmul(
    queries, keys, transpose_b=True
  )
  squares = tf.where(mask > 0, squares, squares.dtype.max)
  _, nearest = tf.math.top_k(-squares, num_neighbors)
  # The distances of these few are exact: that of a match is zero.
  distances = tf.norm(queries[:, tf.newaxis] - tf.gather(keys, nearest), axis=2)

  is_there = tf.gather(mask, nearest)
  if neighbor_weights == '1/d':
    exact = is_there * tf.cast(tf.equal(distances, 0), tf.float32)
    weights = is_there * tf.math.reciprocal_no_nan(distances)
    weights = tf.where(
      tf.reduce_any(exact > 0, 1, keepdims=True), exact, weights
    )
  else:
    if neighbor_weights == 'exp(-d^2/n)':
      distances = distances**2 / keys.shape[1]
    # The common factor exp(d_1) keeps the weights from all vanishing.
    weights = is_there * tf.exp((distances[:, :1] - distances) / temperature)
  weights /= tf.reduce_sum(weights, 1, keepdims=True)
  return tf.gather(datastore.targets, nearest), weights


def mix(
  of_model: tf.Tensor,
  targets: tf.Tensor,
  weights: tf.Tensor,
  coefficients: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Mixes predictions with each coefficient: numbers, or the likeliest class.

  Args:
    of_model: The model's numbers, `[entries]`, or probabilities, `[entries,
      classes]`.
    targets: The neighbors' numbers or classes, `[entries, neighbors]`.
    weights: The neighbors' weights, likewise.
    coefficients: The coefficients c.

  Returns:
    For each coefficient the numbers or classes, `[entries]`.
  """
  if targets.dtype.is_floating:
    of_neighbors = tf.reduce_sum(weights * targets, 1)
    return [c * of_neighbors + (1 - c) * of_model for c in coefficients]
  # Sorted, so that the first class wins a tie, as everywhere.
  classes = tf.sort(
    tf.concat([models.most_likely(of_model)[:, tf.newaxis], targets], 1)
  )
  same = tf.equal(classes[:, :, tf.newaxis], targets[:, tf.newaxis])
  of_neighbors = tf.linalg.matvec(tf.cast(same, weights.dtype), weights)
  of_model = tf.gather(of_model, classes, batch_dims=1)
  return [
    tf.gather(
      classes,
      models.most_likely(c * of_neighbors + (1 - c) * of_model),
      batch_dims=1,
    )
    for c in coefficients
  ]


def mix_likelihoods(
  of_model: tf.Tensor,
  targets: tf.Tensor,
  weights: tf.Tensor,
  true: tf.Tensor,
  coefficients: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Mixes the probabilities of the true classes, and takes their logarithms.

  Args:
    of_model: The model's probabilities, `[entries, classes]`.
    targets: As in `mix`.
    weights: As in `mix`.
    true: The true class of each entry, `[entries]`.
    coefficients: The coefficients c.

  Returns:
    For each coefficient the logarithms, `[entries]`.
  """
  same = tf.cast(tf.equal(targets, true[:, tf.newaxis]), weights.dtype)
  of_neighbors = tf.reduce_sum(weights * same, 1)
  of_model = tf.gather(of_model, true, batch_dims=1)
  return [
    tf.math.log(c * of_neighbors + (1 - c) * of_model) for c in coefficients
  ]


@dataclasses.dataclass(frozen=True)
class KnnPer(personalizers.Personalizer):
  """Mixes the model with the neighbors; the coefficients are candidates."""

  settings: KnnPerSettings
  takes_steps = False
  makes_models = False

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return tuple(
      candidates.Candidate(c, 'coefficient', text=f'coefficient {c:g}')
      for c in map(float, self.settings.coefficients)
    )

  @property
  def why_examples_not_private(self) -> str | None:
    return (
      'knn_per predicts with the examples themselves, so that no noise hides'
      ' them'
    )

  @property
  def baseline(self) -> int | None:
    coefficients = self.settings.coefficients
    return coefficients.index(0.0) if 0.0 in coefficients else None

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    model, weights = self.trainer.model, start.weights
    datastore = store(model, weights, client.data, self.settings.num_neighbors)

    def measure(examples: models.Batch, mask: tf.Tensor) -> models.Statistics:
      features = model.encode(weights, examples)
      scores = model.decide(weights, features)
      of_model = model.predict_softly(scores)
      nearest = neighbors(
        datastore,
        features,
        self.settings.num_neighbors,
        self.settings.neighbor_weights,
        self.settings.neighbor_temperature,
      )
      statistics = [
        model.prediction_statistics(predicted, examples)
        for predicted in mix(of_model, *nearest, self.settings.coefficients)
      ]
      if of_model.shape.rank > 1:
        likelihoods = mix_likelihoods(
          of_model, *nearest, model.target(examples), self.settings.coefficients
        )
        for of_candidate, likelihood in zip(statistics, likelihoods):
          of_candidate.update(model.likelihood_statistics(likelihood, examples))
      sums = [
        client_work.sum_statistics(
          of_candidate, model.score_loss(scores, examples), mask
        )
        for of_candidate in statistics
      ]
      return client_work.stack(sums)

    return client_work.sum_over_sets(evaluation, measure)


registry.register_personalizer(
  'knn_per',
  KnnPer,
  title='kNN',
  paper='Marfoq et al. 2022',
  does=(
    "mixes the model with the nearest neighbors among the client's own"
    ' examples; the mixing coefficients are candidates'
  ),
  trainer='fedavg',
  method_title='kNN-Per',
  small={'coefficients': (0.0, 0.5)},
)
