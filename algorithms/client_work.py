"""What every method's client does: walk over batches, step, and evaluate.

All of it is a pure function of tensors, so that a runtime can run it for one
client or for a stacked cohort. A step without examples changes nothing.
"""

import collections
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from tasks.data import batches
from tasks.models import model as model_lib

Weights = model_lib.Weights
# From the weights before a step and their gradient to the weights after it.
Step = Callable[[Weights, Weights], Weights]


def batch(data: Mapping[str, Any], step: tf.Tensor) -> tuple[Any, tf.Tensor]:
  """The examples of a step and their weights."""
  indices = data.indices[step]
  examples = collections.OrderedDict(
    (name, tf.gather(feature, indices))
    for name, feature in data.examples.items()
  )
  return examples, data.mask[step]


def epoch_of(
  data: Mapping[str, Any], epoch: tf.Tensor, num_epochs: int
) -> Mapping[str, Any]:
  """One of the `num_epochs` that `data` consists of; all of it if that is 0."""
  if not num_epochs:
    return data
  steps = tf.shape(data.indices)[0] // num_epochs
  part = epoch * steps + tf.range(steps)
  return batches.ClientData(
    examples=data.examples,
    indices=tf.gather(data.indices, part),
    mask=tf.gather(data.mask, part),
  )


def num_steps(data: Mapping[str, Any]) -> tf.Tensor:
  """The number of steps without those that are padding at the end."""
  weights = data.mask
  is_there = tf.cast(tf.reduce_any(weights > 0, 1), tf.int32)
  # From 1 on, so that 0 is the last if there is none.
  number = tf.range(1, tf.shape(weights)[0] + 1)
  return tf.reduce_max(tf.concat([[0], number * is_there], 0))


def num_examples(data: Mapping[str, Any]) -> tf.Tensor:
  """How many examples `data` has a client see."""
  return tf.reduce_sum(data.mask)


def sgd(learning_rate: tf.Tensor, only: Collection[str] | None = None) -> Step:
  """Steps w <- w - learning_rate * gradient; `only` some of them, if given."""

  def step(weights: Weights, gradient: Weights) -> Weights:
    return collections.OrderedDict(
      (name, weight - learning_rate * gradient[name])
      if only is None or name in only
      else (name, weight)
      for name, weight in weights.items()
    )

  return step


