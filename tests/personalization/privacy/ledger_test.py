"""The ledger: the ε of all uses together, and what cannot be added."""

import dataclasses
import json
import math

import dp_accounting
import pytest
from scipy import stats

from personalization.privacy import accounting
from personalization.privacy import ledger

_ONE = 'one client is there or not'
_DELTA = 1e-4


def _use(name, *events, before=(), times=1, neighbors=_ONE, unit='client'):
  """Makes a use of events of one kind, or of several."""
  kinds = {f'group {k}': event for k, event in enumerate(events)}
  if len(events) == 1:
    kinds = {ledger.ALL: events[0]}
  return ledger.Use(
    name, unit, neighbors, _DELTA, ('simulated',), kinds, before, times
  )


def _delta_of_gaussian(noise, epsilon):
  """Returns the δ of one Gaussian, in closed form (Balle and Wang 2018)."""
  a, b = 0.5 / noise, epsilon * noise
  return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)


def test_gaussians_add_as_one_with_the_sum_of_their_precisions():
  uses = [
    _use('first', accounting.gaussian(4.0, times=3)),
    _use('second', accounting.gaussian(5.0), times=2),
    _use('third', accounting.gaussian(3.0)),
  ]
  noise = (3 / 16 + 2 / 25 + 1 / 9) ** -0.5
  total = ledger.add(uses)
  assert total.num_uses == 4
  assert _delta_of_gaussian(noise, total.epsilon) == pytest.approx(
    _DELTA, rel=2e-3
  )
  assert total.accountant == accounting.PLD


def test_adds_up_as_the_accountant_composes():
  first = accounting.poisson(1.0, 0.1, 50)
  second = accounting.poisson(1.5, 0.05, 20)
  together = dp_accounting.ComposedDpEvent([first, second, first])
  expected = accounting.epsilon(together, _DELTA)
  uses = [_use('a', first), _use('b', second), _use('c', first)]
  assert ledger.add(uses).epsilon == pytest.approx(expected[0], rel=1e-6)
  assert ledger.add(uses[:1]).epsilon == accounting.epsilon(first, _DELTA)[0]


def test_of_several_groups_the_one_about_which_most_is_revealed_counts():
  small, large = accounting.gaussian(2.0), accounting.gaussian(3.0)
  grouped = _use('grouped', large, small)
  for uses, events in (
    ([grouped], [small]),
    ([grouped, _use('all', large)], [small, large]),
    # The same groups have the same members.
    ([grouped, _use('again', small, large)], [small, large]),
  ):
    expected = accounting.compose((event, 1) for event in events)
    assert ledger.add(uses).epsilon == pytest.approx(
      accounting.epsilon(expected, _DELTA)[0], rel=1e-4
    )


def test_one_use_without_noise_reveals_all():
  private = _use('private', accounting.gaussian(2.0))
  start = _use('start', dp_accounting.NonPrivateDpEvent())
  total = ledger.add([private, start])
  assert total.epsilon == math.inf and str(total) == 'not private'
  assert total.to_json()['epsilon'] is None
  assert start.is_open and not private.is_open


@pytest.mark.parametrize(
  'other', [dict(neighbors='one is replaced'), dict(unit='an example')]
)
def test_other_neighbors_or_units_are_not_added(other):
  event = accounting.gaussian(2.0)
  total = ledger.add([_use('first', event), _use('second', event, **other)])
  assert total.epsilon is None
  assert 'no single ε' in str(total) and next(iter(other.values())) in str(
    total
  )


def test_finds_all_that_a_use_starts_from():
  event = accounting.gaussian(1.0)
  uses = [
    _use('start', event),
    _use('middle', event, before=('start',)),
    _use('end', event, before=('middle',)),
    _use('other', event),
  ]
  found = ledger.find_chain(uses, ['end'])
  assert {use.name for use in found} == {'start', 'middle', 'end'}


@pytest.mark.parametrize(
  'event',
  [
    accounting.poisson(1.3, 0.25, 7),
    accounting.fixed_size(2.0, 3, 10, 5),
    dp_accounting.ComposedDpEvent(
      [accounting.gaussian(1.0, 2), accounting.selection(0.1)]
    ),
    accounting.SkellamDpEvent(3.0, 1.0, 100.0),
    dp_accounting.NonPrivateDpEvent(),
    dp_accounting.NoOpDpEvent(),
    dp_accounting.LaplaceDpEvent(2.0),
  ],
  ids=str,
)
def test_is_read_as_it_was_written(event):
  use = _use('x', event, before=('y',), times=3)
  read = ledger.Use.from_json(json.loads(json.dumps(use.to_json())))
  assert read == use
  assert str(read.events) == str(use.events)
  assert dataclasses.asdict(ledger.add([read])) == dataclasses.asdict(
    ledger.add([use])
  )


def test_reads_no_other_classes():
  with pytest.raises(KeyError):
    ledger.read_event({'kind': 'Popen', 'args': 'true'})
