"""Values of settings that a grid draws at random."""

from collections.abc import Callable, Mapping
import random

from base import errors
from base.aliases import Json

# Digits that a drawn number has.
_DIGITS = 4


def _rounded(value: float) -> float:
  return float(f'{value:.{_DIGITS}g}')


# From a lower bound, an upper bound and a share between 0 and 1 to a value.
DISTRIBUTIONS: Mapping[str, Callable[[float, float, float], float]] = {
  'uniform': lambda low, high, share: _rounded(low + (high - low) * share),
  'log_uniform': lambda low, high, share: _rounded(low * (high / low) ** share),
  'whole': lambda low, high, share: low + int((high - low + 1) * share),
}


def check_bounds(
  distribution: str, name: str, bounds: Json, where: str
) -> None:
  """Raises a `UserError` if values cannot be drawn from between two bounds.

  Args:
    distribution: One of `DISTRIBUTIONS`.
    name: The setting.
    bounds: Its bounds.
    where: The place of both, for the error.
  """
  allowed = (int,) if distribution == 'whole' else (int, float)
  fits = (
    isinstance(bounds, list)
    and len(bounds) == 2
    and all(type(bound) in allowed for bound in bounds)
    and bounds[0] < bounds[1] < float('inf')
    and (distribution != 'log_uniform' or bounds[0] > 0)
  )
  if fits:
    return
  kind = {'whole': 'whole numbers', 'log_uniform': 'numbers above 0'}
  raise errors.UserError(
    f'{where}: {distribution}: {name} must be a list of two'
    f' {kind.get(distribution, "numbers")}, the smaller one first, not'
    f' {errors.quote(bounds)}.'
  )


def draw(
  number: int,
  lists: Mapping[str, list[Json]],
  bounds: Mapping[str, Mapping[str, list[Json]]],
) -> dict[str, Json]:
  """Draws the values of a point.

  A value depends on the point's number and the setting's name alone, so that
  more points, or one more setting, leave the others as they were.

  Args:
    number: The number of the point.
    lists: The values of settings that are drawn from lists.
    bounds: The bounds of the others, by distribution and setting.
  """

  def share(name: str) -> float:
    # Python's own, as `--help` must not wait for NumPy.
    return random.Random(f'{name} {number}').random()

  values = {
    name: tried[int(share(name) * len(tried))] for name, tried in lists.items()
  }
  for distribution, by_name in bounds.items():
    for name, (low, high) in by_name.items():
      values[name] = DISTRIBUTIONS[distribution](low, high, share(name))
  return values
