"""Posteriors of a client's parameter, by the knowledge that clients share.

The model of section 4 of Liu et al. 2022, with theta_mn = theta_m as there:

  theta_0 is flat, theta_m | theta_0 ~ N(theta_0, sigma_0^2)      the groups
  x_mn | theta_m ~ N(theta_m, sigma_mn^2)                         the clients

The posterior is that of theta_1 for the first client of the first group. The
paper treats each client of another group as if it had a separate theta_m, so
that its posterior with global knowledge holds only if these groups have one
client each. Clients of one group share theta_m: however many they are, they
cannot say more about theta_0 than theta_m itself would. So `global_posterior`
uses the mean of each group instead of its clients; `as_printed` is the paper's
formula.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# For each group, a number for each of its clients.
OfClients = Sequence[Sequence[float]]


class Posterior(NamedTuple):
  """A normal distribution."""

  mean: float
  variance: float


def _pool(means: Sequence[float], variances: Sequence[float]) -> Posterior:
  """Returns the posterior of a mean with a flat prior, from observations."""
  precisions = 1.0 / np.asarray(variances, np.float64)
  total = precisions.sum()
  return Posterior(float(precisions @ np.asarray(means) / total), 1.0 / total)


def own_posterior(x: OfClients, variances: OfClients) -> Posterior:
  """Returns the posterior given only the client's x_11.

  Args:
    x: The observations x_mn.
    variances: Their variances sigma_mn^2.
  """
  return Posterior(x[0][0], variances[0][0])


def group_posterior(x: OfClients, variances: OfClients) -> Posterior:
  """Returns the posterior given the client's group: mu_g1, sigma_g1^2."""
  return _pool(x[0], variances[0])


def global_posterior(
  x: OfClients,
  variances: OfClients,
  group_variance: float,
  as_printed: bool = False,
) -> Posterior:
  """Returns the posterior given all clients: mu_G1, sigma_G1^2.

  Args:
    x: The observations x_mn.
    variances: Their variances sigma_mn^2.
    group_variance: sigma_0^2.
    as_printed: Whether to use the paper's formula, in which clients of one
      group are independent given theta_0.
  """
  others: list[Posterior] = []
  for own_x, own_variances in zip(x[1:], variances[1:]):
    if as_printed:
      others += map(Posterior, own_x, own_variances)
    else:
      others.append(_pool(own_x, own_variances))
  # mu_G/1 and sigma_G/1^2, for theta_0.
  prior = _pool(
    [posterior.mean for posterior in others],
    [group_variance + posterior.variance for posterior in others],
  )
  group = group_posterior(x, variances)
  return _pool(
    [group.mean, prior.mean],
    [group.variance, group_variance + prior.variance],
  )


def group_ratio(variances: OfClients) -> float:
  """Returns sigma_g1^2 / sigma_11^2, the variance that the group leaves."""
  variance, *others = variances[0]
  return 1.0 / (1.0 + sum(variance / other for other in others))


def global_ratio(
  variances: OfClients, group_variance: float, as_printed: bool = False
) -> float:
  """Returns sigma_G1^2 / sigma_g1^2, see `global_posterior`."""
  nothing = [[0.0] * len(of_group) for of_group in variances]
  shared = global_posterior(nothing, variances, group_variance, as_printed)
  return shared.variance / group_posterior(nothing, variances).variance
