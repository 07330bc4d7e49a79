"""The work of clients: walking over batches, stepping, and evaluating.

All of it is a pure function of tensors, so that a runtime can run it for one
client or for a stacked cohort. A batch without examples changes nothing.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import dataclasses
from typing import Protocol, TypeAlias, TypeVar

import tensorflow as tf

from algorithms import optimizers
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from tasks.data import batches
from tasks.models import metrics
from tasks.models import models
from tasks.models import normalization

_OTHER_NORM = 'Set task.norm=group, or task.statistics=recomputed.'
_Carry = TypeVar('_Carry')
_Structure = TypeVar('_Structure', bound=aliases.Structure)
# The statistics of each metric, for each evaluation set.
Metrics: TypeAlias = Mapping[str, dict[str, aliases.Structure]]
# Maps weights to the term that is added to the mean loss of a batch.
Regularizer = Callable[[models.Weights], tf.Tensor]
# Maps weights, a batch and the representation of its entries to the terms that
# are added to its examples' losses.
AddedLoss = Callable[[models.Weights, models.Batch, tf.Tensor], tf.Tensor]


class Objective(Protocol):
  """An objective of gradient steps: the mean loss of a batch."""

  def mean_loss(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> tf.Tensor: ...


def refuse_batch_norm(model: models.Model) -> None:
  """Raises a `UserError` if batches are normalized in training."""
  if model.mixes_examples:
    raise errors.UserError(
      'This method uses how a model represents an example alone, which batch'
      ' normalization does not do in training. Set task.norm=group.'
    )


def batch(
  data: batches.ClientData, step: tf.Tensor
) -> tuple[models.Batch, tf.Tensor]:
  """Returns the examples of a step and their mask."""
  # Not indices[step]: where the step depends on the data, XLA would take the
  # data for constants and compile the program anew for each call.
  indices = tf.gather(data.indices, step)
  examples = collections.OrderedDict(
    (name, tf.gather(feature, indices))
    for name, feature in data.examples.items()
  )
  return examples, tf.gather(data.mask, step)


def epoch_of(
  data: batches.ClientData, epoch: tf.Tensor, num_epochs: int
) -> batches.ClientData:
  """Returns one of the `num_epochs` epochs in `data`, or all data for 0."""
  if not num_epochs:
    return data
  steps = tf.shape(data.indices)[0] // num_epochs
  part = epoch * steps + tf.range(steps)
  return data._replace(
    indices=tf.gather(data.indices, part), mask=tf.gather(data.mask, part)
  )


def num_steps(data: batches.ClientData) -> tf.Tensor:
  """Counts the steps, without those at the end that are padding."""
  has_examples = tf.cast(tf.reduce_any(data.mask > 0, 1), tf.int32)
  # Numbered from 1, so that the largest is 0 if no step has examples.
  number = tf.range(1, tf.shape(data.mask)[0] + 1)
  return tf.reduce_max(tf.concat([[0], number * has_examples], 0))


def num_examples(data: batches.ClientData) -> tf.Tensor:
  """Counts the examples in all batches."""
  return tf.reduce_sum(data.mask)


def example_mask(data: batches.ClientData) -> tf.Tensor:
  """Returns 1 for each example that is in a batch, 0 for others."""
  size = tf.shape(next(iter(data.examples.values())))[0]
  most = tf.math.unsorted_segment_max(
    tf.reshape(data.mask, [-1]), tf.reshape(data.indices, [-1]), size
  )
  return tf.maximum(most, 0.0)


def num_distinct_examples(data: batches.ClientData) -> tf.Tensor:
  """Counts the examples in the batches, each once."""
  return tf.reduce_sum(example_mask(data))


def places_of_batches(data: batches.ClientData) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the steps that have examples, padded at the end; and how many."""
  has_examples = tf.reduce_any(data.mask > 0, 1)
  counted = tf.cumsum(tf.cast(has_examples, tf.int32))
  size = tf.shape(data.mask)[0]
  places = tf.math.unsorted_segment_sum(
    tf.range(size), tf.where(has_examples, counted - 1, -1), size
  )
  return places, tf.reduce_max(tf.concat([[0], counted], 0))


