"""The charts of a report, as specifications of Vega-Lite with their data.

A chart is as wide as the page. Colours are those that methods have in all
figures; what a colour says is said by a place, a shape or a text as well.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from experiments.reporting import looks
from experiments.reporting.pages import sources

_SCHEMA = 'https://vega.github.io/schema/vega-lite/v6.json'
# Significant digits of the numbers in the page.
_DIGITS = 6
# The most rounds that a curve has points for, and the most clients of a method
# that have a dot each.
_MOST_ROUNDS = 300
_MOST_DOTS = 1000
# Columns of the metrics of rounds that are no curves.
_NO_CURVES = ('round', 'num_examples', 'num_clients')
_WORSE, _SAME, _BETTER = 'worse', 'the same', 'better'
_GAIN_COLORS = {_WORSE: '#d55e00', _SAME: '#7f7f7f', _BETTER: '#0072b2'}

Spec = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Chart:
  """A chart.

  Attributes:
    name: The name of its files.
    title: What it shows.
    note: How to read it.
    data: Its data, the values of each row by column.
    spec: The specification, but for the data.
  """

  name: str
  title: str
  note: str
  data: Rows
  spec: Spec

  def to_spec(self) -> Spec:
    """Returns the whole specification."""
    return {
      '$schema': _SCHEMA,
      'description': f'{self.title}. {self.note}',
      'width': 'container',
      'autosize': {'type': 'fit-x', 'contains': 'padding'},
      'data': {'values': self.data},
      **self.spec,
    }


def _rounded(value: float) -> float | None:
  """Shortens a number; None for one that JSON has no word for."""
  return float(f'{value:.{_DIGITS}g}') if math.isfinite(value) else None


def words(name: str) -> str:
  """Writes the name of a metric or setting as words."""
  return name.replace('_', ' ')


def metric_title(series: sources.Series) -> str:
  """Writes a metric and which direction is better."""
  better = 'higher' if series.higher_is_better else 'lower'
  return f'{words(series.metric)} ({better} is better)'


def _field(name: str, kind: str, title: str = '', **more: Any) -> Spec:
  return {'field': name, 'type': kind, 'title': title or None, **more}


def _looks(
  names: Sequence[str], methods: Sequence[str]
) -> Mapping[str, looks.Look]:
  """Gives series the looks of their methods, or of their own names."""
  several = len(set(methods)) < len(methods)
  return {
    name: looks.look(name if several else method)
    for name, method in zip(names, methods)
  }


def _color(found: Mapping[str, looks.Look]) -> Spec:
  return _field(
    'method',
    'nominal',
    scale={
      'domain': list(found),
      'range': [look.color for look in found.values()],
    },
    legend={'orient': 'top', 'columns': 3, 'labelLimit': 400},
  )


def _line(found: Mapping[str, looks.Look]) -> dict[str, Spec]:
  """The colour of lines, and their dashes, which are in the same legend."""
  color = _color(found)
  color['legend'] |= {
    'symbolType': 'stroke',
    'symbolOpacity': 1,
    'symbolStrokeWidth': 2.5,
  }
  dashes = [_dashes(look.line) for look in found.values()]
  scale = {'domain': list(found), 'range': dashes}
  return {
    'color': color,
    'strokeDash': _field(
      'method', 'nominal', scale=scale, legend=color['legend']
    ),
  }


def _dashes(line: looks.LineStyle) -> list[int]:
  if isinstance(line, str):
    return {'-': [1, 0], '--': [6, 3], ':': [2, 2]}[line]
  return [2 * length for length in line[1]]


def _looks_of(series: Sequence[sources.Series]) -> Mapping[str, looks.Look]:
  return _looks([own.name for own in series], [own.method for own in series])


def _colors_of(series: Sequence[sources.Series]) -> Spec:
  return _color(_looks_of(series))


def _choice(name: str, options: Sequence[str], label: str) -> Spec:
  """Has the reader choose one of several options."""
  element = {'input': 'select', 'options': list(options), 'name': f'{label} '}
  return {'name': name, 'value': options[0], 'bind': element}


def of_clients(series: Sequence[sources.Series]) -> Chart | None:
  """Shows the test clients of each method, those of all repeats."""
  data = [
    {
      'method': own.name,
      'client': client.name,
      'seed': repeat.seed,
      'value': _rounded(client.value),
    }
    for own in series
    for repeat in own.repeats
    for client in repeat.clients
    if math.isfinite(client.value)
  ]
  if not data:
    return None
  names = [own.name for own in series]
  y = _field('method', 'nominal', sort=names, axis={'labelLimit': 200})
  x = _field(
    'value', 'quantitative', metric_title(series[0]), scale={'zero': False}
  )
  box = {
    'mark': {
      'type': 'boxplot',
      'extent': 'min-max',
      'size': 24,
      'box': {'filled': False, 'strokeWidth': 1.5},
      'median': {'strokeWidth': 3},
    },
    'encoding': {'x': x, 'y': y},
  }
  dots = {
    'transform': [{'calculate': 'random() - 0.5', 'as': 'jitter'}],
    'mark': {'type': 'circle', 'size': 16, 'opacity': 0.6},
    'encoding': {
      'x': x,
      'y': y,
      'yOffset': _field(
        'jitter', 'quantitative', scale={'domain': [-1.1, 1.1]}
      ),
      'color': {**_colors_of(series), 'legend': None},
      'tooltip': [_field(name, 'nominal', name) for name in data[0]],
    },
  }
  few = len(data) <= _MOST_DOTS * len(series)
  return Chart(
    'clients',
    'Test clients, one by one',
    'A dot is a client. A box is the middle half of the clients with their'
    ' median; its lines reach to the worst and to the best client.',
    data,
    {'layer': [dots, box] if few else [box], 'height': {'step': 44}},
  )


def of_shares(series: Sequence[sources.Series]) -> Chart | None:
  """Shows which share of the clients is below each value."""
  data: Rows = []
  for own in series:
    values = sorted(
      client.value
      for repeat in own.repeats
      for client in repeat.clients
      if math.isfinite(client.value)
    )
    step = max(1, len(values) // _MOST_ROUNDS)
    data += [
      {
        'method': own.name,
        'value': _rounded(value),
        'share': _rounded((i + 1) / len(values)),
      }
      for i, value in enumerate(values)
      if i % step == 0 or i + 1 == len(values)
    ]
  if not data:
    return None
  return Chart(
    'shares',
    'Share of the test clients up to each value',
    'The further a line is to the better side, the better; where lines cross,'
    ' one method is better for weak clients and another for strong ones.',
    data,
    {
      'mark': {'type': 'line', 'interpolate': 'step-after'},
      'encoding': {
        'x': _field(
          'value',
          'quantitative',
          metric_title(series[0]),
          scale={'zero': False},
        ),
        'y': _field(
          'share', 'quantitative', 'share of the clients', axis={'format': '%'}
        ),
        **_line(_looks_of(series)),
        'tooltip': [
          _field('method', 'nominal', 'method'),
          _field('value', 'quantitative', 'value'),
          _field('share', 'quantitative', 'share', format='.1%'),
        ],
      },
      'height': 300,
    },
  )


def of_gains(series: Sequence[sources.Series]) -> Chart | None:
  """Shows what personalization changes for each client, and who is hurt."""
  data: Rows = []
  for own in series:
    sign = 1 if own.higher_is_better else -1
    for repeat in own.repeats:
      for client in repeat.clients:
        gain = sign * (client.value - client.before)
        if math.isfinite(gain):
          result = _BETTER if gain > 0 else _WORSE if gain < 0 else _SAME
          data.append({
            'method': own.name,
            'client': client.name,
            'seed': repeat.seed,
            'before': _rounded(client.before),
            'after': _rounded(client.value),
            'examples': _rounded(client.examples),
            'result': result,
          })
  names = [
    own.name
    for own in series
    if any(r['method'] == own.name and r['result'] != _SAME for r in data)
  ]
  if not names:
    return None
  data = [row for row in data if row['method'] in names]
  values = [row[name] for row in data for name in ('before', 'after')]
  ends = [min(values), max(values)]
  scale = {'domain': ends, 'nice': True, 'zero': False}
  kinds = list(_GAIN_COLORS)
  marks = {
    'transform': [{'filter': 'datum.method === chosen'}],
    'mark': {'type': 'point', 'filled': True, 'opacity': 0.75, 'size': 45},
    'encoding': {
      'x': _field('before', 'quantitative', 'before', scale=scale),
      'y': _field('after', 'quantitative', 'after', scale=scale),
      'color': _field(
        'result',
        'nominal',
        'after personalization',
        scale={'domain': kinds, 'range': list(_GAIN_COLORS.values())},
        legend={'orient': 'top'},
      ),
      'shape': _field(
        'result',
        'nominal',
        'after personalization',
        scale={
          'domain': kinds,
          'range': ['triangle-down', 'circle', 'triangle-up'],
        },
        legend={'orient': 'top'},
      ),
      'tooltip': [
        _field(name, 'nominal', name)
        for name in ('client', 'seed', 'before', 'after', 'examples')
      ],
    },
  }
  diagonal = {
    'data': {'values': [{'before': end, 'after': end} for end in ends]},
    'mark': {'type': 'line', 'strokeDash': [4, 4], 'color': '#999999'},
    'encoding': {
      'x': {'field': 'before', 'type': 'quantitative'},
      'y': {'field': 'after', 'type': 'quantitative'},
    },
  }
  better = 'above' if series[0].higher_is_better else 'below'
  return Chart(
    'gains',
    'Before and after personalization',
    f'A mark is a test client, judged by {words(series[0].metric)}; {better}'
    ' the dashed line personalization helps it.',
    data,
    {
      'params': [_choice('chosen', names, 'Method')],
      'layer': [diagonal, marks],
      'height': 360,
    },
  )


def _thinned(length: int) -> list[int]:
  """Takes some of so many places, the last one among them."""
  step = max(1, math.ceil(length / _MOST_ROUNDS))
  return sorted({*range(0, length, step), length - 1}) if length else []


def of_rounds(
  trainings: Sequence[tuple[str, str, int, Mapping[str, Sequence[float]]]],
) -> Chart | None:
  """Shows the metrics of the rounds of each training.

  Args:
    trainings: Its name, method and seed, and the metrics of its rounds.
  """
  data = [
    {
      'method': name,
      'seed': seed,
      'measure': words(measure),
      'round': rounds['round'][i],
      'value': _rounded(values[i]),
    }
    for name, _, seed, rounds in trainings
    for measure, values in rounds.items()
    if measure not in _NO_CURVES
    if measure != 'dropped_clients' or any(values)
    for i in _thinned(len(values))
  ]
  if not data:
    return None
  of_series = dict((name, method) for name, method, *_ in trainings)
  found = _looks(list(of_series), list(of_series.values()))
  x = _field('round', 'quantitative', 'round')
  band = {
    'mark': {'type': 'errorband', 'extent': 'stdev', 'opacity': 0.2},
    'encoding': {
      'x': x,
      'y': _field('value', 'quantitative'),
      'color': _line(found)['color'],
    },
  }
  line = {
    'mark': 'line',
    'encoding': {
      'x': x,
      **_line(found),
      'y': {
        'aggregate': 'mean',
        'field': 'value',
        'type': 'quantitative',
        'title': 'mean over seeds',
        'scale': {'zero': False},
      },
      'tooltip': [
        _field('method', 'nominal', 'training'),
        _field('round', 'quantitative', 'round'),
        {'aggregate': 'mean', 'field': 'value', 'title': 'mean'},
        {'aggregate': 'count', 'title': 'seeds'},
      ],
    },
  }
  measures = list(dict.fromkeys(row['measure'] for row in data))
  several = len({seed for _, _, seed, _ in trainings}) > 1
  return Chart(
    'rounds',
    'Training by rounds',
    'What the clients of each round measure, before their steps.'
    + (' A band is a deviation over seeds to either side.' if several else ''),
    data,
    {
      'params': [_choice('measured', measures, 'Measure')],
      'transform': [{'filter': 'datum.measure === measured'}],
      'layer': [band, line] if several else [line],
      'height': 300,
    },
  )


def of_candidates(series: Sequence[sources.Series]) -> Chart | None:
  """Shows the mean metric at each candidate, such as each number of epochs."""
  data: Rows = []
  for own in series:
    for repeat in own.repeats:
      result = repeat.result
      for name, numbers in result.get('candidates', {}).items():
        if numbers.get('value') is None:
          continue
        for measure in ('validation', 'test'):
          value = numbers.get(measure)
          if value is not None:
            label = numbers['label']
            data.append({
              'method': f'{own.name}, {label}' if label else own.name,
              'candidate': name,
              'place': numbers['value'],
              'unit': numbers['unit'],
              'clients': measure,
              'value': _rounded(value),
              'seed': repeat.seed,
              'chosen': name in result['chosen'],
            })
  several = {
    row['method']
    for row in data
    if any(
      other['method'] == row['method'] and other['place'] != row['place']
      for other in data
    )
  }
  data = [row for row in data if row['method'] in several]
  if not data:
    return None
  units = list(dict.fromkeys(row['unit'] for row in data))
  names = list(dict.fromkeys(row['method'] for row in data))
  by_name = {own.name: own.method for own in series}
  methods = [by_name.get(name, name) for name in names]
  y = {
    'aggregate': 'mean',
    'field': 'value',
    'type': 'quantitative',
    'title': f'mean {metric_title(series[0])}',
    'scale': {'zero': False},
  }
  encoding = {
    'x': _field('place', 'quantitative', 'candidate'),
    'y': y,
    'color': _color(_looks(names, methods)),
    'tooltip': [
      _field('method', 'nominal', 'method'),
      _field('candidate', 'nominal', 'candidate'),
      _field('clients', 'nominal', 'clients'),
      {'aggregate': 'mean', 'field': 'value', 'title': 'mean'},
    ],
  }
  return Chart(
    'candidates',
    'By candidate',
    'The mean over clients if all took the same candidate; a diamond is one'
    ' that validation chose.',
    data,
    {
      'params': [_choice('unit', units, 'Unit')],
      'transform': [{'filter': 'datum.unit === unit'}],
      'layer': [
        {
          'mark': 'line',
          'encoding': {
            **encoding,
            'strokeDash': _field(
              'clients',
              'nominal',
              'clients',
              scale={
                'domain': ['test', 'validation'],
                'range': [[1, 0], [4, 3]],
              },
              legend={'orient': 'top'},
            ),
          },
        },
        {
          'transform': [{'filter': 'datum.chosen'}],
          'mark': {'type': 'point', 'shape': 'diamond', 'size': 90},
          'encoding': {
            **encoding,
            'detail': _field('clients', 'nominal'),
          },
        },
      ],
      'height': 300,
    },
  )


def _groups(repeat: sources.Repeat) -> Mapping[str, float]:
  """Returns the metric of all examples of each known group."""
  found = repeat.result.get('groups') or {}
  return {
    group: own['pooled'] if isinstance(own, dict) else own
    for group, own in found.items()
  }


def of_groups(series: Sequence[sources.Series]) -> Chart | None:
  """Shows the metric of each known group of clients."""
  data = [
    {
      'method': own.name,
      'group': group,
      'seed': repeat.seed,
      'value': _rounded(value),
    }
    for own in series
    for repeat in own.repeats
    for group, value in _groups(repeat).items()
    if value is not None
  ]
  if not data:
    return None
  return Chart(
    'groups',
    'Known groups',
    'The metric of all examples of a group together, a mark a method.',
    data,
    {
      'mark': {'type': 'point', 'filled': True, 'size': 70},
      'encoding': {
        'x': {
          **_field('value', 'quantitative', metric_title(series[0])),
          'aggregate': 'mean',
          'scale': {'zero': False},
        },
        'y': _field('group', 'nominal', 'group'),
        'color': _colors_of(series),
        'shape': _field('method', 'nominal', legend=None),
        'tooltip': [
          _field('method', 'nominal', 'method'),
          _field('group', 'nominal', 'group'),
          {'aggregate': 'mean', 'field': 'value', 'title': 'mean'},
        ],
      },
      'height': {'step': 26},
    },
  )


def of_clusters(series: Sequence[sources.Series]) -> Chart | None:
  """Shows how many test clients are in each cluster, and of which group."""
  data: Rows = []
  for own in series:
    for repeat in own.repeats:
      found = repeat.result.get('clusters') or {}
      sizes = found.get('sizes', {})
      groups = found.get('groups') or {}
      place = f'{own.name}, seed {repeat.seed}'
      for cluster, size in sizes.items():
        inside = groups.get(cluster) or {'': size}
        data += [
          {
            'method': place,
            'cluster': cluster,
            'group': group,
            'clients': count,
          }
          for group, count in inside.items()
        ]
  if not data:
    return None
  by_group = any(row['group'] for row in data)
  kind = 'group' if by_group else 'cluster'
  names = list(dict.fromkeys(row['method'] for row in data))
  return Chart(
    'clusters',
    'Clusters',
    'The test clients that each cluster has'
    + (', by their known group.' if by_group else '.'),
    data,
    {
      'params': [_choice('chosen', names, 'Method')],
      'transform': [{'filter': 'datum.method === chosen'}],
      'mark': {'type': 'bar', 'stroke': 'white'},
      'encoding': {
        'x': {
          'aggregate': 'sum',
          'field': 'clients',
          'type': 'quantitative',
          'title': 'test clients',
        },
        'y': _field('cluster', 'nominal', 'cluster'),
        'color': _field(
          kind,
          'nominal',
          kind,
          scale={'range': list(looks.COLORS[1:])},
          legend={'orient': 'top'} if by_group else None,
        ),
        'tooltip': [
          _field(name, 'nominal', name)
          for name in ('cluster', 'group', 'clients')
        ],
      },
      'height': {'step': 26},
    },
  )


def of_communication(series: Sequence[sources.Series]) -> Chart | None:
  """Shows the metric by the numbers that a training sends in all."""
  data = []
  for own in series:
    for repeat in own.repeats:
      sent = repeat.result.get('communication', {}).get('total_parameters')
      if sent and math.isfinite(repeat.mean):
        data.append({
          'method': own.name,
          'seed': repeat.seed,
          'sent': _rounded(sent),
          'value': _rounded(repeat.mean),
        })
  if len({row['method'] for row in data}) < 2:
    return None
  return Chart(
    'communication',
    'By communication',
    'The mean over test clients by the numbers that are sent in all rounds,'
    ' up and down.',
    data,
    {
      'mark': {'type': 'point', 'filled': True, 'size': 90},
      'encoding': {
        'x': _field(
          'sent',
          'quantitative',
          'numbers sent',
          scale={'type': 'log'},
          axis={'format': '~s'},
        ),
        'y': _field(
          'value',
          'quantitative',
          f'mean {metric_title(series[0])}',
          scale={'zero': False},
        ),
        'color': _colors_of(series),
        'shape': _field('method', 'nominal', legend=None),
        'tooltip': [
          _field(name, 'nominal', name)
          for name in ('method', 'seed', 'sent', 'value')
        ],
      },
      'height': 280,
    },
  )


def _as_text(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def _in_order(values: Iterable[Any]) -> list[str]:
  """Lists different values as texts, numbers by their size."""
  different = {_as_text(value): value for value in values}
  numbers = all(
    isinstance(value, (int, float)) and not isinstance(value, bool)
    for value in different.values()
  )
  return sorted(different, key=different.__getitem__ if numbers else str)


def _varied(points: Sequence[sources.GridPoint]) -> dict[str, list[str]]:
  """Finds the settings of which there are several values, and these."""
  names = dict.fromkeys(name for point in points for name in point.values)
  values = {
    name: _in_order(p.values[name] for p in points if name in p.values)
    for name in names
  }
  return {name: own for name, own in values.items() if len(own) > 1}


def of_grid(grid: sources.Grid) -> list[Chart]:
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


def _measured(points: Sequence[sources.GridPoint]) -> tuple[str, bool]:
  """Writes what points are chosen by, and whether a higher one is better."""
  record = points[0].records[0]
  lower = sources.lower_is_chosen(record)
  better = 'lower' if lower else 'higher'
  return f'validation {words(record["chosen_by"])} ({better} is better)', lower


def _rows_of_points(
  points: Sequence[sources.GridPoint], names: Iterable[str]
) -> Rows:
  names = list(names)
  return [
    {
      **{name: _as_text(point.values.get(name)) for name in names},
      'validation': _rounded(point.validation),
      'test': _rounded(point.test),
      'repeats': len(point.records),
    }
    for point in points
  ]


def _tooltip(names: Iterable[str]) -> list[Spec]:
  return [
    _field(f'["{name}"]', 'nominal', name)
    for name in (*names, 'validation', 'test', 'repeats')
  ]


def _heat_map(
  grid: sources.Grid,
  name: str,
  points: Sequence[sources.GridPoint],
  pair: tuple[str, str],
  varied: Mapping[str, list[str]],
) -> Chart:
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
    'x': _field(f'["{x}"]', 'ordinal', x, sort=varied[x]),
    'y': _field(f'["{y}"]', 'ordinal', y, sort=varied[y][::-1]),
    'tooltip': _tooltip(varied),
  }
  return Chart(
    f'{grid.path.name}_{name}_{x}_{y}',
    f'{name}: {x} and {y}',
    f'{measured}; a cell without a number diverged, or is not finished.'
    + (' The best of what else differs.' if len(varied) > 2 else ''),
    list(best.values()),
    {
      'encoding': encoding,
      'layer': [
        {
          'mark': {'type': 'rect', 'stroke': 'white'},
          'encoding': {
            'color': _field(
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
            'text': _field('validation', 'quantitative', format='.3g'),
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
) -> Chart:
  measured, _ = _measured(points)
  column, values = setting
  return Chart(
    f'{grid.path.name}_{name}_{column}',
    f'{name}: {column}',
    measured,
    _rows_of_points(points, [column]),
    {
      'mark': {'type': 'line', 'point': {'size': 70}},
      'encoding': {
        'x': _field(f'["{column}"]', 'ordinal', column, sort=values),
        'y': _field(
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
) -> Chart:
  """Shows all settings at once: a line is a point, an axis a setting."""
  measured, lower = _measured(points)
  rows = [
    row
    for row in _rows_of_points(points, varied)
    if row['validation'] is not None
  ]
  ends = [row['validation'] for row in rows]
  low, high = min(ends, default=0), max(ends, default=1)
  data: Rows = []
  ticks: Rows = []
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
  x = _field('axis', 'nominal', sort=axes, axis={'labelAngle': 0})
  y = _field('place', 'quantitative', axis=None, scale={'domain': [0, 1]})
  return Chart(
    f'{grid.path.name}_{name}_all',
    f'{name}: all settings',
    f'A line is a point of the grid, coloured by its {measured}.',
    data,
    {
      'layer': [
        {
          'mark': {'type': 'line', 'opacity': 0.7},
          'encoding': {
            'x': x,
            'y': y,
            'detail': _field('point', 'nominal'),
            'color': _field(
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
          'encoding': {'x': x, 'y': y, 'text': _field('text', 'nominal')},
        },
      ],
      'height': 300,
    },
  )
