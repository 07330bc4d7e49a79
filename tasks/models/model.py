"""What a model is: pure functions of a structure of weights.

Nothing here holds a variable, so that several models can live side by side in
one computation: a cluster's next to another's, a personal one next to the
global one, one encoder under many heads.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses

import tensorflow as tf

# A flat, ordered mapping from a weight's name to its tensor.
Weights = collections.OrderedDict[str, tf.Tensor]
# A mapping from a feature's name to a tensor whose first axis is the examples.
Batch = Mapping[str, tf.Tensor]
# For each metric, for each example of a batch: a total and what to divide the
# sum of the totals by. Both can be added up over examples, batches and clients.
Metrics = collections.OrderedDict[str, tuple[tf.Tensor, tf.Tensor]]


def ones(batch: Batch) -> tf.Tensor:
  """Every example weighs the same."""
  return tf.ones(tf.shape(next(iter(batch.values())))[:1])


def each_as_one(totals: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """A metric of which every example counts the same."""
  return totals, tf.ones_like(totals)


def accuracy(predictions: tf.Tensor, batch: Batch) -> Metrics:
  """Whether the class 'y' of each example is the one of the largest number."""
  predicted = tf.argmax(predictions, -1, tf.int32)
  correct = tf.cast(tf.equal(predicted, batch['y']), tf.float32)
  return collections.OrderedDict(accuracy=each_as_one(correct))


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Predictions that can be mixed with those of others, and judged.

  A prediction is a vector or a number for each example: the probabilities of
  the classes, the value of a regression.

  Attributes:
    predict: From weights to the prediction for each example of a batch.
    target: The prediction that would be perfect for each example of a batch.
    metrics: From any predictions for a batch to what `Model.metrics` gives.
  """

  predict: Callable[[Weights, Batch], tf.Tensor]
  target: Callable[[Batch], tf.Tensor]
  metrics: Callable[[tf.Tensor, Batch], Metrics]


# Equal only to itself: there is no telling whether two functions are the same.
# So what makes models keeps them, that computations on them can be kept too.
@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A model as pure functions of its weights.

  Attributes:
    example_spec: The shape and type of each feature of one example.
    init: From a seed, two int32, to new weights; the same seed gives the same
      weights.
    loss: The loss of each example of a batch, `[batch]`.
    metrics: The metrics of each example of a batch; 'loss' is not among them.
    example_weight: How much an example counts in the mean loss of a batch,
      `[batch]`; the number of its words in a language model.
    embedding: The representation of each example, `[batch, dimension]`, that
      kNN-Per's neighbours are searched in; None if the model has none.
    head: The names of the weights of the last layer.
    prediction: Its predictions, if they can be mixed with others.
    random_init: In the place of `init` where several models must not start as
      one; None if `init` serves, as its weights differ from seed to seed. Those
      of linear models do not: they start at zero.
  """

  example_spec: Mapping[str, tf.TensorSpec]
  init: Callable[[tf.Tensor], Weights]
  loss: Callable[[Weights, Batch], tf.Tensor]
  metrics: Callable[[Weights, Batch], Metrics]
  example_weight: Callable[[Batch], tf.Tensor] = ones
  embedding: Callable[[Weights, Batch], tf.Tensor] | None = None
  head: frozenset[str] = frozenset()
  prediction: Prediction | None = None
  random_init: Callable[[tf.Tensor], Weights] | None = None

  def mean_loss(
    self, weights: Weights, batch: Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    """The weighted mean loss of the examples that `mask` does not blank out."""
    weight = mask * self.example_weight(batch)
    return tf.math.divide_no_nan(
      tf.reduce_sum(weight * self.loss(weights, batch)), tf.reduce_sum(weight)
    )
