"""The contract of models: pure functions of a structure of weights.

Nothing here holds a variable, so that one computation can have several models:
those of several clusters, a personal and a global model, or several heads on
one encoder.
"""

import abc
import collections
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
from typing import Literal, TypeAlias

import numpy as np
import tensorflow as tf

from base import aliases
from base import errors
from tasks.models import metrics
from tasks.models import protections

# A flat, ordered mapping from a weight's name to its tensor.
Weights = collections.OrderedDict[str, tf.Tensor]
# A mapping from a feature's name to a tensor whose first axis is the examples.
Batch = Mapping[str, tf.Tensor]
# For each metric, the statistics of each example of a batch: tensors whose
# first axis is the examples, to be added up over examples, batches and clients.
# `tasks.models.metrics` makes the metric of their sums.
Statistics = collections.OrderedDict[str, aliases.Structure]
# What a model computes from a representation, for each entry of a batch.
Scores: TypeAlias = aliases.Structure

# The part with a client's vector, which is one weight, and the other parts.
CLIENT, ENCODER, HEAD = 'client', 'encoder', 'head'
# The part of weights that stay as initialized, which few models have.
FIXED = 'fixed'
# The part, and the weight, that is added to each representation.
SHIFT = 'shift'
# The parts of the scales and offsets of normalization layers, and of the
# running statistics of batches, see `tasks.models.normalization`.
NORM, STATISTICS = 'norm', 'statistics'
# The feature of examples that are represented already.
REPRESENTATION = 'representation'
# The size of a client's vector, if a model does not set one.
_VECTOR_SIZE = 28


