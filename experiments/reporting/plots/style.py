"""Sizes, axes, legends and files, which all figures have in common.

They are as wide as a column of a paper. A method has the same look in all
figures, see `looks`, and its name written out, see `names`.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import pathlib
import re
import textwrap
from typing import Any

import matplotlib
from matplotlib import text
from matplotlib import ticker
import matplotlib.axes
import matplotlib.axis
import matplotlib.figure
import numpy as np

from base import errors

# Clients that are worse off than before, better off, and neither.
WORSE, BETTER, SAME = '#d55e00', '#0072b2', '#7f7f7f'

# The endings of the files that `save` writes.
ENDINGS = ('png', 'svg', 'pdf')

WIDTH = 3.4
# Characters in a line of a title, of a caption, and of a name in a legend.
_TITLE, _CAPTION, _NAME = 52, 68, 40
# Figures are high enough for a legend of so many lines.
_LINES_OF_LEGEND = 4
# See `near`.
_FAR_OUT = 12
# Labels of ticks are twice so far from each other at least, in pixels.
_GAP = 3
_STYLE: Any = {
  'font.size': 8,
  'axes.labelsize': 8,
  'axes.titlesize': 8,
  'legend.fontsize': 7,
  'xtick.labelsize': 7,
  'ytick.labelsize': 7,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.axisbelow': True,
  'axes.grid': True,
  'grid.color': '0.9',
  'grid.linewidth': 0.5,
  'legend.frameon': False,
  'legend.handletextpad': 0.4,
  'legend.handlelength': 1.4,
  'legend.columnspacing': 1,
  'lines.linewidth': 1.2,
  'lines.markersize': 3,
  'axes.formatter.limits': (-3, 4),
  'savefig.dpi': 300,
  # Names are a user's, and `$` in them is no formula.
  'text.parse_math': False,
  # Text in a PDF stays text, and the same figure is the same file.
  'pdf.fonttype': 42,
  'svg.hashsalt': 'pfl',
}

Figure = matplotlib.figure.Figure


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
  """Has a figure drawn in our style, whatever the caller's is."""

  @functools.wraps(draw)
  def draw_styled(*args: Any, **kwargs: Any) -> Figure:
    with matplotlib.rc_context(_STYLE):
      return draw(*args, **kwargs)

  return draw_styled


def new_figure(height: float, width: float = WIDTH) -> Figure:
  """Makes a figure with nothing in it."""
  return Figure(figsize=(width, height), layout='constrained')


def metric_label(
  metric: str, higher_is_better: bool, separator: str = '\n'
) -> str:
  """Writes a metric and its direction as a label."""
  better = 'higher' if higher_is_better else 'lower'
  return f'{metric.replace("_", " ")}{separator}({better} is better)'


def in_percent(axis: matplotlib.axis.Axis, label: str) -> None:
  """Has an axis show shares."""
  axis.set_major_formatter(lambda share, _: f'{100 * share:.3g}%')
  axis.set_label_text(label)


def in_shares(plot: matplotlib.axes.Axes, label: str) -> None:
  """Has the y axis of a plot show shares, none below 0 or above 1."""
  in_percent(plot.yaxis, label)
  low, high = plot.get_ylim()
  plot.set_ylim(max(low, -0.02), min(high, 1.02))


def in_whole_numbers(axis: matplotlib.axis.Axis, most: int = 6) -> None:
  """Has an axis show whole numbers, as those of rounds and clients."""
  axis.set_major_locator(
    ticker.MaxNLocator(most, integer=True, steps=(1, 2, 5, 10))
  )


def log_if_wide(plot: matplotlib.axes.Axes, which: str) -> None:
  """Makes an axis logarithmic if what it shows differs by more than 4 times."""
  axis = getattr(plot, f'{which}axis')
  low, high = np.clip(
    axis.get_data_interval(), *sorted(axis.get_view_interval())
  )
  if low > 0 and high > 4 * low:
    getattr(plot, f'set_{which}scale')('log')
    margin = (high / low) ** 0.05
    getattr(plot, f'set_{which}lim')(low / margin, high * margin)
    subs: Sequence[float] = (1, 1.5, 2, 3, 5, 7)
    if high > 10 * low:
      subs = (1, 2, 5) if high < 200 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axis.set_minor_locator(ticker.NullLocator())


