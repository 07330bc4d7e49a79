"""Membership by loss: how well the losses tell who was in a training.

The simplest attack on a model says that those were in its training whose loss
is small (Yeom et al. 2018). It proves no privacy, but it shows a training that
has none.
"""

import dataclasses
import math

import numpy as np
from scipy import stats


@dataclasses.dataclass(frozen=True)
class Membership:
  """How well losses tell members from others.

  Attributes:
    area: The probability that a member has a smaller loss than another, the
      area under the curve of `curve`; ties count half.
    interval: Its 95 % interval (DeLong et al. 1988).
    false: The shares of others that are taken for members, by threshold.
    true: The shares of members that are found.
  """

  area: float
  interval: tuple[float, float]
  false: np.ndarray
  true: np.ndarray


def measure(members: np.ndarray, others: np.ndarray) -> Membership:
  """Measures how well losses tell members from others.

  Args:
    members: The loss of each member; those that are not finite count as the
      largest ones.
    others: The loss of each of the others.
  """
  members, others = (
    np.nan_to_num(losses, nan=np.inf) for losses in (members, others)
  )
  smaller = members[:, np.newaxis] < others
  wins = smaller + 0.5 * (members[:, np.newaxis] == others)
  area = float(np.mean(wins))
  error = math.sqrt(
    sum(
      np.var(np.mean(wins, axis), ddof=1) / wins.shape[1 - axis]
      for axis in (0, 1)
    )
  )
  reach = float(stats.norm.isf(0.025)) * error
  thresholds = np.unique(np.concatenate([members, others]))
  false, true = (
    np.concatenate(
      [[0.0], np.searchsorted(np.sort(losses), thresholds, 'right')]
    )
    / len(losses)
    for losses in (others, members)
  )
  interval = max(area - reach, 0.0), min(area + reach, 1.0)
  return Membership(area, interval, false, true)
