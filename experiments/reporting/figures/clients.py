"""Figures of individual test clients."""

from collections.abc import Iterator, Mapping, Sequence
import math
import textwrap
from typing import Any

import numpy as np

from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting.figures import figure
from experiments.reporting.figures import lines
from experiments.reporting.figures import scales
from personalization.judgement import summaries

# All clients of a method are drawn as dots if these are not more; of more, only
# those that are out of the whiskers. A curve over clients has roughly this many
# points at most.
_MOST_DOTS, _MOST_POINTS = 500, 300
# Characters per line of a method's name beside its box.
_NAME = 24
# The share of a method's place that its box takes.
_BOX = 0.62
# The ends of whiskers and boxes, and the line in a box.
_QUANTILES = {'low': 0.05, 'q1': 0.25, 'median': 0.5, 'q3': 0.75, 'high': 0.95}
_ABOUT_BOXES = {'tooltip': scales.tooltip('method', *_QUANTILES, 'mean')}
_MOST_BINS = 30
# The looks of clients that are worse off than before, of those that are not,
# and of those that are better off.
_COLORS = looks.WORSE, looks.SAME, looks.BETTER
_SHAPES = 'triangle-down', 'circle', 'triangle-up'


def boxes(series: Sequence[repeats.Series]) -> figure.Figure:
  """Draws the metric of each test client as box plots (Motley, figure 2)."""
  every = [value for one in series for value in one.client_values('metric')]
  options, omitted = scales.show_near(every, scales.FAR_OUT_OF_CLIENTS)
  shown = scales.near(every, scales.FAR_OUT_OF_CLIENTS)
  found: dict[str, looks.Look] = {}
  dots: figure.Rows = []
  stats: figure.Rows = []
  for one, look in zip(series, lines.find_looks(series).values()):
    name, place = one.name, len(found)
    if np.any(np.isin(one.client_values('metric'), shown)):
      stats.append({'method': name, 'place': place, **_summarize(one)})
      dots += _scatter(one, stats[-1])
    else:
      name += ' (diverged)'
    found[name] = look
  # Names may need several lines.
  texts = [textwrap.wrap(name, _NAME) for name in found]
  height = (22 + 16 * max(map(len, texts))) * len(found)
  x = scales.number('value', scales.metric_title(series[0]), **options)
  layers = _boxes(stats, x, _axis_of_rows(texts), found, clip=bool(omitted))
  return figure.Figure(
    'clients',
    'Test clients: quartiles, 5th and 95th percentile, and the mean',
    dots,
    {'layer': layers, 'height': height},
    note='Each dot is a client. A box spans the middle half of the clients,'
    ' with a line at their median and a diamond at their mean.',
    omitted=omitted,
  )


def _summarize(one: repeats.Series) -> dict[str, float | None]:
  values = np.array(one.client_values('metric'))
  finite = values[np.isfinite(values)]
  quantiles = np.quantile(finite, [*_QUANTILES.values()])
  numbers = dict(zip(_QUANTILES, quantiles)) | {'mean': np.mean(finite)}
  return {name: scales.rounded(value) for name, value in numbers.items()}


def _scatter(one: repeats.Series, box: Mapping[str, Any]) -> figure.Rows:
  """Places clients in the row of their box, or those beyond its whiskers."""
  clients = [
    (row['client'], repeat.seed, value)
    for repeat in one.repeats
    for row, value in zip(repeat.clients, repeat.client_values('metric'))
    if math.isfinite(value)
  ]
  if len(clients) > _MOST_DOTS:
    low, high = box['low'], box['high']
    clients = [client for client in clients if not low <= client[2] <= high]
  return [
    {
      'method': one.name,
      'client': client,
      'seed': seed,
      'value': scales.rounded(value),
      # Spread evenly, and the same each time.
      'place': round(box['place'] + _BOX * ((k * 0.618034) % 1 - 0.5), 3),
    }
    for k, (client, seed, value) in enumerate(clients)
  ]


def _axis_of_rows(texts: Sequence[Sequence[str]]) -> figure.Spec:
  """Makes an axis of rows from top to bottom, each with a text."""
  axis = {
    'values': [*range(len(texts))],
    'labelExpr': f'{scales.literal(texts)}[datum.value]',
    'labelLimit': 0,
    'labelOverlap': False,
    'grid': False,
    'ticks': False,
  }
  scale = {'domain': [len(texts) - 0.4, -0.6], 'nice': False}
  return scales.number('place', scale=scale, axis=axis)