@dataclasses.dataclass(frozen=True)
class Model(abc.ABC):
  """A model as pure functions of its weights.

  A model is a frozen dataclass of the sizes that it is made from. Models with
  equal fields are equal, and share compiled programs.

  The *entries* of a batch are predicted one by one: they are its examples or,
  in a language model, the words of the first example, then those of the second,
  and so on.

  A client's vector, such as an embedding of the client, is a weight in a
  separate part, `CLIENT`: a method that keeps this part on the client makes it
  personal. Any model can be given one, see `add_vector`.

  Attributes:
    frozen: Weights of a pretrained model, or other constants such as the
      spelling of words, which no method trains. `encode` and `decide` read them
      from here. They are a separate argument of computations: they are in no
      state, message, checkpoint or graph, and do not affect whether models are
      equal.
    protection: Protects each example in the gradients of a client; None if
      examples are not protected.
  """

  frozen: Weights = dataclasses.field(
    default_factory=collections.OrderedDict,
    kw_only=True,
    compare=False,
    repr=False,
  )
  protection: protections.Protection | None = dataclasses.field(
    default=None, kw_only=True
  )

  @property
  def example_gradients(self) -> Literal['in turns', 'at once', 'by norms']:
    """How the gradients of the examples of a batch are clipped.

    They are clipped in turns; at once, which is faster if they are small; or by
    their norms, which is faster if they are large. 'by norms' needs each weight
    to be in one layer that computes norms, see `layers.probe`, and all examples
    to count the same.
    """
    return 'in turns'

  @property
  def num_types(self) -> int:
    """The number of types of examples, which are their feature 'type'.

    An example has the same type for all clients. 0 if there is no such feature.
    """
    return 0

  @property
  def loss_is_total(self) -> bool:
    """Whether a client's mean loss is the loss of all its examples together.

    With most models it is the loss of one of them.
    """
    return False

  @property
  def mixes_examples(self) -> bool:
    """Whether the loss of an example in training depends on its whole batch."""
    return False

  @property
  def recomputes_statistics(self) -> bool:
    """Whether a client computes statistics of batches when it is evaluated."""
    return False

  @property
  def encodes_by_head(self) -> bool:
    """Whether `encode` reads weights of the head, too."""
    return False

  @property
  def decision_names(self) -> tuple[str, ...]:
    """The names of the weights that `decide` reads; `encode` may read some."""
    return self.parts[HEAD]

  @property
  def context_names(self) -> tuple[str, ...]:
    """The names of the weights that have a row for each context.

    The feature 'context' of an example is the number of its row; other rows do
    not affect it.
    """
    return ()

  @property
  def most_contexts(self) -> int | None:
    """The largest number of contexts of a client's examples; None for all."""
    return None

  def add_vector(self, size: int = 0) -> 'Model':
    """Returns the model with a client's vector as a further input.

    By default the vector is appended to the representation.

    Args:
      size: The size of the vector; 0 for the size that the model sets.
    """
    return AppendedVector(self, size or _VECTOR_SIZE, frozen=self.frozen)

  @functools.cached_property
  def frozen_digest(self) -> str | None:
    """The SHA-256 of the frozen weights; None if there are none."""
    if not self.frozen:
      return None
    digest = hashlib.sha256()
    for name, weight in self.frozen.items():
      array = np.ascontiguousarray(weight)
      digest.update(f'{name} {array.dtype} {array.shape}\n'.encode())
      digest.update(array.data)
    return digest.hexdigest()

  @property
  def pretrained_models(self) -> Mapping[str, 'Model']:
    """Models of the frozen weights alone, by names, to compare with."""
    return {}

  @property
  @abc.abstractmethod
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    """The shape and type of each feature of one example."""

  def mix(
    self, first: Weights, second: Weights, share: aliases.Number
  ) -> tuple['Model', Weights]:
    """Mixes two models of other weights; by default it mixes the weights.

    Args:
      first: The weights of the first model.
      second: Those of the second one.
      share: The share of the second one.

    Returns:
      The mixture and its weights, which is exactly the first if the share is 0.
    """
    return self, collections.OrderedDict(
      (name, (1 - share) * first[name] + share * second[name]) for name in first
    )

  @property
  def num_values(self) -> Mapping[str, int]:
    """The number of values, from 0 on, of each feature that has few."""
    return {'type': self.num_types} if self.num_types else {}

  def blank_example(self) -> Batch:
    """Returns an example of zeros, for uses that depend only on shapes."""
    return {
      name: tf.zeros([1, *spec.shape], spec.dtype)
      for name, spec in self.example_spec.items()
    }

  @property
  @abc.abstractmethod
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    """The names of the weights in each part; each weight is in one part."""

  @abc.abstractmethod
  def init(self, seed: tf.Tensor) -> Weights:
    """Makes initial weights, which are a function of the seed, two int32."""

  def random_init(self, seed: tf.Tensor) -> Weights:
    """Makes initial weights for several models that must differ.

    It differs from `init` where that starts at zero, as in linear models.

    Args:
      seed: As in `init`.
    """
    return self.init(seed)

  @abc.abstractmethod
  def encode(self, weights: Weights, batch: Batch) -> tf.Tensor:
    """Represents the entries of a batch, `[entries, dimension]`."""

  @abc.abstractmethod
  def decide(self, weights: Weights, features: tf.Tensor) -> Scores:
    """Scores entries, given their representation by `encode`.

    It needs no weight of the encoder, so that several heads can share one
    representation.

    Args:
      weights: The weights that it needs; there may be others.
      features: The representation.

    Returns:
      The scores, for `score_loss`, `predict` and `predict_softly`.
    """

  @abc.abstractmethod
  def score_loss(self, scores: Scores, batch: Batch) -> tf.Tensor:
    """Returns the loss of each example, `[batch]`, given entries' scores."""

  def predict(self, scores: Scores) -> tf.Tensor:
    """Predicts the number or the class, an integer, of each entry.

    Args:
      scores: The scores; by default they are the numbers.
    """
    return scores

  def predict_softly(self, scores: Scores) -> tf.Tensor:
    """Makes predictions that can be averaged with others.

    Args:
      scores: The scores; by default they are the numbers.

    Returns:
      A number for each entry, `[entries]`, or the probabilities of the classes,
      `[entries, classes]`.
    """
    return scores

  @abc.abstractmethod
  def prediction_statistics(
    self, predicted: tf.Tensor, batch: Batch
  ) -> Statistics:
    """Computes each example's statistics from the predictions of its entries.

    Args:
      predicted: The number or class predicted for each entry, by any model.
      batch: The examples.

    Returns:
      The statistics of each metric; the loss is not among them.
    """

  def likelihood_statistics(
    self, log_likelihood: tf.Tensor, batch: Batch
  ) -> Statistics:
    """Computes each example's statistics from the likelihoods of its entries.

    Args:
      log_likelihood: The logarithm of the probability of each entry's class,
        by any model, `[entries]`.
      batch: The examples.

    Returns:
      The statistics of each metric of probabilities; by default there is none.
    """
    del log_likelihood, batch
    return collections.OrderedDict()

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    """The metrics by the names of their statistics; any other is a mean."""
    return {}

  def target(self, batch: Batch) -> tf.Tensor:
    """Returns the true number or class of each entry, `[entries]`."""
    return batch['y']

  def entry_mask(self, batch: Batch) -> tf.Tensor:
    """Returns 1 for an entry, 0 for padding, `[batch, entries per example]`."""
    return tf.ones([tf.shape(next(iter(batch.values())))[0], 1])

  def example_weight(self, batch: Batch) -> tf.Tensor:
    """Returns the weight of each example in the mean loss, `[batch]`."""
    return tf.ones(tf.shape(next(iter(batch.values())))[:1])

  def scores(self, weights: Weights, batch: Batch) -> Scores:
    """Scores the entries of a batch."""
    return self.decide(weights, self.encode(weights, batch))

  def loss(self, weights: Weights, batch: Batch) -> tf.Tensor:
    """Returns the loss of each example of a batch, `[batch]`."""
    return self.penalize(
      weights, self.score_loss(self.scores(weights, batch), batch)
    )

  def penalize(self, weights: Weights, losses: tf.Tensor) -> tf.Tensor:
    """Adds what weights cost to examples' losses; by default nothing."""
    del weights
    return losses

  def mean_loss(
    self, weights: Weights, batch: Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    """Returns the weighted mean loss of the examples that are not padding."""
    return mean(self.loss(weights, batch), mask * self.example_weight(batch))

  def train_loss(
    self, weights: Weights, batch: Batch, mask: tf.Tensor
  ) -> tuple[tf.Tensor, Weights]:
    """Returns the mean loss in training, and weights that follow the batch.

    These are the weights of the part `STATISTICS`, after the batch: no gradient
    trains them. Few models have any; evaluation reads them, by `encode`.
    """
    return self.mean_loss(weights, batch, mask), collections.OrderedDict()

  def statistics(self, weights: Weights, batch: Batch) -> Statistics:
    """Computes the statistics of each example; the loss is not among them."""
    _, statistics = self.evaluate(weights, batch)
    return statistics

  def evaluate(
    self, weights: Weights, batch: Batch
  ) -> tuple[tf.Tensor, Statistics]:
    """Returns `loss` and `statistics`, of scores that are computed once."""
    scores = self.scores(weights, batch)
    losses = self.penalize(weights, self.score_loss(scores, batch))
    return losses, self.judge_scores(scores, batch)

  def judge_scores(self, scores: Scores, batch: Batch) -> Statistics:
    """Computes each example's statistics from the scores of its entries."""
    return self.prediction_statistics(self.predict(scores), batch)


class GeneratingModel(Model):
  """A model that generates a client's vector from examples.

  It starts from the vector that the client keeps, and no gradient passes to
  this vector.
  """

  @abc.abstractmethod
  def generate(self, weights: Weights, batch: Batch) -> Weights:
    """Generates the client's vector after each example of a batch.

    Args:
      weights: The weights, with the client's vector before the batch.
      batch: The examples.

    Returns:
      The weight of the part `CLIENT`, `[batch, size]`.
    """


def mean(values: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
  """Returns the weighted mean, which is zero if all weights are."""
  return tf.math.divide_no_nan(
    tf.reduce_sum(weight * values), tf.reduce_sum(weight)
  )


def most_likely(scores: tf.Tensor) -> tf.Tensor:
  """Returns the class of the largest score of each row, the first on a tie."""
  return tf.argmax(scores, -1, tf.int32)


def mean_statistics(totals: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the statistics of a mean in which all examples count the same."""
  return totals, tf.ones_like(totals)


class Classifier(Model):
  """A model of the class 'y' of each example 'x'; its metric is the accuracy.

  Its scores are a logit for each class, `[batch, classes]`.

  Attributes:
    num_classes: The number of classes.
  """

  num_classes: int

  @property
  def num_values(self) -> Mapping[str, int]:
    return {**super().num_values, 'y': self.num_classes}

  def score_loss(self, scores: tf.Tensor, batch: Batch) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], scores)

  def predict(self, scores: tf.Tensor) -> tf.Tensor:
    return most_likely(scores)

  def predict_softly(self, scores: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(scores)

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'accuracy': metrics.SHARE}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: Batch
  ) -> Statistics:
    correct = tf.cast(tf.equal(predicted, batch['y']), tf.float32)
    return collections.OrderedDict(accuracy=mean_statistics(correct))


class Regressor(Model):
  """A model of the number 'y' of each example 'x'; judged by squared error."""

  def score_loss(self, scores: tf.Tensor, batch: Batch) -> tf.Tensor:
    return tf.square(scores - batch['y'])

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {'squared_error': metrics.ERROR}

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: Batch
  ) -> Statistics:
    error = mean_statistics(tf.square(predicted - batch['y']))
    return collections.OrderedDict(squared_error=error)


@dataclasses.dataclass(frozen=True)
class Extended(Model):
  """A model with further weights.

  Attributes:
    model: The model without them.
  """

  model: Model

  def __post_init__(self) -> None:
    if self.model.mixes_examples:
      raise errors.UserError(
        'This method extends the model, which it cannot with batch'
        ' normalization. Set task.norm=group.'
      )
    if not self.frozen:
      object.__setattr__(self, 'frozen', self.model.frozen)

  @property
  def inner(self) -> Model:
    """The model without them, with the frozen weights."""
    return dataclasses.replace(self.model, frozen=self.frozen)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return self.model.example_spec

  @property
  def num_types(self) -> int:
    return self.model.num_types

  @property
  def num_values(self) -> Mapping[str, int]:
    return self.model.num_values

  @property
  def loss_is_total(self) -> bool:
    return self.model.loss_is_total

  def score_loss(self, scores: Scores, batch: Batch) -> tf.Tensor:
    return self.inner.score_loss(scores, batch)

  def predict(self, scores: Scores) -> tf.Tensor:
    return self.inner.predict(scores)

  def predict_softly(self, scores: Scores) -> tf.Tensor:
    return self.inner.predict_softly(scores)

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: Batch
  ) -> Statistics:
    return self.inner.prediction_statistics(predicted, batch)

  def judge_scores(self, scores: Scores, batch: Batch) -> Statistics:
    return self.inner.judge_scores(scores, batch)

  def likelihood_statistics(
    self, log_likelihood: tf.Tensor, batch: Batch
  ) -> Statistics:
    return self.inner.likelihood_statistics(log_likelihood, batch)

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return self.model.metrics

  def target(self, batch: Batch) -> tf.Tensor:
    return self.inner.target(batch)

  def entry_mask(self, batch: Batch) -> tf.Tensor:
    return self.inner.entry_mask(batch)

  def example_weight(self, batch: Batch) -> tf.Tensor:
    return self.inner.example_weight(batch)


@dataclasses.dataclass(frozen=True)
class AppendedVector(Extended):
  """A model whose heads take the client's vector as well.

  A linear function of the vector is added to the model's scores, as if a head
  that is one linear layer had the vector among its features.

  Attributes:
    size: The size of the vector.
  """

  size: int

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    head = (*self.model.parts[HEAD], 'vector_kernel')
    return {CLIENT: ('vector',), **self.model.parts, HEAD: head}

  def init(self, seed: tf.Tensor) -> Weights:
    """Makes initial weights; the vector is U[0, 1), and its kernel is 0."""
    seeds = tf.random.experimental.stateless_split(seed, 2)
    w = self.inner.init(seeds[0])
    # Only the shape of the scores is used.
    scores = self.inner.scores(w, self.blank_example())
    w['vector'] = tf.random.stateless_uniform([self.size], seeds[1])
    w['vector_kernel'] = tf.zeros([self.size, *scores.shape[1:]])
    return w

  def encode(self, weights: Weights, batch: Batch) -> tf.Tensor:
    features = self.inner.encode(weights, batch)
    vectors = tf.broadcast_to(
      weights['vector'], [tf.shape(features)[0], self.size]
    )
    return tf.concat([features, vectors], axis=1)

  def decide(self, weights: Weights, features: tf.Tensor) -> Scores:
    encoded, vectors = features[:, : -self.size], features[:, -self.size :]
    return self.inner.decide(weights, encoded) + tf.tensordot(
      vectors, weights['vector_kernel'], 1
    )


@dataclasses.dataclass(frozen=True)
class Shifted(Extended):
  """A model that adds a vector to each representation before it decides.

  The vector is the part `SHIFT`, which is zero at the start. `encode` returns
  the representation without it.
  """

  @property
  def encodes_by_head(self) -> bool:
    return self.model.encodes_by_head

  @property
  def decision_names(self) -> tuple[str, ...]:
    return *self.model.decision_names, SHIFT

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {SHIFT: (SHIFT,), **self.model.parts}

  def init(self, seed: tf.Tensor) -> Weights:
    w = self.inner.init(seed)
    # Only the shape of the representation is used.
    width = self.inner.encode(w, self.blank_example()).shape[1]
    return collections.OrderedDict(w, **{SHIFT: tf.zeros([width])})

  def encode(self, weights: Weights, batch: Batch) -> tf.Tensor:
    return self.inner.encode(weights, batch)

  def decide(self, weights: Weights, features: tf.Tensor) -> Scores:
    return self.inner.decide(weights, features + weights[SHIFT])

  def loss(self, weights: Weights, batch: Batch) -> tf.Tensor:
    features = self.encode(weights, batch) + weights[SHIFT]
    # As a model may regularize its weights in its loss.
    return loss_given(self.inner, weights, batch, features)


def mix_in(mixin: type, model: Model) -> Model:
  """Returns a model with the methods of a class, before its own ones.

  Args:
    mixin: The class, whose methods can call those of the model by `super`.
    model: The model.
  """
  kind: type[Model] = type(mixin.__name__, (mixin, type(model)), {})
  mixed: Model = kind(
    **{
      field.name: getattr(model, field.name)
      for field in dataclasses.fields(model)
      if field.init
    }
  )
  return mixed


class Represented:
  """Has a model find the representation of each example among its features.

  This is the feature `REPRESENTATION`, `[entries, dimension]`.
  """

  def encode(self, weights: Weights, batch: Batch) -> tf.Tensor:
    del weights
    features = batch[REPRESENTATION]
    return tf.reshape(features, [-1, features.shape[-1]])


def loss_given(
  model: Model, weights: Weights, batch: Batch, features: tf.Tensor
) -> tf.Tensor:
  """Returns the loss of each example, given the representation of its entries.

  Args:
    model: The model.
    weights: Its weights.
    batch: The examples.
    features: What `encode` returns, or another representation of that shape.
  """
  represented = mix_in(Represented, model)
  return represented.loss(
    weights, collections.OrderedDict(batch, **{REPRESENTATION: features})
  )
