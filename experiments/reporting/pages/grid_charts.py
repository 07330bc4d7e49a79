"""Charts of grids: each pair of settings, and all of them together."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
from typing import Any

from experiments.reporting import looks
from experiments.reporting import names
from experiments.reporting.pages import charts
from experiments.reporting.pages import sources


def _as_text(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def _in_order(values: Iterable[Any]) -> list[str]:
  """Lists different values as texts, numbers by their size."""
  different = {_as_text(value): value for value in values}
  if all(type(value) in (int, float) for value in different.values()):
    return sorted(different, key=lambda text: float(different[text]))
  return sorted(different)


def _varied(points: Sequence[sources.GridPoint]) -> dict[str, list[str]]:
  """Finds the settings of which there are several values, and these."""
  settings = dict.fromkeys(name for point in points for name in point.values)
  values = {
    name: _in_order(p.values[name] for p in points if name in p.values)
    for name in settings
  }
  return {name: own for name, own in values.items() if len(own) > 1}


def _measured(points: Sequence[sources.GridPoint]) -> tuple[str, bool]:
  """Writes what points are chosen by, and whether a higher one is better."""
  record = points[0].records[0]
  lower = sources.lower_is_chosen(record)
  better = 'lower' if lower else 'higher'
  return (
    f'validation {charts.words(record["chosen_by"])} ({better} is better)',
    lower,
  )


def _rows_of_points(
  points: Sequence[sources.GridPoint], settings: Iterable[str]
) -> charts.Rows:
  settings = list(settings)
  return [
    {
      **{name: _as_text(point.values.get(name)) for name in settings},
      'validation': charts.rounded(point.validation),
      'test': charts.rounded(point.test),
      'repeats': len(point.records),
    }
    for point in points
  ]


def _column(name: str) -> str:
  """Writes the name of a setting such that its dots lead nowhere."""
  return name.replace('.', r'\.')


def _tooltip(settings: Iterable[str]) -> list[charts.Spec]:
  return [
    charts.field(_column(name), 'nominal', name)
    for name in (*settings, 'validation', 'test', 'repeats')
  ]


def _heat_map(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  pair: tuple[str, str],
  varied: Mapping[str, list[str]],
) -> charts.Chart:
  """Shows two settings; of the points that differ in others, the best."""
  measured, lower = _measured(points)
  best: dict[tuple[str, str], dict[str, Any]] = {}
  for row in _rows_of_points(points, varied):
    key = row[pair[0]], row[pair[1]]
    there = best.get(key, {}).get('validation')
    value = row['validation']
    better = there is None or (
      value is not None and (value < there if lower else value > there)
    )
    if better:
      best[key] = row
  x, y = pair
  encoding = {
    'x': charts.field(_column(x), 'ordinal', x, sort=varied[x]),
    'y': charts.field(_column(y), 'ordinal', y, sort=varied[y][::-1]),
    'tooltip': _tooltip(varied),
  }
  return charts.Chart(
    f'{grid.path.name}_{name}_{x}_{y}',
    f'{names.written_out(name)}: {x} and {y}',
    f'{measured}; a cell without a number diverged, or is not finished.'
    + (' The best of what else differs.' if len(varied) > 2 else ''),
    list(best.values()),
    {
      'encoding': encoding,
      'layer': [
        {
          'mark': {'type': 'rect', 'stroke': 'white'},
          'encoding': {
            'color': charts.field(
              'validation',
              'quantitative',
              'validation',
              scale={'scheme': 'viridis', 'reverse': lower},
            )
          },
        },
        {
          'mark': {'type': 'text', 'fontWeight': 'bold'},
          'encoding': {
            'text': charts.field('validation', 'quantitative', format='.3g'),
            'color': {'value': 'white'},
          },
        },
      ],
      'height': {'step': 34},
    },
  )


def _line_of_grid(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  setting: tuple[str, list[str]],
) -> charts.Chart:
  measured, _ = _measured(points)
  column, values = setting
  return charts.Chart(
    f'{grid.path.name}_{name}_{column}',
    f'{names.written_out(name)}: {column}',
    measured,
    _rows_of_points(points, [column]),
    {
      'mark': {'type': 'line', 'point': {'size': 70}},
      'encoding': {
        'x': charts.field(_column(column), 'ordinal', column, sort=values),
        'y': charts.field(
          'validation', 'quantitative', measured, scale={'zero': False}
        ),
        'color': {'value': looks.COLORS[1]},
        'tooltip': _tooltip([column]),
      },
      'height': 240,
    },
  )


def _parallel(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  varied: Mapping[str, list[str]],
) -> charts.Chart:
  """Shows all settings at once: a line is a point, an axis a setting."""
  measured, lower = _measured(points)
  rows = [
    row
    for row in _rows_of_points(points, varied)
    if row['validation'] is not None
  ]
  ends = [row['validation'] for row in rows]
  low, high = min(ends, default=0), max(ends, default=1)
  data: charts.Rows = []
  ticks: charts.Rows = []
  for setting, values in varied.items():
    places = {v: i / max(len(values) - 1, 1) for i, v in enumerate(values)}
    ticks += [
      {'axis': setting, 'place': place, 'text': text}
      for text, place in places.items()
    ]
    data += [
      {'point': i, 'axis': setting, 'place': places[row[setting]], **row}
      for i, row in enumerate(rows)
      if row[setting] in places
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
  axes = [*varied, 'validation']
  x = charts.field('axis', 'nominal', sort=axes, axis={'labelAngle': 0})
  y = charts.field('place', 'quantitative', axis=None, scale={'domain': [0, 1]})
  return charts.Chart(
    f'{grid.path.name}_{name}_all',
    f'{names.written_out(name)}: all settings',
    f'A line is a point of the grid, coloured by its {measured}.',
    data,
    {
      'layer': [
        {
          'mark': {'type': 'line', 'opacity': 0.7},
          'encoding': {
            'x': x,
            'y': y,
            'detail': charts.field('point', 'nominal'),
            'color': charts.field(
              'validation',
              'quantitative',
              'validation',
              scale={'scheme': 'viridis', 'reverse': lower},
            ),
            'tooltip': _tooltip(varied),
          },
        },
        {
          'data': {'values': ticks},
          'mark': {'type': 'text', 'dx': 6, 'align': 'left'},
          'encoding': {'x': x, 'y': y, 'text': charts.field('text', 'nominal')},
        },
      ],
      'height': 300,
    },
  )


def of_grid(grid: sources.Grid) -> list[charts.Chart]:
  """Shows the points of a grid: each pair of settings, and all together."""
  charts = []
  by_name: dict[str, list[sources.GridPoint]] = {}
  for point in grid.points:
    by_name.setdefault(point.name, []).append(point)
  for name, points in by_name.items():
    varied = _varied(points)
    for pair in itertools.combinations(varied, 2):
      charts.append(_heat_map(grid, name, points, pair, varied))
    if len(varied) == 1:
      charts.append(_line_of_grid(grid, name, points, *varied.items()))
    if len(varied) > 2:
      charts.append(_parallel(grid, name, points, varied))
  return charts
