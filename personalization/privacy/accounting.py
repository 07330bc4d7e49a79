"""Accounting of differential privacy: from noise to epsilon, and back.

It uses dp-accounting. An event describes what a training does with the data,
including how clients or examples are really sampled. Noise, or z, is always the
deviation of the noise on a sum, over the clipping norm. Everything is computed
in float64, from the settings, before training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import math

import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp
import numpy as np
from scipy import optimize

from base import errors
from personalization.privacy import ways

PLD, RDP = 'PLD', 'RDP'

# What must be kept from everybody, by where the noise comes from.
KEPT = {
  ways.PUBLIC: 'nobody has the seed of the run, from which the noise follows',
  ways.SECRET: 'nobody else has the secret seed, from which the noise follows',
}

# The tolerance of the logarithm of a noise, when the least noise is searched.
_TOLERANCE = 5e-5

# The interval of the privacy losses that PLD tells apart.
_INTERVAL = 1e-4

# The ε that PLD found, which takes seconds, by the event, δ and the interval.
# Not all events can be hashed, but their texts are unique.
_by_pld: dict[tuple[str, float, float], float] = {}

# Above this epsilon, which protects nobody, PLD takes minutes.
MOST_PLD_EPSILON = 50.0

# More events than these take PLD more than some ten seconds together.
_MOST_PLD_PARTS = 1000
# Whole orders of RDP, which take a hundredth of the time of others.
_FEW_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256)

# The RDP of a Poisson sample has smaller rounding errors than this, up to this
# noise. With more, no sample counts as amplified, which hardly changes ε.
_LEAST_RDP = 1e-12
_MOST_SAMPLED_NOISE = 3e4


@dataclasses.dataclass(frozen=True)
class Guarantee:
  """The privacy that a training guarantees, as it is reported.

  Attributes:
    unit: Whose data are protected.
    neighbors: The difference between neighboring data sets.
    epsilon: The guarantee's ε; infinite without noise.
    delta: Its δ.
    mechanism: The name of the mechanism.
    noise: The deviation of the noise on a sum, over the clipping norm.
    clip: The clipping norm, or how it is found.
    sampling: How clients or examples are sampled, and how often.
    accountant: The accountant that computed ε.
    seed: Where the noise comes from, see `ways.SEEDS`.
    is_extrapolated: Whether it is that of larger rounds than those that are
      trained.
    assumptions: The assumptions of the guarantee.
    not_covered: Data that are released, or used, without this guarantee.
    stages: The event of each training, one after another, for each kind of
      clients or silos, by name.
  """

  unit: str
  neighbors: str
  epsilon: float
  delta: float
  mechanism: str
  noise: float
  clip: float | str
  sampling: str
  accountant: str
  seed: str
  is_extrapolated: bool = False
  assumptions: tuple[str, ...] = ()
  not_covered: tuple[str, ...] = ()
  stages: tuple[Mapping[str, dp_accounting.DpEvent], ...] = ()

  @property
  def is_simulated(self) -> bool:
    """Whether somebody with the seed of the run can subtract the noise."""
    return self.seed == ways.PUBLIC

  @property
  def caveats(self) -> tuple[str, ...]:
    """Why the data are not protected as ε says, in a word each."""
    return (
      *(('simulated',) if self.is_simulated else ()),
      *(('extrapolated',) if self.is_extrapolated else ()),
    )

  def __str__(self) -> str:
    return describe(self.unit, self.epsilon, self.delta, self.caveats)


def describe(
  unit: str, epsilon: float, delta: float, caveats: Sequence[str]
) -> str:
  """Writes a guarantee in a few words."""
  if epsilon == math.inf:
    return 'not private'
  note = f' ({", ".join(caveats)})' if caveats else ''
  return f'{unit}: ε {epsilon:.4g}, δ {delta:.2g}{note}'


class ConcentratedDpEvent(dp_accounting.GaussianDpEvent):
  """A mechanism that is 1/(2z²)-zCDP like a Gaussian, but is not Gaussian.

  It does not have a Gaussian's privacy loss distribution, so that only RDP can
  account for it.
  """


@dataclasses.dataclass(frozen=True)
class SkellamDpEvent(dp_accounting.DpEvent):
  """A sum of integers, with the difference of two Poisson variables as noise.

  Attributes:
    l1: The largest change by one client, as a sum of absolute values.
    l2: The largest change by one client, as a norm.
    variance: The variance of the noise on each entry.
  """

  l1: float
  l2: float
  variance: float

  def rdp(self, orders: Sequence[float]) -> np.ndarray:
    """Computes the RDP at some orders (Agarwal et al. 2021, theorem 3.5)."""
    if self.variance == 0:
      return np.full(len(orders), np.inf)
    # The theorem is for whole orders, and RDP grows with the order.
    alpha, mu = np.ceil(orders), self.variance
    beyond_gaussian = np.minimum(
      ((2 * alpha - 1) * self.l2**2 + 6 * self.l1) / (4 * mu**2),
      3 * self.l1 / (2 * mu),
    )
    return np.asarray(alpha * self.l2**2 / (2 * mu) + beyond_gaussian)


class RdpAccountant(rdp.RdpAccountant):
  """The RDP accountant, extended by Skellam noise and for very large noise."""

  _rdp: np.ndarray  # Of the base class.

  def rdp_at(self, order: float) -> float:
    """Returns the RDP of all that was composed, at one of the orders."""
    return float(self._rdp[list(self._orders).index(order)])

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> dp_accounting.PrivacyAccountant.CompositionErrorDetails | None:
    if isinstance(event, SkellamDpEvent):
      if do_compose:
        self._rdp += count * event.rdp(self._orders)
      return None
    is_sample = isinstance(event, dp_accounting.PoissonSampledDpEvent)
    if is_sample and isinstance(event.event, dp_accounting.GaussianDpEvent):
      if event.event.noise_multiplier > _MOST_SAMPLED_NOISE:
        return self._maybe_compose(event.event, count, do_compose)
    before = self._rdp.copy()
    # With a lot of noise it takes the logarithm of 0; ∞ - ∞ is not used.
    with np.errstate(divide='ignore', invalid='ignore'):
      result = super()._maybe_compose(event, count, do_compose)
      added = self._rdp - before
    if do_compose and is_sample:
      # So little may be only a rounding error, and negative.
      least = count * _LEAST_RDP
      self._rdp = np.where(abs(added) < least, before + least, self._rdp)
    return result


def repeated(
  noise: float, event: dp_accounting.DpEvent, times: int
) -> dp_accounting.DpEvent:
  """Makes the event of a mechanism with some noise that is used several times.

  Args:
    noise: The noise, without which the event is not private.
    event: The event of one use.
    times: The number of uses; with 0, nothing is revealed.
  """
  if not times:
    return dp_accounting.NoOpDpEvent()
  if noise == 0:
    return dp_accounting.NonPrivateDpEvent()
  return dp_accounting.SelfComposedDpEvent(event, times)


def gaussian(noise: float, times: int = 1) -> dp_accounting.DpEvent:
  """Makes the event of Gaussian mechanisms in which everybody takes part."""
  return repeated(noise, dp_accounting.GaussianDpEvent(noise), times)


def correlated(noise: float, sensitivity: float) -> dp_accounting.DpEvent:
  """Makes the event of a training in which all noise together has z.

  Args:
    noise: z.
    sensitivity: How far a client moves all that is noised; 0 without rounds.
  """
  if not sensitivity:
    return dp_accounting.NoOpDpEvent()
  return gaussian(noise / sensitivity)


def poisson(
  noise: float, probability: float, times: int
) -> dp_accounting.DpEvent:
  """Makes the event of rounds, or steps, with independent Poisson samples."""
  event = dp_accounting.PoissonSampledDpEvent(
    probability, dp_accounting.GaussianDpEvent(noise)
  )
  return repeated(noise, event, times)


def fixed_size(
  noise: float, size: int, population: int, times: int
) -> dp_accounting.DpEvent:
  """Makes the event of rounds of exactly `size`, drawn without replacement.

  In neighboring data sets one of the population is replaced. Two clipped sums
  then differ by twice the clipping norm, which the accountant does not know: z
  is halved here.
  """
  event = dp_accounting.SampledWithoutReplacementDpEvent(
    population, size, dp_accounting.GaussianDpEvent(noise / 2)
  )
  return repeated(noise, event, times)


def selection(epsilon: float) -> dp_accounting.DpEvent:
  """Makes the event of a choice by the exponential mechanism.

  Gumbel noise of scale 2Δ/ε is added to scores of sensitivity Δ, and the best
  is chosen. This is ε²/8-zCDP (Cesar and Rogers 2021).
  """
  return ConcentratedDpEvent(2 / epsilon)


def compose(
  parts: Iterable[tuple[dp_accounting.DpEvent, int]],
) -> dp_accounting.DpEvent:
  """Composes events, each of which happens some times; all Gaussians are one.

  Args:
    parts: Events, and how often each happens.
  """
  precision = 0.0  # Σ z⁻² of the Gaussians.
  others: dict[str, tuple[dp_accounting.DpEvent, int]] = {}
  left = list(parts)
  while left:
    event, times = left.pop()
    if isinstance(event, dp_accounting.ComposedDpEvent):
      left += [(part, times) for part in event.events]
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
      left.append((event.event, times * event.count))
    elif isinstance(event, dp_accounting.NonPrivateDpEvent) and times:
      return event
    elif type(event) is dp_accounting.GaussianDpEvent:
      precision += times * event.noise_multiplier**-2
    elif times and not isinstance(event, dp_accounting.NoOpDpEvent):
      _, before = others.get(str(event), (event, 0))
      others[str(event)] = event, before + times
  composed: list[dp_accounting.DpEvent] = [
    dp_accounting.SelfComposedDpEvent(event, times)
    for event, times in others.values()
  ]
  if precision:
    composed.append(dp_accounting.GaussianDpEvent(precision**-0.5))
  if len(composed) == 1:
    return composed[0]
  return dp_accounting.ComposedDpEvent(composed)


def remaining_noise(noise: float, others: Sequence[float]) -> float:
  """Returns the z_i of a part, so that all parts together have z.

  Several Gaussians release parts of the same record, each with its own clipping
  norm. They reveal as much as one with z⁻² = Σ z_i⁻².

  Args:
    noise: The z of all parts together.
    others: The z_i of the other parts.

  Raises:
    UserError: If the others alone reveal more.
  """
  left = noise**-2 - sum(z**-2 for z in others)
  if left <= 0:
    raise errors.UserError(
      f'A noise of {noise:g} is too large beside parts of a record with noises'
      f' of {", ".join(f"{z:g}" for z in others)}. Set a smaller noise, or more'
      ' clients in a round.'
    )
  return float(left**-0.5)


def tree_restarts_sensitivity(steps_of_trees: Sequence[int]) -> float:
  """Returns how far one leaf in each of several trees moves all of their nodes.

  A leaf is in at most as many complete nodes as its tree has levels (Kairouz et
  al. 2021, appendix D). Trees whose nodes have noise z have the guarantee of a
  Gaussian with z over this.
  """
  return math.sqrt(sum(steps.bit_length() for steps in steps_of_trees if steps))


def _best_split(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Multiplies matrices with max instead of +, and + instead of times."""
  best = left[:, :1] + right[:1]
  for j in range(1, len(right)):
    np.maximum(best, left[:, j : j + 1] + right[j : j + 1], out=best)
  return best


