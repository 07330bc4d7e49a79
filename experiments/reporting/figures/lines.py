"""Figures of lines through numbers that were measured in several repeats."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting.figures import figure
from experiments.reporting.figures import scales

# Lines with more points have no marks, and a band instead of error bars.
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
    label: The label of its y axis.
    curves: Its lines.
    is_share: Whether they are shares.
    has_rings: Whether a ring marks points that later lines hide.
    is_loss: Whether the axis is logarithmic if the values differ much.
    far_out: Which values are not shown, see `scales.near`.
  """

  label: str | Sequence[str]
  curves: Sequence[Curve]
  is_share: bool = False
  has_rings: bool = True
  is_loss: bool = False
  far_out: float = scales.FAR_OUT_OF_TRAINING

  @property
  def means(self) -> list[float]:
    """The means that are drawn."""
    return [mean(y) for curve in self.curves for _, y in curve.points]


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
  values = [getattr(look, attribute) for look in found.values()]
  scale = {'type': 'ordinal', 'domain': [*found], 'range': values}
  return scales.kind('method', scale=scale, legend=None)


def _encode(
  found: Mapping[str, looks.Look], channels: Mapping[str, str], **options: Any
) -> dict[str, figure.Spec]:
  """Encodes methods by channels, each of an attribute of looks, with a legend.

  Args:
    found: The look of each method.
    channels: The attribute of each channel.
    **options: Options of the legend.
  """
  return {
    channel: encode_look(found, attribute)
    | {'legend': legend([*found], **options)}
    for channel, attribute in channels.items()
  }


def encode_marks(found: Mapping[str, looks.Look]) -> dict[str, figure.Spec]:
  """Encodes methods by the colors and the shape of marks, with one legend."""
  return _encode(found, _OF_MARKS)


def encode_lines(found: Mapping[str, looks.Look]) -> dict[str, figure.Spec]:
  """Encodes methods by the color and the dashes of lines, with one legend."""
  return _encode(found, _OF_LINES, symbolType='stroke', symbolStrokeWidth=2.5)


def _look_up_all(
  found: Mapping[str, looks.Look], widths: Mapping[str, float]
) -> list[figure.Spec]:
  """Looks up what methods look like, for layers that have no legend.

  Vega-Lite leaves out a legend if any layer does not want it.
  """
  attributes = dict.fromkeys([*_OF_MARKS.values(), *_OF_LINES.values()])
  return [
    scales.look_up(
      'method',
      attribute,
      {n: getattr(look, attribute) for n, look in found.items()},
    )
    for attribute in attributes
  ] + [scales.look_up('method', 'width', widths)]


def _without_legend(channels: Mapping[str, str]) -> dict[str, figure.Spec]:
  return {
    channel: scales.kind(attribute, scale=None)
    for channel, attribute in channels.items()
  } | {'detail': scales.kind('method')}


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
  found = {c.name: c.look for panel in panels for c in panel.curves if c.points}
  written = {name: name for name in found} | {
    name: f'{name} (diverged)' for name in found if _is_nowhere(panels, name)
  }
  found = {written[name]: look for name, look in found.items()}
  rows: figure.Rows = []
  views = []
  omitted = []
  for panel in panels:
    drawn = [curve for curve in panel.curves if curve.points]
    made = [
      row | {'method': written[row['method']]}
      for row in _rows(drawn, panel, x['field'])
    ]
    y, cut = _y_axis(panel, made)
    is_first, is_last = panel is panels[0], panel is panels[-1]
    here = x | ({} if is_last else {'title': None})
    if not is_last:
      here['axis'] = x.get('axis', {}) | {'labels': False}
    view = _view(
      made,
      here,
      y,
      found,
      has_marks,
      has_lines,
      is_first and len(found) > 1,
      clip=bool(cut),
    )
    view['height'] = height
    if len(panels) > 1:
      label = (
        panel.label if isinstance(panel.label, str) else ' '.join(panel.label)
      )
      made = [{'panel': label, **row} for row in made]
      view['width'] = figure.WIDTH - 75
      view['transform'].append({'filter': {'field': 'panel', 'equal': label}})
    rows += made
    views.append(view)
    omitted += [cut] if cut else []
  spec = views[0]
  if len(panels) > 1:
    spec = {'vconcat': views, 'spacing': 16, 'bounds': 'flush'}
  return figure.Figure(
    name, title, rows, spec, omitted='; '.join(omitted), **attributes
  )


def _is_nowhere(panels: Sequence[Panel], name: str) -> bool:
  """Tells whether no point of a line is shown."""
  for panel in panels:
    near = scales.near(panel.means, panel.far_out)
    for curve in panel.curves:
      if curve.name == name:
        if np.any(np.isin([mean(y) for _, y in curve.points], near)):
          return False
  return True


def _rows(
  curves: Sequence[Curve], panel: Panel, x_name: str
) -> Iterator[dict[str, Any]]:
  """Yields the rows of a panel, with columns only where there is something."""
  extents = [
    _extent([mean(point[axis]) for c in curves for point in c.points])
    for axis in (0, 1)
  ]
  for i, curve in enumerate(curves):
    for place, (x, y) in enumerate(curve.points):
      row: dict[str, Any] = {'method': curve.name}
      for column, values in ((x_name, x), ('value', y)):
        middle, deviation = repeats.mean_and_deviation(values)
        row[column] = scales.rounded(middle)
        if deviation > 0:
          ends = [middle - deviation, middle + deviation]
          if panel.is_share and column == 'value':
            ends = [max(ends[0], 0), min(ends[1], 1)]
          row[f'{column} from'], row[f'{column} to'] = map(scales.rounded, ends)
      if len(y) > 1:
        row['repeats'] = len(y)
      row['place'] = place
      if curve.size != _SIZE:
        row['size'] = curve.size
      hidden = sum(_hides(other, (x, y), extents) for other in curves[i + 1 :])
      if hidden and panel.has_rings:
        row['hidden'] = hidden
      yield row


