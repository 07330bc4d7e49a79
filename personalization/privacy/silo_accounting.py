"""Accounting of silos that each protect their own examples.

Neighbors are two data sets of one silo, one of which has an example that the
other lacks: there, its gradient and losses are zero. All that leaves the silo
is public, and so are personal models (Liu et al. 2022). Each silo k has its own
ε_k; the largest counts, not their sum.

A silo of n_k examples has batches of B_k = min(batch size, n_k), and

  Poisson batches:   each step samples each example independently with
                     q = B_k / n_k, which amplifies
  shuffled batches:  an example is in at most one batch of a pass, so that a
                     pass is one Gaussian mechanism, which is not amplified

PLD counts, which finds 11 to 15 % less than RDP for the Poisson batches of
School; with choices, RDP does.

Several gradients of one Poisson batch, such as those of Ditto's two models, are
one Gaussian mechanism with less noise on one sample. A choice by the losses of
Poisson batches depends on which examples were sampled: if one place in a batch
has an effect of ε_1 on a choice, the odds of q are multiplied by e^(ε_1 / 2).
"""

import collections
from collections.abc import Mapping, Sequence
import functools
import math
from typing import NamedTuple

import dp_accounting
from dp_accounting.pld import accountant
from dp_accounting.pld import common
import numpy as np
from scipy import optimize

from algorithms import example_uses
from algorithms import methods
from base import errors
from personalization.privacy import accounting

# The tolerance of the logarithm of a noise, when the least noise is searched.
_TOLERANCE = 1e-4
# The share of ε that choices must leave for gradients.
_LEFT = 0.01
# An ε that is far below all targets, for logarithms of 0.
_LEAST_EPSILON = 1e-300
# The orders of RDP to try, relative to the order that is best for a Gaussian.
# They are within these bounds, as RDP is infinite below and slow above them;
# and they are whole above a third one, where fractions are far off.
_ORDERS = (1.1, 1024)
_LEAST_WHOLE_ORDER = 32
_NEAR = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3)


def starts_with_steps(method: methods.Method) -> bool:
  """Tells whether a trainer's `start` takes steps on the examples."""
  return method.trainer.start_passes.gradients > 0


def uses(
  method: methods.Method, rounds: int, client_epochs: int
) -> example_uses.Uses:
  """Counts how often a method uses the examples of each silo.

  Args:
    method: The method.
    rounds: The rounds of its training; each silo is in all of them.
    client_epochs: The passes of a client over its examples in a round.

  Raises:
    UserError: If this is not known or not bounded.
  """
  trainer, personalizer = method.trainer, method.personalizer
  for half in (trainer, personalizer):
    if half.why_examples_not_private is not None:
      raise errors.UserError(
        'The examples of silos cannot be protected:'
        f' {half.why_examples_not_private}. Leave the method out, or protect'
        ' whole clients.'
      )
  if trainer.model.mixes_examples:
    raise errors.UserError(
      'The examples of silos cannot be protected: with batch normalization, one'
      ' example changes the gradients of all others in its batch. Set'
      ' task.norm=group, or protect whole clients.'
    )
  trained = trainer.example_uses(rounds)
  walks = [
    walk._replace(epochs=walk.epochs * client_epochs) for walk in trained.walks
  ]
  if starts_with_steps(method):
    gradients = math.ceil(trainer.start_passes.gradients)
    walks.append(example_uses.Walk(1, method.shuffled_epochs or 1, gradients))
  walks += personalizer.example_uses().walks
  return trained._replace(walks=tuple(walk for walk in walks if walk.times))


class Silo(NamedTuple):
  """The work of a silo in a whole training.

  Attributes:
    size: Its number of examples, n_k.
    batch_size: B_k.
    steps: The steps of a pass.
    uses: How often it uses its examples.
    choice_epsilon: The ε of each choice.
    is_poisson: Whether batches are counted as Poisson samples.
    places: How often an example may be in the batches of a choice. With 0,
      Poisson batches are counted as in Liu et al.: each gradient and each
      choice as if it had separate batches, and by RDP.
  """

  size: int
  batch_size: int
  steps: int
  uses: example_uses.Uses
  choice_epsilon: float
  is_poisson: bool
  places: int = 1

  @property
  def gradients(self) -> int:
    """The largest number of private gradients that an example is in.

    This holds for shuffled batches; with Poisson batches it may be in any.
    """
    return sum(
      walk.times * walk.passes(self.steps) * walk.gradients
      for walk in self.uses.walks
    )

  @property
  def rate(self) -> float:
    """The probability q that an example is in a batch, adjusted for choices."""
    rate = self.batch_size / self.size
    if rate == 1 or not (self.uses.choices and self.places):
      return rate
    odds = rate / (1 - rate) * math.exp(self.choice_epsilon / 2 / self.places)
    return odds / (1 + odds)

  def _draws(self) -> Mapping[int, int]:
    """Counts the Poisson batches, by the number of gradients of each."""
    draws: collections.Counter[int] = collections.Counter()
    for walk in self.uses.walks:
      steps = walk.times * walk.steps(self.steps)
      if self.places:
        draws[walk.gradients] += steps
      else:
        draws[1] += steps * walk.gradients
    return draws

  @property
  def is_for_pld(self) -> bool:
    """Whether PLD may count it; choices are for RDP alone."""
    as_published = self.is_poisson and not self.places
    return not (as_published or self.uses.choices)

  def interval(self, noise: float) -> float:
    """Returns the interval of losses for PLD, at which it is fast.

    It is a thousandth of the deviation of the privacy loss of all steps, so
    that ε is too large by about a ten-thousandth.
    """
    gradients = sum(g * times for g, times in self._draws().items())
    return 1e-3 * self.rate * gradients**0.5 / noise

  def event(self, noise: float) -> dp_accounting.DpEvent:
    """Makes the event of the whole training with noise z_k."""
    # Several Gaussians are one with less noise.
    parts = []
    if self.is_poisson and self.rate < 1:
      parts = [
        accounting.poisson(noise * gradients**-0.5, self.rate, times)
        for gradients, times in self._draws().items()
      ]
    elif self.gradients:
      parts = [accounting.gaussian(noise * self.gradients**-0.5)]
    if self.uses.choices:
      choice = accounting.selection(self.choice_epsilon)
      parts.append(dp_accounting.SelfComposedDpEvent(choice, self.uses.choices))
    if len(parts) == 1:
      return parts[0]
    return dp_accounting.ComposedDpEvent(parts)


