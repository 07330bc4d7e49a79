"""Tests of populations."""

import numpy as np
import pytest

from tasks.data import populations

_SIZES = {'a': 4, 'b': 1, 'c': 0, 'd': 3}


@pytest.fixture(name='population')
def _population():
  return populations.Population(
    tuple(_SIZES),
    populations.halves(lambda client_id: {'y': np.arange(_SIZES[client_id])}),
  )


def test_an_odd_example_is_for_evaluation(population):
  halves = {
    name: load('d')['y'].tolist() for name, load in population.sets.items()
  }
  assert halves == {'personalization': [0], 'evaluation': [1, 2]}


def test_examples_are_counted_by_loading_all_clients(population):
  np.testing.assert_equal(
    population.count_examples(),
    dict(personalization=[2, 0, 0, 1], evaluation=[2, 1, 0, 2]),
  )


def test_sizes_of_halves_are_known_from_those_of_clients(population):
  np.testing.assert_equal(
    populations.half_sizes(np.array(list(_SIZES.values()))),
    population.count_examples(),
  )


def test_no_client_is_loaded_if_the_sizes_are_known():
  def load(client_id):
    pytest.fail(f'It loads {client_id}.')

  sizes = {'train': np.array([2, 5])}
  population = populations.Population(('a', 'b'), {'train': load}, sizes)
  assert population.count_examples() is sizes


def test_taken_examples_are_in_the_order_of_the_rows():
  examples = {'x': np.arange(6).reshape(3, 2), 'y': np.array([7, 8, 9])}
  taken = populations.take(examples, np.array([2, 0]))
  np.testing.assert_equal(
    taken, {'x': np.array([[4, 5], [0, 1]]), 'y': np.array([9, 7])}
  )
