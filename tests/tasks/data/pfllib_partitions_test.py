"""PFLlib's partitions: its published sizes, and what holds for any data."""

import numpy as np
import pytest

from base import errors
from tasks.data import idx_files
from tasks.data import partitions
from tasks.data import pfllib_partitions
from tests import data

# What PFLlib's README shows of MNIST.
_MNIST_SIZES = [2630, 499, 1630, 2541, 1917, 6189, 1256, 1269, 3600, 4006]
_MNIST_SIZES += [3116, 3772, 3613, 2134, 5730, 5448, 3628, 5653, 5266, 6103]


def test_mnist_has_the_clients_of_pfllib():
  folder = str(data.path('mnist').parent)
  _, labels, _ = idx_files.read('MNIST', 'mnist', folder, '', None)
  rows = pfllib_partitions.draw(labels, 20, 1, alpha=0.1)
  assert [*map(len, rows)] == _MNIST_SIZES


_LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)


@pytest.mark.parametrize('alpha', [0.1, 10.0])
def test_shares_divide_all_examples_and_give_each_client_enough(alpha):
  rows = pfllib_partitions.draw(_LABELS, 20, 1, alpha=alpha)
  np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(6000))
  assert min(map(len, rows)) >= 40
  again = pfllib_partitions.draw(_LABELS, 20, 1, alpha=alpha)
  for first, second in zip(rows, again):
    np.testing.assert_array_equal(first, second)
  other = pfllib_partitions.draw(_LABELS, 20, 2, alpha=alpha)
  assert [*map(len, other)] != [*map(len, rows)]


def test_each_client_has_two_classes():
  rows = pfllib_partitions.draw(_LABELS, 20, 1, classes_per_client=2)
  np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(6000))
  for own in rows:
    assert len(np.unique(_LABELS[own])) == 2


@pytest.mark.parametrize('alpha', [0.1, None])
def test_a_quarter_of_each_client_is_for_tests_in_the_order_of_its_draws(alpha):
  rows = pfllib_partitions.draw(_LABELS, 20, 1, alpha=alpha)
  tests = pfllib_partitions.draw_tests(_LABELS, 20, 1, alpha=alpha)
  for own, test in zip(rows, tests, strict=True):
    assert len(test) == -(-len(own) // 4)
    assert set(test) <= set(own)
  # The generator goes on from where the partition left it.
  random = np.random.RandomState(1)
  pfllib_partitions._draw(_LABELS, 20, random, alpha, 2)
  for own, test in zip(rows, tests):
    np.testing.assert_array_equal(
      own[random.permutation(len(own))[: len(test)]], test
    )


@pytest.mark.parametrize(
  ('partition', 'values', 'says'),
  [
    ('dirichlet', dict(alpha=0.01, num_clients=300), 'Set a larger alpha'),
    ('classes', dict(classes_per_client=11), 'have 10 classes'),
    ('classes', dict(num_clients=1), 'cannot divide'),
  ],
)
def test_too_few_examples_are_refused(partition, values, says):
  settings = partitions.PartitionSettings(
    partition=f'pfllib_{partition}', **values
  )
  with pytest.raises(errors.UserError, match=says):
    partitions.make(settings, _LABELS[:600], None)
