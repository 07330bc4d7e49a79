"""Lines of numbers that were measured in several repeats."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib.axes
import numpy as np

from experiments.plots import looks
from experiments.plots import names

# More points than these have no markers, and a band instead of bars.
_MOST_BARS = 25
# Points are on top of each other if they differ by less than this part of what
# an axis shows.
_ON_TOP = 0.01

# A number in each of several repeats. Their mean is drawn and, if they are
# several, their deviation to either side.
OfRepeats = Sequence[float]
# Both coordinates.
Point = tuple[OfRepeats, OfRepeats]


def mean(values: OfRepeats) -> float:
  """Returns the mean over repeats; NaN if one diverged."""
  return float(np.mean(values)) if np.all(np.isfinite(values)) else np.nan


def _deviation(values: OfRepeats) -> float:
  several = len(values) > 1 and np.all(np.isfinite(values))
  return float(np.std(values, ddof=1)) if several else 0.0


def look_of(method: str) -> dict[str, Any]:
  """Returns a method's look as matplotlib's lines have it."""
  own = looks.look(method)
  face: Any = own.color
  if own.hollow:
    # Of a pair, its trainer shows inside.
    face = 'white' if own.edge == own.color else (own.color, 0.35)
  return dict(
    color=own.color,
    marker=own.marker,
    linestyle=own.line,
    markerfacecolor=face,
    markeredgecolor=own.edge,
  )


def draw(
  plot: matplotlib.axes.Axes, points: Sequence[Point], **look: Any
) -> None:
  """Draws a line through points, with bars or a band for their deviation."""
  x, y = (np.array([mean(own) for own in axis]) for axis in zip(*points))
  x_bars, y_bars = (
    np.array([_deviation(own) for own in axis]) for axis in zip(*points)
  )
  if len(points) > _MOST_BARS and not np.any(x_bars):
    plot.plot(x, y, **look | dict(marker=''))
    plot.fill_between(
      x, y - y_bars, y + y_bars, color=look['color'], alpha=0.15, linewidth=0
    )
    return
  plot.errorbar(
    x,
    y,
    yerr=y_bars if np.any(y_bars) else None,
    xerr=x_bars if np.any(x_bars) else None,
    capsize=1.5,
    elinewidth=0.7,
    **look,
  )


def draw_methods(
  plot: matplotlib.axes.Axes,
  methods: Mapping[str, Sequence[Point]],
  **changes: Any,
) -> None:
  """Draws a line for each method, in its look.

  A point that a later one hides is drawn around that one.

  Args:
    plot: Where to draw them.
    methods: The points of each method; of one without any, nothing is drawn.
    **changes: What is to be different from the looks of the methods.
  """
  shown = {method: points for method, points in methods.items() if points}
  for method, points in shown.items():
    label = names.written_out(method)
    if not any(np.isfinite(mean(y)) for _, y in points):
      label += ' (diverged)'
    draw(plot, points, label=label, **look_of(method) | changes)
  for method, point, times in _hidden(shown):
    look = look_of(method) | dict(linestyle='', markerfacecolor='none')
    size = 3 + 3 * times
    plot.plot(*point, **look, markersize=size, zorder=3)


def _hidden(
  methods: Mapping[str, Sequence[Point]],
) -> Iterator[tuple[str, np.ndarray, int]]:
  """Finds the points under those of later methods, and how many these are."""
  means = {
    method: np.array([[mean(x), mean(y)] for x, y in points])
    for method, points in methods.items()
  }
  every = np.concatenate([*means.values(), np.empty([0, 2])])
  every = every[np.all(np.isfinite(every), axis=1)]
  if not len(every):
    return
  tolerance = _ON_TOP * np.ptp(every, axis=0)
  order = list(means.items())
  for i, (method, points) in enumerate(order):
    if len(points) <= _MOST_BARS:
      for point in points:
        times = sum(
          np.any(np.all(np.abs(others - point) <= tolerance, axis=1)).item()
          for _, others in order[i + 1 :]
        )
        if times:
          yield method, point, times
