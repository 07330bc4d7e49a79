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


def accuracy(predicted: tf.Tensor, batch: Batch) -> Metrics:
  """Whether the predicted class of each example is its class 'y'."""
  correct = tf.cast(tf.equal(predicted, batch['y']), tf.float32)
  return collections.OrderedDict(accuracy=each_as_one(correct))


def largest(scores: tf.Tensor) -> tf.Tensor:
  """The class of the largest score of each row, the first on a tie."""
  return tf.argmax(scores, -1, tf.int32)


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Predictions that can be mixed with those of others, and judged.

  Predicted is what each entry of a batch is: a number, or one of some classes.
  The entries are the examples or, in a language model, the words of the first
  example, those of the second, and so on.

  Attributes:
    predict: From weights to the number for each entry of a batch, `[entries]`,
      or the probabilities of the classes, `[entries, classes]`.
    target: The number or the class, an integer, that each entry is.
    metrics: From any numbers or classes for the entries of a batch to what
      `Model.metrics` gives.
    mask: 1 for an entry and 0 for padding, `[batch, entries of an example]`.
  """

  predict: Callable[[Weights, Batch], tf.Tensor]
  target: Callable[[Batch], tf.Tensor]
  metrics: Callable[[tf.Tensor, Batch], Metrics]
  mask: Callable[[Batch], tf.Tensor] = lambda batch: ones(batch)[:, tf.newaxis]


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
    embedding: The representation of each entry (see `Prediction`), `[entries,
      dimension]`, that kNN-Per's neighbours are searched in; None if the model
      has none.
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


def classifier(
  x: tf.TensorSpec,
  init: Callable[[tf.Tensor], Weights],
  logits: Callable[[Weights, Batch], tf.Tensor],
  embedding: Callable[[Weights, Batch], tf.Tensor],
  head: frozenset[str],
) -> Model:
  """A model of the class 'y' of each example 'x', judged by its accuracy.

  Args:
    x: The shape and type of what is classified.
    init: As in `Model`.
    logits: From weights and a batch to a number for each class.
    embedding: As in `Model`.
    head: As in `Model`.

  Returns:
    The model.
  """

  def loss(weights: Weights, batch: Batch) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
      batch['y'], logits(weights, batch)
    )

  return Model(
    example_spec=collections.OrderedDict(x=x, y=tf.TensorSpec([], tf.int32)),
    init=init,
    loss=loss,
    metrics=lambda weights, batch: accuracy(
      largest(logits(weights, batch)), batch
    ),
    embedding=embedding,
    head=head,
    prediction=Prediction(
      predict=lambda weights, batch: tf.nn.softmax(logits(weights, batch)),
      target=lambda batch: batch['y'],
      metrics=accuracy,
    ),
  )
