"""Accounting of silos that each protect their own examples.

Neighbours are two data sets of one silo, of which one has an example that the
other lacks: in its place there is one whose gradient and losses are zero. All
that leaves the silo is public, and so are personal models (Liu et al. 2022).
Each silo k has an ε_k of its own; the largest counts, not their sum.

A silo of n_k examples has batches of B_k = min(batch size, n_k), and

  Poisson batches:   each step draws each example by itself, q = B_k / n_k, and
                     is amplified by that
  shuffled batches:  an example is in one batch of a pass at most, so that a
                     pass is one Gaussian mechanism, which is not amplified
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any, NamedTuple

import dp_accounting
from dp_accounting import rdp
from dp_accounting.pld import accountant
from dp_accounting.pld import common
import numpy as np
from scipy import optimize

from algorithms import as_trained
from algorithms import ditto
from algorithms import fedavg
from algorithms import fedprox
from algorithms import finetuning
from algorithms import hypcluster
from algorithms import local
from algorithms import methods
from algorithms import mocha
from algorithms import mr_mtl
from base import errors
from personalization import accounting

# How near to its least the logarithm of the noise has to be.
_TOLERANCE = 1e-4
# The share of ε that choices must leave.
_LEFT = 0.01
# The orders of RDP that are tried, over the order that is best for a Gaussian.
_NEAR = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3)


class Uses(NamedTuple):
  """How often a method uses all examples of a silo.

  Attributes:
    passes: The passes with a private step for each batch.
    choices: The choices among models by the examples' losses.
  """

  passes: int = 0
  choices: int = 0

  def plus(self, other: 'Uses') -> 'Uses':
    return Uses(self.passes + other.passes, self.choices + other.choices)


def _hypcluster(trainer: hypcluster.HypCluster, rounds: int) -> Uses:
  warm = int(min(rounds, np.ceil(trainer.settings.warmstart_rounds)))
  # The choices of the warm start are told, though they make no difference.
  # After the last round, each client chooses the model that it keeps.
  return Uses(warm * trainer.num_models + rounds - warm, choices=rounds + 1)


# From a trainer and a number of rounds to their uses. A class that is not here,
# though it may be derived from one that is, has other uses.
_TRAINERS: Mapping[type, Callable[[Any, int], Uses]] = {
  ditto.Ditto: lambda _, rounds: Uses(2 * rounds),
  fedavg.FedAvg: lambda _, rounds: Uses(rounds),
  fedprox.FedProx: lambda _, rounds: Uses(rounds),
  hypcluster.HypCluster: _hypcluster,
  local.Local: lambda *_: Uses(),
  mocha.Mocha: lambda _, rounds: Uses(rounds),
  mr_mtl.MrMtl: lambda _, rounds: Uses(rounds),
}


def _finetuning(own: finetuning.FinetuningSettings) -> Uses:
  curves = len(own.finetuning_layers) * len(own.finetuning_learning_rates)
  return Uses(curves * own.finetuning_epochs)


_PERSONALIZERS: Mapping[type, Callable[[Any], Uses]] = {
  as_trained.AsTrained: lambda _: Uses(),
  ditto.DittoPersonalizer: lambda own: Uses(own.personal_epochs),
  finetuning.Finetuning: _finetuning,
}


def uses(method: methods.Method, rounds: int, client_epochs: int) -> Uses:
  """Counts how often a method uses all examples of each silo.

  Args:
    method: The method.
    rounds: The rounds of its training, of which each silo is in all.
    client_epochs: The passes of a client over its examples in a round.

  Raises:
    UserError: If it is not known.
  """
  for half, known in (
    (method.trainer, _TRAINERS),
    (method.personalizer, _PERSONALIZERS),
  ):
    if type(half) not in known:
      raise errors.UserError(
        f'How often {type(half).__name__} uses the examples of a silo is not'
        ' known, so that they cannot be protected. Leave the method out, or'
        ' protect whole clients.'
      )
  trained = _TRAINERS[type(method.trainer)](method.trainer, rounds)
  own = _PERSONALIZERS[type(method.personalizer)](method.personalizer.settings)
  return Uses(trained.passes * client_epochs, trained.choices).plus(own)


class Silo(NamedTuple):
  """The work of a silo in a whole training.

  Attributes:
    size: Its number of examples, n_k.
    batch_size: B_k.
    steps: The steps of a pass.
    uses: How often it uses all examples.
    choice_epsilon: The ε of each choice.
    is_poisson: Whether batches are counted as Poisson samples.
  """

  size: int
  batch_size: int
  steps: int
  uses: Uses
  choice_epsilon: float
  is_poisson: bool

  @property
  def rate(self) -> float:
    """The probability q that an example is in a batch."""
    return self.batch_size / self.size

  def event(self, noise: float) -> dp_accounting.DpEvent:
    """Makes the event of the whole training with noise z_k."""
    parts = []
    if self.uses.passes:
      if self.is_poisson and self.rate < 1:
        times = self.steps * self.uses.passes
        parts = [accounting.poisson(noise, self.rate, times)]
      else:
        # Several Gaussians are one of less noise.
        parts = [accounting.gaussian(noise * self.uses.passes**-0.5)]
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
  uses: Uses,
  choice_epsilon: float,
  is_poisson: bool,
) -> Silo:
  """Describes the work of a silo of some size, see `Silo`.

  Args:
    size: Its number of examples.
    batch_size: The batch size of all silos.
    drop_partial: Whether a last batch that is not full is left out.
    uses: As in `Silo`.
    choice_epsilon: As in `Silo`.
    is_poisson: As in `Silo`.
  """
  own = min(batch_size, size)
  steps = size // own if drop_partial else -(-size // own)
  return Silo(size, own, steps, uses, choice_epsilon, is_poisson)


def _count_by_rdp(
  event: dp_accounting.DpEvent,
  delta: float,
  orders: Sequence[float] | None = None,
) -> float:
  """Returns ε by RDP; by only some of the orders it is no less."""
  counted = rdp.RdpAccountant(orders).compose(event)
  return float(counted.get_epsilon(delta))


def epsilon(silo: Silo, noise: float, delta: float) -> tuple[float, str]:
  """Finds the ε_k of a silo with noise z_k, and the name of the accountant.

  Poisson batches and choices are counted by RDP, as by Liu et al.; a PLD would
  take minutes for all silos of School. Shuffled batches without choices are
  exact.
  """
  event = silo.event(noise)
  if silo.is_poisson or silo.uses.choices:
    return _count_by_rdp(event, delta), accounting.RDP
  return accounting.epsilon(event, delta)


@functools.cache
def noise(silo: Silo, target_epsilon: float, delta: float) -> float:
  """Finds the least noise z_k that keeps a silo within an ε.

  Raises:
    UserError: If no noise is enough.
  """
  if silo.uses.passes == 0:
    return 0.0
  shuffled = _noise_of_gaussians(silo.uses.passes, target_epsilon, delta)
  if not silo.is_poisson and not silo.uses.choices:
    return shuffled
  # All orders give a guarantee; the best is near that of one Gaussian.
  best = _noise_of_gaussians(1, target_epsilon, delta) * math.sqrt(
    2 * math.log(1 / delta)
  )
  orders = tuple(1 + best * factor for factor in _NEAR)
  if silo.uses.choices:
    alone = silo._replace(uses=Uses(0, silo.uses.choices))
    least = _count_by_rdp(alone.event(1.0), delta, orders)
    if least >= (1 - _LEFT) * target_epsilon:
      raise errors.UserError(
        f'The {silo.uses.choices} choices among models alone take an ε of'
        f' {least:.3g}. Set a smaller privacy.choice_epsilon, or a larger'
        f' privacy.epsilon than {target_epsilon:g}.'
      )

  def excess(log_noise: float) -> float:
    found = _count_by_rdp(silo.event(math.exp(log_noise)), delta, orders)
    return math.log(found / target_epsilon)

  # ε is nearly a power of z, so that its root on logarithms is soon found.
  guess = math.log(silo.rate * silo.steps**0.5 * shuffled)
  low, high = guess - 0.2, guess + 0.2
  while excess(high) > 0:
    low, high = high, high + 0.4
  while excess(low) < 0:
    low, high = low - 0.4, low
  root = optimize.brentq(excess, low, high, xtol=_TOLERANCE)
  return math.exp(root + _TOLERANCE)


@functools.cache
def _noise_of_gaussians(
  times: int, target_epsilon: float, delta: float
) -> float:
  """Finds the noise of so many Gaussian mechanisms."""
  parameters = common.DifferentialPrivacyParameters(target_epsilon, delta)
  return float(
    accountant.get_smallest_gaussian_noise(
      parameters, num_queries=times, sensitivity=1.0
    )
  )
