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

Several gradients of one Poisson batch, such as those of Ditto's two models, are
one Gaussian mechanism with less noise on one sample. A choice by the losses of
Poisson batches depends on which examples were sampled: if one place in a batch
has an effect of ε_1 on a choice, the odds of q are multiplied by e^(ε_1 / 2).
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any, NamedTuple

import dp_accounting
from dp_accounting.pld import accountant
from dp_accounting.pld import common
import numpy as np
from scipy import optimize

from algorithms import apfl
from algorithms import as_trained
from algorithms import ditto
from algorithms import fedavg
from algorithms import fedembed
from algorithms import fedembed_prototype
from algorithms import fedembed_som
from algorithms import fedprox
from algorithms import finetuning
from algorithms import group
from algorithms import hypcluster
from algorithms import knn_per
from algorithms import local
from algorithms import methods
from algorithms import mocha
from algorithms import mr_mtl
from algorithms import perfedavg
from algorithms import pfedkm
from algorithms import pfedme
from algorithms import scaffold
from algorithms import self_fl
from algorithms import self_fl_clusters
from algorithms import split
from algorithms import trainers
from base import errors
from personalization.privacy import accounting
from tasks.models import models

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


class Walk(NamedTuple):
  """Steps over the batches of a client, such as those of a round, repeated.

  Attributes:
    times: The number of repetitions, each with new batches.
    epochs: The passes over all examples that the batches make up.
    gradients: The private gradients of each batch, each with separate noise.
    most_steps: The largest number of steps, if the number depends on what the
      client has learned; the first batch then follows the last one.
  """

  times: int
  epochs: int = 1
  gradients: int = 1
  most_steps: int = 0

  def steps(self, steps: int) -> int:
    """Counts the steps of a silo, given its steps in a pass."""
    return max(self.epochs * steps, self.most_steps)

  def passes(self, steps: int) -> int:
    """Counts how often they can use an example, given the steps in a pass."""
    return max(self.epochs, -(-self.most_steps // steps))


class Uses(NamedTuple):
  """How often a method uses the examples of a silo.

  Attributes:
    walks: The steps by private gradients.
    choices: The choices among models by the examples' losses.
  """

  walks: tuple[Walk, ...] = ()
  choices: int = 0


def _hypcluster(trainer: hypcluster.HypCluster, rounds: int) -> Uses:
  warm = int(min(rounds, np.ceil(trainer.settings.warmstart_rounds)))
  walks = Walk(warm, gradients=trainer.num_models), Walk(rounds - warm)
  # The choices of the warm start are sent, though they make no difference.
  # After the last round, each client chooses the model that it keeps.
  return Uses(walks, choices=rounds + 1)


def _each_round(trainer: trainers.Trainer, rounds: int) -> Uses:
  gradients = int(trainer.passes(rounds=1).gradients)
  return Uses((Walk(rounds, gradients=gradients),))


def _fedrod(trainer: split.FedRod, rounds: int) -> Uses:
  balances = trainer.settings.balance > 0
  if balances and isinstance(trainer.model, models.Classifier):
    raise errors.UserError(
      'fedrod balances its risk by the number of examples of each class, which'
      ' the gradients would reveal. Set balance=0.'
    )
  return _each_round(trainer, rounds)


def _perfedavg(trainer: perfedavg.PerFedAvg, rounds: int) -> Uses:
  if trainer.settings.form != 'first_order':
    raise errors.UserError(
      "An example's share of the product of a Hessian and a gradient cannot be"
      ' clipped. Set form=first_order.'
    )
  # A batch is D of its own step, and D' of the step before. With
  # separate_batches it is both only in a silo of one batch.
  return Uses((Walk(rounds, gradients=2),))


def _self_fl(trainer: self_fl.SelfFl, rounds: int) -> Uses:
  settings = trainer.settings
  # Their number follows from noised models, and so reveals no more than these.
  most = settings.most_steps if settings.adaptive_steps else 0
  walks = [Walk(rounds, most_steps=most)]
  if settings.augmented_steps:
    # These steps start at the first batch again, and may be less than a pass.
    walks.append(Walk(rounds, 0, most_steps=settings.augmented_steps))
  return Uses(tuple(walks))


# Returns the uses of a trainer, given the number of rounds. A class that is
# derived from one of these, and not here itself, may have other uses.
_TRAINERS: Mapping[type, Callable[[Any, int], Uses]] = {
  apfl.Apfl: _each_round,
  ditto.Ditto: _each_round,
  fedavg.FedAvg: _each_round,
  fedprox.FedProx: _each_round,
  hypcluster.HypCluster: _hypcluster,
  local.Local: lambda *_: Uses(),
  mocha.Mocha: _each_round,
  mr_mtl.MrMtl: _each_round,
  perfedavg.PerFedAvg: _perfedavg,
  pfedme.PFedMe: _each_round,
  scaffold.Scaffold: _each_round,
  self_fl.SelfFl: _self_fl,
  self_fl_clusters.ClusterSelfFl: _self_fl,
  split.FedBabu: _each_round,
  split.FedRep: _each_round,
  split.FedRod: _fedrod,
  split.Split: _each_round,
}


def _finetuning(settings: finetuning.FinetuningSettings) -> Uses:
  curves = len(settings.finetuning_layers) * len(
    settings.finetuning_learning_rates
  )
  return Uses((Walk(settings.finetuning_epochs, gradients=curves),))


_PERSONALIZERS: Mapping[type, Callable[[Any], Uses]] = {
  as_trained.AsTrained: lambda _: Uses(),
  ditto.DittoPersonalizer: lambda settings: Uses(
    (Walk(settings.personal_epochs),)
  ),
  finetuning.Finetuning: _finetuning,
}
_REFUSED: Mapping[type, str] = {
  **dict.fromkeys(
    (
      fedembed.OneHeadFedEmbed,
      fedembed.PersonalFedEmbed,
      fedembed.TypeFedEmbed,
      fedembed_prototype.PrototypeFedEmbed,
      fedembed_som.SomFedEmbed,
    ),
    'the gradients of the losses of fedembed are not clipped by example',
  ),
  group.Group: (
    'group trains a global model, and then goes on within groups that may be'
    ' found from the data of silos'
  ),
  knn_per.KnnPer: (
    'knn_per predicts with the examples themselves, so that no noise hides them'
  ),
  pfedkm.PFedKm: (
    'the steps by which pfedkm finds the cluster of an evaluated silo are not'
    ' counted'
  ),
}


def starts_with_steps(method: methods.Method) -> bool:
  """Tells whether a trainer's `start` takes steps on the examples."""
  return method.trainer.start_passes.gradients > 0


def uses(method: methods.Method, rounds: int, client_epochs: int) -> Uses:
  """Counts how often a method uses the examples of each silo.

  Args:
    method: The method.
    rounds: The rounds of its training; each silo is in all of them.
    client_epochs: The passes of a client over its examples in a round.

  Raises:
    UserError: If this is not known or not bounded.
  """
  trainer, personalizer = method.trainer, method.personalizer
  for half, known in ((trainer, _TRAINERS), (personalizer, _PERSONALIZERS)):
    if type(half) not in known:
      reason = _REFUSED.get(
        type(half),
        f'how often {type(half).__name__} uses the examples of a silo is not'
        ' known',
      )
      raise errors.UserError(
        f'The examples of silos cannot be protected: {reason}. Leave the method'
        ' out, or protect whole clients.'
      )
  trained = _TRAINERS[type(trainer)](trainer, rounds)
  walks = [
    walk._replace(epochs=walk.epochs * client_epochs) for walk in trained.walks
  ]
  if starts_with_steps(method):
    gradients = int(trainer.start_passes.gradients)
    walks.append(Walk(1, method.shuffled_epochs or 1, gradients))
  walks += _PERSONALIZERS[type(personalizer)](personalizer.settings).walks
  return Uses(tuple(walk for walk in walks if walk.times), trained.choices)


class Silo(NamedTuple):
  """The work of a silo in a whole training.

  Attributes:
    size: Its number of examples, n_k.
    batch_size: B_k.
    steps: The steps of a pass.
    uses: How often it uses its examples.
    choice_epsilon: The ε of each choice.
    is_poisson: Whether batches are counted as Poisson samples.
    places: How often an example may be in the batches of a choice. With 0, each
      gradient and each choice counts as if it had separate batches, as in Liu
      et al.
  """

  size: int
  batch_size: int
  steps: int
  uses: Uses
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
  uses: Uses,
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
    alone = silo._replace(uses=Uses(choices=silo.uses.choices))
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
  return math.exp(root + _TOLERANCE)


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