def silo(
  size: int,
  batch_size: int,
  drop_partial: bool,
  uses: example_uses.Uses,
  choice_epsilon: float,
  is_poisson: bool,
  places: int = 1,
) -> Silo:
  """Describes the work of a silo of some size, see `Silo`.

  Args:
    size: Its number of examples.
    batch_size: The batch size of all silos.
    drop_partial: Whether a last batch that is not full is left out.
    uses: As in `Silo`.
    choice_epsilon: As in `Silo`.
    is_poisson: As in `Silo`.
    places: As in `Silo`.
  """
  mean_size = min(batch_size, size)
  steps = size // mean_size if drop_partial else -(-size // mean_size)
  return Silo(size, mean_size, steps, uses, choice_epsilon, is_poisson, places)


def _count_by_rdp(
  event: dp_accounting.DpEvent,
  delta: float,
  orders: Sequence[float] | None = None,
) -> float:
  """Returns ε by RDP, which is no smaller with only some of the orders."""
  counted = accounting.RdpAccountant(orders).compose(event)
  return float(counted.get_epsilon(delta))


def epsilon(silo: Silo, noise: float, delta: float) -> tuple[float, str]:
  """Finds the ε_k of a silo with noise z_k, and the name of the accountant."""
  event = silo.event(noise)
  if not silo.is_for_pld:
    return _count_by_rdp(event, delta), accounting.RDP
  if not (silo.is_poisson and noise):
    return accounting.epsilon(event, delta)
  return accounting.epsilon(event, delta, silo.interval(noise))


@functools.cache
def noise(silo: Silo, target_epsilon: float, delta: float) -> float:
  """Finds the least noise z_k that keeps a silo within an ε.

  Raises:
    UserError: If no noise is enough.
  """
  if not silo.gradients:
    return 0.0
  shuffled = _noise_of_gaussians(silo.gradients, target_epsilon, delta)
  if not silo.is_poisson and not silo.uses.choices:
    return shuffled
  # Every order gives a guarantee; the best is near that of one Gaussian.
  best = _noise_of_gaussians(1, target_epsilon, delta) * math.sqrt(
    2 * math.log(1 / delta)
  )
  near = np.clip([1 + best * factor for factor in _NEAR], *_ORDERS)
  orders = np.where(near > _LEAST_WHOLE_ORDER, np.ceil(near), near).tolist()
  if silo.uses.choices:
    alone = silo._replace(uses=example_uses.Uses(choices=silo.uses.choices))
    least = _count_by_rdp(alone.event(1.0), delta, orders)
    if least >= (1 - _LEFT) * target_epsilon:
      raise errors.UserError(
        f'The {silo.uses.choices} choices among models alone cost an ε of'
        f' {least:.3g}. Set a smaller privacy.choice_epsilon, or a larger'
        f' privacy.epsilon than {target_epsilon:g}.'
      )

  def excess(log_noise: float) -> float:
    found = _count_by_rdp(silo.event(math.exp(log_noise)), delta, orders)
    return math.log(max(found, _LEAST_EPSILON) / target_epsilon)

  # ε is nearly a power of z, so that a root on logarithms is found quickly.
  guess = math.log(silo.rate * silo.steps**0.5 * shuffled)
  low, high = guess - 0.2, guess + 0.2
  while excess(high) > 0:
    low, high = high, high + 0.4
  while excess(low) < 0:
    low, high = low - 0.4, low
  root = optimize.brentq(excess, low, high, xtol=_TOLERANCE)
  by_rdp = math.exp(root + _TOLERANCE)
  if not silo.is_for_pld or target_epsilon > accounting.MOST_PLD_EPSILON:
    return by_rdp
  return _refine_by_pld(silo, by_rdp, target_epsilon, delta)


def _refine_by_pld(
  silo: Silo, by_rdp: float, target_epsilon: float, delta: float
) -> float:
  """Returns less noise than RDP asks for, if PLD says that it is enough."""

  @functools.cache
  def excess(log_noise: float) -> float:
    noise = math.exp(log_noise)
    event, interval = silo.event(noise), silo.interval(noise)
    found = accounting.epsilon_by_pld(event, delta, interval)
    return math.log(max(found, _LEAST_EPSILON) / target_epsilon)

  first = math.log(by_rdp)
  if excess(first) >= 0:
    return by_rdp
  # ε is about z^-1.25, so that secants need few steps.
  second = first + 0.8 * excess(first)
  root = optimize.newton(excess, first, x1=second, tol=_TOLERANCE)
  while excess(root) > 0:
    root += _TOLERANCE
  return math.exp(root)


@functools.cache
def _noise_of_gaussians(
  times: int, target_epsilon: float, delta: float
) -> float:
  """Finds the noise of `times` Gaussian mechanisms with an ε in total."""
  parameters = common.DifferentialPrivacyParameters(target_epsilon, delta)
  return float(
    accountant.get_smallest_gaussian_noise(
      parameters, num_queries=times, sensitivity=1.0
    )
  )
