"""Accounting of differential privacy, beside published numbers."""

from collections.abc import Sequence
import itertools
import math

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest
from scipy import optimize
from scipy import stats
from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant

from base import errors
from personalization.privacy import accounting

_ORDERS = list(rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)


def _old_epsilon(
  event: dp_accounting.DpEvent, delta: float, orders: list[float]
) -> float:
  """Finds ε as was usual until 2021: the conversion of Mironov 2017."""
  relation = accounting._rdp_accountant(event).neighboring_relation
  of_order = rdp.RdpAccountant(orders, relation).compose(event).rdp
  return float(np.min(of_order + math.log(1 / delta) / (np.array(orders) - 1)))


def _rdp_epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
  return float(
    accounting._rdp_accountant(event).compose(event).get_epsilon(delta)
  )


def _tree(noise: float, steps: int) -> dp_accounting.DpEvent:
  sensitivity = accounting.tree_restarts_sensitivity([steps])
  return accounting.gaussian(noise / sensitivity)


def _make_event(rho: float) -> dp_accounting.DpEvent:
  return accounting.gaussian((2 * rho) ** -0.5)


_MCMAHAN = accounting.poisson(1.0, 5e3 / 763_430, 5000)
_MCMAHAN_LARGE = accounting.poisson(1.0, 5e3 / 1e8, 5000)
_ABADI = accounting.poisson(4.0, 0.01, 10_000)
_MNIST = accounting.poisson(1.1, 256 / 6e4, 14_062)
_MNIST_LESS_NOISE = accounting.poisson(0.7, 256 / 6e4, 10_546)
# The published numbers do not halve the noise, though neighbors replace one.
_RAMASWAMY = accounting.fixed_size(1.6, 20_000, 2_000_000, 2000)
_RAMASWAMY_LARGE = accounting.fixed_size(1.6, 20_000, 10_000_000, 2000)
_KAIROUZ = _tree(1.13, 1600)
_KAIROUZ_MORE_NOISE = _tree(8.83, 1600)


@pytest.mark.parametrize(
  ('event', 'delta', 'orders', 'printed', 'precise'),
  (
    (_MCMAHAN, 1e-9, list(range(2, 34)), 4.634, 4.634),
    (_MCMAHAN_LARGE, 1e-9, list(range(2, 34)), 1.152, 1.152),
    (_ABADI, 1e-5, _ORDERS, 1.26, 1.2586),
    (_MNIST, 1e-5, _ORDERS, 3.01, 3.008),
    (_MNIST_LESS_NOISE, 1e-5, _ORDERS, 7.10, 7.100),
    (_RAMASWAMY, 2e6**-1.1, _ORDERS, 9.86, 9.857),
    (_RAMASWAMY_LARGE, 1e7**-1.1, _ORDERS, 3.27, 3.269),
    (_KAIROUZ, 1e-6, _ORDERS, 19.74, 19.736),
    (_KAIROUZ_MORE_NOISE, 1e-6, _ORDERS, 2.04, 2.045),
  ),
)
def test_published_epsilons_come_out_with_the_conversion_of_their_time(
  event, delta, orders, printed, precise
):
  epsilon = _old_epsilon(event, delta, orders)
  assert epsilon == pytest.approx(printed, abs=0.0055)
  assert epsilon == pytest.approx(precise, abs=0.0006)


@pytest.mark.parametrize(
  ('event', 'delta', 'by_rdp'),
  (
    (_MCMAHAN, 1e-9, 4.183),
    (_MCMAHAN_LARGE, 1e-9, 0.934),
    (_ABADI, 1e-5, 1.0355),
    (_MNIST, 1e-5, 2.597),
    (_MNIST_LESS_NOISE, 1e-5, 6.318),
    (_RAMASWAMY, 2e6**-1.1, 9.107),
    (_RAMASWAMY_LARGE, 1e7**-1.1, 2.791),
    (_KAIROUZ, 1e-6, 18.71),
    (_KAIROUZ_MORE_NOISE, 1e-6, 1.773),
    (_make_event(0.8061), 1e-10, 8.899),
    (_make_event(0.150684), 1e-10, 3.584),
    (accounting.gaussian(8.35, 2), 1e-10, 1.042),
    (accounting.poisson(2.0, 50 / 3400, 1500), 3400**-1.1, 1.08),
  ),
)
def test_rdp_is_as_computed_by_others(event, delta, by_rdp):
  # To all digits that are known.
  assert _rdp_epsilon(event, delta) == pytest.approx(by_rdp, abs=0.0051)


