"""Successive halving: many points for few rounds, the best of them for more.

As Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and
hyperparameter optimization", but that the factor need not be two. A training is
done anew on each rung.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import math

from base import errors
from experiments.configuration import configs
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results


def rungs(
  grid: grid_file.GridFile,
  last_results: Callable[[], Sequence[grid_results.PointResult]],
) -> Iterator[grid_file.GridFile]:
  """Yields the grid of each rung; that of the last has the best points.

  Args:
    grid: The grid. If it has no halving, it is the only rung.
    last_results: Returns the results of the last rung that was yielded. It is
      called when the next one is asked for.

  Raises:
    UserError: If a training's length is not in rounds.
  """
  if grid.halving is None:
    yield grid
    return
  left = [(point, _total_rounds(grid, point)) for point in grid.points]
  num_points = collections.Counter(point.name for point in grid.points)
  lengths = _lengths(grid.halving, max(rounds for _, rounds in left))
  for number, rounds in enumerate(lengths, 1):
    points = tuple(
      dataclasses.replace(
        point, values={**point.values, 'total_rounds': min(rounds, most)}
      )
      for point, most in left
    )
    yield dataclasses.replace(grid, points=points)
    kept = {
      id(result.point)
      for name, results in _rank_rows(last_results()).items()
      for result in results[
        : math.ceil(num_points[name] / grid.halving.factor**number)
      ]
    }
    left = [pair for pair, point in zip(left, points) if id(point) in kept]
    if not left:
      return


def _lengths(halving: grid_file.Halving, most: int) -> list[int]:
  """Returns the rounds of each rung, which end with the most."""
  lengths = [most]
  while lengths[0] >= halving.first_rounds * halving.factor:
    lengths.insert(0, lengths[0] // halving.factor)
  return lengths


def _total_rounds(grid: grid_file.GridFile, point: grid_file.Point) -> int:
  training = configs.resolve(grid.request(point, grid.repeats[0])).training
  if training.total_epochs:
    raise errors.UserError(
      f'{point}: halving needs total_rounds, not total_epochs.'
    )
  return training.total_rounds


def _rank_rows(
  results: Sequence[grid_results.PointResult],
) -> dict[str, list[grid_results.PointResult]]:
  """Returns the points of each row that did not diverge, the best first."""
  rows: dict[str, list[grid_results.PointResult]] = {}
  for result in results:
    if result.validation is not None:
      rows.setdefault(result.point.name, []).append(result)
  for of_row in rows.values():
    of_row.sort(key=grid_results.score, reverse=True)
  return rows
