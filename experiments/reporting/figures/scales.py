"""Axes: their labels, and which values they show."""

from collections.abc import Iterable, Mapping, Sequence
import json
import math
import textwrap
from typing import Any

import numpy as np

from base import names
from experiments.reporting import repeats
from experiments.reporting.figures import figure

# See `near`.
FAR_OUT = 12
# Numbers are this far out if a training diverged, but not at its beginning; and
# a client's metric only if its model diverged.
FAR_OUT_OF_TRAINING, FAR_OUT_OF_CLIENTS = 1e6, 1e3
# Significant digits of the numbers in a description.
_DIGITS = 6

# The options of axes of whole numbers, and of shares.
WHOLE = {'format': 'd', 'tickMinStep': 1}
PERCENT = {'format': '.1~%'}
# The scale of an axis that ends near its values.
TIGHT: figure.Spec = {'zero': False, 'nice': False, 'padding': 8}


def rounded(value: float) -> float | None:
  """Rounds a number for a description; None if it is infinite or NaN."""
  return float(f'{value:.{_DIGITS}g}') if math.isfinite(value) else None


def words(name: str) -> str:
  """Writes the name of a metric or setting as words."""
  return name.replace('_', ' ')


def wrap(text: str, width: int = 54) -> list[str]:
  """Breaks a title into lines that are no longer than an axis."""
  return textwrap.wrap(text, width)


def metric_label(metric: str, higher_is_better: bool) -> list[str]:
  """Writes a metric and its direction as a label, line by line."""
  better = 'higher' if higher_is_better else 'lower'
  return [*wrap(words(metric), 24), f'({better} is better)']


def metric_title(series: repeats.Series) -> str:
  """Writes the metric of a method and its direction on one line."""
  return ' '.join(metric_label(*series.judged))


def literal(value: Any) -> str:
  """Writes a value as a part of a Vega expression, with names as in figures."""
  return json.dumps(names.visible(value))


def look_up(
  name: str, attribute: str, values: Mapping[str, Any]
) -> figure.Spec:
  """Makes a column of what belongs to the names in another column."""
  return {'calculate': f'{literal(values)}[datum.{name}]', 'as': attribute}


def number(
  name: str, title: str | Sequence[str] | None = None, **options: Any
) -> figure.Spec:
  """Encodes a column of numbers."""
  return {'field': name, 'type': 'quantitative', 'title': title, **options}


def kind(name: str, title: str | None = None, **options: Any) -> figure.Spec:
  """Encodes a column of names."""
  return {'field': name, 'type': 'nominal', 'title': title, **options}


def categories(
  name: str, values: Mapping[str, Any], **options: Any
) -> figure.Spec:
  """Encodes a column of names, each by its value, such as a color."""
  scale = {'type': 'ordinal', 'domain': [*values], 'range': [*values.values()]}
  return kind(name, scale=scale, **options)


def layer(
  mark: str,
  encoding: figure.Spec,
  *transform: figure.Spec,
  data: figure.Rows | None = None,
  **options: Any,
) -> figure.Spec:
  """Describes marks.

  Args:
    mark: Their kind.
    encoding: Their encoding.
    *transform: What is done with the data before.
    data: Their data, if they are not those of the figure.
    **options: Options of the marks.
  """
  described: figure.Spec = {
    'mark': {'type': mark, **options},
    'encoding': encoding,
  }
  if transform:
    described['transform'] = list(transform)
  if data is not None:
    described['data'] = {'values': data}
  return described


def tooltip(*names: str) -> list[figure.Spec]:
  """Lists the columns that a page shows of what the pointer is on."""
  return [kind(name, name.replace('\\', '')) for name in names]


def near(values: Iterable[float], far_out: float = FAR_OUT) -> np.ndarray:
  """Leaves out the values that are far out, and those that are not finite.

  Half of the values, those near the median, decide which ones are far out, so
  that a model that diverged has no influence.

  Args:
    values: The values.
    far_out: A value is far out if it is this many times further from the median
      than half of the values are.

  Returns:
    The values that an axis is to show, in ascending order.
  """
  given = np.asarray(list(values), float)
  finite = np.sort(given[np.isfinite(given)])
  if not len(finite):
    return finite
  median = _lower_median(finite)
  distances = np.abs(finite - median)
  usual = max(_lower_median(distances), 0.01 * abs(median))
  if not usual and np.any(distances):
    # Half of the values are zero, as shares of clients may be.
    usual = _lower_median(distances[distances > 0])
  return finite[distances <= far_out * usual]


def _lower_median(values: np.ndarray) -> float:
  """Returns the median; the lower one of two values in the middle."""
  return float(np.sort(values)[(len(values) - 1) // 2])


def show_near(
  values: Iterable[float], far_out: float = FAR_OUT, log_if_wide: bool = False
) -> tuple[figure.Spec, str]:
  """Makes an axis of the values that are not far out.

  Args:
    values: The values.
    far_out: See `near`.
    log_if_wide: Whether the axis is logarithmic if its values differ by a
      factor above 4.

  Returns:
    Its scale and the places of its ticks, as options of an encoding, and which
    values it does not show, if any.
  """
  given = np.asarray(list(values), float)
  given = given[np.isfinite(given)]
  shown = near(given, far_out)
  scale = TIGHT
  omitted = ''
  if not len(shown):
    return {'scale': scale}, omitted
  low, high = float(min(shown)), float(max(shown))
  if len(shown) < len(given):
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    scale = {'domain': [low - margin, high + margin], 'nice': False}
    ends = [
      f'{word} {end:.3g}'
      for word, end, is_beyond in (
        ('down to', min(given), min(given) < low),
        ('up to', max(given), max(given) > high),
      )
      if is_beyond
    ]
    omitted = f'not shown: {", ".join(ends)}'
  if not (log_if_wide and 0 < 4 * low < high):
    return {'scale': scale}, omitted
  margin = (high / low) ** 0.05
  low, high = low / margin, high * margin
  steps: Sequence[float] = (1, 1.5, 2, 3, 5, 7)
  if high > 10 * low:
    steps = (1, 2, 5) if high < 200 * low else (1,)
  decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
  ticks = [step * 10.0**decade for decade in decades for step in steps]
  scale = {'type': 'log', 'domain': [low, high], 'nice': False}
  values = [tick for tick in ticks if low <= tick <= high]
  return {'scale': scale, 'axis': {'values': values, 'format': '~g'}}, omitted
