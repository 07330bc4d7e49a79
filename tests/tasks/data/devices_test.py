"""Tests of what cross-device tasks share."""

import numpy as np
import pytest

from base import errors
from tasks.data import devices

_SIZES = {'a': 4, 'b': 1, 'c': 0, 'd': 9}


def _load(client_id, limit):
  return {'y': np.arange(_SIZES[client_id])[:limit]}


def _devices(client_ids):
  sizes = np.array([_SIZES[client_id] for client_id in client_ids])
  return devices.Devices(client_ids, _load, sizes)


def _populations(**arguments):
  return devices.make_populations(
    train=_devices(['d', 'c']),
    validation=_devices(['a']),
    test=_devices(['b', 'd']),
    **arguments,
  )


def _examples(population, client_id):
  return {
    name: load(client_id)['y'].tolist()
    for name, load in population.sets.items()
  }


@pytest.mark.parametrize(
  'limits',
  [{}, dict(max_train_examples=3), dict(max_held_out_examples=5)],
  ids=str,
)
def test_sizes_are_those_of_the_sets(limits):
  made = _populations(**limits)
  for population in (made['train'], made['validation'], made['test']):
    for name, load in population.sets.items():
      sizes = [len(load(c)['y']) for c in population.client_ids]
      np.testing.assert_array_equal(population.sizes[name], sizes)


def test_clients_are_held_out_rather_than_examples():
  made = _populations()
  assert not made['cross_silo']
  assert made['train'].client_ids == ['d', 'c']
  assert made['validation'].client_ids == ['a']
  assert made['test'].client_ids == ['b', 'd']


def test_clients_to_train_on_have_all_their_examples():
  assert _examples(_populations()['train'], 'd') == {'train': list(range(9))}


def test_held_out_clients_are_halved_in_their_order():
  halves = {'personalization': [0, 1, 2, 3], 'evaluation': [4, 5, 6, 7, 8]}
  assert _examples(_populations()['test'], 'd') == halves


def test_the_first_examples_are_taken_to_train_on():
  made = _populations(max_train_examples=3)
  assert _examples(made['train'], 'd') == {'train': [0, 1, 2]}
  assert len(_examples(made['test'], 'd')['evaluation']) == 5


def test_the_first_examples_are_taken_of_held_out_clients():
  made = _populations(max_held_out_examples=3)
  halves = {'personalization': [0], 'evaluation': [1, 2]}
  assert _examples(made['test'], 'd') == halves
  assert len(_examples(made['train'], 'd')['train']) == 9


def test_held_out_clients_can_be_shuffled():
  halves = _examples(_populations(shuffle_key=('toy', 1))['test'], 'd')
  together = halves['personalization'] + halves['evaluation']
  assert together != sorted(together)
  assert sorted(together) == list(range(9))


def test_the_key_decides_how_clients_are_shuffled():
  first, again, other = (
    _examples(_populations(shuffle_key=('toy', seed))['test'], 'd')
    for seed in (1, 1, 2)
  )
  assert first == again
  assert first != other


def test_clients_are_dealt_out_in_motleys_order():
  ids = [f'f{i:04d}' for i in range(3400)]
  permuted = devices.HeldOutSettings().permuted(ids)
  assert permuted == np.random.RandomState(13).permutation(ids).tolist()
  assert permuted != devices.HeldOutSettings(split_seed=14).permuted(ids)


@pytest.mark.parametrize(
  'size, validation, test, expected',
  [
    # Motley's databases, and smaller ones.
    (3400, 400 / 3400, 500 / 3400, (400, 500, 2500)),
    (38_758, 10_000 / 38_758, 28_758 / 38_758, (10_000, 28_758, 0)),
    (300, 400 / 3400, 500 / 3400, (35, 44, 221)),
    (3, 400 / 3400, 500 / 3400, (1, 1, 1)),
    (2, 10_000 / 38_758, 28_758 / 38_758, (1, 1, 0)),
  ],
)
def test_shares_are_those_of_motley(size, validation, test, expected):
  ids = list(map(str, range(size)))
  parts = devices.HeldOutSettings().split(ids, validation, test)
  assert tuple(map(len, parts)) == expected
  assert sum(parts, []) == ids


def test_the_user_may_name_the_numbers():
  settings = devices.HeldOutSettings(
    num_validation_clients=2, num_test_clients=3
  )
  assert settings.split('abcdefgh', 0.5, 0.5) == (
    ['a', 'b'],
    ['c', 'd', 'e'],
    ['f', 'g', 'h'],
  )


def test_clients_to_report_are_at_most_the_rest():
  parts = devices.HeldOutSettings().split('abcdefghi', 0.9, 0.9)
  assert list(map(len, parts)) == [8, 1, 0]


@pytest.mark.parametrize(
  'validation, test', [(8, 2), (9, None), (None, 9), (20, 1)]
)
def test_more_clients_than_there_are_are_refused(validation, test):
  settings = devices.HeldOutSettings(
    num_validation_clients=validation, num_test_clients=test
  )
  with pytest.raises(errors.UserError, match='the data have 9 clients'):
    settings.split('abcdefghi', 0.1, 0.1)