def fold_batches(
  data: batches.ClientData,
  step: Callable[[_Carry, models.Batch, tf.Tensor], _Carry],
  carry: _Carry,
  steps: tf.Tensor | None = None,
) -> _Carry:
  """Takes a step for each batch, in order, and returns the last carry.

  Args:
    data: The batches.
    step: Maps the carry, a batch's examples and their mask to the carry for the
      next batch. There may be batches without examples between others, for
      which it must return the carry unchanged.
    carry: The carry for the first batch, a structure of tensors.
    steps: The number of steps, if it is not the number of batches. Batches
      without examples are then left out, and the first batch follows the last
      one. A client without examples takes no step.

  Returns:
    The carry after the last batch.
  """
  if steps is None:
    number = num_steps(data)

    def place(i: tf.Tensor) -> tf.Tensor:
      return i

  else:
    places, num_places = places_of_batches(data)
    number = tf.where(num_places > 0, steps, 0)

    def place(i: tf.Tensor) -> tf.Tensor:
      return tf.gather(places, i % num_places)

  _, carry = tf.while_loop(
    lambda i, _: i < number,
    lambda i, carry: (i + 1, step(carry, *batch(data, place(i)))),
    (0, carry),
  )
  return carry


def gradient(
  model: Objective,
  weights: models.Weights,
  examples: models.Batch,
  mask: tf.Tensor,
  regularizer: Regularizer | None = None,
  only: Collection[str] | None = None,
  added: AddedLoss | None = None,
) -> tuple[models.Weights, tf.Tensor]:
  """Differentiates the mean loss of a batch.

  If the model is protected, the gradient is that of `private_steps`.

  Args:
    model: The model, or another that has a mean loss.
    weights: Its weights.
    examples: The batch.
    mask: 0 for padding.
    regularizer: The term that is added to the loss before it is differentiated.
    only: The names of the weights to differentiate by; None for all.
    added: The terms that are added to the losses of examples.

  Returns:
    The gradient, zero if there are no examples, and the mean loss without the
    regularizer (and, unless examples are protected, without what was added).

  Raises:
    UserError: If the model has statistics, which `train` keeps.
  """
  of_batch, loss, statistics = _gradient_and_statistics(
    model, weights, examples, mask, regularizer, only, added
  )
  if statistics:
    raise errors.UserError(
      'The steps of this method do not keep the statistics of batch'
      f' normalization. {_OTHER_NORM}'
    )
  return of_batch, loss


def _gradient_and_statistics(
  model: Objective,
  weights: models.Weights,
  examples: models.Batch,
  mask: tf.Tensor,
  regularizer: Regularizer | None,
  only: Collection[str] | None,
  added: AddedLoss | None,
) -> tuple[models.Weights, tf.Tensor, models.Weights]:
  """Differentiates as `gradient`; also returns the statistics of the model."""
  trained = select(weights, only)
  if added is not None and isinstance(model, models.Model):
    refuse_batch_norm(model)

  def measure(
    weights: models.Weights, examples: models.Batch, mask: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, models.Weights]:
    """Returns the loss, with what is added and without it, and statistics."""
    none: models.Weights = collections.OrderedDict()
    if not isinstance(model, models.Model):
      loss = model.mean_loss(weights, examples, mask)
      return loss, loss, none
    if added is None:
      loss, statistics = model.train_loss(weights, examples, mask)
      return loss, loss, statistics
    # Both have one representation, which thus is differentiated once.
    z = model.encode(weights, examples)
    mask = mask * model.example_weight(examples)
    losses = models.loss_given(model, weights, examples, z)
    loss = models.mean(losses, mask)
    return loss + models.mean(added(weights, examples, z), mask), loss, none

  if isinstance(model, models.Model) and model.protection is not None:
    of_batch, loss = private_steps.gradient(
      model.protection,
      lambda w, *batch: measure(merge(weights, w), *batch)[0],
      trained,
      examples,
      mask,
      regularizer and (lambda w: regularizer(merge(weights, w))),
      # Layers compute the norms of the model's own loss only.
      model.example_gradients if added is None else 'in turns',
    )
    return of_batch, loss, collections.OrderedDict()
  with tf.GradientTape() as tape:
    # Copies: a message may hold the same tensors, and is a constant.
    trained = tf.nest.map_structure(tf.identity, trained)
    tape.watch(trained)
    everything = merge(weights, trained)
    objective, loss, statistics = measure(everything, examples, mask)
    if regularizer is not None:
      any_examples = tf.minimum(tf.reduce_sum(mask), 1.0)
      objective = objective + any_examples * regularizer(everything)
  return slopes(tape, objective, trained), loss, statistics


