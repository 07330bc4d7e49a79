"""Figures that compare methods by their means over clients."""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
import textwrap
from typing import TypeVar

import numpy as np

from algorithms import registry
from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting import tables
from experiments.reporting.figures import figure
from experiments.reporting.figures import lines
from experiments.reporting.figures import scales

_Key = TypeVar('_Key')
# Characters per line of the label of a way, see `_beside`.
_WAY = 12
# The size of marks that only the legend shows.
_INVISIBLE = 1
# The ways to choose a candidate, by their labels.
_CHOICES = {'one for all': 'all', 'one for each': 'each'}

# Each method's numbers by x, or by the name of a way to do something.
_ByX = Mapping[str, Mapping[float, repeats.OfRepeats]]
_ByWay = Mapping[str, Mapping[str, repeats.OfRepeats]]


def communication(
  by_rounds: Sequence[Sequence[repeats.Series]],
) -> Iterator[figure.Figure]:
  """Draws the metric by the number of parameters that were sent.

  As in Motley, figure 6 (b-c).

  Args:
    by_rounds: The series of each number of rounds, the longest training last.
  """
  last = by_rounds[-1]
  found = lines.find_looks(last)
  curves = [
    lines.Curve(
      name,
      look,
      [
        (
          series.values('communication', 'total_parameters'),
          series.values('test', 'mean'),
        )
        for alike in by_rounds
        for series in alike
        if series.name == name and series.names('communication')
      ],
    )
    for name, look in found.items()
  ]
  if any(curve.points for curve in curves):
    label = scales.metric_label(*last[0].judged)
    yield lines.draw(
      'communication',
      'By communication',
      [lines.Panel(label, curves)],
      scales.number(
        'parameters',
        'parameters sent to and from clients in training',
        axis={'format': '~s'},
      ),
      note='The mean over test clients by the number of parameters that are'
      ' sent to and from clients in all rounds.',
    )


def make_curves(methods: _ByX) -> list[lines.Curve]:
  """Makes a line of each method, given its metric over x."""
  return [
    lines.Curve(registry.title(method), looks.look(method), _sorted(by_x))
    for method, by_x in methods.items()
  ]


def _sorted(by_x: Mapping[float, repeats.OfRepeats]) -> list[lines.Point]:
  return [([x], y) for x, y in sorted(by_x.items())]


def draw_fractions(
  name: str,
  curves: Sequence[lines.Curve],
  label: str,
  metric: str,
  higher_is_better: bool,
) -> figure.Figure:
  """Draws methods' metric by the fraction of a set that is used.

  As in Motley, figures 3 (c-d) and 7 (c).

  Args:
    name: The name of the figure.
    curves: Each method's metric over the fractions.
    label: The label, such as 'part of the personalization set'.
    metric: The name of the metric; 'clients hurt' is a share.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  judged = scales.metric_label(metric, higher_is_better)
  panel = lines.Panel(judged, curves, is_share=metric == 'clients hurt')
  places = {x for curve in curves for (x,), _ in curve.points}
  axis = scales.PERCENT | {'values': sorted(places)}
  x = scales.number('part', label, axis=axis, scale=scales.TIGHT)
  return lines.draw(name, f'By {label}', [panel], x)


def draw_against(
  name: str,
  curves: Sequence[lines.Curve],
  label: str,
  ticks: Mapping[float, str],
  metric: str,
  higher_is_better: bool,
) -> figure.Figure:
  """Draws methods' metric by a number, such as the noise or ε.

  Args:
    name: The name of the figure.
    curves: Each method's metric over the numbers.
    label: The label of the number.
    ticks: The text below each number.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  panel = lines.Panel(scales.metric_label(metric, higher_is_better), curves)
  is_wide = 0 < 4 * min(ticks) < max(ticks)
  scale = scales.TIGHT | ({'type': 'log'} if is_wide else {})
  x = scales.number('x', label, scale=scale, axis=_written(ticks))
  return lines.draw(name, f'By {label}', [panel], x)


def _written(ticks: Mapping[float, str]) -> figure.Spec:
  """Makes an axis with a text, of one or more lines, at each of some places."""
  texts = [text.split('\n') for text in ticks.values()]
  places = list(ticks)
  place = f'indexof({scales.literal(places)}, datum.value)'
  return {'values': places, 'labelExpr': f'{scales.literal(texts)}[{place}]'}


