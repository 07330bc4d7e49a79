"""Tests of metrics of sums."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics
import tensorflow as tf

from tasks.models import metrics
from tests import toys


def _classes(seed, num_classes, size=40):
  """Draws true and predicted classes, which agree more than by chance."""
  rng = np.random.default_rng(seed)
  true = rng.integers(0, num_classes, size)
  guess = rng.integers(0, num_classes, size)
  return true, np.where(rng.random(size) < 0.5, true, guess)


def _confusion(true, predicted, num_classes):
  return sklearn_metrics.confusion_matrix(
    true, predicted, labels=range(num_classes)
  ).astype(np.float32)


def _sklearn_f1(true, predicted, num_classes):
  return sklearn_metrics.f1_score(
    true,
    predicted,
    labels=range(num_classes),
    average='macro',
    zero_division=0,
  )


@pytest.mark.parametrize('num_classes', [2, 3, 7])
def test_macro_f1_of_each_client_is_scikit_learns(num_classes):
  clients = [_classes(seed, num_classes) for seed in range(5)]
  confusions = np.stack([_confusion(*c, num_classes) for c in clients])
  np.testing.assert_allclose(
    metrics.MACRO_F1.value(confusions),
    [_sklearn_f1(*client, num_classes) for client in clients],
    rtol=1e-6,
  )


@pytest.mark.parametrize('num_classes', [2, 3, 7])
def test_pooled_macro_f1_is_scikit_learns_of_all_examples(num_classes):
  clients = [_classes(seed, num_classes) for seed in range(5)]
  confusions = [_confusion(*c, num_classes) for c in clients]
  np.testing.assert_allclose(
    metrics.MACRO_F1.value(np.sum(confusions, axis=0)),
    _sklearn_f1(*np.concatenate(clients, axis=1), num_classes),
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  'true, predicted',
  [([0, 0, 0], [0, 0, 0]), ([0, 0, 1], [0, 0, 0]), ([0, 0], [1, 1])],
)
def test_macro_f1_is_scikit_learns_when_a_class_is_missing(true, predicted):
  np.testing.assert_allclose(
    metrics.MACRO_F1.value(_confusion(true, predicted, 2)),
    _sklearn_f1(true, predicted, 2),
    rtol=1e-6,
  )


def test_macro_f1_of_nothing_is_not_a_number():
  value = metrics.MACRO_F1.value(np.zeros([2, 3, 3], np.float32))
  np.testing.assert_array_equal(value, [np.nan, np.nan])


def test_macro_f1_weighs_by_the_number_of_examples():
  confusion = np.array([[[1, 2], [3, 4]], [[0, 0], [5, 0]]], np.float32)
  np.testing.assert_array_equal(metrics.MACRO_F1.weight(confusion), [10, 5])


def test_a_models_statistics_sum_up_to_its_macro_f1():
  model = toys.F1Model()
  true, predicted = _classes(0, 2)
  statistics = model.prediction_statistics(
    tf.constant(predicted), {'y': tf.constant(true)}
  )
  counts = tf.reduce_sum(statistics['macro_f1'], axis=0).numpy()
  np.testing.assert_allclose(
    model.metrics['macro_f1'].value(counts),
    _sklearn_f1(true, predicted, 2),
    rtol=1e-6,
  )


def test_a_mean_divides_totals_by_what_they_are_of():
  sums = np.array([6.0, 1, 0]), np.array([4.0, 2, 0])
  np.testing.assert_array_equal(metrics.MEAN.value(sums), [1.5, 0.5, np.nan])
  np.testing.assert_array_equal(metrics.MEAN.weight(sums), [4, 2, 0])


def test_sums_may_be_integers():
  assert metrics.MEAN.value((np.array(3), np.array(4))) == 0.75
  confusion = np.array([[1, 2], [3, 4]])
  np.testing.assert_allclose(
    metrics.MACRO_F1.value(confusion),
    metrics.MACRO_F1.value(confusion.astype(np.float64)),
  )


def test_ratios_of_counts_are_as_exact_as_can_be():
  counts = np.array([2, 3, 7, 8], np.float32), np.full(4, 10, np.float32)
  np.testing.assert_array_equal(
    metrics.MEAN.value(counts), [0.2, 0.3, 0.7, 0.8]
  )


def test_perplexity_is_that_of_the_mean_log_likelihood():
  # Three words of likelihood 1/2 and 1/4 each; then none.
  sums = np.array([3 * np.log(2), 3 * np.log(4), 0]), np.array([3.0, 3, 0])
  np.testing.assert_allclose(
    metrics.PERPLEXITY.value(sums), [2, 4, np.nan], rtol=1e-6
  )
  np.testing.assert_array_equal(metrics.PERPLEXITY.weight(sums), [3, 3, 0])


def test_pooled_perplexity_is_no_mean_of_the_clients():
  total, words = np.array([3 * np.log(2), np.log(16)]), np.array([3.0, 1])
  pooled = metrics.PERPLEXITY.value((total.sum(), words.sum()))
  np.testing.assert_allclose(pooled, 2 ** ((3 + 4) / 4))


@pytest.mark.parametrize('false_rejects', [0.0, 0.1, 0.25, 1.0])
def test_false_accepts_are_those_of_the_threshold(false_rejects):
  rng = np.random.default_rng(0)
  labels = rng.integers(2, size=200)
  scores = np.clip(np.round(rng.normal(10 + 4 * labels, 4)), 0, 24).astype(int)
  counts = np.zeros((2, 25))
  np.add.at(counts, (labels, scores), 1)
  # Of all thresholds, the highest that rejects few enough.
  positives, negatives = scores[labels == 1], scores[labels == 0]
  threshold = max(
    t for t in range(26) if np.mean(positives < t) <= false_rejects
  )
  metric = metrics.false_accepts(false_rejects)
  accepted = np.mean(negatives >= threshold)
  assert metric.value(counts) == pytest.approx(accepted)
  assert metric.weight(counts) == 200


def test_without_positives_or_negatives_no_false_accepts_are_judged():
  metric = metrics.false_accepts(0.1)
  counts = np.array([[[0, 0], [1, 2]], [[1, 2], [0, 0]], [[1, 1], [0, 1]]])
  np.testing.assert_array_equal(metric.value(counts), [np.nan, np.nan, 0.5])
  np.testing.assert_array_equal(metric.weight(counts), [0, 0, 3])
