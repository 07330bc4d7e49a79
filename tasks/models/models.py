"""The contract of models: pure functions of a structure of weights.

Nothing here holds a variable, so that several models can live side by side in
one computation: a cluster's next to another's, a personal one next to the
global one, several heads on one encoder.
"""

import abc
import collections
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tasks.models import metrics
from tasks.models import protections

# A flat, ordered mapping from a weight's name to its tensor.
Weights = collections.OrderedDict[str, tf.Tensor]
# A mapping from a feature's name to a tensor whose first axis is the examples.
Batch = Mapping[str, tf.Tensor]
# For each metric, the statistics of each example of a batch: tensors whose
# first axis is the examples, to be added up over examples, batches and clients.
# `tasks.models.metrics` makes the metric of their sums.
Statistics = collections.OrderedDict[str, Any]

# The part of a client's own vector, which is one weight, and the others.
CLIENT, ENCODER, HEAD = 'client', 'encoder', 'head'
# The part of weights that stay as they start, which few models have.
FIXED = 'fixed'
# The size of a vector, where a model is made for none.
_VECTOR_SIZE = 28


@dataclasses.dataclass(frozen=True)
class Model(abc.ABC):
  """A model as pure functions of its weights.

  A model is a frozen dataclass of the sizes that it is made from. Models with
  equal fields are equal, and share compiled programs.

  The *entries* of a batch are what is predicted one by one: its examples or, in
  a language model, the words of the first example, those of the second, and so
  on.

  A vector of a client's own, as an embedding of the client, is a weight in a
  part of its own, `CLIENT`: a method that keeps this part on the client makes
  it personal. Any model can be given one, see `with_vector`.

  Attributes:
    frozen: Weights of a pretrained model, or other constants as the spelling of
      words, which no method trains. `encode` and `decide` read them from here.
      Computations are given them as an argument of their own: they are in no
      state, message, checkpoint or graph, and make no difference to which
      models are equal.
    protection: Protects each example in the gradients of a client; None if
      nothing does.
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

    In turns; at once, which is faster if they are small; or by their norms,
    which is faster if they are large. For this, each weight must be one of one
    layer that tells norms, see `layers.probe`, and all examples must count the
    same.
    """
    return 'in turns'

  @property
  def num_types(self) -> int:
    """The number of types of examples, which their feature 'type' tells.

    A type is known whoever has the example. 0 if there is no such feature.
    """
    return 0

  @property
  def context_names(self) -> tuple[str, ...]:
    """The names of the weights that have a row for each context.

    The feature 'context' of an example is the number of its row; the others
    make no difference to it.
    """
    return ()

  @property
  def most_contexts(self) -> int | None:
    """The most contexts that the examples of a client have; None for all."""
    return None

  def with_vector(self, size: int = 0) -> 'Model':
    """Returns the model with a vector of the client's own as a further input.

    By default the vector is appended to the representation.

    Args:
      size: The size of the vector; 0 for that which the model is made for.
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
  def pretrained(self) -> 'Model | None':
    """The pretrained model without anything that is trained.

    It has no weights but frozen ones. None if there is no such model.
    """
    return None

  @property
  @abc.abstractmethod
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    """The shape and type of each feature of one example."""

  @property
  def num_values(self) -> Mapping[str, int]:
    """The number of values, from 0 on, of each feature that has so many."""
    return {'type': self.num_types} if self.num_types else {}

  def blank_example(self) -> Batch:
    """Returns an example of zeros, for what depends on the shapes alone."""
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
    """Makes weights for models that must not all start as one.

    It differs from `init` where that starts at zero, as linear models do.

    Args:
      seed: As in `init`.
    """
    return self.init(seed)

  @abc.abstractmethod
  def encode(self, weights: Weights, batch: Batch) -> tf.Tensor:
    """Represents the entries of a batch, `[entries, dimension]`."""

  @abc.abstractmethod
  def decide(self, weights: Weights, features: tf.Tensor) -> Any:
    """Scores entries from their representation, which `encode` gives.

    It needs no weight of the encoder, so that one representation can be given
    to several heads.

    Args:
      weights: The weights that it needs; there may be others.
      features: The representation.

    Returns:
      The scores, for `score_loss`, `predict` and `predict_softly`.
    """

  @abc.abstractmethod
  def score_loss(self, scores: Any, batch: Batch) -> tf.Tensor:
    """The loss of each example, `[batch]`, from the scores of the entries."""

  def predict(self, scores: Any) -> tf.Tensor:
    """The number or the class, an integer, predicted for each entry.

    Args:
      scores: The scores; by default they are the numbers.
    """
    return scores

  def predict_softly(self, scores: Any) -> tf.Tensor:
    """Predictions that can be averaged with those of others.

    Args:
      scores: The scores; by default they are the numbers.

    Returns:
      A number for each entry, `[entries]`, or the probabilities of the classes,
      `[entries, classes]`.
    """
    return scores

  @abc.abstractmethod
  def judge(self, predicted: tf.Tensor, batch: Batch) -> Statistics:
    """The statistics of each example, given a number or class for each entry.

    Args:
      predicted: The number or class predicted for each entry, by whomever.
      batch: The examples.

    Returns:
      The statistics of each metric; the loss is not among them.
    """

  def judge_likelihood(
    self, log_likelihood: tf.Tensor, batch: Batch
  ) -> Statistics:
    """The statistics of each example, given how likely each entry was.

    Args:
      log_likelihood: The logarithm of the probability that each entry's class
        was given, by whomever, `[entries]`.
      batch: The examples.

    Returns:
      The statistics of each metric of probabilities; by default there is none.
    """
    del log_likelihood, batch
    return collections.OrderedDict()

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    """The metrics that are no means, by the names of their statistics."""
    return {}

  def target(self, batch: Batch) -> tf.Tensor:
    """The number or class that each entry is, `[entries]`."""
    return batch['y']

  def entry_mask(self, batch: Batch) -> tf.Tensor:
    """1 for an entry, 0 for padding, `[batch, entries of an example]`."""
    return tf.ones([tf.shape(next(iter(batch.values())))[0], 1])

  def example_weight(self, batch: Batch) -> tf.Tensor:
    """How much each example counts in the mean loss of a batch, `[batch]`."""
    return tf.ones(tf.shape(next(iter(batch.values())))[:1])

  def scores(self, weights: Weights, batch: Batch) -> Any:
    """The scores of the entries of a batch."""
    return self.decide(weights, self.encode(weights, batch))

  def loss(self, weights: Weights, batch: Batch) -> tf.Tensor:
    """The loss of each example of a batch, `[batch]`."""
    return self.score_loss(self.scores(weights, batch), batch)

  def mean_loss(
    self, weights: Weights, batch: Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    """The weighted mean loss of the examples that `mask` does not blank out."""
    return mean(self.loss(weights, batch), mask * self.example_weight(batch))

  def statistics(self, weights: Weights, batch: Batch) -> Statistics:
    """The statistics of each example of a batch; the loss is not among them."""
    return self.judge_scores(self.scores(weights, batch), batch)

  def judge_scores(self, scores: Any, batch: Batch) -> Statistics:
    """The statistics of each example, given the scores of the entries."""
    return self.judge(self.predict(scores), batch)


class GeneratingModel(Model):
  """A model that makes a client's own vector anew from examples.

  The vector that a client keeps is what the model begins with, and no gradient
  passes to it.
  """

  @abc.abstractmethod
  def generate(self, weights: Weights, batch: Batch) -> Weights:
    """Makes the vector that the client has after each example of a batch.

    Args:
      weights: The weights, with the vector that the client has before.
      batch: The examples.

    Returns:
      The weight of the part `CLIENT`, `[batch, size]`.
    """


def mean(values: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
  """The weighted mean; zero if all weights are."""
  return tf.math.divide_no_nan(
    tf.reduce_sum(weight * values), tf.reduce_sum(weight)
  )


def most_likely(scores: tf.Tensor) -> tf.Tensor:
  """The class of the largest score of each row, the first on a tie."""
  return tf.argmax(scores, -1, tf.int32)


def each_as_one(totals: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The statistics of a mean in which every example counts the same."""
  return totals, tf.ones_like(totals)


