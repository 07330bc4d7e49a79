"""What holds for every method."""

import dataclasses
import functools

from absl.testing import parameterized
import numpy as np
import tensorflow_federated as tff
import tree

from algorithms import process
from algorithms import registry
from tests.algorithms import helpers

# Settings that make a method quick to run.
_QUICK = {
  'ditto': dict(personal_epochs=2),
  'finetuning': dict(finetuning_epochs=2, finetuning_layers=('all', 'last')),
  'hypcluster': dict(warmstart_rounds=1.0),
  'knn_per': dict(coefficients=(0.0, 0.5), neighbor_weights='1/d'),
  'local': dict(finetuning_epochs=2),
}
_METHODS = [(name, name) for name in registry.algorithm_names()]


@functools.cache
def _build(name):
  return registry.build(
    name,
    helpers.MODEL,
    registry.hyperparameters(name, _QUICK.get(name, {})),
    helpers.mean(),
    helpers.SETS,
    num_clients=len(helpers.SIZES) + 1,
  )


def _assert_close(first, second, **tolerance):
  tree.map_structure(
    lambda a, b: np.testing.assert_allclose(
      a, b, **(dict(rtol=1e-4, atol=1e-6) | tolerance)
    ),
    first,
    second,
  )


def _assert_equal(first, second):
  tree.map_structure(np.testing.assert_array_equal, first, second)


class MethodsTest(parameterized.TestCase):
  @parameterized.named_parameters(*_METHODS)
  def test_both_runtimes_give_the_same(self, name):
    algorithm = _build(name)
    results = []
    for runtime in ('native', 'cohort'):
      helpers.use(runtime)
      state, metrics = helpers.run(algorithm)
      clients = helpers.held_out_clients(algorithm)
      results.append(
        (state, metrics, list(algorithm.personalize(state, clients)))
      )
    _assert_close(*results)

  @parameterized.named_parameters(*_METHODS)
  def test_padding_and_stacking_change_nothing(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    plain = [helpers.data(k, n) for k, n in enumerate(helpers.SIZES)]
    # Of the same shapes, so that they are stacked, as the others are not.
    padded = [helpers.padded(own) for own in plain]
    results = []
    for all_data in (plain, padded):
      state, metrics = helpers.run(algorithm, all_data=all_data)
      clients = helpers.held_out_clients(algorithm, all_data)
      results.append(
        (state, metrics, list(algorithm.personalize(state, clients)))
      )
    _assert_close(*results)

  @parameterized.named_parameters(*_METHODS)
  def test_the_order_of_clients_changes_nothing(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    backwards = helpers.train_clients(algorithm)[::-1]
    _assert_close(
      helpers.run(algorithm),
      helpers.run(algorithm, clients=backwards),
    )

  @parameterized.named_parameters(*_METHODS)
  def test_a_seed_fixes_every_bit(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    _assert_equal(helpers.run(algorithm), helpers.run(algorithm))

  @parameterized.named_parameters(*_METHODS)
  def test_a_client_that_is_not_finite_is_dropped(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    all_data = [helpers.data(k, n) for k, n in enumerate(helpers.SIZES)]
    without, _ = helpers.run(algorithm, rounds=1, all_data=all_data)
    bad = helpers.data(9, 6)
    bad.examples['x'][0] = np.inf
    state, metrics = helpers.run(algorithm, rounds=1, all_data=[*all_data, bad])
    self.assertEqual(metrics['dropped_clients'], 1)
    _assert_close(state, without)

  @parameterized.named_parameters(*_METHODS)
  def test_begins_with_given_models_and_nothing_else_is_changed(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    models = [
      dict(kernel=np.full([3], k + 1, np.float32), bias=np.float32(k + 5))
      for k in range(len(algorithm.models))
    ]
    random = dict(tree.flatten_with_path(algorithm.initial_state([0, 1])))
    begun = dataclasses.replace(algorithm, first_models=models)
    given = {
      (*place, name): weight
      for place, weights in zip(algorithm.models, models)
      for name, weight in weights.items()
    }
    self.assertContainsSubset(given, random)
    _assert_equal(
      dict(tree.flatten_with_path(begun.initial_state([0, 1]))), random | given
    )

  @parameterized.named_parameters(*_METHODS)
  def test_nobody_left_leaves_the_model_as_it_was(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    bad = [helpers.data(k, n) for k, n in enumerate(helpers.SIZES)]
    for own in bad:
      own.examples['x'][0] = np.nan
    state, metrics = helpers.run(algorithm, rounds=1, all_data=bad)
    self.assertEqual(metrics['dropped_clients'], len(bad))
    for leaf in tree.flatten(state):
      self.assertTrue(np.all(np.isfinite(leaf)))

  @parameterized.named_parameters(*_METHODS)
  def test_is_an_iterative_process_of_tff(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    process = algorithm.iterative_process([0, 1])
    self.assertIsInstance(process, tff.templates.IterativeProcess)
    _assert_equal(process.initialize(), algorithm.initial_state([0, 1]))

  @parameterized.named_parameters(*_METHODS)
  def test_there_is_a_metric_for_each_candidate(self, name):
    helpers.use('cohort')
    algorithm = _build(name)
    results = algorithm.personalize(
      algorithm.initial_state([0, 1]), helpers.held_out_clients(algorithm)
    )
    for total, weight in results[0]['evaluation'].values():
      self.assertEqual(total.shape, (len(algorithm.candidates),))
      np.testing.assert_array_equal(weight, 6)


class CommunicationTest(parameterized.TestCase):
  """The model has 4 parameters; hypcluster has 2 of them, in one warm round."""

  @parameterized.parameters(
    ('fedavg', 1, 4, 4),
    ('fedadam', 1, 4, 4),
    ('ditto', 1, 4, 4),
    ('hypcluster', 1, 2 * 4, 2 * 4),
    ('hypcluster', 2, 2 * 4, 4),
    # Its own model, and what of the others' models pulls it, and how much.
    ('mocha', 1, 4 + 4 + 1, 4),
  )
  def test_what_a_client_is_sent_and_sends(self, name, rounds, down, up):
    helpers.use('cohort')
    algorithm = _build(name)
    _, metrics = helpers.run(algorithm, rounds)
    share_received = metrics.get('share_received', 1)
    share_sent = metrics.get('share_sent', 1)
    self.assertAlmostEqual(
      algorithm.parameters_down * share_received, down, places=4
    )
    self.assertAlmostEqual(algorithm.parameters_up * share_sent, up, places=4)

  def test_integers_are_no_parameters(self):
    counted = tff.to_type([(np.float32, [2, 3]), np.int32, np.float32])
    self.assertEqual(process.count_parameters(counted), 7)