def parts(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the results with only parts of the clients' sets."""
  name = 'personalization_fractions'
  curves = []
  for one, by_part in _by_part(series, name, 'mean'):
    look = lines.find_looks(series)[one.name]
    points = _sorted(by_part)
    if all(values == by_part[1.0] for values in by_part.values()):
      # Its models come from training alone, which used the whole set. It is
      # drawn as a level to compare with.
      look = looks.Look(look.color, look.shape, looks.DOTTED)
      level = [(x, [lines.mean(y)]) for x, y in (points[0], points[-1])]
      label = f'{one.name} (trained on all)'
      curves.append(lines.Curve(label, look, level, _INVISIBLE))
    else:
      curves.append(lines.Curve(one.name, look, points))
  if curves:
    judged = series[0].metric, series[0].higher_is_better
    yield draw_fractions(
      name, curves, 'part of the personalization set', *judged
    )
  name = 'evaluation_fractions'
  curves = [
    lines.Curve(one.name, lines.find_looks(series)[one.name], _sorted(by_part))
    for one, by_part in _by_part(series, name, 'hurt')
    if len(one.candidates) > 1
  ]
  if curves:
    label = 'part of the evaluation set'
    yield draw_fractions(
      name, curves, label, 'clients hurt', higher_is_better=False
    )


def _by_part(
  series: Sequence[repeats.Series], name: str, statistic: str
) -> Iterator[tuple[repeats.Series, dict[float, list[float]]]]:
  """Yields a statistic of each method that has it, by the part of a set."""
  where = {1.0: ('test', statistic)} | {
    float(part): (name, part, statistic) for part in series[0].names(name)
  }
  found = _numbers(series, where)
  for one in series:
    if len(where) > 1 and one.name in found:
      yield one, found[one.name]


def _numbers(
  series: Sequence[repeats.Series], where: Mapping[_Key, Sequence[str]]
) -> dict[str, dict[_Key, list[float]]]:
  """Looks up numbers in the results of the methods that have all of them."""
  of_methods = {
    one.name: {key: one.values(*place) for key, place in where.items()}
    for one in series
  }
  return {
    name: numbers
    for name, numbers in of_methods.items()
    if not any(map(math.isnan, itertools.chain(*numbers.values())))
  }


def _beside(
  methods: _ByWay, found: Mapping[str, looks.Look], ways: Sequence[str]
) -> list[lines.Curve]:
  """Places methods side by side, for each way of doing something."""
  spread = min(0.06 * (len(methods) - 1), 0.3)
  shifts = np.linspace(-spread, spread, len(methods)).tolist()
  return [
    lines.Curve(
      name,
      found[name],
      [([ways.index(way) + shift], by_way[way]) for way in by_way],
    )
    for (name, by_way), shift in zip(methods.items(), shifts)
  ]


def _axis_of_ways(ways: Sequence[str], title: str) -> figure.Spec:
  ticks = {float(k): textwrap.fill(way, _WAY) for k, way in enumerate(ways)}
  scale = {'domain': [-0.4, len(ways) - 0.6], 'nice': False}
  axis = _written(ticks) | {'grid': False}
  return scales.number('way', title, scale=scale, axis=axis)


def tuning(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Compares one candidate for all clients with a chosen one for each client.

  As in Motley, figure 8.
  """
  methods = _numbers(
    series, {label: ('tuning', way, 'mean') for label, way in _CHOICES.items()}
  )
  if methods:
    metric = scales.metric_label(*series[0].judged)
    curves = _beside(methods, lines.find_looks(series), [*_CHOICES])
    yield lines.draw(
      'tuning',
      'One candidate for all, or for each',
      [lines.Panel(metric, curves)],
      _axis_of_ways([*_CHOICES], 'candidate chosen'),
    )


def acceptance(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the effect of refusing the personalized models of some clients."""
  where = {'nobody': ('before',), 'everybody': ('test',)} | {
    label: ('acceptance', criterion, 'test')
    for criterion, label in tables.CRITERIA.items()
    if any(one.names('acceptance', criterion) for one in series)
  }
  if len(where) == 2:
    return
  hurt, means = (
    _numbers(series, {key: (*place, name) for key, place in where.items()})
    for name in ('hurt', 'mean')
  )
  # A method that does not personalize cannot hurt anybody.
  means = {name: by_way for name, by_way in means.items() if name in hurt}
  if means:
    found = lines.find_looks(series)
    metric = scales.metric_label(*series[0].judged)
    yield lines.draw(
      'acceptance',
      'If some clients refuse the personalized model',
      [
        lines.Panel(metric, _beside(means, found, [*where])),
        lines.Panel(
          ['clients hurt', '(lower is better)'],
          _beside(hurt, found, [*where]),
          is_share=True,
        ),
      ],
      _axis_of_ways([*where], 'who takes the personalized model'),
      has_lines=False,
      height=140,
    )
