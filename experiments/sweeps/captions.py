"""Captions of the figures of grids and tables."""

from collections.abc import Iterable

from experiments.reporting.figures import figure
from experiments.sweeps import grid_results


def describe(what: str, results: Iterable[grid_results.PointResult]) -> str:
  """Writes which clients and how many repeats a figure of points shows.

  Args:
    what: The task, or another subject of the figure.
    results: The points.
  """
  records = [record for result in results for record in result.records]
  return figure.describe_clients(
    what,
    max((len(record['test']) for record in records), default=0),
    len({record['seed'] for record in records}),
  )