@pytest.mark.parametrize(
  ('event', 'delta', 'epsilon', 'accountant'),
  (
    (_MCMAHAN, 1e-9, 3.899, 'PLD'),
    (_MCMAHAN_LARGE, 1e-9, 0.028, 'PLD'),
    (_ABADI, 1e-5, 0.9470, 'PLD'),
    (_MNIST, 1e-5, 2.382, 'PLD'),
    (_MNIST_LESS_NOISE, 1e-5, 5.639, 'PLD'),
    (_RAMASWAMY, 2e6**-1.1, 9.107, 'RDP'),
    (_RAMASWAMY_LARGE, 1e7**-1.1, 2.791, 'RDP'),
    (_KAIROUZ, 1e-6, 17.67, 'PLD'),
    (_KAIROUZ_MORE_NOISE, 1e-6, 1.649, 'PLD'),
    (_make_event(0.8061), 1e-10, 8.526, 'PLD'),
    (_make_event(0.150684), 1e-10, 3.424, 'PLD'),
    (accounting.gaussian(8.35, 2), 1e-10, 0.99355, 'PLD'),
    (accounting.gaussian(math.sqrt(2)), 0.00040834087, 2.25, 'PLD'),
    # Local noise of 4 once: half of it counts; what central noise would give.
    (accounting.gaussian(2.0), 1e-5, 1.99, 'PLD'),
    (accounting.gaussian(4.0), 1e-5, 0.93, 'PLD'),
    # 50 of 3,400 in 1,500 rounds: by Poisson, of fixed size, and by neither.
    (accounting.poisson(2.0, 50 / 3400, 1500), 3400**-1.1, 0.96, 'PLD'),
    (accounting.fixed_size(2.0, 50, 3400, 1500), 3400**-1.1, 6.02, 'RDP'),
    (accounting.gaussian(2.0, 1500), 3400**-1.1, 267.02, 'RDP'),
  ),
)
def test_epsilon_is_the_lowest_that_an_accountant_can_tell(
  event, delta, epsilon, accountant
):
  found, by = accounting.epsilon(event, delta)
  assert by == accountant
  assert found == pytest.approx(epsilon, abs=0.0051)


@pytest.mark.parametrize(
  ('find', 'least'),
  ((_rdp_epsilon, 120), (lambda *a: accounting.epsilon(*a)[0], 104)),
)
def test_least_cohort_of_the_tutorial_of_tff(find, least):
  def epsilon(size: int) -> float:
    return find(accounting.poisson(0.01 * size, size / 3383, 100), 1e-5)

  assert epsilon(least) <= 2 < epsilon(least - 1)


@pytest.mark.parametrize(
  'make_event',
  (
    lambda noise: accounting.gaussian(noise, 20),
    lambda noise: accounting.poisson(noise, 0.05, 100),
    # Only RDP can account for this.
    lambda noise: accounting.repeated(
      noise, accounting.ConcentratedDpEvent(noise), 20
    ),
  ),
)
def test_calibrated_noise_is_the_least_that_keeps_within_epsilon(make_event):
  noise = accounting.calibrate(make_event, 0.5, 1e-4)
  within, _ = accounting.epsilon(make_event(noise), 1e-4)
  beyond, _ = accounting.epsilon(make_event(noise - 1e-3), 1e-4)
  assert within <= 0.5 < beyond


@pytest.mark.parametrize(
  'event',
  (
    accounting.gaussian(0.0, 3),
    accounting.poisson(0.0, 0.1, 3),
    accounting.fixed_size(0.0, 10, 100, 3),
  ),
)
def test_no_noise_is_an_infinite_epsilon(event):
  assert accounting.epsilon(event, 1e-5)[0] == math.inf


@pytest.mark.parametrize('noise', (7e5, 1e6, 1e30))
@pytest.mark.parametrize(
  'make_event',
  (
    lambda noise: accounting.gaussian(noise, 100),
    lambda noise: accounting.poisson(noise, 0.1, 100),
    lambda noise: accounting.poisson(noise, 0.5, 15),
    lambda noise: accounting.fixed_size(noise, 10, 100, 100),
  ),
)
def test_a_lot_of_noise_leaves_nearly_nothing(make_event, noise):
  assert 0 <= accounting.epsilon(make_event(noise), 1e-5)[0] < 0.02


@pytest.mark.parametrize('noise', (1.0, 3.0))
def test_a_delta_that_is_too_small_for_pld_is_left_to_rdp(noise):
  def log_delta(epsilon: float) -> float:  # Balle and Wang 2018, theorem 8.
    of_one, of_other = stats.norm.logcdf(
      [0.5 / noise - epsilon * noise, -0.5 / noise - epsilon * noise]
    )
    return of_one + np.log1p(-np.exp(epsilon + of_other - of_one))

  exact = optimize.brentq(lambda e: log_delta(e) - np.log(1e-30), 0.1, 30)
  found, accountant = accounting.epsilon(accounting.gaussian(noise), 1e-30)
  assert accountant == 'RDP'
  assert exact < found < 1.03 * exact
  kept = accounting.calibrate(accounting.gaussian, found, 1e-30)
  assert kept == pytest.approx(noise, abs=1e-3)


