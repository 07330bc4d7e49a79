"""Figures of lines through numbers that were measured in several repeats."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting.figures import figure
from experiments.reporting.figures import scales

# Lines with more points have marks on some of them, and a band instead of bars.
_MOST_BARS = 25
# Points hide each other if they differ by less than this part of the range of
# an axis.
_ON_TOP = 0.01
# The opacity of error bars if there are some in both directions.
_LIGHT = 0.35
# The area of a mark, and how much wider the one is that another hides.
_SIZE, _WIDER = 45, 4.5
# Characters per line of a legend.
_LEGEND = 64
# The channels of marks and of lines, and the attributes of looks they show.
_OF_MARKS = {'fill': 'fill', 'stroke': 'edge', 'shape': 'shape'}
_OF_LINES = {'color': 'color', 'strokeDash': 'line'}

# The two coordinates of a point; means are drawn and, if there are several
# repeats, the deviation to either side.
Point = tuple[repeats.OfRepeats, repeats.OfRepeats]


@dataclasses.dataclass(frozen=True)
class Curve:
  """A line.

  Attributes:
    name: Its name.
    look: Its look.
    points: Its points in order.
    size: The area of its marks.
  """

  name: str
  look: looks.Look
  points: Sequence[Point]
  size: float = _SIZE


@dataclasses.dataclass(frozen=True)
class Panel:
  """A part of a figure, which are above each other.

  Attributes:
    label: The label of its y axis, line by line.
    curves: Its lines.
    is_share: Whether they are shares.
    has_rings: Whether a ring marks points that later lines hide.
    is_loss: Whether the axis is logarithmic if the values differ much.
    far_out: Which values are not shown, see `scales.near`.
  """

  label: Sequence[str]
  curves: Sequence[Curve]
  is_share: bool = False
  has_rings: bool = True
  is_loss: bool = False
  far_out: float = scales.FAR_OUT_OF_TRAINING

  def shown(self) -> np.ndarray:
    """Returns the means that are not far out."""
    means = [mean(y) for curve in self.curves for _, y in curve.points]
    return scales.near(means, self.far_out)


def mean(values: repeats.OfRepeats) -> float:
  """Returns the mean over repeats; NaN if one diverged."""
  return repeats.mean_and_deviation(values)[0]


def find_looks(series: Sequence[repeats.Series]) -> dict[str, looks.Look]:
  """Returns the look of each series by its name."""
  return distinguish_looks({one.name: one.method for one in series})


def distinguish_looks(methods: Mapping[str, str]) -> dict[str, looks.Look]:
  """Returns the look of each name, given its method.

  It is the look of the method. If several names have the same method, they
  differ in color instead, which follows from the name unless another one has it
  already.
  """
  found = {name: looks.look(method) for name, method in methods.items()}
  if len(set(methods.values())) == len(methods):
    return found
  free: list[str] = []
  for name in found:
    free = free or list(looks.COLORS)
    color = looks.look(name).color
    color = color if color in free else free[0]
    free.remove(color)
    found[name] = dataclasses.replace(found[name], color=color, edge=color)
  return found


def legend(names: Sequence[str], **options: Any) -> figure.Spec:
  """Makes a legend of names, in as few lines as possible."""
  widest = max(map(len, names), default=0)
  columns = max(1, min(len(names), _LEGEND // (widest + 4)))
  if 'symbolType' in options:
    options |= {'symbolSize': 250, 'symbolOpacity': 1}
  return {'columns': columns, 'symbolSize': 60, **options}


def encode_look(found: Mapping[str, looks.Look], attribute: str) -> figure.Spec:
  """Encodes methods by an attribute of their looks, without a legend."""
  values = {name: getattr(look, attribute) for name, look in found.items()}
  return scales.categories('method', values, legend=None)


def _encode(
  found: Mapping[str, looks.Look], channels: Mapping[str, str], **options: Any
) -> dict[str, figure.Spec]:
  shown = legend([*found], **options)
  return {
    channel: encode_look(found, attribute) | {'legend': shown}
    for channel, attribute in channels.items()
  }


def encode_marks(found: Mapping[str, looks.Look]) -> dict[str, figure.Spec]:
  """Encodes methods by the colors and the shape of marks, with one legend."""
  return _encode(found, _OF_MARKS)


def encode_lines(found: Mapping[str, looks.Look]) -> dict[str, figure.Spec]:
  """Encodes methods by the color and the dashes of lines, with one legend."""
  return _encode(found, _OF_LINES, symbolType='stroke', symbolStrokeWidth=2.5)


def _look_up_all(found: Mapping[str, looks.Look]) -> list[figure.Spec]:
  """Looks up what methods look like, for layers that have no legend.

  Vega-Lite leaves out a legend if any layer does not want it.
  """
  return [
    scales.look_up(
      'method', name, {n: getattr(look, name) for n, look in found.items()}
    )
    for name in dict.fromkeys([*_OF_MARKS.values(), *_OF_LINES.values()])
  ]


def _without_legend(**channels: str) -> dict[str, figure.Spec]:
  """Encodes methods by attributes that are looked up."""
  looked_up = {c: scales.kind(name, scale=None) for c, name in channels.items()}
  return looked_up | {'detail': scales.kind('method')}


def draw(
  name: str,
  title: str,
  panels: Sequence[Panel],
  x: figure.Spec,
  *,
  has_marks: bool = True,
  has_lines: bool = True,
  height: float = 170,
  **attributes: Any,
) -> figure.Figure:
  """Draws panels of lines above each other, which share their x axis.

  Lines and points that later ones hide are drawn larger: as a wider line, or
  with a ring around the point. Lines that diverged do not widen the axis.

  Args:
    name: The name of the figure.
    title: Its title.
    panels: The panels.
    x: The encoding of the x axis.
    has_marks: Whether points have marks.
    has_lines: Whether points are joined by lines.
    height: The height of a panel.
    **attributes: Further attributes of the figure.

  Returns:
    The figure.
  """
  curves = [curve for panel in panels for curve in panel.curves if curve.points]
  visible = {name for panel in panels for name in _visible(panel)}
  written = {
    curve.name: curve.name
    if curve.name in visible
    else f'{curve.name} (diverged)'
    for curve in curves
  }
  found = {written[curve.name]: curve.look for curve in curves}
  x = x | {'title': scales.wrap(x['title'])}
  rows: figure.Rows = []
  views = []
  omitted = []
  for panel in panels:
    made = [
      row | {'method': written[row['method']]}
      for row in _rows(panel, x['field'], has_marks)
    ]
    y, cut = _y_axis(panel, made)
    layers = _layers(made, x, y, has_marks, has_lines, bool(cut))
    if panel is panels[0] and len(found) > 1:
      # In place of the same without a legend.
      of_methods = encode_marks(found) if has_marks else encode_lines(found)
      layers[-1]['encoding'] |= of_methods
    here = x
    if panel is not panels[-1]:
      here = x | {'title': None, 'axis': x.get('axis', {}) | {'labels': False}}
    told = [
      c for c in ('method', x['field'], 'value', 'repeats') if c in made[0]
    ]
    view: figure.Spec = {
      'transform': _look_up_all(found),
      'encoding': {'x': here, 'y': y, 'tooltip': scales.tooltip(*told)},
      'layer': layers,
      'height': height,
    }
    if len(panels) > 1:
      label = ' '.join(panel.label)
      made = [{'panel': label, **row} for row in made]
      view['width'] = figure.WIDTH - 75
      view['transform'].append({'filter': {'field': 'panel', 'equal': label}})
    rows += made
    views.append(view)
    omitted += [cut] if cut else []
  spec = views[0]
  if len(panels) > 1:
    shared = {'scale': {'x': 'shared'}}
    spec = {'vconcat': views, 'spacing': 16, 'bounds': 'flush'}
    spec['resolve'] = shared
  return figure.Figure(
    name, title, rows, spec, omitted='; '.join(omitted), **attributes
  )


def _visible(panel: Panel) -> Iterator[str]:
  """Yields the names of the lines of which at least a point is shown."""
  shown = panel.shown()
  for curve in panel.curves:
    if np.any(np.isin([mean(y) for _, y in curve.points], shown)):
      yield curve.name


def _rows(
  panel: Panel, x_name: str, has_marks: bool
) -> Iterator[dict[str, Any]]:
  """Yields the rows of a panel, with columns only where there is something."""
  drawn = [curve for curve in panel.curves if curve.points]
  for curve, hidden in zip(drawn, _times_hidden(drawn)):
    if not has_marks:
      hidden = np.full_like(hidden, np.median(hidden))
    every = -(-len(curve.points) // _MOST_BARS)
    for place, (point, times) in enumerate(zip(curve.points, hidden)):
      row: dict[str, Any] = {'method': curve.name}
      for column, values in zip((x_name, 'value'), point):
        middle, deviation = repeats.mean_and_deviation(values)
        row[column] = scales.rounded(middle)
        if deviation > 0:
          ends = [middle - deviation, middle + deviation]
          if panel.is_share and column == 'value':
            ends = [max(ends[0], 0), min(ends[1], 1)]
          row[f'{column} from'], row[f'{column} to'] = map(scales.rounded, ends)
      row |= {'repeats': len(point[1]), 'place': place}
      if curve.size != _SIZE:
        row['size'] = curve.size
      if has_marks and place % every:
        row['size'] = 0
      elif times and panel.has_rings:
        row['hidden'] = float(times)
      yield row


def _times_hidden(curves: Sequence[Curve]) -> Iterator[np.ndarray]:
  """Yields how many later lines hide each point of a line."""
  places = [
    np.array([[mean(x), mean(y)] for x, y in curve.points]) for curve in curves
  ]
  near = [
    scales.near(axis, scales.FAR_OUT_OF_TRAINING)
    for axis in np.concatenate([np.empty([0, 2]), *places]).T
  ]
  extents = [np.ptp(shown) if len(shown) else 0.0 for shown in near]
  for i, points in enumerate(places):
    hidden = np.zeros(len(points))
    # A logarithmic axis also shows small differences.
    closest = _ON_TOP * np.minimum(extents, np.abs(points))[:, None]
    for others, curve in zip(places[i + 1 :], curves[i + 1 :]):
      on_top = np.all(np.abs(points[:, None] - others) <= closest, axis=-1)
      # A ring hides nothing.
      hidden += np.any(on_top, axis=1) * (curve.size == _SIZE)
    yield hidden


def _y_axis(panel: Panel, rows: figure.Rows) -> tuple[figure.Spec, str]:
  """Encodes the numbers of a panel; returns which are not shown, too."""
  options: figure.Spec
  if panel.is_share:
    ends = [row.get('value to', row['value']) or 0 for row in rows]
    high = max(ends) or 1
    scale = {'domain': [0, high], 'nice': high < 0.95}
    options, omitted = {'scale': scale, 'axis': scales.PERCENT}, ''
  else:
    options, omitted = scales.show_near(
      [mean(y) for curve in panel.curves for _, y in curve.points],
      panel.far_out,
      log_if_wide=panel.is_loss,
    )
  return scales.number('value', panel.label, **options), omitted


def _layers(
  rows: figure.Rows,
  x: figure.Spec,
  y: figure.Spec,
  has_marks: bool,
  has_lines: bool,
  clip: bool,
) -> list[figure.Spec]:
  """Describes bars or bands, lines, rings and, last, what has the legend."""
  columns = {column for row in rows for column in row}
  axes = [
    (axis, encoded, encoded['field'])
    for axis, encoded in (('x', x), ('y', y))
    if f'{encoded["field"]} to' in columns
  ]
  bars: figure.Spec = {'type': 'area', 'fillOpacity': 0.15}
  if len(rows) <= _MOST_BARS * len({row['method'] for row in rows}):
    # Otherwise the crosses of bars would hide points that are close.
    opacity = _LIGHT if len(axes) > 1 else 1
    bars = {'type': 'errorbar', 'opacity': opacity, 'ticks': {'size': 5}}
  layers = []
  for axis, encoded, name in axes:
    encoding = {
      axis: encoded | {'field': f'{name} from'},
      f'{axis}2': {'field': f'{name} to'},
      **_without_legend(color='color'),
    }
    layers.append({'mark': bars | {'clip': clip}, 'encoding': encoding})
  if has_lines:
    encoding = {**_without_legend(**_OF_LINES), 'order': {'field': 'place'}}
    if not has_marks:
      encoding['size'] = scales.number('width', scale=None)
    width = {'calculate': '2 + 2.4 * (datum.hidden || 0)', 'as': 'width'}
    line = scales.layer('line', encoding, width, strokeWidth=2, clip=clip)
    layers.append(line)
  size = {'size': scales.number('size', scale=None)}
  if has_marks and 'hidden' in columns:
    hidden = {'filter': 'datum.hidden > 0'}
    size_of_ring = f'{_SIZE} + {_SIZE * _WIDER} * datum.hidden'
    wider = {'calculate': size_of_ring, 'as': 'size'}
    encoding = size | _without_legend(stroke='edge', shape='shape')
    mark: figure.Spec = {
      'filled': False,
      'strokeWidth': 1.5,
      'opacity': 1,
      'clip': clip,
    }
    layers.append(scales.layer('point', encoding, hidden, wider, **mark))
  if has_marks:
    usual = {
      'calculate': f'isValid(datum.size) ? datum.size : {_SIZE}',
      'as': 'size',
    }
    encoding = size | _without_legend(**_OF_MARKS)
    mark = {'opacity': 1, 'clip': clip}
    layers.append(scales.layer('point', encoding, usual, **mark))
  return layers
