"""Tests that examples which a model cannot take are named."""

import numpy as np
import pytest

from base import errors
from tasks.data import checks
from tasks.data import populations
from tasks.models import linear

_MODEL = linear.LogisticRegression(2, 3)


def _examples(**changes):
  good = {
    'x': np.ones([4, 2], np.float32),
    'y': np.arange(4, dtype=np.int32) % 3,
  }
  return {**good, **changes}


def _load(examples, calls=None):
  def load(client_id):
    if calls is not None:
      calls.append(client_id)
    return examples

  population = populations.Population(['ann'], {'train': load})
  return checks.checked(population, _MODEL, 'toy').sets['train']


def _with(value, row=2):
  x = np.ones([4, 2], np.float32)
  x[row, 1] = value
  return x


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(x=_with(np.nan)), 'x is nan in example 2'),
    (dict(x=_with(-np.inf)), 'must be finite numbers'),
    (dict(x=np.ones([4, 2])), 'x is float64, but the model takes float32'),
    (dict(x=np.ones([4, 3], np.float32)), r'has the shape \(3,\)'),
    (dict(y=np.array([0, 1, 3, 2], np.int32)), 'y is 3 in example 2'),
    (dict(y=np.array([0, 1, 2, -1], np.int32)), 'must be 0 to 2'),
    (dict(y=np.array([0, 1], np.int32)), 'different numbers of examples'),
    (dict(z=np.zeros(4)), 'has the features x, y, z'),
  ],
)
def test_what_does_not_fit_is_named(changes, message):
  load = _load(_examples(**changes))
  with pytest.raises(
    errors.UserError, match=f'toy, train: client ann.*{message}'
  ):
    load('ann')


def test_what_fits_is_given_as_it_is_and_checked_once():
  examples, calls = _examples(), []
  load = _load(examples, calls)
  assert load('ann') is examples
  examples['x'] = _with(np.nan)  # Which nobody looks for any more.
  assert load('ann') is examples
  assert calls == ['ann', 'ann']


def test_a_client_without_examples_fits():
  load = _load(
    _examples(x=np.ones([0, 2], np.float32), y=np.zeros(0, np.int32))
  )
  assert len(load('ann')['y']) == 0
