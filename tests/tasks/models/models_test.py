"""Tests of what every model promises."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import character_lstm
from tasks.models import cnn
from tasks.models import linear
from tasks.models import lstm
from tasks.models import mobilenet
from tasks.models import models
from tasks.models import networks
from tasks.models import preference
from tasks.models import prompted
from tasks.models import transformer
from tests import toys
from tests.tasks.models import gpt2_source

_SEED = tf.constant([1, 2])
_NUM_CLASSES = 5
_MODELS = {
  'linear_regression': linear.LinearRegression(3, initial_stddev=1),
  'logistic_regression': linear.LogisticRegression(
    3, _NUM_CLASSES, initial_stddev=1
  ),
  'svm': linear.SupportVectorMachine(3, l2=0),
  'emnist_cnn': cnn.EmnistCnn(_NUM_CLASSES),
  'adni_cnn': cnn.AdniCnn(),
  'lstm': lstm.NextWordLstm(
    _NUM_CLASSES, sequence_length=4, embedding_size=3, lstm_size=6
  ),
  'character_lstm': character_lstm.CharacterLstm.create(
    ['a', 'b', 'ab', 'aa', 'abba'],
    sequence_length=4,
    filters=(2, 1),
    lstm_size=6,
  ),
  'transformer': transformer.NextWordTransformer(
    _NUM_CLASSES,
    sequence_length=4,
    embedding_size=4,
    width=6,
    hidden_size=5,
    num_heads=2,
  ),
  'mobilenet': mobilenet.MobileNetV2(_NUM_CLASSES, image_size=32),
  'prompted_gpt2': prompted.PromptedModel(
    gpt2_source.SIZES,
    _NUM_CLASSES,
    sequence_length=4,
    frozen=gpt2_source.weights(),
  ),
  'gpt2_with_two_heads': prompted.ModelWithTwoHeads(
    gpt2_source.SIZES,
    _NUM_CLASSES,
    sequence_length=4,
    frozen=gpt2_source.weights(),
  ),
  'gpt2_with_head': prompted.ModelWithHead(
    gpt2_source.SIZES,
    _NUM_CLASSES,
    sequence_length=4,
    frozen=gpt2_source.weights(),
  ),
  'regression_network': networks.NetworkRegressor((3,)),
  'dense_network': networks.NetworkClassifier(
    (3,), _NUM_CLASSES, hidden=(4, 2), types=_NUM_CLASSES
  ),
  'image_network': networks.NetworkClassifier(
    (9, 6, 3), _NUM_CLASSES, filters=(2, 3), hidden=(4,)
  ),
  'network_with_contexts': networks.PreferenceNetwork(
    (3,), 2, num_contexts=_NUM_CLASSES, hidden=(4,)
  ),
  'frozen': toys.FrozenModel(),
  'vector': toys.VectorModel(),
  'f1': toys.F1Model(),
  'preference': preference.DigitPreference(2, 28),
  'appended_vector': linear.LogisticRegression(
    3, _NUM_CLASSES, initial_stddev=1
  ).add_vector(2),
  'shifted': models.Shifted(
    networks.NetworkClassifier((3,), _NUM_CLASSES, hidden=(4,))
  ),
  'shifted_svm': models.Shifted(linear.SupportVectorMachine(3, l2=0.1)),
}
# The models whose encoder shares a weight with the head: the embedding.
_TIED = ('transformer',)
# The models whose head is frozen.
_WITHOUT_HEAD = ('prompted_gpt2',)

_each_model = pytest.mark.parametrize(
  'a_model', _MODELS.values(), ids=_MODELS.keys()
)
_each_untied_model = pytest.mark.parametrize(
  'a_model', [_MODELS[n] for n in _MODELS if n not in _TIED]
)


def _batch(a_model, size=4):
  rng = np.random.default_rng(0)
  num_classes = getattr(a_model, 'num_classes', _NUM_CLASSES)

  def feature(spec):
    shape = [size, *spec.shape]
    if spec.dtype.is_floating:
      return tf.constant(rng.normal(size=shape), spec.dtype)
    return tf.constant(rng.integers(0, num_classes, shape), spec.dtype)

  batch = {name: feature(spec) for name, spec in a_model.example_spec.items()}
  if 'bytes' in batch:  # Padding has none.
    batch['bytes'] *= tf.cast(batch['y'] > 0, tf.int32)
  return batch


def _weights_of(a_model, weights, parts):
  """Picks the weights of these parts."""
  return collections.OrderedDict(
    (name, weights[name]) for part in parts for name in a_model.parts[part]
  )


def _assert_same(actual, expected):
  tf.nest.assert_same_structure(actual, expected)
  tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


@_each_model
def test_each_weight_is_in_one_part(a_model):
  names = [name for part in a_model.parts.values() for name in part]
  assert sorted(names) == sorted(a_model.init(_SEED))


@pytest.mark.parametrize('name', _MODELS)
def test_each_model_has_an_encoder_and_a_head(name):
  parts = _MODELS[name].parts
  assert {models.ENCODER, models.HEAD} <= set(parts)
  assert bool(parts[models.HEAD]) == (name not in _WITHOUT_HEAD)


@_each_untied_model
def test_encoding_reads_no_weight_of_the_head(a_model):
  assert not a_model.encodes_by_head
  weights, batch = a_model.init(_SEED), _batch(a_model)
  others = [part for part in a_model.parts if part != models.HEAD]
  _assert_same(
    a_model.encode(_weights_of(a_model, weights, others), batch),
    a_model.encode(weights, batch),
  )


@pytest.mark.parametrize('name', _TIED)
def test_encoding_with_tied_weights_reads_the_head(name):
  a_model = _MODELS[name]
  assert a_model.encodes_by_head
  encoder = _weights_of(a_model, a_model.init(_SEED), [models.ENCODER])
  with pytest.raises(KeyError, match=a_model.parts[models.HEAD][0]):
    a_model.encode(encoder, _batch(a_model))


@_each_model
def test_deciding_reads_no_weight_of_the_encoder(a_model):
  weights = a_model.init(_SEED)
  features = a_model.encode(weights, _batch(a_model))
  others = [part for part in a_model.parts if part != models.ENCODER]
  _assert_same(
    a_model.decide(_weights_of(a_model, weights, others), features),
    a_model.decide(weights, features),
  )


@_each_model
def test_each_weight_of_the_head_is_read_by_deciding(a_model):
  weights = a_model.init(_SEED)
  features = a_model.encode(weights, _batch(a_model))
  for name in a_model.parts[models.HEAD]:
    without = {n: weight for n, weight in weights.items() if n != name}
    with pytest.raises(KeyError, match=name):
      a_model.decide(without, features)


@_each_model
def test_there_is_one_row_of_features_for_each_entry(a_model):
  batch = _batch(a_model)
  features = a_model.encode(a_model.init(_SEED), batch)
  assert features.shape.rank == 2
  assert len(features) == len(a_model.target(batch))
  assert len(features) == tf.size(a_model.entry_mask(batch))


@_each_model
def test_loss_is_that_of_the_scores(a_model):
  weights, batch = a_model.init(_SEED), _batch(a_model)
  scores = a_model.decide(weights, a_model.encode(weights, batch))
  loss = a_model.loss(weights, batch)
  assert loss.shape == [4]
  _assert_same(loss, a_model.score_loss(scores, batch))


@_each_model
def test_statistics_judge_what_the_scores_predict(a_model):
  weights, batch = a_model.init(_SEED), _batch(a_model)
  scores = a_model.decide(weights, a_model.encode(weights, batch))
  statistics = a_model.statistics(weights, batch)
  judged = a_model.prediction_statistics(a_model.predict(scores), batch)
  _assert_same({name: statistics[name] for name in judged}, dict(judged))
  for tensor in tf.nest.flatten(statistics):
    assert tensor.shape[0] == 4


@_each_model
def test_other_statistics_judge_the_likelihood(a_model):
  weights, batch = a_model.init(_SEED), _batch(a_model)
  scores = a_model.scores(weights, batch)
  judged = a_model.prediction_statistics(a_model.predict(scores), batch)
  statistics = a_model.statistics(weights, batch)
  others = {
    n: statistic for n, statistic in statistics.items() if n not in judged
  }
  softly, target = a_model.predict_softly(scores), a_model.target(batch)
  if target.dtype.is_integer:
    softly = tf.math.log(tf.gather(softly, target, batch_dims=1))
  expected = dict(a_model.likelihood_statistics(softly, batch))
  assert others.keys() == expected.keys()
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), others, expected
  )


@_each_model
def test_soft_predictions_agree_with_predictions(a_model):
  scores = a_model.scores(a_model.init(_SEED), _batch(a_model))
  predicted = a_model.predict(scores)
  softly = a_model.predict_softly(scores)
  if predicted.dtype.is_integer:
    np.testing.assert_allclose(tf.reduce_sum(softly, 1), 1, rtol=1e-5)
    softly = tf.argmax(softly, 1, tf.int32)
  _assert_same(predicted, softly)


@_each_model
def test_the_range_of_each_metric_is_known(a_model):
  statistics = a_model.statistics(a_model.init(_SEED), _batch(a_model))
  assert set(a_model.metrics) == set(statistics)
  ranges = {name: metric.range for name, metric in a_model.metrics.items()}
  for name, (low, high) in ranges.items():
    assert low == (1 if 'perplexity' in name else 0)
    is_share = name in ('accuracy', 'macro_f1', 'false_accepts')
    assert high == (1 if is_share else math.inf)


@_each_model
def test_models_with_equal_fields_are_equal(a_model):
  again = dataclasses.replace(a_model)
  assert again is not a_model
  assert again == a_model
  assert hash(again) == hash(a_model)


@pytest.mark.parametrize(
  'one, other',
  [
    (linear.LinearRegression(3), linear.LinearRegression(4)),
    (
      linear.LinearRegression(3),
      linear.LinearRegression(3, initial_stddev=0.1),
    ),
    (
      linear.SupportVectorMachine(3, l2=0.1),
      linear.SupportVectorMachine(3, l2=0.2),
    ),
    (cnn.EmnistCnn(10), cnn.EmnistCnn(62)),
    (lstm.NextWordLstm(10), lstm.NextWordLstm(10, lstm_size=3)),
    (mobilenet.MobileNetV2(10), mobilenet.MobileNetV2(10, num_groups=4)),
    (transformer.NextWordTransformer(10), transformer.NextWordTransformer(11)),
  ],
)
def test_models_with_different_fields_differ(one, other):
  assert one != other
  assert hash(one) != hash(other)


def test_models_of_different_classes_differ():
  assert linear.LinearRegression(3) != toys.VectorModel(3)


def test_frozen_weights_make_no_difference_to_which_models_are_equal():
  zeros = tf.nest.map_structure(tf.zeros_like, toys.FrozenModel().frozen)
  other = toys.FrozenModel(frozen=zeros)
  assert toys.FrozenModel() == other
  assert hash(toys.FrozenModel()) == hash(other)


def test_frozen_weights_are_not_among_the_weights():
  frozen = toys.FrozenModel()
  assert list(frozen.init(_SEED)) == ['kernel', 'bias']
  assert not set(frozen.init(_SEED)) & set(frozen.frozen)


def test_frozen_weights_are_read_by_encoding():
  frozen = toys.FrozenModel()
  batch = _batch(frozen)
  zeros = tf.nest.map_structure(tf.zeros_like, frozen.frozen)
  other = dataclasses.replace(frozen, frozen=zeros)
  assert np.all(frozen.encode({}, batch) != 0)
  np.testing.assert_array_equal(other.encode({}, batch), np.zeros([4, 4]))


def test_a_clients_vector_changes_its_representation():
  vector_model = toys.VectorModel()
  weights, batch = vector_model.init(_SEED), _batch(vector_model)
  other = {**weights, 'vector': weights['vector'] + 1}
  assert np.all(
    vector_model.encode(weights, batch) != vector_model.encode(other, batch)
  )


@_each_untied_model
def test_several_heads_share_an_encoder(a_model):
  weights, batch = a_model.init(_SEED), _batch(a_model)
  features = a_model.encode(weights, batch)
  for seed in ([3, 4], [5, 6]):
    other = a_model.random_init(tf.constant(seed))
    with_head = {**weights, **_weights_of(a_model, other, [models.HEAD])}
    _assert_same(
      a_model.decide(with_head, features), a_model.scores(with_head, batch)
    )


@pytest.mark.parametrize('name', ['frozen', 'vector', 'f1'])
def test_toys_learn_by_sgd(name):
  toy = _MODELS[name]
  batch = _batch(toy, size=16)
  weights = toy.init(_SEED)
  losses = []
  for _ in range(20):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = toy.mean_loss(weights, batch, tf.ones([16]))
    gradient = tape.gradient(loss, weights)
    assert None not in gradient.values()
    weights = tf.nest.map_structure(lambda w, g: w - 0.1 * g, weights, gradient)
    losses.append(loss)
  assert losses[-1] < 0.99 * losses[0]


def test_masked_examples_do_not_count_in_the_mean_loss():
  a_model = _MODELS['linear_regression']
  weights, batch = a_model.init(_SEED), _batch(a_model)
  losses = a_model.loss(weights, batch).numpy()
  mean = a_model.mean_loss(weights, batch, tf.constant([1.0, 0, 1, 0]))
  np.testing.assert_allclose(mean, losses[[0, 2]].mean(), rtol=1e-6)


def test_mean_loss_of_no_examples_is_zero():
  a_model = _MODELS['linear_regression']
  weights, batch = a_model.init(_SEED), _batch(a_model)
  assert a_model.mean_loss(weights, batch, tf.zeros([4])) == 0


def test_the_first_of_equal_scores_is_the_most_likely():
  scores = tf.constant([[1.0, 3, 3], [2, 2, 1]])
  np.testing.assert_array_equal(models.most_likely(scores), [1, 0])
