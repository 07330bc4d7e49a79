"""Tests of partitions."""

import json

import numpy as np
import pytest

from base import errors
from base import settings
from tasks.data import partitions

_DRAWN = ('power_law', 'lognormal', 'classes', 'dirichlet')
# As many of each digit as MNIST has.
_MNIST = np.repeat(
  np.arange(10),
  [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
)


def _labels(size=3000, num_classes=10):
  return np.random.default_rng(0).integers(num_classes, size=size)


def _make(labels, data_dir=None, columns=None, **values):
  values = {'num_clients': 20, 'classes_per_client': 3} | values
  how = partitions.PartitionSettings(**values)
  return partitions.make(how, labels, data_dir, columns)


def _sizes(partition):
  return np.array([len(rows) for rows in partition.values()])


@pytest.mark.parametrize('kind', _DRAWN)
def test_no_example_is_at_two_clients(kind):
  rows = np.concatenate(list(_make(_labels(), partition=kind).values()))
  assert len(np.unique(rows)) == len(rows)
  assert 0 <= rows.min() <= rows.max() < 3000


@pytest.mark.parametrize('kind', ['classes', 'dirichlet'])
def test_each_example_is_at_a_client(kind):
  assert _sizes(_make(_labels(), partition=kind)).sum() == 3000


def test_a_power_law_leaves_out_what_rounding_does():
  # Less than one example of each class of each client.
  left_out = 3000 - _sizes(_make(_labels(), partition='power_law')).sum()
  assert 0 <= left_out <= 20 * 3


@pytest.mark.parametrize('kind', ['power_law', 'lognormal', 'classes'])
def test_each_client_has_its_classes_in_turn(kind):
  labels = _labels()
  for u, rows in enumerate(_make(labels, partition=kind).values()):
    assert set(labels[rows]) == {u % 10, (u + 1) % 10, (u + 2) % 10}


def test_a_power_law_of_mnist_is_that_of_fedprox():
  """FedProx, table 1: 69,035 samples, 69 a device with a deviation of 106.

  Its seed is not known. Of twenty seeds, the totals differ by what rounding
  does, and deviations by a lot.
  """
  sizes = [
    _sizes(
      _make(
        _MNIST,
        partition='power_law',
        num_clients=1000,
        classes_per_client=2,
        partition_seed=seed,
      )
    )
    for seed in range(20)
  ]
  totals = [of_seed.sum() for of_seed in sizes]
  assert np.ptp(totals) < 100
  assert min(totals) <= 69_035 <= max(totals) + 20
  assert min(of_seed.min() for of_seed in sizes) == 10
  deviations = [of_seed.std() for of_seed in sizes]
  assert 110 < min(deviations) < max(deviations) < 300


def test_shares_of_a_power_law_are_lognormal():
  partition = _make(
    np.repeat(np.arange(2), 10**6),
    partition='power_law',
    num_clients=2000,
    classes_per_client=1,
  )
  logarithms = np.log(_sizes(partition)[::2] - 5 + 0.5)
  # Rounded down, the smallest say nothing.
  low, middle, high = np.quantile(logarithms, [0.16, 0.5, 0.84])
  assert (high - low) / 2 == pytest.approx(2, rel=0.1)
  assert middle == pytest.approx(np.log(1000) - 2, abs=0.3)


def test_lognormal_sizes_are_those_of_fedprox():
  labels = np.repeat(np.arange(10), 10**5)
  sizes = _sizes(
    _make(labels, partition='lognormal', num_clients=2000, classes_per_client=5)
  )
  assert np.all(sizes % 5 == 0)
  assert sizes.min() >= 10
  # Rounding down takes two of them, on average.
  logarithms = np.log(sizes + 2 - 5)
  assert np.mean(logarithms) == pytest.approx(4, abs=0.1)
  assert np.std(logarithms) == pytest.approx(1, abs=0.1)


def test_a_class_that_is_asked_for_too_much_gives_less_to_all():
  labels = np.repeat(np.arange(2), [300, 10**5])
  partition = _make(
    labels, partition='lognormal', num_clients=20, classes_per_client=2
  )
  counts = np.array(
    [np.bincount(labels[rows], minlength=2) for rows in partition.values()]
  )
  assert 280 <= counts[:, 0].sum() <= 300
  np.testing.assert_allclose(
    counts[:, 0], counts[:, 1] * 300 / counts[:, 1].sum(), atol=1
  )


def test_classes_are_dealt_evenly():
  labels = _labels()
  counts = np.array(
    [
      np.bincount(labels[rows], minlength=10)
      for rows in _make(labels, partition='classes').values()
    ]
  )
  for of_class in counts.T:
    assert np.ptp(of_class[of_class > 0]) <= 1


@pytest.mark.parametrize('alpha', [0.1, 1.0, 100.0])
def test_shares_of_a_class_have_the_variance_of_dirichlet(alpha):
  labels = np.repeat(np.arange(100), 1000)
  partition = _make(labels, partition='dirichlet', alpha=alpha)
  counts = [
    np.bincount(labels[rows], minlength=100) for rows in partition.values()
  ]
  shares = np.array(counts) / 1000
  np.testing.assert_allclose(shares.sum(axis=0), 1)
  # Of each of n clients: mean 1 / n, variance (n - 1) / (n² (n α + 1)).
  variance = 19 / (20**2 * (20 * alpha + 1))
  assert np.var(shares) == pytest.approx(variance, rel=0.15)


def test_a_column_makes_a_client_of_each_value():
  writers = np.array([7, 3, 7, 7, 5])
  partition = partitions.group_by_column(writers)
  assert {name: rows.tolist() for name, rows in partition.items()} == {
    '3': [1],
    '5': [4],
    '7': [0, 2, 3],
  }


@pytest.mark.parametrize('kind', _DRAWN)
def test_the_seed_fixes_the_partition(kind):
  first, again, other = (
    _make(_labels(), partition=kind, partition_seed=seed) for seed in (1, 1, 2)
  )
  np.testing.assert_equal(first, again)
  assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_what_is_restored_is_what_was_saved(tmp_path):
  saved = _make(
    _labels(), str(tmp_path), partition='power_law', partition_file='p.json'
  )
  restored = _make(
    _labels(), str(tmp_path), partition='file', partition_file='p.json'
  )
  assert list(restored) == list(saved)
  np.testing.assert_equal(restored, saved)


def test_saving_the_same_again_is_no_error(tmp_path):
  path = tmp_path / 'p.json'
  for _ in range(2):
    _make(_labels(), partition='classes', partition_file=str(path))
  assert [path] == list(tmp_path.iterdir())


def test_another_partition_is_not_overwritten(tmp_path):
  path = tmp_path / 'p.json'
  _make(_labels(), partition='classes', partition_file=str(path))
  with pytest.raises(errors.UserError, match=f'{path}.*another partition'):
    _make(_labels(), partition='dirichlet', partition_file=str(path))


def _change(path, change):
  contents = json.loads(path.read_text())
  change(contents['clients'])
  path.write_text(json.dumps(contents))


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.write_text('{'),
    lambda path: path.write_bytes(b'\xff' * 10),
    lambda path: path.write_text('[]'),
    lambda path: path.write_text('{"clients": {}}'),
    lambda path: _change(path, lambda clients: clients.update(new=[-1])),
    lambda path: _change(path, lambda clients: clients.update(new=[0, 0])),
    lambda path: _change(path, lambda clients: clients.update(new=['a'])),
    lambda path: _change(path, lambda clients: clients.update(new=[10**9])),
    lambda path: _change(path, lambda clients: clients.update(new=[10**30])),
    lambda path: _change(path, lambda clients: clients.update(new=[0.5])),
  ],
  ids=[
    'cut_off',
    'not_text',
    'other_form',
    'other_names',
    'negative',
    'twice',
    'no_number',
    'too_large',
    'far_too_large',
    'a_fraction',
  ],
)
def test_a_wrong_file_is_named(damage, tmp_path):
  path = tmp_path / 'p.json'
  _make(_labels(), partition='classes', partition_file=str(path))
  damage(path)
  with pytest.raises(errors.UserError, match=str(path)):
    _make(_labels(), partition='file', partition_file=str(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
  path = tmp_path / 'p.json'
  with pytest.raises(errors.UserError, match=f'There is no file {path}'):
    _make(_labels(), partition='file', partition_file=str(path))


def test_clients_may_differ_as_much_as_can_be():
  partition = _make(_labels(), partition='dirichlet', alpha=1e-6)
  assert _sizes(partition).sum() == len(_labels())
  with pytest.raises(settings.SettingError, match='alpha must be at least'):
    _make(_labels(), partition='dirichlet', alpha=1e-30)


def test_a_file_of_other_data_is_refused(tmp_path):
  path = tmp_path / 'p.json'
  _make(_labels(), partition='classes', partition_file=str(path))
  with pytest.raises(errors.UserError, match=f'{path}.*of other data'):
    _make(_labels()[::-1], partition='file', partition_file=str(path))


def test_a_file_that_cannot_be_written_is_named(tmp_path):
  path = tmp_path / 'nowhere' / 'p.json'
  with pytest.raises(errors.UserError, match=f'{path}.*cannot be written'):
    _make(_labels(), partition='classes', partition_file=str(path))


def test_a_partition_from_a_file_needs_one():
  with pytest.raises(settings.SettingError, match='no task.partition_file'):
    _make(_labels(), partition='file')


def test_more_classes_a_client_than_there_are():
  with pytest.raises(errors.UserError, match='task.classes_per_client is 11'):
    _make(_labels(), partition='classes', classes_per_client=11)


@pytest.mark.parametrize('kind', ['power_law', 'lognormal', 'classes'])
def test_too_few_examples_for_so_many_clients(kind):
  with pytest.raises(errors.UserError, match='too few for the 300 clients'):
    _make(_labels(), partition=kind, num_clients=1000)