@pytest.mark.parametrize(
  'make_event',
  (
    lambda noise: accounting.gaussian(noise, 0),
    lambda noise: accounting.poisson(noise, 0.1, 0),
    lambda noise: accounting.fixed_size(noise, 10, 100, 0),
    lambda noise: accounting.correlated(
      noise, accounting.tree_sensitivity_of_passes(0, 4)
    ),
  ),
)
def test_without_rounds_nothing_is_revealed(make_event):
  assert accounting.epsilon(make_event(0.0), 1e-5)[0] == 0
  assert accounting.calibrate(make_event, 1.0, 1e-5) == 0


def test_an_event_that_no_accountant_knows_is_refused():
  event = dp_accounting.ComposedDpEvent(
    [accounting.gaussian(1.0), dp_accounting.UnsupportedDpEvent()]
  )
  with pytest.raises(errors.UserError, match='No accountant'):
    accounting.epsilon(event, 1e-5)


@pytest.mark.parametrize('epsilon', (0.0, -1.0, math.inf, math.nan))
def test_an_epsilon_that_no_noise_gives_is_refused(epsilon):
  with pytest.raises(errors.UserError, match='epsilon must be above 0'):
    accounting.calibrate(accounting.gaussian, epsilon, 1e-5)


def test_a_choice_by_the_exponential_mechanism_is_counted_by_rdp():
  # ε²/8-zCDP, and thus α ε²/8-RDP.
  event = accounting.selection(0.5)
  accountant = rdp.RdpAccountant([2.0, 8.0]).compose(event)
  np.testing.assert_allclose(accountant.rdp, [2 / 32, 8 / 32])
  together = dp_accounting.ComposedDpEvent([event, accounting.gaussian(1.0)])
  assert accounting.epsilon(together, 1e-5)[1] == 'RDP'


@pytest.mark.parametrize('noise', (0.5, 1.0, 4.0))
def test_skellam_noise_of_a_large_variance_is_gaussian(noise):
  # Of integers that are large, sums of squares are far above absolute values.
  event = accounting.SkellamDpEvent(l1=1e7, l2=1e5, variance=(noise * 1e5) ** 2)
  found, accountant = accounting.epsilon(event, 1e-5)
  assert accountant == 'RDP'
  expected = _rdp_epsilon(accounting.gaussian(noise), 1e-5)
  # From above, as the orders are whole.
  assert expected < found < 1.01 * expected


def test_skellam_noise_is_worse_than_gaussian_where_it_is_small():
  # α Δ₂²/2μ + min(((2α - 1) Δ₂² + 6 Δ₁) / 4μ², 3 Δ₁/2μ), and from a fraction
  # up to a whole order.
  event = accounting.SkellamDpEvent(l1=4.0, l2=2.0, variance=10.0)
  np.testing.assert_allclose(
    event.rdp([2.0, 2.5, 3.0, 200.0]),
    [0.4 + 0.09, 0.6 + 0.11, 0.6 + 0.11, 40 + 0.6],
  )
  twice = dp_accounting.SelfComposedDpEvent(event, 2)
  accountant = accounting._rdp_accountant(twice).compose(twice)
  np.testing.assert_allclose(accountant.rdp, 2 * event.rdp(_ORDERS))


def test_without_variance_skellam_noise_protects_nobody():
  event = accounting.SkellamDpEvent(l1=1.0, l2=1.0, variance=0.0)
  assert accounting.epsilon(event, 1e-5)[0] == math.inf


def test_parts_of_a_record_are_one_gaussian():
  # The example of one of noise 1: counts at 5 leave 1.0206 for the update.
  left = accounting.remaining_noise(1.0, [5.0])
  assert left == pytest.approx(1.0206, abs=1e-4)
  assert left**-2 + 5.0**-2 == pytest.approx(1)
  both = dp_accounting.ComposedDpEvent(
    [accounting.gaussian(left), accounting.gaussian(5.0)]
  )
  assert accounting.epsilon(both, 1e-5)[0] == pytest.approx(
    accounting.epsilon(accounting.gaussian(1.0), 1e-5)[0], abs=1e-3
  )


def test_a_part_that_tells_more_than_the_whole_is_refused():
  with pytest.raises(errors.UserError, match='too large'):
    accounting.remaining_noise(2.0, [1.0])


@pytest.mark.parametrize('steps', ([1], [7], [8, 8, 0], [1600], [313, 100]))
def test_trees_with_restarts_are_as_tensorflow_privacy_has_them(steps):
  sensitivity = accounting.tree_restarts_sensitivity(steps)
  expected = tree_aggregation_accountant.compute_rdp_tree_restart(
    1.3, steps, [4.0]
  )
  np.testing.assert_allclose(4 * sensitivity**2 / (2 * 1.3**2), expected)


