"""APFL: alpha stays a share of the mixture."""

import pytest

from base import errors
from tests.algorithms import helpers

_RATE = 0.05


def _build(**values):
  return helpers.build('apfl', **dict(client_learning_rate=_RATE) | values)


def test_alpha_stays_a_share():
  after = helpers.run(_build(mixture_learning_rate=100))
  alphas = [float(client.state.alpha) for client in after.clients]
  assert min(alphas) >= 0 and max(alphas) <= 1
  assert {0, 1} & set(alphas)


def test_refuses_slots_that_are_kept():
  with pytest.raises(errors.UserError, match='apfl: client_slots must be new'):
    _build(client_slots='kept')
