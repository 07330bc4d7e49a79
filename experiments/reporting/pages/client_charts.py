"""Charts of test clients: their metric, who is hurt, groups and clusters."""

from collections.abc import Mapping, Sequence
import math

from experiments.reporting import looks
from experiments.reporting.pages import charts
from experiments.reporting.pages import sources

# Clients are drawn as dots if there are at most this many per method; and a
# curve over clients has roughly this many points at most.
_MOST_DOTS = 1000
_MOST_POINTS = 300
_WORSE, _SAME, _BETTER = 'worse', 'the same', 'better'
_GAIN_COLORS = {_WORSE: '#d55e00', _SAME: '#7f7f7f', _BETTER: '#0072b2'}


def of_clients(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows the metric of each test client of each method, in all repeats."""
  data = [
    {
      'method': method.name,
      'client': client.name,
      'seed': repeat.seed,
      'value': charts.rounded(client.value),
    }
    for method in series
    for repeat in method.repeats
    for client in repeat.clients
    if math.isfinite(client.value)
  ]
  if not data:
    return None
  names = [method.name for method in series]
  y = charts.field('method', 'nominal', sort=names, axis={'labelLimit': 200})
  x = charts.field(
    'value',
    'quantitative',
    charts.metric_title(series[0]),
    scale={'zero': False},
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
      'yOffset': charts.field(
        'jitter', 'quantitative', scale={'domain': [-1.1, 1.1]}
      ),
      'color': {
        **charts.color_of_method(charts.looks_of(series)),
        'legend': None,
      },
      'tooltip': [charts.field(name, 'nominal', name) for name in data[0]],
    },
  }
  few = len(data) <= _MOST_DOTS * len(series)
  return charts.Chart(
    'clients',
    'Test clients, one by one',
    'Each dot is a client. A box spans the middle half of the clients, with a'
    ' line at their median; its whiskers reach to the worst and the best'
    ' client.',
    data,
    {'layer': [dots, box] if few else [box], 'height': {'step': 44}},
  )


def of_shares(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows the share of the clients up to each value of the metric."""
  data: charts.Rows = []
  for method in series:
    values = sorted(
      client.value
      for repeat in method.repeats
      for client in repeat.clients
      if math.isfinite(client.value)
    )
    step = max(1, len(values) // _MOST_POINTS)
    data += [
      {
        'method': method.name,
        'value': charts.rounded(value),
        'share': charts.rounded((i + 1) / len(values)),
      }
      for i, value in enumerate(values)
      if i % step == 0 or i + 1 == len(values)
    ]
  if not data:
    return None
  return charts.Chart(
    'shares',
    'Share of the test clients up to each value',
    'The further a line is on the better side, the better is the method; where'
    ' lines cross, one method is better for weak clients and the other for'
    ' strong ones.',
    data,
    {
      'mark': {'type': 'line', 'interpolate': 'step-after'},
      'encoding': {
        'x': charts.field(
          'value',
          'quantitative',
          charts.metric_title(series[0]),
          scale={'zero': False},
        ),
        'y': charts.field(
          'share', 'quantitative', 'share of the clients', axis={'format': '%'}
        ),
        **charts.line_of_method(charts.looks_of(series)),
        'tooltip': [
          charts.field('method', 'nominal', 'method'),
          charts.field('value', 'quantitative', 'value'),
          charts.field('share', 'quantitative', 'share', format='.1%'),
        ],
      },
      'height': 300,
    },
  )


def of_gains(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows how personalization changes each client's metric, and who is hurt."""
  data: charts.Rows = []
  for method in series:
    sign = 1 if method.higher_is_better else -1
    for repeat in method.repeats:
      for client in repeat.clients:
        gain = sign * (client.value - client.before)
        if math.isfinite(gain):
          result = _BETTER if gain > 0 else _WORSE if gain < 0 else _SAME
          data.append(
            {
              'method': method.name,
              'client': client.name,
              'seed': repeat.seed,
              'before': charts.rounded(client.before),
              'after': charts.rounded(client.value),
              'examples': charts.rounded(client.examples),
              'result': result,
            }
          )
  names = [
    method.name
    for method in series
    if any(r['method'] == method.name and r['result'] != _SAME for r in data)
  ]
  if not names:
    return None
  data = [row for row in data if row['method'] in names]
  # The axes are those of the chosen method, as another one may have diverged.
  ends: charts.Rows = []
  for name in names:
    of_method = [row for row in data if row['method'] == name]
    values = [row[side] for row in of_method for side in ('before', 'after')]
    ends += [
      {'method': name, 'before': end, 'after': end}
      for end in (min(values), max(values))
    ]
  chosen = [{'filter': 'datum.method === chosen'}]
  scale = {'nice': True, 'zero': False}
  kinds = list(_GAIN_COLORS)
  marks = {
    'transform': chosen,
    'mark': {'type': 'point', 'filled': True, 'opacity': 0.75, 'size': 45},
    'encoding': {
      'x': charts.field('before', 'quantitative', 'before', scale=scale),
      'y': charts.field('after', 'quantitative', 'after', scale=scale),
      'color': charts.field(
        'result',
        'nominal',
        'after personalization',
        scale={'domain': kinds, 'range': list(_GAIN_COLORS.values())},
        legend={'orient': 'top'},
      ),
      'shape': charts.field(
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
        charts.field(name, 'nominal', name)
        for name in ('client', 'seed', 'before', 'after', 'examples')
      ],
    },
  }
  diagonal = {
    'data': {'values': ends},
    'transform': chosen,
    'mark': {'type': 'line', 'strokeDash': [4, 4], 'color': '#999999'},
    'encoding': {
      'x': {'field': 'before', 'type': 'quantitative'},
      'y': {'field': 'after', 'type': 'quantitative'},
    },
  }
  better = 'above' if series[0].higher_is_better else 'below'
  return charts.Chart(
    'gains',
    'Before and after personalization',
    f'Each mark shows the {charts.words(series[0].metric)} of a test client.'
    f' Personalization helps the clients {better} the dashed line.',
    data,
    {
      'params': [charts.choice('chosen', names, 'Method')],
      'layer': [diagonal, marks],
      'height': 360,
    },
  )


def _groups(repeat: sources.Repeat) -> Mapping[str, float]:
  """Returns the metric over all examples of each known group."""
  found = repeat.result.get('groups') or {}
  return {
    group: value['pooled'] if isinstance(value, dict) else value
    for group, value in found.items()
  }


def of_groups(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows the metric of each known group of clients."""
  data = [
    {
      'method': method.name,
      'group': group,
      'seed': repeat.seed,
      'value': charts.rounded(value),
    }
    for method in series
    for repeat in method.repeats
    for group, value in _groups(repeat).items()
    if value is not None
  ]
  if not data:
    return None
  return charts.Chart(
    'groups',
    'Known groups',
    'The metric over all examples of a group together, with a mark for each'
    ' method.',
    data,
    {
      'mark': {'type': 'point', 'filled': True, 'size': 70},
      'encoding': {
        'x': {
          **charts.field(
            'value', 'quantitative', charts.metric_title(series[0])
          ),
          'aggregate': 'mean',
          'scale': {'zero': False},
        },
        'y': charts.field('group', 'nominal', 'group'),
        **charts.mark_of_method(charts.looks_of(series)),
        'tooltip': [
          charts.field('method', 'nominal', 'method'),
          charts.field('group', 'nominal', 'group'),
          {'aggregate': 'mean', 'field': 'value', 'title': 'mean'},
        ],
      },
      'height': {'step': 26},
    },
  )


def of_clusters(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows the number of test clients in each cluster, by group if known."""
  data: charts.Rows = []
  for method in series:
    for repeat in method.repeats:
      found = repeat.result.get('clusters') or {}
      sizes = found.get('sizes', {})
      groups = found.get('groups') or {}
      place = f'{method.name}, seed {repeat.seed}'
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
  return charts.Chart(
    'clusters',
    'Clusters',
    'The number of test clients in each cluster'
    + (', by their known group.' if by_group else '.'),
    data,
    {
      'params': [charts.choice('chosen', names, 'Method')],
      'transform': [{'filter': 'datum.method === chosen'}],
      'mark': {'type': 'bar', 'stroke': 'white'},
      'encoding': {
        'x': {
          'aggregate': 'sum',
          'field': 'clients',
          'type': 'quantitative',
          'title': 'test clients',
          'axis': charts.WHOLE,
        },
        'y': charts.field('cluster', 'nominal', 'cluster'),
        'color': charts.field(
          kind,
          'nominal',
          kind,
          scale={'range': list(looks.COLORS[1:])},
          legend={'orient': 'top'} if by_group else None,
        ),
        'tooltip': [
          charts.field(name, 'nominal', name)
          for name in ('cluster', 'group', 'clients')
        ],
      },
      'height': {'step': 26},
    },
  )