def _leaves_below_nodes(rounds: int, leaves: Sequence[int]) -> int:
  """Sums up the squared numbers of leaves below complete nodes of a tree."""
  return sum(
    sum(first <= leaf < first + size for leaf in leaves) ** 2
    for size in (2**level for level in range(rounds.bit_length()))
    for first in range(0, rounds - size + 1, size)
  )


_TREES = [(1, 2), (4, 2), (7, 3), (8, 8), (11, 4), (13, 3), (16, 5), (22, 7)]


@pytest.mark.parametrize(('rounds', 'a_pass'), _TREES)
def test_one_tree_of_passes_counts_for_the_worst_of_all_clients(rounds, a_pass):
  worst = max(
    _leaves_below_nodes(rounds, [p * a_pass + x for p, x in enumerate(places)])
    for places in itertools.product(range(a_pass), repeat=-(-rounds // a_pass))
  )
  found = accounting.tree_sensitivity_of_passes(rounds, a_pass)
  assert found**2 == pytest.approx(worst)


@pytest.mark.parametrize(('rounds', 'a_pass'), [*_TREES, (48, 7), (100, 9)])
def test_one_tree_of_cycles_counts_for_the_worst_of_all_clients(rounds, a_pass):
  worst = max(
    _leaves_below_nodes(rounds, range(place, rounds, a_pass))
    for place in range(a_pass)
  )
  found = accounting.tree_sensitivity_of_cycles(rounds, a_pass)
  assert found**2 == pytest.approx(worst)


@pytest.mark.parametrize(
  ('rounds', 'a_pass'), [(13, 13), (50, 10), (100, 10), (64, 8)]
)
def test_one_tree_costs_at_most_what_its_distances_alone_would(rounds, a_pass):
  def of_distances(separation: int) -> float:
    return (
      2
      * tree_aggregation_accountant.compute_zcdp_single_tree(
        1.0, rounds, -(-rounds // a_pass), separation - 1
      )
    ) ** 0.5

  cycles = accounting.tree_sensitivity_of_cycles(rounds, a_pass)
  passes = accounting.tree_sensitivity_of_passes(rounds, a_pass)
  assert cycles == pytest.approx(of_distances(a_pass))
  assert cycles <= passes <= of_distances(1)


def test_one_tree_of_passes_costs_less_than_of_rounds_that_may_all_follow():
  # Ten clients of a hundred in each of 50 rounds: five passes, and noise 10.
  any_rounds = tree_aggregation_accountant.compute_zcdp_single_tree(
    10, 50, 5, 0
  )
  assert accounting.epsilon(_make_event(any_rounds), 1e-5)[0] == pytest.approx(
    4.53, abs=0.005
  )
  found = accounting.tree_sensitivity_of_passes(50, 10)
  event = accounting.gaussian(10 / found)
  assert accounting.epsilon(event, 1e-5)[0] == pytest.approx(3.04, abs=0.005)


def test_one_tree_of_a_published_training_comes_out():
  # A client in six rounds with 313 between, and noise 7.
  sensitivity = accounting.tree_sensitivity_of_cycles(6 * 314, 314)
  assert sensitivity**2 / (2 * 7**2) == pytest.approx(0.8061, abs=5e-5)
  event = accounting.gaussian(7 / sensitivity)
  assert _rdp_epsilon(event, 1e-10) == pytest.approx(8.899, abs=6e-4)
  assert accounting.epsilon(event, 1e-10)[0] == pytest.approx(8.526, abs=6e-4)


@pytest.mark.parametrize('delta', (0.0, 0.01, 1.0))
def test_a_delta_of_one_over_the_population_or_more_is_refused(delta):
  with pytest.raises(errors.UserError, match='delta must be'):
    accounting.check_delta(delta, 100, 'clients')


def test_the_usual_delta_is_below_one_over_the_population():
  delta = accounting.default_delta(3400)
  assert delta == pytest.approx(3400**-1.1)
  accounting.check_delta(delta, 3400, 'clients')


@pytest.mark.parametrize(
  ('epsilon', 'seed', 'text'),
  (
    (1.23456, 'public', 'client: ε 1.235, δ 1e-05 (simulated)'),
    (1.23456, 'secret', 'client: ε 1.235, δ 1e-05'),
    (math.inf, 'public', 'not private'),
  ),
)
def test_a_guarantee_is_printed_with_its_unit(epsilon, seed, text):
  guarantee = accounting.Guarantee(
    unit='client',
    neighbors='a client is there or not',
    epsilon=epsilon,
    delta=1e-5,
    mechanism='gaussian',
    noise=1.0,
    clip=0.5,
    sampling='Poisson',
    accountant='PLD',
    seed=seed,
  )
  assert str(guarantee) == text