def tree_sensitivity_of_passes(rounds: int, a_pass: int) -> float:
  """Returns how far a client moves the nodes of one tree over several passes.

  The client takes part once in each pass, in any of its rounds. The result is
  the root of the largest sum, over complete nodes, of the squared number of its
  leaves below a node (Kairouz et al. 2021, appendix D.2). A tree whose nodes
  have z has the guarantee of a Gaussian with z over this.

  Args:
    rounds: The number of leaves.
    a_pass: The rounds of a pass.
  """
  never = -np.inf  # The sum of what cannot be.
  before, after = np.ogrid[:2, :2]

  # The largest sums for a node and those below it, by whether the client has
  # taken part in the pass that is running: before the node, and after it.
  @functools.cache
  def sums(level: int, first: int) -> np.ndarray:
    end = first + 2**level
    if end < a_pass:
      return np.array([[0, level + 1], [never, 0]])
    if end == a_pass:  # Where the pass is over, and another one begins.
      return np.array([[level + 1, never], [0, never]])
    half = 2 ** (level - 1)
    leaves = end // a_pass - before + after
    left, right = (
      sums(level - 1, first),
      sums(level - 1, (first + half) % a_pass),
    )
    return _best_split(left, right) + leaves**2

  best, done = np.array([[0.0, never]]), 0
  for level in reversed(range(rounds.bit_length())):
    if rounds >> level & 1:
      best = _best_split(best, sums(level, done % a_pass))
      done += 2**level
  return float(best.max() ** 0.5)


