"""Charts as Vega-Lite specifications, and helpers that several charts share.

A chart is as wide as the page. Methods have the same colors as in all figures.
Nothing is shown by color alone: a position, a shape or a text shows it, too.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from experiments.reporting import looks
from experiments.reporting.pages import sources

_SCHEMA = 'https://vega.github.io/schema/vega-lite/v6.json'
# Significant digits of the numbers in the page.
_DIGITS = 6

# The options of an axis of whole numbers.
WHOLE = {'format': 'd', 'tickMinStep': 1}

Spec = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Chart:
  """A chart.

  Attributes:
    name: The name of its files.
    title: Its title.
    note: How to read it.
    data: Its data, the values of each row by column.
    spec: The specification without the data.
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


def rounded(value: float) -> float | None:
  """Rounds a number for the page; None if it is infinite or NaN."""
  return float(f'{value:.{_DIGITS}g}') if math.isfinite(value) else None


def words(name: str) -> str:
  """Writes the name of a metric or setting as words."""
  return name.replace('_', ' ')


def metric_title(series: sources.Series) -> str:
  """Writes the name of a metric, and which direction is better."""
  better = 'higher' if series.higher_is_better else 'lower'
  return f'{words(series.metric)} ({better} is better)'


def field(name: str, kind: str, title: str = '', **more: Any) -> Spec:
  return {'field': name, 'type': kind, 'title': title or None, **more}


def looks_of_names(
  names: Sequence[str], methods: Sequence[str]
) -> Mapping[str, looks.Look]:
  """Returns the look of each series.

  It is the look of its method. If several series have the same method, they
  differ in color instead, which follows from a series' name unless another one
  has it already.
  """
  found = {name: looks.look(method) for name, method in zip(names, methods)}
  if len(set(methods)) == len(methods):
    return found
  free: list[str] = []
  for name in found:
    free = free or list(looks.COLORS)
    color = looks.look(name).color
    color = color if color in free else free[0]
    free.remove(color)
    found[name] = dataclasses.replace(found[name], color=color, edge=color)
  return found


def looks_of(series: Sequence[sources.Series]) -> Mapping[str, looks.Look]:
  return looks_of_names([s.name for s in series], [s.method for s in series])


def color_of_method(found: Mapping[str, looks.Look]) -> Spec:
  return field(
    'method',
    'nominal',
    scale={
      'domain': list(found),
      'range': [look.color for look in found.values()],
    },
    legend={'orient': 'top', 'columns': 3, 'labelLimit': 400},
  )


def _dashes(line: looks.LineStyle) -> list[int]:
  if isinstance(line, str):
    styles = {'-': [1, 0], '--': [6, 3], '-.': [6, 2, 2, 2], ':': [2, 2]}
    return styles[line]
  return [2 * length for length in line[1]]


def line_of_method(found: Mapping[str, looks.Look]) -> dict[str, Spec]:
  """Encodes methods by the color and dashes of lines, with one legend."""
  color = color_of_method(found)
  color['legend'] |= {
    'symbolType': 'stroke',
    'symbolOpacity': 1,
    'symbolStrokeWidth': 2.5,
  }
  dashes = [_dashes(look.line) for look in found.values()]
  scale = {'domain': list(found), 'range': dashes}
  return {
    'color': color,
    'strokeDash': field(
      'method', 'nominal', scale=scale, legend=color['legend']
    ),
  }


def mark_of_method(found: Mapping[str, looks.Look]) -> dict[str, Spec]:
  """Encodes methods by the color and shape of marks, with one legend."""
  color = color_of_method(found)
  scale = {'domain': list(found)}
  return {
    'color': color,
    'shape': field('method', 'nominal', scale=scale, legend=color['legend']),
  }


def choice(name: str, options: Sequence[str], label: str) -> Spec:
  """Makes a parameter by which the reader chooses one of several options."""
  element = {'input': 'select', 'options': list(options), 'name': f'{label} '}
  return {'name': name, 'value': options[0], 'bind': element}
