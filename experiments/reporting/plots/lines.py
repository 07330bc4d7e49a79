"""Draws lines through numbers that were measured in several repeats."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib.axes
import numpy as np

from experiments.reporting import looks
from experiments.reporting import names
from experiments.reporting.plots import style

# Lines with more points have no markers, and a band instead of error bars.
_MOST_BARS = 25
# Points hide each other if they differ by less than this part of the range of
# an axis.
_ON_TOP = 0.01

# The opacity of error bars if there are some in both directions.
_LIGHT = 0.35
# Numbers are this far out if training diverged, but not at its beginning.
_FAR_OUT = 1e6

# A number in each repeat. The mean is drawn and, if there are several repeats,
# the deviation to either side.
OfRepeats = Sequence[float]
# The two coordinates of a point.
Point = tuple[OfRepeats, OfRepeats]


def mean(values: OfRepeats) -> float:
  """Returns the mean over repeats; NaN if one diverged."""
  return float(np.mean(values)) if np.all(np.isfinite(values)) else np.nan


def _deviation(values: OfRepeats) -> float:
  several = len(values) > 1 and np.all(np.isfinite(values))
  return float(np.std(values, ddof=1)) if several else 0.0


def look_of(method: str) -> dict[str, Any]:
  """Returns a method's look as options of matplotlib's lines."""
  look = looks.look(method)
  face: Any = look.color
  if look.hollow:
    # The inside of a pair's marker shows its trainer.
    face = 'white' if look.edge == look.color else (look.color, 0.35)
  return dict(
    color=look.color,
    marker=look.marker,
    linestyle=look.line,
    markerfacecolor=face,
    markeredgecolor=look.edge,
  )


def draw(
  plot: matplotlib.axes.Axes, points: Sequence[Point], **look: Any
) -> None:
  """Draws a line through points, with bars or a band for their deviation."""
  x, y = (np.array([mean(values) for values in axis]) for axis in zip(*points))
  x_bars, y_bars = (
    np.array([_deviation(values) for values in axis]) for axis in zip(*points)
  )
  if len(points) > _MOST_BARS and not np.any(x_bars):
    plot.plot(x, y, **look | dict(marker=''))
    plot.fill_between(
      x, y - y_bars, y + y_bars, color=look['color'], alpha=0.15, linewidth=0
    )
    return
  _, caps, bars = plot.errorbar(
    x,
    y,
    yerr=y_bars if np.any(y_bars) else None,
    xerr=x_bars if np.any(x_bars) else None,
    capsize=1.5,
    elinewidth=0.7,
    **look,
  )
  if np.any(x_bars) and np.any(y_bars):
    # Otherwise the crosses of error bars would hide points that are close.
    for part in (*caps, *bars):
      part.set_alpha(_LIGHT)


def draw_methods(
  plot: matplotlib.axes.Axes,
  methods: Mapping[str, Sequence[Point]],
  **changes: Any,
) -> None:
  """Draws a line for each method, in its look.

  Lines and points that later methods hide are drawn larger: as a wider line, or
  with a ring around the point. Methods that diverged do not widen the axis.

  Args:
    plot: The plot to draw in.
    methods: The points of each method; methods without points are left out.
    **changes: Options that replace those of the methods' looks.
  """
  shown = {method: points for method, points in methods.items() if points}
  means = {
    method: np.array([[mean(x), mean(y)] for x, y in points])
    for method, points in shown.items()
  }
  drawn = [y for places in means.values() for y in places[:, 1]]
  near = style.near(drawn, _FAR_OUT)
  for (method, points), hidden in zip(shown.items(), _hidden(means)):
    places = means[method]
    label = names.written_out(method)
    if not np.any(np.isin(places[:, 1], near)):
      label += ' (diverged)'
    look = look_of(method) | changes
    if not look['marker'] or len(points) > _MOST_BARS:
      look['linewidth'] = 1.2 + 1.4 * np.median(hidden)
    else:
      for point, times in zip(places[hidden > 0], hidden[hidden > 0]):
        ring = look | dict(linestyle='', markerfacecolor='none')
        plot.plot(*point, **ring, markersize=3 + 3 * times, zorder=3)
    draw(plot, points, label=label, **look)
  style.show_near(plot, 'y', drawn, _FAR_OUT)


def _hidden(means: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
  """Yields, for each method, how many later methods hide each of its points."""
  order = list(means.values())
  tolerance = [
    _ON_TOP * style.extent(axis, _FAR_OUT)
    for axis in np.concatenate([np.empty([0, 2]), *order]).T
  ]
  for i, points in enumerate(order):
    # A logarithmic axis also shows small differences.
    closest = np.minimum(tolerance, _ON_TOP * np.abs(points))[:, None]
    distances = (np.abs(points[:, None] - others) for others in order[i + 1 :])
    yield sum(
      (
        np.any(np.all(distance <= closest, axis=-1), axis=1).astype(int)
        for distance in distances
      ),
      start=np.zeros(len(points), int),
    )