def tree_sensitivity_of_cycles(rounds: int, a_pass: int) -> float:
  """Returns the same where all passes have the same order.

  The client's leaves are `a_pass` apart.

  Args:
    rounds: As for passes in new orders.
    a_pass: As there.
  """
  of_places = np.zeros(a_pass)  # The sum, by the client's place in a pass.
  for level in range(rounds.bit_length()):
    leaves = np.arange(rounds >> level << level)  # Those of complete nodes.
    keys, counts = np.unique(
      (leaves >> level) * a_pass + leaves % a_pass, return_counts=True
    )
    of_places += np.bincount(keys % a_pass, counts**2, a_pass)
  return float(of_places.max() ** 0.5)


def _parts(event: dp_accounting.DpEvent) -> list[dp_accounting.DpEvent]:
  """Lists an event and all events within it."""
  inner = getattr(event, 'events', None) or [getattr(event, 'event', None)]
  found = [event]
  for part in inner:
    if part is not None:
      found += _parts(part)
  return found


def _rdp_accountant(
  event: dp_accounting.DpEvent, orders: Sequence[float] | None = None
) -> RdpAccountant:
  """Makes the RDP accountant for the neighbors that the sampling needs."""
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  for part in _parts(event):
    if isinstance(part, dp_accounting.SampledWithoutReplacementDpEvent):
      relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  return RdpAccountant(orders, neighboring_relation=relation)