class Classifier(Model):
  """A model of the class 'y' of each example 'x', judged by its accuracy.

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

  def judge(self, predicted: tf.Tensor, batch: Batch) -> Statistics:
    correct = tf.cast(tf.equal(predicted, batch['y']), tf.float32)
    return collections.OrderedDict(accuracy=each_as_one(correct))


class Regressor(Model):
  """A model of the number 'y' of each example 'x', judged by squared error."""

  def score_loss(self, scores: tf.Tensor, batch: Batch) -> tf.Tensor:
    return tf.square(scores - batch['y'])

  def judge(self, predicted: tf.Tensor, batch: Batch) -> Statistics:
    error = each_as_one(tf.square(predicted - batch['y']))
    return collections.OrderedDict(squared_error=error)


@dataclasses.dataclass(frozen=True)
class AppendedVector(Model):
  """A model whose heads are given a vector of the client's own as well.

  The scores of the model have a linear function of the vector added, as if a
  head that is one linear layer had it among its features.

  Attributes:
    model: The model without it.
    size: The size of the vector.
  """

  model: Model
  size: int

  @property
  def _inner(self) -> Model:
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
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    head = (*self.model.parts[HEAD], 'vector_kernel')
    return {CLIENT: ('vector',), **self.model.parts, HEAD: head}

  def init(self, seed: tf.Tensor) -> Weights:
    """As in `Model`; the vector is uniform from 0 to 1, its kernel is 0."""
    seeds = tf.random.experimental.stateless_split(seed, 2)
    w = self._inner.init(seeds[0])
    # Only the shape of the scores is used.
    scores = self._inner.scores(w, self.blank_example())
    w['vector'] = tf.random.stateless_uniform([self.size], seeds[1])
    w['vector_kernel'] = tf.zeros([self.size, *scores.shape[1:]])
    return w

  def encode(self, weights: Weights, batch: Batch) -> tf.Tensor:
    features = self._inner.encode(weights, batch)
    vectors = tf.broadcast_to(
      weights['vector'], [tf.shape(features)[0], self.size]
    )
    return tf.concat([features, vectors], axis=1)

  def decide(self, weights: Weights, features: tf.Tensor) -> Any:
    own, vectors = features[:, : -self.size], features[:, -self.size :]
    return self._inner.decide(weights, own) + tf.tensordot(
      vectors, weights['vector_kernel'], 1
    )

  def score_loss(self, scores: Any, batch: Batch) -> tf.Tensor:
    return self._inner.score_loss(scores, batch)

  def predict(self, scores: Any) -> tf.Tensor:
    return self._inner.predict(scores)

  def predict_softly(self, scores: Any) -> tf.Tensor:
    return self._inner.predict_softly(scores)

  def judge(self, predicted: tf.Tensor, batch: Batch) -> Statistics:
    return self._inner.judge(predicted, batch)

  def judge_scores(self, scores: Any, batch: Batch) -> Statistics:
    return self._inner.judge_scores(scores, batch)

  def judge_likelihood(
    self, log_likelihood: tf.Tensor, batch: Batch
  ) -> Statistics:
    return self._inner.judge_likelihood(log_likelihood, batch)

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return self.model.metrics

  def target(self, batch: Batch) -> tf.Tensor:
    return self._inner.target(batch)

  def entry_mask(self, batch: Batch) -> tf.Tensor:
    return self._inner.entry_mask(batch)

  def example_weight(self, batch: Batch) -> tf.Tensor:
    return self._inner.example_weight(batch)