def _boxes(
  stats: figure.Rows,
  x: figure.Spec,
  y: figure.Spec,
  found: Mapping[str, looks.Look],
  clip: bool,
) -> list[figure.Spec]:
  """Describes boxes with whiskers, dots, medians and means."""

  def draw(
    mark: str, start: str, end: str = '', height: float = 0, **options: Any
  ) -> figure.Spec:
    encoding = {'x': x | {'field': start}, 'y': y} | _ABOUT_BOXES
    if end:
      encoding['x2'] = {'field': end}
    if height:
      encoding |= {'y': y | {'field': 'top'}, 'y2': {'field': 'bottom'}}
    ends = [
      {'calculate': f'datum.place {sign} {height / 2}', 'as': side}
      for sign, side in (('-', 'top'), ('+', 'bottom'))
    ]
    options = {'stroke': '#000000', 'clip': clip} | options
    return scales.layer(mark, encoding, *ends, data=stats, **options)

  box = draw('bar', 'q1', 'q3', _BOX, strokeWidth=1.2)
  box['encoding'] |= {
    'fill': lines.encode_look(found, 'color'),
    'stroke': lines.encode_look(found, 'edge'),
    'strokeDash': lines.encode_look(found, 'line'),
    'fillOpacity': scales.number('opacity', scale=None),
  }
  opacity = {name: look.opacity for name, look in found.items()}
  box['transform'].append(scales.look_up('method', 'opacity', opacity))
  told = scales.tooltip('method', 'client', 'seed', 'value')
  color = lines.encode_look(found, 'color')
  dots = {'x': x, 'y': y, 'color': color, 'tooltip': told}
  diamond: dict[str, Any] = {
    'shape': 'diamond',
    'fill': '#ffffff',
    'opacity': 1,
  }
  return [
    draw('rule', 'low', 'q1'),
    draw('rule', 'q3', 'high'),
    draw('rule', 'low', height=_BOX / 2),
    draw('rule', 'high', height=_BOX / 2),
    box,
    scales.layer('circle', dots, size=9, fillOpacity=0.6, clip=clip),
    draw('rule', 'median', height=_BOX, strokeWidth=2),
    draw('point', 'mean', size=45, strokeWidth=1, **diamond),
  ]


