"""Figures of the metric if all clients used the same candidate."""

from collections.abc import Container, Iterator, Sequence
import dataclasses
import itertools
import math

import numpy as np

from algorithms import candidates
from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting.figures import figure
from experiments.reporting.figures import lines
from experiments.reporting.figures import scales

# The figure of out-of-distribution metrics has at most this many candidates of
# a method.
_MOST_OOD = 12
# The look and the size of the ring around the chosen candidate.
_RING, _RING_SIZE = looks.Look('transparent', edge='#000000'), 250
_HURT = ['clients hurt', '(lower is better)']


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

  def trace(
    self, one: repeats.Series, measure: str, among: Container[str] | None = None
  ) -> list[lines.Point]:
    """Returns a measure of the candidates, or of those among some names."""
    return [
      ([x], one.values('candidates', str(candidate), measure))
      for x, candidate in sorted(self.points.items())
      if among is None or str(candidate) in among
    ]


def _curves(given: Sequence[candidates.Candidate]) -> list[_Curve]:
  """Sorts candidates into curves over their values.

  A candidate with no label, such as '0 epochs', is on all curves of its unit.

  Args:
    given: The candidates.

  Returns:
    The curves. If no candidate has a value, all are on one curve, in order.
  """
  curves: dict[tuple[str, str], _Curve] = {}
  for candidate in given:
    if candidate.value is not None:
      key = candidate.label, candidate.unit
      curve = curves.setdefault(key, _Curve(*key, {}))
      curve.points[float(candidate.value)] = candidate
  for (label, unit), curve in curves.items():
    common = curves.get(('', unit))
    if label and common:
      curve.points.update(common.points)
  found = list(curves.values()) or [_Curve('', '', dict(enumerate(given)))]
  longer = [curve for curve in found if len(curve.points) > 1]
  return [curve for curve in longer if curve.label] or longer or found


def _looks(method: str, number: int) -> list[looks.Look]:
  """Returns the looks of a method's curves; a single one has its own look."""
  if number == 1:
    return [looks.Look(looks.look(method).color)]
  return [
    looks.Look(color, shape)
    for color, shape in zip(looks.shades(number), itertools.cycle(looks.SHAPES))
  ]


def curves(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the mean metric and the share of hurt clients for each candidate.

  As in Motley, figures 4 and 7 (a-b). The candidate with the best mean is not
  always the one that hurts the fewest clients.
  """
  for one in series:
    if len(one.candidates) > 2:
      yield _of_method(one)


def _of_method(one: repeats.Series) -> figure.Figure:
  curves = _curves(one.candidates)
  measures = _measures(one)
  chosen = {name for repeat in one.repeats for name in repeat.result['chosen']}
  shown = {'test': 'test'}
  if len(curves) == 1:  # Otherwise there would be too many lines.
    shown['validation'] = 'validation'
  panels = []
  for label, of_panel in (
    (scales.metric_label(*one.judged), shown),
    (_HURT, {'test': 'test_hurt'}),
  ):
    drawn = []
    for name, measure in of_panel.items():
      for curve, look in zip(curves, _looks(one.method, len(curves))):
        if name == 'validation':
          look = dataclasses.replace(look, line=looks.DOTTED, hollow=True)
        if measure in measures:
          name = name if len(curves) == 1 else curve.label
          points = curve.trace(one, measure)
          drawn.append(lines.Curve(name, look, points))
    if drawn:
      rings = [
        point
        for curve in curves
        for point in curve.trace(one, of_panel['test'], chosen)
        if len(chosen) == 1
      ]
      drawn.append(lines.Curve('chosen', _RING, rings, _RING_SIZE))
      panels.append(
        lines.Panel(
          label,
          drawn,
          is_share=label is _HURT,
          has_rings=False,
          is_loss=not one.higher_is_better,
          far_out=scales.FAR_OUT,
        )
      )
  whole = all(float(x).is_integer() for curve in curves for x in curve.points)
  axis = scales.WHOLE if whole else {}
  return lines.draw(
    f'candidates_{one.key}',
    'By candidate',
    panels,
    scales.number('candidate', curves[0].unit, axis=axis),
    height=140,
    subject=one.name,
    note='The mean over the clients, and the share of them that are hurt, if'
    ' all used the same candidate. A circle marks what validation chose.',
  )


def _measures(one: repeats.Series) -> set[str]:
  """Returns what was measured of all candidates of a method."""
  names = (one.names('candidates', str(c)) for c in one.candidates)
  return set.intersection(*map(set, names)) if one.candidates else set()


def ood(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws how much worse personalized models are on other clients' examples.

  As in Motley, figure 5. For each method, it has a curve through candidates
  that differ in one number: the curve with the best candidate on own examples.
  Some candidates of a long curve are left out, and those that are far worse on
  own examples than the best one of every method.
  """
  if not all('out_of_distribution' in _measures(one) for one in series):
    return
  sign = 1 if series[0].higher_is_better else -1

  def gain(point: lines.Point) -> float:
    gain = sign * lines.mean(point[0])
    return gain if math.isfinite(gain) else -math.inf

  points: dict[str, list[lines.Point]] = {}
  for one in series:
    own_and_others = (
      [
        (own, others)
        for (_, own), (_, others) in zip(
          curve.trace(one, 'test'), curve.trace(one, 'out_of_distribution')
        )
      ]
      for curve in _curves(one.candidates)
    )
    points[one.name] = max(
      own_and_others, key=lambda some: max(map(gain, some))
    )
  best = [max(map(gain, of_method)) for of_method in points.values()]
  best = [value for value in best if np.isfinite(value)]
  worst = float(np.finfo(float).min)
  if len(best) > 1:
    worst = min(best) - 0.5 * (max(best) - min(best))
  found = lines.find_looks(series)
  curves = []
  for name, of_method in points.items():
    if len(of_method) > _MOST_OOD:
      # The first candidates, such as the first epochs, differ most.
      steps = np.geomspace(1, len(of_method), _MOST_OOD)
      places = np.unique(np.rint(steps).astype(int))
      of_method = [of_method[k - 1] for k in places]
    # The legend should also name methods that diverged.
    some = [point for point in of_method if gain(point) >= worst] or of_method
    curves.append(lines.Curve(name, found[name], some))
  metric = scales.words(series[0].metric)
  better = scales.metric_label(*series[0].judged)[-1]
  label = [*scales.wrap(f'{metric},', 24), "all clients' examples", better]
  yield lines.draw(
    'ood',
    "On all clients' examples",
    [lines.Panel(label, curves)],
    scales.number(
      'own',
      f'{metric}, own examples {better}',
      scale=scales.TIGHT,
    ),
    height=200,
    note="How good personalized models are on all clients' examples, by how"
    " good they are on the clients' own ones.",
  )