def near(values: Iterable[float], far_out: float = _FAR_OUT) -> np.ndarray:
  """Leaves out the values that are far out, and those that are not finite.

  What half of the values are decides, so that a model that diverged does not.

  Args:
    values: The values.
    far_out: What is so many times further from the median than half of the
      values are is left out.

  Returns:
    Those that an axis is to show.
  """
  given = np.asarray(list(values), float)
  finite = np.sort(given[np.isfinite(given)])
  if not len(finite):
    return finite
  median = finite[(len(finite) - 1) // 2]
  distances = np.abs(finite - median)
  usual = np.sort(distances)[(len(finite) - 1) // 2]
  usual = max(usual, 0.01 * abs(median), np.finfo(float).tiny)
  return finite[distances <= far_out * usual]


def extent(values: Iterable[float], far_out: float = _FAR_OUT) -> float:
  """Returns how far apart the values are that are not far out."""
  shown = near(values, far_out)
  return float(np.ptp(shown)) if len(shown) else 0.0


def show_near(
  plot: matplotlib.axes.Axes,
  which: str,
  values: Iterable[float],
  far_out: float = _FAR_OUT,
) -> None:
  """Limits an axis to what is not far out, and says how far that is."""
  given = np.asarray(list(values), float)
  given = given[np.isfinite(given)]
  shown = near(given, far_out)
  if len(shown) == len(given):
    return
  low, high = min(shown), max(shown)
  margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
  getattr(plot, f'set_{which}lim')(low - margin, high + margin)
  ends = [
    f'{word} {end:.3g}'
    for word, end, beyond in (
      ('down to', min(given), min(given) < low),
      ('up to', max(given), max(given) > high),
    )
    if beyond
  ]
  plot.set_title(f'not shown: {", ".join(ends)}', loc='right', fontsize=6)


def add_legend(
  figure: Figure, plots: Sequence[matplotlib.axes.Axes], title: str = ''
) -> None:
  """Adds a legend of some plots above, in as few lines as fit."""
  handles: dict[str, Any] = {}
  for plot in plots:
    for handle, label in zip(*plot.get_legend_handles_labels()):
      handles.setdefault(textwrap.fill(label, _NAME), handle)
  sizes = [own.split('\n') for own in handles]
  widest = max((len(line) for own in sizes for line in own), default=0)
  columns = max(1, min(len(handles), 64 // (widest + 4)))
  # A long one does not take the place of the plot.
  lines = -(-sum(map(len, sizes)) // columns)
  if lines > _LINES_OF_LEGEND:
    make_room(figure, 0.15 * (lines - _LINES_OF_LEGEND))
  figure.legend(
    handles.values(),
    handles.keys(),
    loc='outside upper center',
    ncols=columns,
    title=textwrap.fill(title, _TITLE) or None,
  )


def add_title(plot: matplotlib.axes.Axes, title: str) -> None:
  """Adds a title above a plot."""
  plot.set_title(textwrap.fill(title, _TITLE))


def add_caption(figure: Figure, *lines: str) -> None:
  """Adds lines of text below a figure."""
  wrapped = [part for line in lines for part in textwrap.wrap(line, _CAPTION)]
  if wrapped:
    make_room(figure, 0.12 * len(wrapped))
    figure.supxlabel('\n'.join(wrapped), fontsize=6)


def make_room(figure: Figure, inches: float) -> None:
  """Makes a figure higher."""
  figure.set_figheight(figure.get_figheight() + inches)


def _wrap(label: text.Text, width: float) -> None:
  """Breaks a label into lines if it goes over the edge of a figure."""
  box = label.get_window_extent()
  middle = (box.x0 + box.x1) / 2
  fitting = 2 * min(middle, width - middle) / max(box.width, 1)
  if fitting < 1:
    longest = max(map(len, label.get_text().split('\n')))
    label.set_text(
      textwrap.fill(label.get_text(), int(0.95 * fitting * longest))
    )


def _thin_out(axis: matplotlib.axis.Axis) -> None:
  """Leaves out the labels of ticks that would touch the one before."""
  low, high = sorted(axis.get_view_interval())
  shown = {
    tick.get_loc(): tick.label1
    for tick in axis.get_major_ticks()
    if low <= tick.get_loc() <= high and tick.label1.get_visible()
  }
  texts, last = [], None
  for label in shown.values():
    box = label.get_window_extent().padded(_GAP)
    is_apart = last is None or not last.overlaps(box)
    texts.append(label.get_text() if is_apart else '')
    last = box if is_apart else last
  if '' in texts:
    axis.set_ticks(list(shown), texts)


def save(figure: Figure, folder: pathlib.Path, name: str) -> str:
  """Writes a figure into a folder, as PNG, SVG and PDF.

  Args:
    figure: The figure.
    folder: The folder; it is made if need be.
    name: The name of the files, without endings. What a file's name cannot
      have, as the slash in the name of a method, is written as its number.

  Returns:
    What was written, for the user.
  """
  path = folder / re.sub(r'[^\w.+=, -]', lambda m: f'%{ord(m[0]):02x}', name)
  with errors.writing(folder), matplotlib.rc_context(_STYLE):
    folder.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    for plot in figure.axes:
      _wrap(plot.xaxis.label, figure.bbox.width)
      _thin_out(plot.xaxis)
      _thin_out(plot.yaxis)
    for ending in ENDINGS:
      dated = {'svg': 'Date', 'pdf': 'CreationDate'}.get(ending)
      figure.savefig(f'{path}.{ending}', metadata=dated and {dated: None})
  return f'{path}.' + ', .'.join(ENDINGS)