def slopes(
  tape: tf.GradientTape,
  loss: tf.Tensor | Sequence[tf.Tensor],
  weights: models.Weights,
) -> models.Weights:
  """Differentiates a loss, or the sum of several, that a tape has recorded."""
  gradients = tape.gradient(
    loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  gradients = tf.nest.map_structure(tf.convert_to_tensor, gradients)
  # TensorFlow forgets some shapes, for example if the batch's is unknown.
  for slope, weight in zip(
    tf.nest.flatten(gradients), tf.nest.flatten(weights)
  ):
    slope.set_shape(weight.shape)
  return gradients


def train(
  model: models.Model,
  learner: optimizers.Learner,
  data: batches.ClientData,
  optimizer: optimizers.Optimizer,
  regularizer: Regularizer | None = None,
  fixed: models.Weights | None = None,
  steps: tf.Tensor | None = None,
  correction: models.Weights | None = None,
  added: AddedLoss | None = None,
) -> tuple[optimizers.Learner, tf.Tensor]:
  """Takes a step of the optimizer for each batch, in order.

  Args:
    model: The model.
    learner: The weights that are trained, and their slots.
    data: The batches.
    optimizer: The optimizer.
    regularizer: The term that is added to the mean loss of a batch before it is
      differentiated.
    fixed: The model's other weights, which stay as they are.
    steps: The number of steps, if it is not the number of batches, see
      `fold_batches`.
    correction: The term that is added to the gradient of each batch.
    added: The terms that are added to the losses of examples.

  Returns:
    The learner at the end, and the sum of the examples' losses, without the
    regularizer, each measured just before the step that used the example. If
    the number of steps is given, the sum is the mean loss over all steps, times
    the number of the client's examples.
  """
  fixed = fixed or collections.OrderedDict()

  def step(
    carry: tuple[optimizers.Learner, tf.Tensor, tf.Tensor],
    examples: models.Batch,
    mask: tf.Tensor,
  ) -> tuple[optimizers.Learner, tf.Tensor, tf.Tensor]:
    learner, total, number = carry
    of_batch, loss, statistics = _gradient_and_statistics(
      private_steps.mark(model, step=number),
      merge(fixed, learner.weights),
      examples,
      mask,
      regularizer,
      tuple(learner.weights) if fixed else None,
      added,
    )
    if correction is not None:
      any_examples = tf.cast(tf.reduce_any(mask > 0), tf.float32)
      of_batch = tf.nest.map_structure(
        lambda slope, more: slope + any_examples * more, of_batch, correction
      )
    after = take_step(optimizer, learner, of_batch, mask)
    if kept := select(statistics, tuple(learner.weights)):
      after = after._replace(weights=merge(after.weights, kept))
    size = tf.reduce_sum(mask)
    total += loss * (size if steps is None else 1.0)
    return after, total, number + 1

  learner, total, _ = fold_batches(
    data, step, (learner, tf.constant(0.0), 0), steps
  )
  if steps is not None:
    mean = tf.math.divide_no_nan(total, tf.cast(steps, tf.float32))
    total = mean * num_examples(data)
  return learner, total


def take_step(
  optimizer: optimizers.Optimizer,
  learner: optimizers.Learner,
  of_batch: models.Weights,
  mask: tf.Tensor,
) -> optimizers.Learner:
  """Steps down the gradient of a batch, unless the batch has no examples."""
  if not optimizer.has_slots:
    return optimizer.step(learner, of_batch)
  # Otherwise momentum would move the weights at padding.
  return tf.cond(
    tf.reduce_any(mask > 0),
    lambda: optimizer.step(learner, of_batch),
    lambda: learner,
  )


def has_contexts(data: batches.ClientData, total: int) -> tf.Tensor:
  """Tells which of the `total` contexts the examples in the batches have."""

  def count(examples: models.Batch, mask: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(mask, examples['context'], total)

  return sum_over_batches(data, count) > 0


@dataclasses.dataclass(frozen=True)
class OwnContexts:
  """The rows of a client's contexts, among the weights of all contexts.

  With new slots, steps on these rows alone are the same as steps on all rows:
  the other rows have a gradient of zero, which does not move them. Where
  examples are protected all rows are taken, as noise moves them all.

  Attributes:
    data: The batches, in which a context is the number of its row here.
    names: The names of the weights that have a row for each context.
    rows: The contexts of the client, filled up with others to a number that is
      the same for all clients; None for all contexts, as they are.
  """

  data: batches.ClientData
  names: Collection[str]
  rows: tf.Tensor | None

  @classmethod
  def find(
    cls, model: models.Model, weights: models.Weights, data: batches.ClientData
  ) -> 'OwnContexts':
    """Finds the contexts of the examples in the batches."""
    names, most = model.context_names, model.most_contexts
    total = weights[names[0]].shape[0] if names else 0
    if most is None or most >= total or model.protection is not None:
      return cls(data, (), None)
    has = tf.cast(has_contexts(data, total), tf.int32)
    rows = tf.math.top_k(has, most).indices
    # A context that is in no batch may have any number.
    numbers = tf.scatter_nd(rows[:, tf.newaxis], tf.range(most), [total])
    examples = collections.OrderedDict(
      data.examples, context=tf.gather(numbers, data.examples['context'])
    )
    return cls(data._replace(examples=examples), names, rows)

  def take(self, weights: models.Weights) -> models.Weights:
    """Returns the weights with these rows alone."""
    return collections.OrderedDict(
      (name, tf.gather(w, self.rows) if name in self.names else w)
      for name, w in weights.items()
    )

  def put(
    self, weights: models.Weights, taken: models.Weights
  ) -> models.Weights:
    """Returns `taken` with all rows: these, and the others from `weights`."""
    return collections.OrderedDict(
      (
        name,
        tf.tensor_scatter_nd_update(
          weights[name], tf.expand_dims(self.rows, 1), w
        )
        if name in self.names
        else w,
      )
      for name, w in taken.items()
    )


def statistic_names(model: models.Model) -> tuple[str, ...]:
  """Returns the names of the weights that no gradient trains."""
  return tuple(model.parts.get(models.STATISTICS, ()))


def average_statistics(
  model: models.Model,
  before: models.Weights,
  delta: models.Weights,
  after: models.Weights,
) -> models.Weights:
  """Returns a server's weights after a step, with the clients' mean statistics.

  Args:
    model: The model.
    before: The weights before the step.
    delta: The mean of the clients' updates.
    after: The weights that the server's optimizer has stepped to.
  """
  names = [name for name in statistic_names(model) if name in delta]
  return merge(after, difference(select(before, names), select(delta, names)))


def recompute_statistics(
  model: models.Model, weights: models.Weights, data: batches.ClientData
) -> models.Weights:
  """Returns weights with the statistics of the batches of a client.

  Args:
    model: The model, whose batches are normalized.
    weights: Its weights, with or without statistics.
    data: The client's examples.
  """
  assert isinstance(model, normalization.NormalizedModel)
  sums = sum_over_batches(
    data, lambda *batch: model.sum_moments(weights, *batch)
  )
  return merge(weights, model.statistics_of(sums))


def sum_over_batches(
  data: batches.ClientData,
  measure: Callable[[models.Batch, tf.Tensor], _Structure],
) -> _Structure:
  """Sums the results of `measure(examples, mask)` over the batches."""
  return _add_batches(data, measure, _zeros(data, measure))


def _zeros(
  data: batches.ClientData,
  measure: Callable[[models.Batch, tf.Tensor], _Structure],
) -> _Structure:
  """Makes zeros of the structure, shapes and types of what is measured."""
  return tf.nest.map_structure(
    lambda m: tf.zeros(m.shape, m.dtype), measure(*batch(data, tf.constant(0)))
  )


def _add_batches(
  data: batches.ClientData,
  measure: Callable[[models.Batch, tf.Tensor], _Structure],
  zeros: _Structure,
) -> _Structure:
  """Adds what is measured of the batches to zeros."""

  def add(
    sums: _Structure, examples: models.Batch, mask: tf.Tensor
  ) -> _Structure:
    return tf.nest.map_structure(tf.add, sums, measure(examples, mask))

  return fold_batches(data, add, zeros)


def sum_over_sets(
  sets: Mapping[str, batches.ClientData],
  measure: Callable[[models.Batch, tf.Tensor], _Structure],
) -> dict[str, _Structure]:
  """Sums `measure(examples, mask)` over the batches of each of several sets."""
  if not sets:  # A method that is only trained.
    return collections.OrderedDict()
  # Once, as tracing a model takes long: the sets are measured alike.
  zeros = _zeros(next(iter(sets.values())), measure)
  return collections.OrderedDict(
    (name, _add_batches(data, measure, zeros)) for name, data in sets.items()
  )


def sum_statistics(
  statistics: models.Statistics, losses: tf.Tensor, mask: tf.Tensor
) -> models.Statistics:
  """Sums the statistics of the examples of a batch.

  Args:
    statistics: The statistics.
    losses: The loss of each example.
    mask: 0 for padding.

  Returns:
    The sums, with `metrics.DIVERGED` as a further statistic.
  """

  def masked_sum(statistic: tf.Tensor) -> tf.Tensor:
    shaped_mask = tf.reshape(mask, [-1] + [1] * (statistic.shape.rank - 1))
    # The statistic of padding need not be finite.
    return tf.reduce_sum(
      tf.where(shaped_mask > 0, shaped_mask * statistic, 0), axis=0
    )

  diverged = tf.cast(~tf.math.is_finite(losses), tf.float32)
  return tf.nest.map_structure(
    masked_sum,
    collections.OrderedDict(statistics, **{metrics.DIVERGED: diverged}),
  )


def total_loss(
  model: models.Model,
  losses: tf.Tensor,
  examples: models.Batch,
  mask: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the sum of the examples' losses, and its divisor for the mean."""
  weight = mask * model.example_weight(examples)
  return tf.reduce_sum(weight * losses), tf.reduce_sum(weight)


def evaluate(
  model: models.Model, weights: models.Weights, data: batches.ClientData
) -> dict[str, aliases.Structure]:
  """Sums a model's statistics, and its loss, over a client's examples.

  Args:
    model: The model.
    weights: Its weights.
    data: The examples, in batches.

  Returns:
    {metric: statistics}; those of 'loss' are its sum and the divisor.
  """
  return evaluate_sets(model, weights, {'': data})['']


def evaluate_sets(
  model: models.Model,
  weights: models.Weights,
  sets: Mapping[str, batches.ClientData],
) -> Metrics:
  """Evaluates a model on each of several sets: {set: {metric: statistics}}."""

  def measure(examples: models.Batch, mask: tf.Tensor) -> models.Statistics:
    losses, statistics = model.evaluate(weights, examples)
    sums = sum_statistics(statistics, losses, mask)
    sums['loss'] = total_loss(model, losses, examples, mask)
    return sums

  return sum_over_sets(sets, measure)


def compute_for_examples(
  data: batches.ClientData,
  compute: Callable[[models.Batch], tf.Tensor],
  shape: Sequence[int | tf.Tensor],
) -> tf.Tensor:
  """Computes something of each example that is in batches.

  Args:
    data: The batches.
    compute: Maps the examples of a batch to what is computed of them.
    shape: The shape of what is computed of an example.

  Returns:
    `[examples, *shape]`, zeros for examples that are in no batch.
  """
  size = tf.shape(next(iter(data.examples.values())))[0]

  def write(
    rows: tf.Tensor, numbered: models.Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    computed = compute(numbered)
    # Padding is written behind the last example.
    places = tf.where(mask > 0, numbered['number'], size)
    return tf.tensor_scatter_nd_update(
      rows, places[:, tf.newaxis], tf.reshape(computed, [-1, *shape])
    )

  numbered = collections.OrderedDict(data.examples, number=tf.range(size))
  rows = fold_batches(
    data._replace(examples=numbered), write, tf.zeros([size + 1, *shape])
  )
  return rows[:size]


def represent(
  model: models.Model, weights: models.Weights, data: batches.ClientData
) -> batches.ClientData:
  """Adds their representation to the examples that are in batches."""
  # Only the shape is used.
  blank = model.encode(weights, model.blank_example())
  shape = tf.shape(blank)[0], blank.shape[1]
  examples = collections.OrderedDict(data.examples)
  examples[models.REPRESENTATION] = compute_for_examples(
    data, lambda batch: model.encode(weights, batch), shape
  )
  return data._replace(examples=examples)


def represent_once(
  model: models.Model,
  weights: models.Weights,
  trained: Collection[str],
  sets: Sequence[batches.ClientData],
) -> tuple[models.Model, Sequence[batches.ClientData]]:
  """Represents examples once, if the training does not change the encoder.

  Steps on the head alone, and evaluations between them, then take the time of
  a head.

  Args:
    model: The model.
    weights: All of its weights.
    trained: The names of those that are trained.
    sets: The sets of examples to train and to evaluate on.

  Returns:
    The model and the sets to use. They are the same as before if a trained
    weight, or the batch, may change a representation, if there is no encoder,
    or if examples are protected.
  """
  encodes = bool(model.parts[models.ENCODER] or model.frozen)
  is_decision = set(trained) <= set(model.decision_names)
  if (
    not (encodes and is_decision)
    or model.encodes_by_head
    or model.mixes_examples
    or model.protection is not None
  ):
    return model, sets
  represented = models.mix_in(models.Represented, model)
  return represented, [represent(model, weights, data) for data in sets]


def put_first(one: Metrics, others: Metrics) -> Metrics:
  """Puts the metrics of one candidate before those of others."""
  return tf.nest.map_structure(
    lambda of_one, of_others: tf.concat([of_one[tf.newaxis], of_others], 0),
    one,
    others,
  )


def evaluate_epochs(
  evaluate_at: Callable[[_Carry], Metrics],
  start: _Carry,
  epoch: Callable[[tf.Tensor, _Carry], _Carry],
  num_epochs: int,
) -> Metrics:
  """Evaluates after 0, 1, …, `num_epochs` epochs.

  Args:
    evaluate_at: Maps the carry between epochs to its metrics.
    start: The carry for the first epoch.
    epoch: Maps the number of an epoch, from 0 on, and its carry to the carry
      after the epoch.
    num_epochs: The number of epochs.

  Returns:
    The metrics, each with a first axis of size `num_epochs + 1`.
  """

  def write(
    i: tf.Tensor, carry: _Carry, arrays: aliases.Structure
  ) -> aliases.Structure:
    return tf.nest.map_structure(
      lambda array, metric: array.write(i, metric), arrays, evaluate_at(carry)
    )

  def body(
    i: tf.Tensor, carry: _Carry, arrays: aliases.Structure
  ) -> tuple[tf.Tensor, _Carry, aliases.Structure]:
    arrays = write(i, carry, arrays)
    return i + 1, epoch(i, carry), arrays

  arrays = tf.nest.map_structure(
    lambda m: tf.TensorArray(m.dtype, num_epochs + 1, element_shape=m.shape),
    evaluate_at(start),
  )
  _, carry, arrays = tf.while_loop(
    lambda i, *_: i < num_epochs, body, (0, start, arrays)
  )
  arrays = write(num_epochs, carry, arrays)
  return tf.nest.map_structure(lambda array: array.stack(), arrays)


def choose(
  condition: tf.Tensor, first: _Structure, second: _Structure
) -> _Structure:
  """Returns `first` if the condition holds, else `second`, leaf by leaf."""
  return tf.nest.map_structure(
    lambda a, b: tf.where(condition, a, b), first, second
  )


def difference(before: models.Weights, after: models.Weights) -> models.Weights:
  """Returns before − after, which points in the direction of a gradient."""
  return collections.OrderedDict(
    (name, before[name] - after[name]) for name in before
  )


def scale(weights: models.Weights, factor: aliases.Scalar) -> models.Weights:
  """Multiplies all weights by a number."""
  return tf.nest.map_structure(lambda weight: factor * weight, weights)


def stack(structures: Iterable[_Structure]) -> _Structure:
  """Stacks several structures of tensors, leaf by leaf."""
  return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *structures)


def half_square(weights: models.Weights) -> tf.Tensor:
  """Returns half the square of all weights, 1/2 ||w||^2."""
  return sum(map(tf.nn.l2_loss, weights.values()))


def pull(center: models.Weights, strength: aliases.Number) -> Regularizer:
  """Returns the regularizer strength / 2 ||w - center||^2 of weights w.

  Args:
    center: The weights that w is pulled to; others are not pulled.
    strength: How strongly.
  """
  return lambda w: strength * half_square(difference(center, w))


def select(
  weights: models.Weights, names: Collection[str] | None
) -> models.Weights:
  """Returns the weights with these names, in their order; None for all."""
  return collections.OrderedDict(
    (name, weight)
    for name, weight in weights.items()
    if names is None or name in names
  )


def merge(weights: models.Weights, *others: models.Weights) -> models.Weights:
  """Returns the weights, with those of `others` replacing or joining them."""
  merged = collections.OrderedDict(weights)
  for more in others:
    merged.update(more)
  return merged
