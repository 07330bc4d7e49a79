"""Tests of Synthetic."""

import numpy as np
import pytest

from base import errors
from tasks import synthetic


def _clients(count=200, **values):
  """Makes clients with few examples, for tests of their distribution."""
  settings = synthetic.SyntheticSettings(max_examples=20, **values)
  return [synthetic.make_client(settings, 0, str(i)) for i in range(count)]


def test_the_same_seed_gives_the_same_client():
  settings = synthetic.SyntheticSettings()
  first = synthetic.make_client(settings, 3, 'a').examples
  second = synthetic.make_client(settings, 3, 'a').examples
  np.testing.assert_array_equal(first['x'], second['x'])
  np.testing.assert_array_equal(first['y'], second['y'])


def test_the_size_is_that_of_the_sample():
  task = synthetic.load(synthetic.SyntheticSettings(), None, 0)
  for population in (task.train, task.test):
    for name, load in population.sets.items():
      sizes = [len(load(c)['y']) for c in population.client_ids]
      np.testing.assert_array_equal(population.sizes[name], sizes)


@pytest.mark.parametrize('seed, client_id', [(4, 'a'), (3, 'b')])
def test_another_seed_or_id_gives_another_client(seed, client_id):
  settings = synthetic.SyntheticSettings(shared=0)
  first = synthetic.make_client(settings, 3, 'a')
  second = synthetic.make_client(settings, seed, client_id)
  correlation = np.corrcoef(first.weights.ravel(), second.weights.ravel())
  assert abs(correlation[0, 1]) < 0.2


def test_the_label_is_the_class_of_the_largest_score():
  client = synthetic.make_client(synthetic.SyntheticSettings(), 0, 'a')
  scores = client.examples['x'] @ client.weights + client.bias
  np.testing.assert_array_equal(client.examples['y'], scores.argmax(axis=1))
  assert client.examples['x'].dtype == np.float32
  assert client.examples['y'].dtype == np.int32


@pytest.mark.parametrize('alpha', [0.0, 1.0, 3.0])
def test_alpha_is_the_deviation_of_the_models_means(alpha):
  means = [c.weights.mean() for c in _clients(alpha=alpha, shared=0)]
  # The mean over 600 weights has a deviation of its own.
  expected = np.hypot(alpha, 1 / np.sqrt(600))
  assert np.std(means) / expected == pytest.approx(1, rel=0, abs=0.2)


@pytest.mark.parametrize('beta', [0.0, 1.0, 3.0])
def test_beta_is_the_deviation_of_the_features_means(beta):
  means = [c.center.mean() for c in _clients(beta=beta)]
  expected = np.hypot(beta, 1 / np.sqrt(60))
  assert np.std(means) / expected == pytest.approx(1, rel=0, abs=0.2)


@pytest.mark.parametrize('shared', [0.0, 1.0, 3.0])
def test_shared_is_the_deviation_of_what_models_have_in_common(shared):
  clients = _clients(alpha=0, shared=shared)
  common = np.mean([c.weights for c in clients], axis=0)
  expected = np.hypot(shared, 1 / np.sqrt(len(clients)))
  assert common.std() / expected == pytest.approx(1, rel=0, abs=0.15)
  deviation = np.std([c.weights - common for c in clients])
  assert deviation == pytest.approx(1, rel=0, abs=0.02)


def test_alpha_changes_no_label():
  labels = [
    [c.examples['y'].tolist() for c in _clients(20, alpha=alpha)]
    for alpha in (0.0, 5.0)
  ]
  assert labels[0] == labels[1]


def test_later_features_vary_less():
  settings = synthetic.SyntheticSettings(min_examples=20000, max_examples=20000)
  x = synthetic.make_client(settings, 0, 'a').examples['x']
  np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.06)


def test_sizes_are_spread_within_their_bounds():
  settings = synthetic.SyntheticSettings(
    min_examples=10, max_examples=90, log_examples_deviation=2
  )
  sizes = [
    len(synthetic.make_client(settings, 0, str(i)).examples['y'])
    for i in range(200)
  ]
  assert 10 <= min(sizes) <= 15
  assert max(sizes) == 90


def test_bounds_that_cross_are_refused():
  with pytest.raises(errors.UserError, match='min_examples must be at'):
    synthetic.SyntheticSettings(min_examples=20, max_examples=10)


def test_populations_have_no_client_in_common():
  task = synthetic.load(synthetic.SyntheticSettings(), None, seed=0)
  populations = (task.train, task.validation, task.test)
  sizes = [len(population.client_ids) for population in populations]
  assert sizes == [100, 25, 50]
  ids = set().union(*(population.client_ids for population in populations))
  assert len(ids) == 175


def test_held_out_clients_are_halved():
  task = synthetic.load(synthetic.SyntheticSettings(), None, seed=0)
  for client_id in task.test.client_ids:
    sizes = [
      len(task.test.sets[name](client_id)['y'])
      for name in ('personalization', 'evaluation')
    ]
    assert sizes[1] - sizes[0] in (0, 1)


def test_clients_do_not_depend_on_how_many_there_are():
  few, many = (
    synthetic.load(
      synthetic.SyntheticSettings(
        num_train_clients=count, num_validation_clients=count
      ),
      None,
      seed=0,
    )
    for count in (3, 300)
  )
  for name in ('train', 'validation', 'test'):
    population = getattr(few, name)
    client_id = population.client_ids[2]
    for set_name, load in population.sets.items():
      other = getattr(many, name).sets[set_name](client_id)
      np.testing.assert_array_equal(load(client_id)['x'], other['x'])
