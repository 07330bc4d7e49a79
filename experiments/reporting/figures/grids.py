"""Figures of grids: of each pair of settings, and of all settings together."""

from collections.abc import Iterable, Sequence
import dataclasses
import itertools
from typing import Any

from algorithms import registry
from experiments.reporting import grid_records
from experiments.reporting import looks
from experiments.reporting import sources
from experiments.reporting.figures import figure
from experiments.reporting.figures import scales

# A setting with more different numbers was drawn at random, and gets a numeric
# axis.
_MOST_LISTED = 10
# Characters per line of the title of a y axis.
_TITLE = 26
# The axis is logarithmic if the numbers are positive, and the ratio of the
# largest to the smallest is larger than this.
_LARGE_RATIO = 20


def _as_text(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def _column(name: str) -> str:
  """Escapes the dots of a setting's name, as Vega-Lite reads them as paths."""
  return name.replace('.', r'\.')


@dataclasses.dataclass(frozen=True)
class _Setting:
  """A setting for which a grid has several values.

  Attributes:
    name: Its name.
    values: Its different values in order: numbers by size, others by text.
  """

  name: str
  values: tuple[Any, ...]

  @classmethod
  def of(cls, name: str, values: Iterable[Any]) -> '_Setting':
    """Makes a setting from the values that points have for it."""
    different = {_as_text(value): value for value in values}
    key = None if _are_numbers(different.values()) else _as_text
    return cls(name, tuple(sorted(different.values(), key=key)))

  @property
  def drawn(self) -> bool:
    """Whether the values were drawn at random, rather than listed."""
    return len(self.values) > _MOST_LISTED and _are_numbers(self.values)

  def shown(self, value: Any) -> Any:
    """Returns a value in the form of a chart's data."""
    return value if self.drawn else _as_text(value)

  def axis(self, descending: bool = False) -> figure.Spec:
    """Returns the encoding of an axis with the values."""
    if not self.drawn:
      order = list(map(_as_text, self.values))
      if descending:
        order.reverse()
      return scales.kind(
        _column(self.name),
        self.name,
        type='ordinal',
        sort=order,
        axis={'labelAngle': 0},
      )
    low, high = self.values[0], self.values[-1]
    logarithmic = 0 < low * _LARGE_RATIO < high
    scale: figure.Spec = {'type': 'log'} if logarithmic else {'zero': False}
    return scales.number(_column(self.name), self.name, scale=scale)


def _are_numbers(values: Iterable[Any]) -> bool:
  return all(type(value) in (int, float) for value in values)


def _varied(points: Sequence[sources.GridPoint]) -> list[_Setting]:
  """Finds the settings that have several values."""
  names = dict.fromkeys(name for point in points for name in point.values)
  settings = [
    _Setting.of(n, (p.values[n] for p in points if n in p.values))
    for n in names
  ]
  return [setting for setting in settings if len(setting.values) > 1]


def _measured(points: Sequence[sources.GridPoint]) -> tuple[str, bool]:
  """Describes the metric that chooses points; also tells if lower is better."""
  record = points[0].records[0]
  lower = grid_records.lower_is_chosen(record)
  better = 'lower' if lower else 'higher'
  return (
    f'validation {scales.words(record["chosen_by"])} ({better} is better)',
    lower,
  )


def _rows_of_points(
  points: Sequence[sources.GridPoint], settings: Iterable[_Setting]
) -> figure.Rows:
  settings = list(settings)
  return [
    {
      **{
        setting.name: setting.shown(point.values.get(setting.name))
        for setting in settings
      },
      'validation': scales.rounded(point.validation),
      'test': scales.rounded(point.test),
      'repeats': len(point.records),
    }
    for point in points
  ]


def _tooltip(settings: Iterable[_Setting]) -> list[figure.Spec]:
  names = (*(setting.name for setting in settings), 'validation', 'test')
  return scales.tooltip(*map(_column, names), 'repeats')


def _color(lower: bool) -> figure.Spec:
  """Encodes the validation metric of a point by a color."""
  scale = {'scheme': 'viridis', 'reverse': lower}
  return scales.number('validation', 'validation', scale=scale)


def _pair(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  pair: tuple[_Setting, _Setting],
  varied: Sequence[_Setting],
) -> figure.Figure:
  """Shows two settings; of points that differ only in others, the best one."""
  measured, lower = _measured(points)
  x, y = pair
  best: dict[tuple[Any, Any], dict[str, Any]] = {}
  for row in _rows_of_points(points, varied):
    key = row[x.name], row[y.name]
    there = best.get(key, {}).get('validation')
    value = row['validation']
    better = there is None or (
      value is not None and (value < there if lower else value > there)
    )
    if better:
      best[key] = row
  encoding = {
    'x': x.axis(),
    'y': y.axis(descending=True),
    'tooltip': _tooltip(varied),
  }
  note = f'The color shows the {measured}.'
  if x.drawn or y.drawn:
    note += ' Points that diverged or are not finished are left out.'
    encoding['color'] = _color(lower)
    drawing = scales.layer('circle', encoding, size=160, opacity=1)
    drawing['height'] = 300
  else:
    note += ' Cells without a number diverged or are not finished.'
    shown = [v for row in best.values() if (v := row['validation']) is not None]
    middle = (min(shown, default=0) + max(shown, default=0)) / 2
    # The light end of the colors is that of the best values.
    is_light = f'datum.validation {"<" if lower else ">"} {middle}'
    ink = {'condition': {'test': is_light, 'value': 'black'}, 'value': 'white'}
    number = scales.number('validation', format='.3g')
    layers = [
      scales.layer('rect', {'color': _color(lower)}, stroke='white'),
      scales.layer('text', {'text': number, 'color': ink}),
    ]
    drawing = {'encoding': encoding, 'layer': layers, 'height': {'step': 34}}
  if len(varied) > 2:
    note += ' Of points that differ only in others, the best one is shown.'
  return figure.Figure(
    f'{grid.path.name}_{name}_{x.name}_{y.name}',
    f'{registry.title(name)}: {x.name} and {y.name}',
    list(best.values()),
    drawing,
    note=note,
    captions=[note],
  )


def _single(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  setting: _Setting,
) -> figure.Figure:
  """Shows the validation metric by the values of a single setting."""
  measured, _ = _measured(points)
  encoding = {
    'x': setting.axis(),
    'y': scales.number(
      'validation', scales.wrap(measured, _TITLE), scale=scales.TIGHT
    ),
    'tooltip': _tooltip([setting]),
  }
  color = looks.COLORS[1]
  mark = scales.layer('line', encoding, point={'size': 70}, color=color)
  if setting.drawn:
    mark = scales.layer('point', encoding, filled=True, size=70, color=color)
  return figure.Figure(
    f'{grid.path.name}_{name}_{setting.name}',
    f'{registry.title(name)}: {setting.name}',
    _rows_of_points(points, [setting]),
    {**mark, 'height': 190},
  )


def _parallel(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  varied: Sequence[_Setting],
) -> figure.Figure:
  """Shows all settings at once, with an axis each, and a line per point."""
  measured, lower = _measured(points)
  rows = [
    row
    for row in _rows_of_points(points, varied)
    if row['validation'] is not None
  ]
  ends = [row['validation'] for row in rows]
  low, high = min(ends, default=0), max(ends, default=1)
  data: figure.Rows = []
  ticks: figure.Rows = []
  for setting in varied:
    axis, last = setting.name, len(setting.values) - 1
    places = {setting.shown(v): i / last for i, v in enumerate(setting.values)}
    # If there are many values, only some are written on the axis.
    written = setting.values[:: 1 + last // _MOST_LISTED]
    ticks += [
      {'axis': axis, 'place': places[setting.shown(v)], 'text': _as_text(v)}
      for v in written
    ]
    data += [
      {'point': i, 'axis': axis, 'place': places[row[axis]], **row}
      for i, row in enumerate(rows)
      if row[axis] in places
    ]
  data += [
    {
      'point': i,
      'axis': 'validation',
      'place': (row['validation'] - low) / ((high - low) or 1),
      **row,
    }
    for i, row in enumerate(rows)
  ]
  ticks += [
    {'axis': 'validation', 'place': p, 'text': f'{v:.3g}'}
    for p, v in ((0, low), (1, high))
  ]
  note = f'Each line is a point of the grid, colored by its {measured}.'
  axes = [*(setting.name for setting in varied), 'validation']
  x = scales.kind('axis', sort=axes, axis={'labelAngle': 0})
  y = scales.number('place', axis=None, scale={'domain': [0, 1]})
  line = {
    'detail': scales.kind('point'),
    'color': _color(lower),
    'tooltip': _tooltip(varied),
  }
  text = {'text': scales.kind('text')}
  return figure.Figure(
    f'{grid.path.name}_{name}_all',
    f'{registry.title(name)}: all settings',
    data,
    {
      'encoding': {'x': x, 'y': y},
      'layer': [
        scales.layer('line', line, opacity=0.7),
        scales.layer('text', text, data=ticks, dx=6, align='left'),
      ],
      'width': max(figure.WIDTH - 60, 100 * len(axes)),
      'height': 260,
    },
    note=note,
    captions=[note],
  )


def draw_grid(grid: sources.Grid) -> list[figure.Figure]:
  """Draws a grid: of pairs of settings, and of all settings."""
  drawn = []
  by_name: dict[str, list[sources.GridPoint]] = {}
  for point in grid.points:
    by_name.setdefault(point.name, []).append(point)
  for name, points in by_name.items():
    varied = _varied(points)
    for pair in itertools.combinations(varied, 2):
      drawn.append(_pair(grid, name, points, pair, varied))
    if len(varied) == 1:
      drawn.append(_single(grid, name, points, *varied))
    if len(varied) > 2:
      drawn.append(_parallel(grid, name, points, varied))
  return drawn