def _extent(values: Sequence[float]) -> float:
  """Returns the range of the values that are not far out."""
  shown = scales.near(values, scales.FAR_OUT_OF_TRAINING)
  return float(np.ptp(shown)) if len(shown) else 0.0


def _hides(other: Curve, point: Point, extents: Sequence[float]) -> bool:
  """Tells whether a point of another line is on top of a point."""
  place = [mean(values) for values in point]
  # A logarithmic axis also shows small differences.
  tolerance = [
    _ON_TOP * min(extent, abs(middle)) for extent, middle in zip(extents, place)
  ]
  return other.size == _SIZE and any(
    all(
      abs(mean(values) - middle) <= most
      for values, middle, most in zip(near, place, tolerance)
    )
    for near in other.points
  )


def _y_axis(panel: Panel, rows: figure.Rows) -> tuple[figure.Spec, str]:
  if panel.is_share:
    ends = [row.get('value to', row['value']) for row in rows]
    high = max((end for end in ends if end is not None), default=1)
    scale = {'domain': [0, high or 1], 'nice': high < 0.95}
    options: figure.Spec = {'scale': scale, 'axis': scales.PERCENT}
    return scales.number('value', panel.label, **options), ''
  options, omitted = scales.show_near(
    panel.means, panel.far_out, log_if_wide=panel.is_loss
  )
  return scales.number('value', panel.label, **options), omitted


def _view(
  rows: figure.Rows,
  x: figure.Spec,
  y: figure.Spec,
  found: Mapping[str, looks.Look],
  has_marks: bool,
  has_lines: bool,
  has_legend: bool,
  clip: bool,
) -> figure.Spec:
  """Describes a panel as layers: bars or bands, lines, marks and rings."""
  columns = {column for row in rows for column in row}
  is_long = len(rows) > _MOST_BARS * len({row['method'] for row in rows})
  spread = [a for a in (x['field'], 'value') if f'{a} to' in columns]
  layers = [
    _bars(
      axis,
      encoded,
      {'type': 'area', 'fillOpacity': 0.15, 'clip': clip}
      if is_long
      else {
        'type': 'errorbar',
        # Otherwise the crosses of bars would hide points that are close.
        'opacity': _LIGHT if len(spread) > 1 else 1,
        'ticks': {'size': 5},
        'clip': clip,
      },
    )
    for axis, encoded in (('x', x), ('y', y))
    if encoded['field'] in spread
  ]
  if has_lines:
    encoding = _without_legend(_OF_LINES)
    if has_legend and not has_marks:
      encoding = encode_lines(found)
    encoding['order'] = {'field': 'place'}
    if not has_marks and 'hidden' in columns:
      encoding['strokeWidth'] = scales.number('width', scale=None)
    line = {'type': 'line', 'strokeWidth': 2, 'clip': clip}
    layers.append({'mark': line, 'encoding': encoding})
  if has_marks:
    point = {'type': 'point', 'opacity': 1, 'clip': clip}
    size = {'field': 'size', 'type': 'quantitative', 'scale': None}
    layers.append(
      {
        'transform': [{'calculate': f'datum.size || {_SIZE}', 'as': 'size'}],
        'mark': point,
        'encoding': {
          **(encode_marks(found) if has_legend else _without_legend(_OF_MARKS)),
          'size': size,
        },
      }
    )
    if 'hidden' in columns:
      wider = f'{_SIZE} + {_SIZE * _WIDER} * datum.hidden'
      ring = _without_legend({'stroke': 'edge', 'shape': 'shape'})
      layers.append(
        {
          'transform': [
            {'filter': 'datum.hidden > 0'},
            {'calculate': wider, 'as': 'size'},
          ],
          'mark': point | {'filled': False, 'strokeWidth': 1.5},
          'encoding': {**ring, 'size': size},
        }
      )
  told = [c for c in ('method', x['field'], 'value', 'repeats') if c in columns]
  return {
    'transform': _look_up_all(found, _widths(rows, found)),
    'encoding': {'x': x, 'y': y, 'tooltip': scales.tooltip(*told)},
    'layer': layers,
  }


def _bars(axis: str, encoded: figure.Spec, mark: figure.Spec) -> figure.Spec:
  """Describes bars, or a band, from one end of a deviation to the other."""
  name = encoded['field']
  ends = {
    axis: encoded | {'field': f'{name} from'},
    f'{axis}2': {'field': f'{name} to'},
  }
  return {
    'mark': mark,
    'encoding': ends | _without_legend({'color': 'color'}),
  }


def _widths(rows: figure.Rows, found: Iterable[str]) -> dict[str, float]:
  """Returns the widths of lines, by how many others hide them."""
  hidden = {
    name: [row.get('hidden', 0) for row in rows if row['method'] == name]
    for name in found
  }
  return {
    name: 2 + 2.4 * float(np.median(times or [0]))
    for name, times in hidden.items()
  }
