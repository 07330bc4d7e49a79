"""The work of clients: batches, gradients, steps, sums and epochs."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from algorithms import client_work
from algorithms import optimizers
from tasks.data import batches
from tasks.models import linear
from tasks.models import lstm
from tasks.models import models
from tasks.models import protections
from tasks.models import transformer
from tests.algorithms import helpers

_START = np.array([1.0, -2.0, 0.5, 3.0])
_RATE = 0.05
_SGD = optimizers.Optimizer('sgd', _RATE)


def _tensors(structure):
  return tf.nest.map_structure(tf.constant, structure)


def _start():
  return _tensors(helpers.weights(_START))


def _data(num_examples=9, batch_size=4):
  return _tensors(helpers.data(0, num_examples, batch_size))


def _add_empty_batches(data):
  """The same batches, with batches of padding before, between and after."""
  steps = [data.indices[:1] * 0]
  masks = [data.mask[:1] * 0]
  for k in range(len(data.indices)):
    steps += [data.indices[k : k + 1], data.indices[:1] * 0]
    masks += [data.mask[k : k + 1], data.mask[:1] * 0]
  return data._replace(
    indices=tf.concat([*steps, *steps[:1]], 0),
    mask=tf.concat([*masks, *masks[:1]], 0),
  )


def _pad_places(data):
  """The same batches, with padding before the examples of each batch."""
  return data._replace(
    indices=tf.pad(data.indices, [[0, 0], [2, 1]]),
    mask=tf.pad(data.mask, [[0, 0], [2, 1]]),
  )


_PADDINGS = {
  'batches': _add_empty_batches,
  'places': _pad_places,
  'both': lambda data: _pad_places(_add_empty_batches(data)),
}


def test_a_batch_is_the_examples_of_its_indices():
  data = _data()
  examples, mask = client_work.batch(data, tf.constant(1))
  np.testing.assert_array_equal(examples['x'], data.examples['x'][4:8])
  np.testing.assert_array_equal(examples['y'], data.examples['y'][4:8])
  np.testing.assert_array_equal(mask, [1, 1, 1, 1])


def test_the_batches_are_folded_in_their_order():
  data = _data()
  data = data._replace(indices=data.indices[::-1], mask=data.mask[::-1])

  def step(carry, examples, mask):
    count, digits = carry
    size = tf.cast(tf.reduce_sum(mask), tf.int32)
    return count + 1, 10 * digits + size

  count, digits = client_work.fold_batches(data, step, (0, 0))
  assert (int(count), int(digits)) == (3, 144)


@pytest.mark.parametrize(
  'sizes, expected',
  [
    ((), 0),
    ((0,), 0),
    ((0, 0), 0),
    ((2,), 1),
    ((2, 1), 2),
    ((2, 1, 0, 0), 2),
    ((0, 2, 0, 1, 0), 4),  # Only padding at the end is no step.
  ],
)
def test_padding_at_the_end_is_no_step(sizes, expected):
  mask = np.array([[1] * n + [0] * (2 - n) for n in sizes], np.float32)
  mask = mask.reshape([-1, 2])
  data = batches.ClientData({}, np.zeros(mask.shape, np.int32), mask)
  assert client_work.num_steps(_tensors(data)) == expected


def test_examples_are_counted_without_padding():
  data = _pad_places(_add_empty_batches(_data(9)))
  assert client_work.num_examples(data) == 9


def test_the_gradient_of_a_batch_is_the_analytic_one():
  examples, mask = client_work.batch(_data(3), tf.constant(0))
  (a, b), *_ = helpers.batch_gradients(helpers.data(0, 3))
  slopes, loss = client_work.gradient(helpers.MODEL, _start(), examples, mask)
  np.testing.assert_allclose(
    helpers.vector(slopes), a @ _START - b, rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(
    loss, helpers.total_error(helpers.data(0, 3), _START) / 3, rtol=1e-5
  )


def test_a_gradient_has_the_shapes_of_the_weights_in_a_graph():
  model = linear.LogisticRegression(3, num_classes=2)
  weights = model.random_init(tf.constant([0, 1]))

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 3]),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([None]),
    ]
  )
  def differentiate(x, y, mask):
    slopes, _ = client_work.gradient(model, weights, {'x': x, 'y': y}, mask)
    for name, slope in slopes.items():
      assert slope.shape == weights[name].shape
    return slopes

  assert differentiate.get_concrete_function()


def test_the_regularizer_is_in_the_gradient_and_not_in_the_loss():
  examples, mask = client_work.batch(_data(3), tf.constant(0))
  plain, plain_loss = client_work.gradient(
    helpers.MODEL, _start(), examples, mask
  )
  slopes, loss = client_work.gradient(
    helpers.MODEL,
    _start(),
    examples,
    mask,
    lambda weights: 0.3 * client_work.half_square(weights),
  )
  np.testing.assert_allclose(
    helpers.vector(slopes), helpers.vector(plain) + 0.3 * _START, rtol=1e-5
  )
  assert loss == plain_loss


def test_the_gradient_of_a_batch_without_examples_is_zero():
  # Even with a regularizer.
  examples, mask = client_work.batch(_data(3), tf.constant(0))
  slopes, loss = client_work.gradient(
    helpers.MODEL, _start(), examples, 0 * mask, client_work.half_square
  )
  np.testing.assert_array_equal(helpers.vector(slopes), 0)
  assert loss == 0


def test_only_some_weights_are_differentiated_by():
  examples, mask = client_work.batch(_data(3), tf.constant(0))
  both, _ = client_work.gradient(helpers.MODEL, _start(), examples, mask)
  slopes, _ = client_work.gradient(
    helpers.MODEL, _start(), examples, mask, only=('bias',)
  )
  assert list(slopes) == ['bias']
  np.testing.assert_allclose(slopes['bias'], both['bias'], rtol=1e-6)


def test_the_gradient_by_a_weight_that_the_loss_has_not_is_zero():
  examples, mask = client_work.batch(_data(3), tf.constant(0))
  weights = client_work.merge(_start(), {'other': tf.ones([2])})
  slopes, _ = client_work.gradient(helpers.MODEL, weights, examples, mask)
  np.testing.assert_array_equal(slopes['other'], [0, 0])


def _train(data, optimizer, **arguments):
  return client_work.train(
    helpers.MODEL, optimizer.start(_start()), data, optimizer, **arguments
  )


def test_sgd_on_one_batch_many_times_is_gradient_descent_in_closed_form():
  data = helpers.data(0, 9, batch_size=100)
  steps = 7
  repeated = data._replace(
    indices=np.tile(data.indices, [steps, 1]),
    mask=np.tile(data.mask, [steps, 1]),
  )
  learner, _ = _train(_tensors(repeated), _SGD)
  a, b = helpers.quadratic(data)
  minimum = np.linalg.solve(a, b)
  shrink = np.linalg.matrix_power(np.eye(4) - _RATE * a, steps)
  np.testing.assert_allclose(
    helpers.vector(learner.weights),
    minimum + shrink @ (_START - minimum),
    rtol=1e-4,
  )


def test_the_loss_is_summed_over_examples_before_each_step():
  data = helpers.data(0, 9)
  _, loss = _train(_tensors(data), _SGD)
  w, expected = _START, 0.0
  for (a, b), indices, mask in zip(
    helpers.batch_gradients(data), data.indices, data.mask
  ):
    x = helpers.features(data)[indices[mask > 0]]
    y = data.examples['y'][indices[mask > 0]]
    expected += 0.5 * np.sum((x @ w - y) ** 2)
    w = w - _RATE * (a @ w - b)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_regularizer_pulls_in_each_step():
  data = helpers.data(0, 9)
  learner, _ = _train(
    _tensors(data),
    _SGD,
    regularizer=lambda weights: 0.3 * client_work.half_square(weights),
  )
  w = _START
  for a, b in helpers.batch_gradients(data):
    w = w - _RATE * (a @ w - b + 0.3 * w)
  np.testing.assert_allclose(helpers.vector(learner.weights), w, rtol=1e-5)


_KERAS = {
  'sgd': lambda: tf.keras.optimizers.legacy.SGD(_RATE),
  'momentum': lambda: tf.keras.optimizers.legacy.SGD(_RATE, momentum=0.9),
  'adam': lambda: tf.keras.optimizers.legacy.Adam(_RATE),
}


@pytest.mark.parametrize('name', _KERAS)
def test_steps_are_those_of_keras(name):
  data = helpers.data(0, 12)
  learner, _ = _train(_tensors(data), optimizers.Optimizer(name, _RATE))
  keras, w = _KERAS[name](), tf.Variable(np.float32(_START))
  for a, b in helpers.batch_gradients(data):
    gradient = tf.constant(a @ w.numpy() - b, tf.float32)
    keras.apply_gradients([(gradient, w)])
  np.testing.assert_allclose(
    helpers.vector(learner.weights), w.numpy(), rtol=1e-4
  )


@pytest.mark.parametrize('padding', _PADDINGS)
@pytest.mark.parametrize('name', optimizers.NAMES)
def test_padding_changes_no_step(name, padding):
  optimizer = optimizers.Optimizer(name, _RATE)
  expected = _train(_data(), optimizer)
  actual = _train(_PADDINGS[padding](_data()), optimizer)
  helpers.assert_close(actual, expected)


def test_fixed_weights_stay_as_they_are():
  data = helpers.data(0, 9)
  trained = client_work.select(_start(), ('bias',))
  learner, _ = client_work.train(
    helpers.MODEL, _SGD.start(trained), _tensors(data), _SGD, fixed=_start()
  )
  w = _START
  for a, b in helpers.batch_gradients(data):
    w = w - _RATE * (a @ w - b) * [0, 0, 0, 1]
  assert list(learner.weights) == ['bias']
  np.testing.assert_allclose(learner.weights['bias'], w[3], rtol=1e-5)


def test_a_learner_goes_on_where_it_was():
  optimizer = optimizers.Optimizer('adam', _RATE)
  data = _data(12)
  expected, _ = _train(data, optimizer)
  learner = optimizer.start(_start())
  for epoch in range(3):
    part = client_work.epoch_of(data, tf.constant(epoch), 3)
    learner, _ = client_work.train(helpers.MODEL, learner, part, optimizer)
  helpers.assert_close(learner, expected)


@pytest.mark.parametrize('steps', [1, 3, 8])
@pytest.mark.parametrize('padding', [None, *_PADDINGS])
def test_a_number_of_steps_begins_anew_after_the_last_batch(steps, padding):
  plain = helpers.data(0, 9)
  data = (
    _tensors(plain) if padding is None else _PADDINGS[padding](_tensors(plain))
  )
  learner, loss = client_work.train(
    helpers.MODEL, _SGD.start(_start()), data, _SGD, steps=tf.constant(steps)
  )
  w, losses = _START, []
  for k in range(steps):
    a, b = helpers.batch_gradients(plain)[k % 3]
    rows = plain.indices[k % 3][plain.mask[k % 3] > 0]
    errors = helpers.features(plain)[rows] @ w - plain.examples['y'][rows]
    losses.append(0.5 * np.mean(errors**2))
    w = w - _RATE * (a @ w - b)
  np.testing.assert_allclose(helpers.vector(learner.weights), w, rtol=1e-4)
  np.testing.assert_allclose(loss, 9 * np.mean(losses), rtol=1e-4)


def test_a_client_without_examples_takes_no_step_of_any_number():
  data = _tensors(helpers.padded(helpers.data(0, 4)))
  data = data._replace(mask=tf.zeros_like(data.mask))
  learner, loss = client_work.train(
    helpers.MODEL, _SGD.start(_start()), data, _SGD, steps=tf.constant(5)
  )
  np.testing.assert_array_equal(helpers.vector(learner.weights), _START)
  assert loss == 0


@pytest.mark.parametrize('epoch', [0, 1, 2])
def test_an_epoch_is_its_part_of_the_batches(epoch):
  data = _data(24)
  part = client_work.epoch_of(data, tf.constant(epoch), 3)
  rows = slice(2 * epoch, 2 * epoch + 2)
  np.testing.assert_array_equal(part.indices, data.indices[rows])
  np.testing.assert_array_equal(part.mask, data.mask[rows])
  assert part.examples is data.examples


def test_without_a_number_of_epochs_each_is_all_of_the_data():
  data = _data()
  assert client_work.epoch_of(data, tf.constant(5), 0) is data


def test_epochs_are_evaluated_before_the_first_and_after_each():
  result = client_work.evaluate_epochs(
    lambda carry: {'carried': carry, 'square': (carry**2, tf.ones([2]))},
    tf.constant(1),
    lambda i, carry: 10 * carry + i,
    3,
  )
  carried = np.array([1, 10, 101, 1012])
  np.testing.assert_array_equal(result['carried'], carried)
  np.testing.assert_array_equal(result['square'][0], carried**2)
  np.testing.assert_array_equal(result['square'][1], np.ones([4, 2]))


def test_without_epochs_only_the_start_is_evaluated():
  result = client_work.evaluate_epochs(
    lambda carry: carry, tf.constant(7), lambda i, carry: carry + 1, 0
  )
  np.testing.assert_array_equal(result, [7])


def test_statistics_of_any_shape_are_summed_over_examples():
  rng = np.random.default_rng(0)
  matrices = rng.normal(size=[4, 2, 3]).astype(np.float32)
  vectors = rng.normal(size=[4, 5]).astype(np.float32)
  numbers = rng.normal(size=[4]).astype(np.float32)
  statistics = collections.OrderedDict(
    confusion=matrices, mean=(numbers, vectors)
  )
  sums = client_work.sum_statistics(
    _tensors(statistics), tf.zeros([4]), tf.constant([1.0, 0, 1, 1])
  )
  kept = [0, 2, 3]
  np.testing.assert_allclose(
    sums['confusion'], matrices[kept].sum(0), rtol=1e-5
  )
  np.testing.assert_allclose(sums['mean'][0], numbers[kept].sum(), rtol=1e-5)
  np.testing.assert_allclose(sums['mean'][1], vectors[kept].sum(0), rtol=1e-5)


@pytest.mark.parametrize('diverged', [np.nan, np.inf])
def test_examples_of_which_a_classifier_diverged_are_counted(diverged):
  model = linear.LogisticRegression(3, 2)
  weights = model.init(tf.constant([0, 1]))
  weights['bias'] += diverged
  data = helpers.data(0, 9)
  data.examples['y'] = np.zeros(9, np.int32)
  sums = client_work.evaluate(model, weights, _tensors(data))
  assert sums['diverged'] == 9
  # What the metrics are judged by is known nevertheless.
  assert sums['accuracy'][1] == 9


def test_what_diverges_in_padding_alone_counts_as_ever():
  sums = client_work.sum_statistics(
    collections.OrderedDict(right=tf.constant([1.0, 1.0])),
    tf.constant([2.0, np.nan]),
    tf.constant([1.0, 0.0]),
  )
  assert sums['right'] == 1
  assert sums['diverged'] == 0


@dataclasses.dataclass(frozen=True)
class Counting(linear.LogisticRegression):
  """Counts each true class and predicted class, as a confusion matrix has."""

  def prediction_statistics(self, predicted, batch):
    statistics = super().prediction_statistics(predicted, batch)
    rows = tf.one_hot(batch['y'], self.num_classes)
    columns = tf.one_hot(predicted, self.num_classes)
    statistics['confusion'] = rows[:, :, tf.newaxis] * columns[:, tf.newaxis]
    return statistics


@pytest.mark.parametrize('padding', [None, *_PADDINGS])
def test_evaluation_sums_matrices_over_all_batches(padding):
  model = Counting(3, 2, initial_stddev=1)
  weights = model.init(tf.constant([0, 1]))
  data = helpers.data(0, 9)
  data.examples['y'] = (data.examples['y'] > 0).astype(np.int32)
  scores = data.examples['x'] @ weights['kernel'].numpy()
  expected = np.zeros([2, 2])
  np.add.at(expected, (data.examples['y'], scores.argmax(1)), 1)
  data = _tensors(data)
  if padding:
    data = _PADDINGS[padding](data)
  sums = client_work.evaluate(model, weights, data)
  np.testing.assert_array_equal(sums['confusion'], expected)
  assert sums['accuracy'][0] == np.trace(expected)
  assert sums['accuracy'][1] == 9


@pytest.mark.parametrize('padding', [None, *_PADDINGS])
def test_evaluation_sums_the_loss_and_the_metrics(padding):
  data = _PADDINGS[padding](_data()) if padding else _data()
  sums = client_work.evaluate(helpers.MODEL, _start(), data)
  expected = helpers.total_error(helpers.data(0, 9), _START)
  assert list(sums) == ['half_squared_error', 'diverged', 'loss']
  assert sums.pop('diverged') == 0
  for total, size in sums.values():
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert size == 9


def test_each_set_is_evaluated():
  sets = {'one': _data(9), 'other': _data(5)}
  result = client_work.evaluate_sets(helpers.MODEL, _start(), sets)
  assert list(result) == ['one', 'other']
  for name, data in sets.items():
    helpers.assert_equal(
      result[name], client_work.evaluate(helpers.MODEL, _start(), data)
    )


def test_no_examples_have_sums_of_zero():
  sums = client_work.evaluate(helpers.MODEL, _start(), _mask_everything())
  assert {float(total) for total in tf.nest.flatten(sums)} == {0.0}


def _mask_everything():
  data = _data()
  return data._replace(mask=0 * data.mask)


def test_losses_count_as_the_model_weights_its_examples():
  class FirstFeatureCounts(linear.LinearRegression):
    def example_weight(self, batch):
      return tf.abs(batch['x'][:, 0])

  examples, mask = client_work.batch(_data(9), tf.constant(2))
  model = FirstFeatureCounts(3)
  losses = model.loss(_start(), examples)
  total, by = client_work.total_loss(model, losses, examples, mask)
  data = helpers.data(0, 9)
  weight = abs(data.examples['x'][8, 0])
  error = helpers.features(data)[8] @ _START - data.examples['y'][8]
  np.testing.assert_allclose(total, weight * 0.5 * error**2, rtol=1e-5)
  np.testing.assert_allclose(by, weight, rtol=1e-6)


@pytest.mark.parametrize('condition, chosen', [(True, 0), (False, 1)])
def test_choose_takes_one_of_two_structures(condition, chosen):
  both = (
    {'a': tf.constant(1), 'b': [tf.ones(2)]},
    {
      'a': tf.constant(2),
      'b': [tf.zeros(2)],
    },
  )
  result = client_work.choose(tf.constant(condition), *both)
  helpers.assert_equal(result, both[chosen])


def test_difference_is_before_less_after():
  after = _tensors(helpers.weights(_START + [1, 2, 3, 4]))
  np.testing.assert_array_equal(
    helpers.vector(client_work.difference(_start(), after)), [-1, -2, -3, -4]
  )


def test_half_square_is_of_all_weights():
  np.testing.assert_allclose(
    client_work.half_square(_start()), 0.5 * np.sum(_START**2)
  )


def test_select_keeps_the_order_of_the_weights():
  assert list(client_work.select(_start(), None)) == ['kernel', 'bias']
  names = ('bias', 'kernel')
  assert list(client_work.select(_start(), names)) == ['kernel', 'bias']
  assert list(client_work.select(_start(), ())) == []


def test_merge_takes_the_others_in_place_and_adds_what_is_new():
  merged = client_work.merge(
    {'a': 1, 'b': 2}, collections.OrderedDict(b=3, c=4)
  )
  assert list(merged.items()) == [('a', 1), ('b', 3), ('c', 4)]


_SMALL_LSTM = lstm.NextWordLstm(
  16, embedding_size=4, lstm_size=5, sequence_length=3
)


def _sentences():
  """Makes batches of 9 sentences, the last of which is padded."""
  rng = np.random.default_rng(0)
  examples = collections.OrderedDict(
    (name, rng.integers(0, 20, (9, 3)).astype(np.int32)) for name in 'xy'
  )
  indices, mask = batches.index_batches(9, 4)
  return _tensors(batches.ClientData(examples, indices, mask))


@pytest.mark.parametrize('padding', [lambda data: data, *_PADDINGS.values()])
def test_training_a_head_on_representations_is_training_it(padding):
  weights, data = _SMALL_LSTM.init(tf.constant([0, 1])), padding(_sentences())
  head = client_work.select(weights, _SMALL_LSTM.parts['head'])
  represented, (with_representations,) = client_work.represent_once(
    _SMALL_LSTM, weights, head, [data]
  )
  assert 'representation' in with_representations.examples
  # The sentences are not read again.
  del with_representations.examples['x']
  adam = optimizers.Optimizer('adam', _RATE)
  results = []
  for model, client_data in (
    (_SMALL_LSTM, data),
    (represented, with_representations),
  ):
    learner, loss = client_work.train(
      model, adam.start(head), client_data, adam, fixed=weights
    )
    after = client_work.merge(weights, learner.weights)
    results.append(
      (after, loss, client_work.evaluate(model, after, client_data))
    )
  tf.nest.map_structure(
    lambda *both: np.testing.assert_allclose(*both, rtol=1e-5), *results
  )


class _WithHead:
  """Has a model include the bias of its head in the statistics."""

  def statistics(self, weights, batch):
    found = super().statistics(weights, batch)
    found['bias'] = weights['output_bias'][tf.newaxis]
    return found


def test_a_represented_model_is_the_same_otherwise():
  weights, data = _SMALL_LSTM.init(tf.constant([0, 1])), _sentences()
  model = models.mix_in(_WithHead, _SMALL_LSTM)
  represented, (data,) = client_work.represent_once(
    model, weights, ['output_bias'], [data]
  )
  assert isinstance(represented, type(model))
  examples, _ = client_work.batch(data, tf.constant(0))
  statistics = represented.statistics(weights, examples)
  assert list(statistics) == list(model.statistics(weights, examples))


@pytest.mark.parametrize(
  ('model', 'trained'),
  [
    (_SMALL_LSTM, ['lstm_bias', 'output_bias']),
    (helpers.MODEL, ['kernel', 'bias']),
    (transformer.NextWordTransformer(16), ['embedding']),
    (
      dataclasses.replace(_SMALL_LSTM, protection=protections.Protection()),
      ['output_bias'],
    ),
  ],
)
def test_examples_are_not_represented_if_that_saves_or_proves_nothing(
  model, trained
):
  sets = [None]
  same_model, same_sets = client_work.represent_once(model, {}, trained, sets)
  assert (same_model, same_sets) == (model, sets)