def _accountant(
  event: dp_accounting.DpEvent, orders: Sequence[float] | None = None
) -> RdpAccountant:
  """Makes the accountant of an event; raises a `UserError` if there is none."""
  accountant = _rdp_accountant(event, orders)
  if not accountant.supports(event):
    raise errors.UserError(
      f'No accountant can compute the privacy of {event}. Choose another'
      ' mechanism or another sampling.'
    )
  return accountant


def _is_for_pld(event: dp_accounting.DpEvent) -> bool:
  """Tells whether PLD can account for an event."""
  concentrated = (isinstance(p, ConcentratedDpEvent) for p in _parts(event))
  return pld.PLDAccountant().supports(event) and not any(concentrated)


def epsilon_by_pld(
  event: dp_accounting.DpEvent, delta: float, interval: float = _INTERVAL
) -> float:
  """Finds the ε of an event that PLD can account for.

  Args:
    event: The event of a whole training.
    delta: The δ.
    interval: The interval of the privacy losses that are told apart. A larger
      one takes less time, and makes ε larger.

  Returns:
    ε; infinite if δ is near 1e-15, the mass that PLD leaves out.
  """
  key = str(event), delta, interval
  if key not in _by_pld:
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    _by_pld[key] = float(accountant.compose(event).get_epsilon(delta))
  return _by_pld[key]


def epsilon(
  event: dp_accounting.DpEvent, delta: float, interval: float = _INTERVAL
) -> tuple[float, str]:
  """Finds the ε of an event.

  Args:
    event: The event of a whole training.
    delta: The δ.
    interval: The interval of PLD.

  Returns:
    ε, infinite if there is no noise; and the name of the accountant that found
    it: the smaller of PLD's, if PLD can account for the event, and RDP's.

  Raises:
    UserError: If no accountant can account for it.
  """
  accountant = _accountant(event)
  found = float(accountant.compose(event).get_epsilon(delta))
  if found > MOST_PLD_EPSILON or not _is_for_pld(event):
    return found, RDP
  return min((epsilon_by_pld(event, delta, interval), PLD), (found, RDP))


