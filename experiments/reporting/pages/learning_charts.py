"""Charts of how methods learn: by round, candidate and communication."""

from collections.abc import Mapping, Sequence
import math

from experiments.reporting.pages import charts
from experiments.reporting.pages import sources

# The largest number of rounds that a curve has points for.
_MOST_ROUNDS = 300
# Columns of the rounds' metrics that are not drawn as curves.
_NO_CURVES = ('round', 'num_examples', 'num_clients', 'candidate')


def _thinned(length: int) -> list[int]:
  """Chooses some evenly spaced indices below a length, and the last one."""
  step = max(1, math.ceil(length / _MOST_ROUNDS))
  return sorted({*range(0, length, step), length - 1}) if length else []


# The name of a curve, its method and seed, and its metrics by round.
Curve = tuple[str, str, int, Mapping[str, Sequence[float]]]


def of_rounds(trainings: Sequence[Curve]) -> charts.Chart | None:
  """Shows the metrics of the rounds of each training."""
  return _by_round(
    'rounds',
    'Training by rounds',
    'The metrics of the clients of each round, measured before they train in'
    ' it.',
    trainings,
  )


def of_validation(methods: Sequence[Curve]) -> charts.Chart | None:
  """Shows the validation clients' metrics during each method's training."""
  return _by_round(
    'validation',
    'Validation clients by rounds',
    'The metrics that the validation clients would have if training stopped at'
    ' a round. Once a curve no longer improves, training may stop.',
    methods,
  )


def _by_round(
  name: str, title: str, note: str, curves: Sequence[Curve]
) -> charts.Chart | None:
  data = [
    {
      'method': label,
      'seed': seed,
      'measure': charts.words(measure),
      'round': rounds['round'][i],
      'value': charts.rounded(values[i]),
    }
    for label, _, seed, rounds in curves
    for measure, values in rounds.items()
    if measure not in _NO_CURVES
    if measure != 'dropped_clients' or any(values)
    for i in _thinned(len(values))
  ]
  if not data:
    return None
  of_series = dict((label, method) for label, method, *_ in curves)
  found = charts.looks_of_names(list(of_series), list(of_series.values()))
  x = charts.field('round', 'quantitative', 'round', axis=charts.WHOLE)
  band = {
    'mark': {'type': 'errorband', 'extent': 'stdev', 'opacity': 0.2},
    'encoding': {
      'x': x,
      'y': charts.field('value', 'quantitative'),
      'color': charts.line_of_method(found)['color'],
    },
  }
  line = {
    'mark': 'line',
    'encoding': {
      'x': x,
      **charts.line_of_method(found),
      'y': {
        'aggregate': 'mean',
        'field': 'value',
        'type': 'quantitative',
        'title': 'mean over seeds',
        'scale': {'zero': False},
      },
      'tooltip': [
        charts.field('method', 'nominal', 'method'),
        charts.field('round', 'quantitative', 'round'),
        {'aggregate': 'mean', 'field': 'value', 'title': 'mean'},
        {'aggregate': 'count', 'title': 'seeds'},
      ],
    },
  }
  measures = list(dict.fromkeys(str(row['measure']) for row in data))
  several = len({seed for _, _, seed, _ in curves}) > 1
  if several:
    note += ' A band extends one deviation over seeds to either side.'
  return charts.Chart(
    name,
    title,
    note,
    data,
    {
      'params': [charts.choice('measured', measures, 'Measure')],
      'transform': [{'filter': 'datum.measure === measured'}],
      'layer': [band, line] if several else [line],
      'height': 300,
    },
  )


def of_candidates(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows the mean metric at each candidate, such as each number of epochs."""
  data: charts.Rows = []
  for method in series:
    for repeat in method.repeats:
      result = repeat.result
      for name, numbers in result.get('candidates', {}).items():
        if numbers.get('value') is None:
          continue
        for measure in ('validation', 'test'):
          value = numbers.get(measure)
          if value is not None:
            label = numbers['label']
            data.append(
              {
                'method': f'{method.name}, {label}' if label else method.name,
                'candidate': name,
                'place': numbers['value'],
                'unit': numbers['unit'],
                'clients': measure,
                'value': charts.rounded(value),
                'seed': repeat.seed,
                'chosen': name in result['chosen'],
              }
            )
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
  by_name = {s.name: s.method for s in series}
  methods = [by_name.get(name, name) for name in names]
  y = {
    'aggregate': 'mean',
    'field': 'value',
    'type': 'quantitative',
    'title': f'mean {charts.metric_title(series[0])}',
    'scale': {'zero': False},
  }
  encoding = {
    'x': charts.field('place', 'quantitative', 'candidate'),
    'y': y,
    'color': charts.color_of_method(charts.looks_of_names(names, methods)),
    'tooltip': [
      charts.field('method', 'nominal', 'method'),
      charts.field('candidate', 'nominal', 'candidate'),
      charts.field('clients', 'nominal', 'clients'),
      {'aggregate': 'mean', 'field': 'value', 'title': 'mean'},
    ],
  }
  return charts.Chart(
    'candidates',
    'By candidate',
    'The mean over clients if all used the same candidate; diamonds mark the'
    ' candidates that validation chose.',
    data,
    {
      'params': [charts.choice('unit', units, 'Unit')],
      'transform': [{'filter': 'datum.unit === unit'}],
      'layer': [
        {
          'mark': 'line',
          'encoding': {
            **encoding,
            'strokeDash': charts.field(
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
            'detail': charts.field('clients', 'nominal'),
          },
        },
      ],
      'height': 300,
    },
  )


def of_communication(series: Sequence[sources.Series]) -> charts.Chart | None:
  """Shows the metric by the number of parameters that a training sends."""
  data = []
  for method in series:
    for repeat in method.repeats:
      sent = repeat.result.get('communication', {}).get('total_parameters')
      if sent and math.isfinite(repeat.mean):
        data.append(
          {
            'method': method.name,
            'seed': repeat.seed,
            'sent': charts.rounded(sent),
            'value': charts.rounded(repeat.mean),
          }
        )
  if len({row['method'] for row in data}) < 2:
    return None
  return charts.Chart(
    'communication',
    'By communication',
    'The mean over test clients by the number of parameters that are sent to'
    ' and from clients in all rounds.',
    data,
    {
      'mark': {'type': 'point', 'filled': True, 'size': 90},
      'encoding': {
        'x': charts.field(
          'sent',
          'quantitative',
          'parameters sent',
          scale={'type': 'log'},
          axis={'format': '~s'},
        ),
        'y': charts.field(
          'value',
          'quantitative',
          f'mean {charts.metric_title(series[0])}',
          scale={'zero': False},
        ),
        **charts.mark_of_method(charts.looks_of(series)),
        'tooltip': [
          charts.field(name, 'nominal', name)
          for name in ('method', 'seed', 'sent', 'value')
        ],
      },
      'height': 280,
    },
  )