def shares(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the share of the clients up to each value of the metric."""
  rows: figure.Rows = []
  for one in series:
    values = sorted(filter(math.isfinite, one.client_values('metric')))
    step = max(1, len(values) // _MOST_POINTS)
    rows += [
      {
        'method': one.name,
        'value': scales.rounded(value),
        'share': scales.rounded((i + 1) / len(values)),
      }
      for i, value in enumerate(values)
      if i % step == 0 or i + 1 == len(values)
    ]
  if not rows:
    return
  options, omitted = scales.show_near(
    [row['value'] for row in rows], scales.FAR_OUT_OF_CLIENTS
  )
  encoding = {
    'x': scales.number('value', scales.metric_title(series[0]), **options),
    'y': scales.number('share', 'share of clients', axis=scales.PERCENT),
    **lines.encode_lines(lines.find_looks(series)),
    'tooltip': scales.tooltip(*rows[0]),
  }
  mark: figure.Spec = {
    'interpolate': 'step-after',
    'strokeWidth': 1.6,
    'clip': bool(omitted),
  }
  yield figure.Figure(
    'shares',
    'Share of the test clients up to each value',
    rows,
    {**scales.layer('line', encoding, **mark), 'height': 190},
    note='The further a line is on the better side, the better is the method;'
    ' where lines cross, one method is better for weak clients and the other'
    ' for strong ones.',
    omitted=omitted,
  )


def _judge(
  first: np.ndarray, then: np.ndarray, higher_is_better: bool, *words: str
) -> tuple[list[str], dict[str, figure.Spec]]:
  """Judges who is worse, the same or better.

  Args:
    first: Each client's metric before.
    then: Each client's metric after.
    higher_is_better: Its direction.
    *words: The words for clients that are worse, the same and better.

  Returns:
    For each client the word and its share, and the encodings of these. Models
    that diverged count, too.
  """
  worse = summaries.is_worse(then, first, higher_is_better)
  better = ~worse & summaries.is_worse(first, then, higher_is_better)
  judged = np.select([worse, better], [0, 2], 1)
  kinds = [kind for kind in range(3) if kind in judged]
  labels = {k: f'{words[k]} ({np.mean(judged == k):.0%})' for k in kinds}
  legend = lines.legend([*labels.values()])
  encoded = {
    channel: scales.categories(
      'result', {labels[k]: of[k] for k in kinds}, legend=legend
    )
    for channel, of in (('color', _COLORS), ('shape', _SHAPES))
  }
  return [labels[kind] for kind in judged], encoded


def _bin(rows: figure.Rows) -> None:
  """Adds to each row the bin of its change; none is on both sides of zero."""
  near = scales.near([row['change'] for row in rows], scales.FAR_OUT_OF_CLIENTS)
  low, high = min(near, default=0), max(near, default=0)
  width = (high - low) / _MOST_BINS or 1 / _MOST_BINS
  for row in rows:
    place = width * math.floor(row['change'] / width + 1e-9)
    row['from'], row['to'] = map(scales.rounded, (place, place + width))


def _histogram(
  axis: str,
  encoded: figure.Spec,
  color: figure.Spec,
  clip: bool,
  most_ticks: int = 5,
) -> list[figure.Spec]:
  """Describes a histogram of changes, with a line at zero."""
  count = scales.WHOLE | {'tickCount': most_ticks}
  encoding = {
    axis: encoded | {'field': 'from', 'bin': {'binned': True}},
    f'{axis}2': {'field': 'to'},
    'x' if axis == 'y' else 'y': {
      'aggregate': 'count',
      'title': 'clients',
      'axis': count,
    },
    'color': color,
  }
  return [scales.layer('bar', encoding, clip=clip), _zero(axis)]


def _zero(axis: str) -> figure.Spec:
  """Describes a line at zero."""
  encoding = {axis: {'datum': 0}}
  return scales.layer('rule', encoding, data=[{}], strokeDash=[4, 4])


def hurt(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws whom personalization hurts, and how much (Motley, figures 3, 10).

  Each client's change is drawn by its number of examples and, beside it, in a
  histogram.
  """
  for one in series:
    # Nobody is hurt by the only candidate, or at the best point of a grid.
    if len(one.candidates) == 1 or one.repeats[0].result.get('hurt') == 0:
      continue
    parts = {'': one.name} | {
      f'_part_{part}': f'{one.name}, {float(part):.0%} of the evaluation set'
      for part in one.names('evaluation_fractions')
    }
    for part, subject in parts.items():
      # Clients with no examples in the part have no metric on it.
      clients = [
        (row['client'], repeat.seed, *numbers)
        for repeat in one.repeats
        for row, *numbers in zip(
          repeat.clients,
          repeat.client_values('personalization_examples'),
          repeat.client_values(f'before{part}'),
          repeat.client_values(f'metric{part}'),
        )
        if not math.isnan(numbers[1])
      ]
      if clients:
        yield _hurt(one, clients, f'hurt_{one.key}{part}', subject)


def _hurt(
  one: repeats.Series, clients: Sequence[Any], name: str, subject: str
) -> figure.Figure:
  first, then = (np.array([row[k] for row in clients], float) for k in (3, 4))
  results, looks_of_results = _judge(
    first, then, one.higher_is_better, 'hurt', 'unchanged', 'better off'
  )
  rows: figure.Rows = [
    {
      'client': client,
      'seed': seed,
      'examples': scales.rounded(examples),
      'before': scales.rounded(before),
      'after': scales.rounded(after),
      'change': scales.rounded(after - before),
      'result': result,
    }
    for (client, seed, examples, before, after), result in zip(clients, results)
    # Models that diverged have no place, but are in the shares.
    if math.isfinite(after - before)
  ]
  _bin(rows)
  changes = [row['change'] for row in rows]
  options, omitted = scales.show_near(changes, scales.FAR_OUT_OF_CLIENTS)
  if not any(changes):
    options = {'scale': {'domain': [-1, 1]}}
  side = 'above' if one.higher_is_better else 'below'
  label = [f'change of {scales.words(one.metric)}', f'({side} 0 is better)']
  y = scales.number('change', label, **options)
  x, _ = scales.show_near(
    [row['examples'] for row in rows], math.inf, log_if_wide=True
  )
  x['axis'] = scales.WHOLE | x.get('axis', {})
  told = scales.tooltip('client', 'seed', 'examples', 'before', 'after')
  encoding = {
    'x': scales.number('examples', 'examples to adapt to', **x),
    'y': y,
    **looks_of_results,
    'tooltip': told,
  }
  mark: figure.Spec = {
    'filled': True,
    'fillOpacity': 0.6,
    'size': 25,
    'clip': bool(omitted),
  }
  points = scales.layer('point', encoding, **mark)
  # Without a legend of the bars, there would be none of the marks.
  scale = looks_of_results['color']['scale']
  colors = dict(zip(scale['domain'], scale['range']))
  beside = y | {'title': None, 'axis': {'labels': False}}
  color = scales.kind('color', scale=None)
  bars = {
    'transform': [scales.look_up('result', 'color', colors)],
    'layer': _histogram('y', beside, color, bool(omitted), most_ticks=2),
  }
  size = {'height': 190}
  sides = [
    {'layer': [_zero('y'), points], 'width': 245, **size},
    {**bars, 'width': 80, **size},
  ]
  return figure.Figure(
    name,
    'Who is hurt by personalization',
    rows,
    {
      'hconcat': sides,
      'spacing': 12,
      'bounds': 'flush',
      'resolve': {'scale': {'y': 'shared'}},
    },
    subject=subject,
    note=f'Each mark is a test client. Personalization helps those {side} 0.',
    omitted=omitted,
  )


def _without_stage(
  one: repeats.Series, series: Sequence[repeats.Series]
) -> repeats.Series | None:
  """Finds the method that only lacks the last training of a method.

  The last training starts from that method's training. For example, PerFL is
  GroupPerFL without the training of groups.
  """
  before = one.repeats[0].result.get('started_from_training')
  if before is None:
    return None
  for other in series:
    if (
      before == other.repeats[0].result.get('training')
      and (one.task, one.label) == (other.task, other.label)
      and one.method.partition('+')[2] == other.method.partition('+')[2]
    ):
      return other
  return None


def _pairs(
  other: repeats.Series, one: repeats.Series
) -> list[tuple[str, float, float]]:
  """Lists each client's known group, if any, and its metric by two methods."""
  pairs = []
  for first, second in zip(other.repeats, one.repeats):
    before = {row['client']: row for row in first.clients}
    pairs += [
      (
        row.get('group') or '',
        repeats.number(before[row['client']]['metric']),
        repeats.number(row['metric']),
      )
      for row in second.clients
      if row['client'] in before
    ]
  return pairs


def changes(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws how a training changed the metric of all clients and each group.

  As histograms of relative changes (Liu et al., figure 1). Clients whose metric
  is not finite count only in the shares of the legend.
  """
  for one in series:
    other = _without_stage(one, series)
    if other is None:
      continue
    pairs = _pairs(other, one)
    for group in ('', *sorted({group for group, *_ in pairs if group})):
      suffix = f'_{group}' if group else ''
      subject = f'{one.name} against {other.name}'
      yield _change(
        one,
        [values for known, *values in pairs if group in ('', known)],
        f'change_{one.key}{suffix}',
        f'{subject}, {group}' if group else subject,
      )


def _change(
  one: repeats.Series, pairs: Sequence[Sequence[float]], name: str, subject: str
) -> figure.Figure:
  first, then = np.array(pairs, float).T
  with np.errstate(divide='ignore', invalid='ignore'):
    relative = (then - first) / np.abs(first)
  results, looks_of_results = _judge(
    first, then, one.higher_is_better, 'worse', 'unchanged', 'better'
  )
  rows: figure.Rows = [
    {'change': scales.rounded(change), 'result': result}
    for change, result in zip(relative, results)
    if math.isfinite(change)
  ]
  _bin(rows)
  options, omitted = scales.show_near(relative, scales.FAR_OUT_OF_CLIENTS)
  side = 'above' if one.higher_is_better else 'below'
  title = f'relative change of {scales.words(one.metric)} ({side} 0 is better)'
  x = scales.number('change', title, axis=scales.PERCENT, **options)
  bars = _histogram('x', x, looks_of_results['color'], bool(omitted))
  return figure.Figure(
    name,
    'Changes by the last training',
    rows,
    {'layer': bars, 'height': 140},
    subject=subject,
    omitted=omitted,
  )
