"""Tests of what cross-silo tasks share."""

import numpy as np
import pytest
from sklearn import model_selection

from tasks.data import silos

_SIZES = {'a': 20, 'b': 33}


def _split(client_id, seed=1):
  """Splits a client whose labels number its examples."""
  rng = np.random.default_rng(0)
  size = _SIZES[client_id]
  features = rng.normal(3, 2, (size, 4)).astype(np.float32)
  features[:, -1] = 5
  return silos.split(features, np.arange(size), seed)


@pytest.mark.parametrize('client_id', _SIZES)
def test_each_example_is_in_one_part(client_id):
  parts = _split(client_id)
  labels = np.concatenate([part['y'] for part in parts.values()])
  assert sorted(labels) == list(range(_SIZES[client_id]))


def test_parts_are_70_15_and_15_percent():
  sizes = {name: len(part['y']) for name, part in _split('a').items()}
  assert sizes == {'train': 14, 'validation': 3, 'test': 3}


@pytest.mark.parametrize(
  ('size', 'expected'), [(0, (0, 0, 0)), (1, (1, 0, 0)), (2, (1, 0, 1))]
)
def test_a_client_of_too_few_examples_lacks_parts(size, expected):
  parts = silos.split(np.ones([size, 4], np.float32), np.arange(size), 1)
  assert tuple(len(part['y']) for part in parts.values()) == expected


def test_the_seed_decides_the_split():
  first, again, other = (_split('a', seed)['test']['y'] for seed in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert set(first) != set(other)


def test_features_are_standardized_by_the_examples_to_train_on():
  x = _split('b')['train']['x']
  np.testing.assert_allclose(x[:, :-1].mean(axis=0), 0, atol=1e-6)
  np.testing.assert_allclose(x[:, :-1].std(axis=0), 1, atol=1e-6)


def test_constant_features_are_zero_in_each_part():
  for part in _split('b').values():
    np.testing.assert_array_equal(part['x'][:, -1], 0)


@pytest.mark.parametrize(
  'size, expected',
  [
    (0, (0, 0, 0)),
    (1, (1, 0, 0)),
    (2, (1, 0, 1)),
    (3, (1, 1, 1)),
    (10, (8, 1, 1)),
    (11, (7, 2, 2)),
    (100, (80, 10, 10)),
  ],
)
def test_a_tenth_of_the_rows_is_for_the_test_and_for_the_validation(
  size, expected
):
  split = silos.split_rows(np.arange(size) + 7, np.random.default_rng(0))
  assert tuple(len(split[p]) for p in ('train', 'validation', 'test')) == (
    expected
  )
  assert sorted(np.concatenate(list(split.values()))) == list(
    range(7, 7 + size)
  )


def test_populations_of_rows_know_their_sizes_and_examples():
  rows = {'a': np.arange(30), 'b': np.arange(50, 70)}
  made = silos.make_populations_of_rows(
    rows, lambda taken: {'x': taken}, seed=3
  )
  for name in ('train', 'validation', 'test'):
    population = made[name]
    assert population.client_ids == ('a', 'b')
    for part, load in population.sets.items():
      examples = [load(client_id)['x'] for client_id in population.client_ids]
      np.testing.assert_array_equal(
        population.sizes[part], list(map(len, examples))
      )
  for client_id, of_client in rows.items():
    parts = (
      made['train'].sets['train'],
      made['validation'].sets['evaluation'],
      made['test'].sets['evaluation'],
    )
    found = np.concatenate([load(client_id)['x'] for load in parts])
    np.testing.assert_array_equal(np.sort(found), of_client)


def test_strata_are_split_by_themselves():
  strata = np.arange(200) % 10 == 0
  made = silos.make_populations_of_rows(
    {'a': np.arange(200)}, lambda taken: {'y': strata[taken]}, 3, strata
  )
  assert made['test'].sets['evaluation']('a')['y'].sum() == 2
  assert made['validation'].sets['evaluation']('a')['y'].sum() == 2
  assert made['train'].sets['train']('a')['y'].sum() == 16


def test_all_clients_are_in_each_population():
  made = silos.make_populations({name: _split(name) for name in _SIZES})
  assert made['cross_silo']
  for name in ('train', 'validation', 'test'):
    assert made[name].client_ids == tuple(_SIZES)


@pytest.mark.parametrize(
  'population, name, part',
  [
    ('train', 'train', 'train'),
    ('validation', 'personalization', 'train'),
    ('validation', 'evaluation', 'validation'),
    ('test', 'personalization', 'train'),
    ('test', 'evaluation', 'test'),
  ],
)
def test_each_set_is_a_part_of_the_examples(population, name, part):
  clients = {client_id: _split(client_id) for client_id in _SIZES}
  made = silos.make_populations(clients)
  assert made[population].sets[name]('b') is clients['b'][part]


def test_clients_are_numbered():
  clients = [_split('a'), _split('b')]
  assert list(silos.numbered('school', clients)) == ['school_000', 'school_001']


@pytest.mark.parametrize('split_seed, expected', [(None, 7), (0, 0), (3, 3)])
def test_a_split_seed_takes_the_place_of_the_seed_of_the_run(
  split_seed, expected
):
  assert silos.SplitSettings(split_seed=split_seed).seed(7) == expected


@pytest.mark.parametrize('size', [4, 7, 85, 100, 251])
def test_examples_are_held_out_as_by_scikit_learn(size):
  rows = np.arange(size)
  rest, test = model_selection.train_test_split(
    rows, test_size=0.15, random_state=3
  )
  train, validation = model_selection.train_test_split(
    rest, test_size=0.15 / 0.85, random_state=3
  )
  parts = silos.hold_out(rows, 0.15, 0.15, 3)
  np.testing.assert_array_equal(parts['train'], train)
  np.testing.assert_array_equal(parts['validation'], validation)
  np.testing.assert_array_equal(parts['test'], test)


@pytest.mark.parametrize(
  ('size', 'expected'), [(0, (0, 0, 0)), (1, (1, 0, 0)), (2, (1, 0, 1))]
)
def test_of_few_examples_one_at_least_is_to_train_on(size, expected):
  parts = silos.hold_out(np.arange(size), 0.15, 0.15, 3)
  assert tuple(map(len, parts.values())) == expected