def _wide_interval(event: dp_accounting.DpEvent) -> float:
  """Returns an interval of PLD at which ε is too large by a thousandth at most.

  It is a thousandth of the deviation of the privacy loss, which is about the
  root of the RDP of order 2.
  """
  order = _FEW_ORDERS[0]
  accountant = _accountant(event, [order]).compose(event)
  deviation = math.sqrt(accountant.rdp_at(order))
  return float(np.clip(1e-3 * deviation, _INTERVAL, 100 * _INTERVAL))


def largest_epsilon(
  events: Sequence[dp_accounting.DpEvent], delta: float
) -> tuple[float, str]:
  """Finds the largest ε of events that happen to different clients or silos.

  As there may be many, each is counted at few orders of RDP first, and by PLD
  at the interval that it needs, which makes ε larger by up to a thousandth.

  Args:
    events: The events, of which there is at least one.
    delta: The δ.

  Returns:
    ε, and the name of the accountant that found it.
  """
  if len(events) == 1:
    return epsilon(events[0], delta)
  found = []
  for event in events:
    accountant = _accountant(event, _FEW_ORDERS).compose(event)
    found.append((float(accountant.get_epsilon(delta)), event))
  found.sort(key=lambda one: -one[0])
  if sum(len(_parts(event)) for _, event in found) > _MOST_PLD_PARTS:
    return found[0][0], RDP
  largest = 0.0, RDP
  for by_rdp, event in found:
    if by_rdp <= largest[0]:
      break
    interval = _wide_interval(event)
    if by_rdp <= MOST_PLD_EPSILON and _is_for_pld(event):
      own = min((epsilon_by_pld(event, delta, interval), PLD), (by_rdp, RDP))
    else:
      own = epsilon(event, delta, interval)
    largest = max(largest, own)
  return largest


def calibrate(
  make_event: Callable[[float], dp_accounting.DpEvent],
  target_epsilon: float,
  delta: float,
) -> float:
  """Finds the least noise that guarantees an ε, to four places.

  Args:
    make_event: Makes the event of a whole training from the noise.
    target_epsilon: The ε.
    delta: The δ.

  Returns:
    The noise z; 0 if nothing is revealed even without noise.

  Raises:
    UserError: If no noise is enough, or no accountant knows the event.
  """
  if not 0 < target_epsilon < math.inf:
    raise errors.UserError(
      f'epsilon must be above 0 and finite, not {target_epsilon:g}.'
    )

  def excess(log_noise: float) -> float:
    event = make_event(math.exp(log_noise))
    # A larger interval never asks for too little noise.
    by_pld = epsilon_by_pld(event, delta, _wide_interval(event))
    return by_pld - target_epsilon

  _accountant(make_event(1.0))
  if epsilon(make_event(0.0), delta)[0] <= target_epsilon:
    return 0.0  # Nothing is revealed.
  try:
    noise = dp_accounting.calibrate_dp_mechanism(
      lambda: _rdp_accountant(make_event(1.0)),
      make_event,
      target_epsilon,
      delta,
      tol=1e-4,
    )
  except dp_accounting.mechanism_calibration.NoBracketIntervalFoundError as e:
    raise errors.UserError(
      f'No noise is enough for an epsilon of {target_epsilon:g}. Set a larger'
      ' epsilon, or fewer rounds.'
    ) from e
  if not _is_for_pld(make_event(noise)):
    return float(noise)
  # The ε of RDP is above that of PLD, so that less noise is enough. The search
  # starts at RDP's noise, as PLD is slow where there is little noise.
  lower = upper = math.log(noise)
  while excess(lower) <= 0:
    upper, lower = lower, lower - 0.2
  if lower == upper:  # PLD is not below RDP, except for rounding.
    return float(noise)
  found = optimize.brentq(excess, lower, upper, xtol=_TOLERANCE)
  while excess(found) > 0:
    found += _TOLERANCE
  return math.exp(found)


def default_delta(population: int) -> float:
  """Returns the usual δ for a population of N: N^-1.1."""
  return float(population**-1.1)


def check_delta(delta: float, population: int, what: str) -> None:
  """Raises a `UserError` if δ allows publishing one of a population."""
  if not 0 < delta < 1 / population:
    raise errors.UserError(
      f'delta must be above 0 and below 1 / {population}, the number of {what},'
      f' not {delta:g}: otherwise one of them could be published in full.'
    )
