"""Figures of the metric if all clients used the same candidate."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from algorithms import candidates
from experiments.reporting import looks
from experiments.reporting import names
from experiments.reporting.plots import lines
from experiments.reporting.plots import shading
from experiments.reporting.plots import style

# The figure of out-of-distribution metrics has at most this many candidates of
# a method.
_MOST_OOD = 12


@dataclasses.dataclass(frozen=True)
class _Curve:
  """Candidates that differ in one number.

  Attributes:
    label: The settings that they have in common, such as 'rate 0.1'.
    unit: The unit of the number, such as 'epochs'.
    points: The candidates, by that number.
  """

  label: str
  unit: str
  points: dict[float, candidates.Candidate]


def _curves(candidates: Sequence[candidates.Candidate]) -> list[_Curve]:
  """Sorts candidates into curves over their values.

  A candidate with no label, such as '0 epochs', is on all curves of its unit.

  Args:
    candidates: The candidates.

  Returns:
    The curves. If no candidate has a value, all are on one curve, in order.
  """
  curves: dict[tuple[str, str], _Curve] = {}
  for candidate in candidates:
    if candidate.value is not None:
      key = candidate.label, candidate.unit
      curve = curves.setdefault(key, _Curve(*key, {}))
      curve.points[float(candidate.value)] = candidate
  for (label, unit), curve in curves.items():
    common = curves.get(('', unit))
    if label and common:
      curve.points.update(common.points)
  found = list(curves.values()) or [_Curve('', '', dict(enumerate(candidates)))]
  longer = [curve for curve in found if len(curve.points) > 1]
  return [curve for curve in longer if curve.label] or longer or found


def _looks(method: str, number: int) -> list[dict[str, Any]]:
  """Returns the looks of a method's curves; a single one has its own look."""
  if number == 1:
    return [dict(color=looks.look(method).color, marker='o')]
  return [
    dict(color=color, marker=marker)
    for color, marker in zip(
      shading.shades(number), itertools.cycle(looks.MARKERS)
    )
  ]


@style.styled
def candidate_curves(
  candidates: Mapping[candidates.Candidate, Mapping[str, lines.OfRepeats]],
  metric: str,
  higher_is_better: bool,
  method: str,
  *,
  chosen: str | None = None,
) -> style.Figure:
  """Draws the mean metric and the share of hurt clients for each candidate.

  As in Motley, figures 4 and 7 (a-b). The candidate with the best mean is not
  always the one that hurts the fewest clients.

  Args:
    candidates: For each candidate, if all clients used it, the mean over them
      ('test', and 'validation' if it is to be drawn) and the share of them that
      are hurt ('test_hurt', if there is one).
    metric: The name of the metric.
    higher_is_better: Its direction.
    method: The name of the method.
    chosen: The name of the candidate that was chosen for all, if one was.

  Returns:
    The figure.
  """
  curves = _curves(tuple(candidates))
  measures = set.intersection(*map(set, candidates.values()))
  if len(curves) > 1:
    measures.discard('validation')  # There would be too many lines.
  hurts = 'test_hurt' in measures
  figure = style.new_figure(3.4 if hurts else 2.4)
  plots = figure.subplots(1 + hurts, sharex=True, squeeze=False)[:, 0].tolist()
  for curve, look in zip(curves, _looks(method, len(curves))):
    points = sorted(curve.points.items())
    for measure, plot, line in (
      ('test', plots[0], '-'),
      ('validation', plots[0], ':'),
      ('test_hurt', plots[-1], '-'),
    ):
      if measure in measures:
        lines.draw(
          plot,
          [([x], candidates[candidate][measure]) for x, candidate in points],
          **look | ({} if line == '-' else dict(marker='')),
          linestyle=line,
          label=measure if len(curves) == 1 else curve.label,
        )
    for x, candidate in points:
      if str(candidate) == chosen:
        for plot, measure in zip(plots, ('test', 'test_hurt')):
          plot.plot(
            x,
            lines.mean(candidates[candidate][measure]),
            linestyle='',
            marker='o',
            markersize=7,
            markerfacecolor='none',
            color='black',
            label='chosen',
          )
  drawn = (
    lines.mean(candidates[candidate][measure])
    for measure in measures - {'test_hurt'}
    for curve in curves
    for candidate in curve.points.values()
  )
  style.show_near(plots[0], 'y', drawn)
  if not higher_is_better:
    style.log_if_wide(plots[0], 'y')
  plots[0].set_ylabel(style.metric_label(metric, higher_is_better))
  if hurts:
    style.in_shares(plots[-1], 'clients hurt\n(lower is better)')
  plots[-1].set_xlabel(curves[0].unit)
  if all(float(x).is_integer() for curve in curves for x in curve.points):
    style.in_whole_numbers(plots[-1].xaxis)
  style.add_legend(figure, plots[:1], names.written_out(method))
  return figure


@style.styled
def ood_curves(
  methods: Mapping[str, Mapping[candidates.Candidate, lines.Point]],
  metric: str,
  higher_is_better: bool,
) -> style.Figure:
  """Draws how much worse personalized models are on other clients' examples.

  As in Motley, figure 5.

  Args:
    methods: For each candidate of each method the means over clients, on their
      own examples and on those of all clients.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure. For each method, it has a curve through candidates that differ
    in one number: the curve with the best candidate on own examples. Some
    candidates of a long curve are left out, and those that are far worse on own
    examples than the best one of every method.
  """
  figure = style.new_figure(2.8)
  plot = figure.subplots()
  sign = 1 if higher_is_better else -1

  def gain(point: lines.Point) -> float:
    gain = sign * lines.mean(point[0])
    return gain if math.isfinite(gain) else -math.inf

  # For each method, the curve with its best point.
  curves = {
    method: max(
      (
        [candidates[candidate] for _, candidate in sorted(curve.points.items())]
        for curve in _curves(tuple(candidates))
      ),
      key=lambda points: max(map(gain, points)),
    )
    for method, candidates in methods.items()
  }
  best = [max(map(gain, points)) for points in curves.values()]
  best = [value for value in best if np.isfinite(value)]
  worst = float(np.finfo(float).min)
  if len(best) > 1:
    worst = min(best) - 0.5 * (max(best) - min(best))
  some = {}
  for method, points in curves.items():
    if len(points) > _MOST_OOD:
      # The first candidates, such as the first epochs, differ most.
      steps = np.geomspace(1, len(points), _MOST_OOD)
      points = [points[k - 1] for k in np.unique(np.rint(steps).astype(int))]
    # The legend should also name methods that diverged.
    some[method] = [point for point in points if gain(point) >= worst] or points
  lines.draw_methods(plot, some)
  plot.locator_params(nbins=5)
  plot.set_xlabel(
    style.metric_label(f'{metric}, own examples', higher_is_better)
  )
  plot.set_ylabel(
    style.metric_label(f"{metric},\nall clients' examples", higher_is_better)
  )
  style.add_legend(figure, [plot])
  return figure