def train(
  model: model_lib.Model,
  weights: Weights,
  data: Mapping[str, Any],
  step: Step,
  regularizer: Callable[[Weights], tf.Tensor] = lambda _: tf.constant(0.0),
) -> tuple[Weights, tf.Tensor]:
  """Takes a step for each batch of `data`, in order.

  Args:
    model: The model.
    weights: Its weights at the start.
    data: A client's data, see `tasks.data.batches`.
    step: How a gradient changes the weights.
    regularizer: What is added to the mean loss of a batch before it is
      differentiated, from the weights.

  Returns:
    The weights at the end, and the sum over the examples of their loss, without
    the regularizer, each measured just before the step that used it.
  """

  def body(i: tf.Tensor, weights: Weights, total: tf.Tensor) -> Any:
    examples, mask = batch(data, i)
    size = tf.reduce_sum(mask)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = model.mean_loss(weights, examples, mask)
      # Nor does the regularizer do anything in a step without examples.
      objective = loss + tf.minimum(size, 1.0) * regularizer(weights)
    gradient = tape.gradient(
      objective, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    gradient = tf.nest.map_structure(tf.convert_to_tensor, gradient)
    return i + 1, step(weights, gradient), total + loss * size

  steps = num_steps(data)
  _, weights, total = tf.while_loop(
    lambda i, *_: i < steps, body, (0, weights, tf.constant(0.0))
  )
  return weights, total


def sum_over_batches(
  data: Mapping[str, Any], measure: Callable[[Any, tf.Tensor], Any]
) -> Any:
  """The sum over the batches of what `measure` makes of examples and mask."""

  def measure_batch(i: tf.Tensor) -> Any:
    return measure(*batch(data, i))

  steps = num_steps(data)
  # Only the structure, shapes and types of what is measured are used here.
  zeros = tf.nest.map_structure(
    lambda m: tf.zeros(m.shape, m.dtype), measure_batch(0)
  )
  _, sums = tf.while_loop(
    lambda i, _: i < steps,
    lambda i, sums: (
      i + 1,
      tf.nest.map_structure(tf.add, sums, measure_batch(i)),
    ),
    (0, zeros),
  )
  return sums


def total_metrics(metrics: model_lib.Statistics, mask: tf.Tensor) -> Any:
  """The sums of examples' metrics and weights: {metric: <total, weight>}."""
  return collections.OrderedDict(
    (name, (tf.reduce_sum(mask * total), tf.reduce_sum(mask * weight)))
    for name, (total, weight) in metrics.items()
  )


def total_loss(
  model: model_lib.Model, weights: Weights, examples: Any, mask: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """The sum of examples' losses, and what to divide it by."""
  weight = mask * model.example_weight(examples)
  return (
    tf.reduce_sum(weight * model.loss(weights, examples)),
    tf.reduce_sum(weight),
  )


def evaluate(
  model: model_lib.Model, weights: Weights, data: Mapping[str, Any]
) -> Any:
  """The model's metrics, and its loss, as totals with what to divide them by.

  Args:
    model: The model.
    weights: Its weights.
    data: A client's data, see `tasks.data.batches`.

  Returns:
    {metric: <total, weight>}, to be added up over clients or divided.
  """

  def measure(examples: Any, mask: tf.Tensor) -> Any:
    metrics = total_metrics(model.statistics(weights, examples), mask)
    metrics['loss'] = total_loss(model, weights, examples, mask)
    return metrics

  return sum_over_batches(data, measure)


def difference(before: Weights, after: Weights) -> Weights:
  return collections.OrderedDict(
    (name, before[name] - after[name]) for name in before
  )


def evaluate_sets(
  model: model_lib.Model, weights: Weights, sets: Mapping[str, Any]
) -> Any:
  """`evaluate` for each of several sets: {set: {metric: <total, weight>}}."""
  return collections.OrderedDict(
    (name, evaluate(model, weights, data)) for name, data in sets.items()
  )


def only_candidate(metrics: Any) -> Any:
  """The metrics of a method's only candidate, with the axis of candidates."""
  return tf.nest.map_structure(lambda metric: metric[tf.newaxis], metrics)


def evaluate_epochs(
  model: model_lib.Model,
  weights: Weights,
  sets: Mapping[str, Any],
  epoch: Callable[[tf.Tensor, Weights], Weights],
  num_epochs: int,
) -> Any:
  """The metrics after 0, 1, …, `num_epochs` epochs, along a first axis.

  Args:
    model: The model.
    weights: Its weights before the first epoch.
    sets: The sets to evaluate on, by name.
    epoch: From the number of an epoch, from 0, and the weights before it to the
      weights after it.
    num_epochs: How many epochs there are.

  Returns:
    {set: {metric: <total, weight>}}, each `[num_epochs + 1]`.
  """

  def measure(i: tf.Tensor, weights: Weights, arrays: Any) -> Any:
    return tf.nest.map_structure(
      lambda array, metric: array.write(i, metric),
      arrays,
      evaluate_sets(model, weights, sets),
    )

  def body(i: tf.Tensor, weights: Weights, arrays: Any) -> Any:
    arrays = measure(i, weights, arrays)
    return i + 1, epoch(i, weights), arrays

  arrays = tf.nest.map_structure(
    lambda m: tf.TensorArray(m.dtype, num_epochs + 1, element_shape=m.shape),
    evaluate_sets(model, weights, sets),
  )
  _, weights, arrays = tf.while_loop(
    lambda i, *_: i < num_epochs, body, (0, weights, arrays)
  )
  arrays = measure(num_epochs, weights, arrays)
  return tf.nest.map_structure(lambda array: array.stack(), arrays)
