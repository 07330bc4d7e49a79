"""Sizes, axes, legends and files, which all figures have in common.

Figures are as wide as a column of a paper. A method has the same look in all
figures, see `looks`, and its name as papers write it, see `names`.
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
from matplotlib import transforms
import matplotlib.axes
import matplotlib.axis
import matplotlib.figure
import numpy as np

from base import errors
from base import whole_files
from base import words
from experiments.reporting import folders

# Clients that are worse off than before, better off, and neither.
WORSE, BETTER, SAME = '#d55e00', '#0072b2', '#7f7f7f'

# The endings of the files that `save` writes.
ENDINGS = ('png', 'svg', 'pdf')
# The mark by which programs recognize their figures. The time is left out, so
# that equal figures give equal files.
_METADATA: Any = {
  'png': {'Software': folders.MARK},
  'svg': {'Creator': folders.MARK, 'Date': None},
  'pdf': {'Creator': folders.MARK, 'CreationDate': None},
}

WIDTH = 3.4
# Characters per line of a title, of a caption, and of a name in a legend.
_TITLE, _CAPTION, _NAME = 52, 68, 40
# Figures are high enough for a legend with this many lines.
_LINES_OF_LEGEND = 4
# See `near`.
_FAR_OUT = 12
# What is drawn at the end of an axis of shares goes beyond it by up to this
# part of the axis.
_BEYOND = 0.03
# Labels of ticks are at least twice this far apart, in pixels.
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
  # Names come from users, and `$` in them does not begin a formula.
  'text.parse_math': False,
  # Text in a PDF stays text, and equal figures give equal files.
  'pdf.fonttype': 42,
  'svg.hashsalt': 'pfl',
}

Figure = matplotlib.figure.Figure


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
  """Makes a function draw in our style, whatever the caller's style is."""

  @functools.wraps(draw)
  def draw_styled(*args: Any, **kwargs: Any) -> Figure:
    with matplotlib.rc_context(_STYLE):
      return draw(*args, **kwargs)

  return draw_styled


def new_figure(height: float, width: float = WIDTH) -> Figure:
  """Makes an empty figure."""
  return Figure(figsize=(width, height), layout='constrained')


def metric_label(
  metric: str, higher_is_better: bool, separator: str = '\n'
) -> str:
  """Writes a metric and its direction as a label."""
  better = 'higher' if higher_is_better else 'lower'
  return f'{metric.replace("_", " ")}{separator}({better} is better)'


def in_percent(axis: matplotlib.axis.Axis, label: str) -> None:
  """Makes an axis show shares in percent."""
  axis.set_major_formatter(lambda share, _: f'{100 * share:.3g}%')
  axis.set_label_text(label)


def in_shares(plot: matplotlib.axes.Axes, label: str) -> None:
  """Makes the y axis of a plot show shares, none below 0 or above 1."""
  in_percent(plot.yaxis, label)
  low, high = plot.get_ylim()
  plot.set_ylim(max(low, 0), min(high, 1))
  # The axis would hide half of a marker or a line at its end.
  space = transforms.Bbox.from_extents(
    -_BEYOND, -_BEYOND, 1 + _BEYOND, 1 + _BEYOND
  )
  for artist in (*plot.lines, *plot.collections):
    artist.set_clip_box(transforms.TransformedBbox(space, plot.transAxes))


def in_whole_numbers(axis: matplotlib.axis.Axis, most: int = 6) -> None:
  """Makes an axis show whole numbers, such as those of rounds and clients."""
  axis.set_major_locator(
    ticker.MaxNLocator(most, integer=True, steps=(1, 2, 5, 10))
  )


def log_if_wide(plot: matplotlib.axes.Axes, which: str) -> None:
  """Makes an axis logarithmic if its values differ by a factor above 4."""
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


def extent(values: Iterable[float], far_out: float = _FAR_OUT) -> float:
  """Returns the range of the values that are not far out."""
  shown = near(values, far_out)
  return float(np.ptp(shown)) if len(shown) else 0.0


def show_near(
  plot: matplotlib.axes.Axes,
  which: str,
  values: Iterable[float],
  far_out: float = _FAR_OUT,
) -> None:
  """Limits an axis to values that are not far out, and notes the others."""
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
  """Adds a legend of some plots above them, in as few lines as possible."""
  handles: dict[str, Any] = {}
  for plot in plots:
    for handle, label in zip(*plot.get_legend_handles_labels()):
      handles.setdefault(textwrap.fill(label, _NAME), handle)
  sizes = [label.split('\n') for label in handles]
  widest = max((len(line) for lines in sizes for line in lines), default=0)
  columns = max(1, min(len(handles), 64 // (widest + 4)))
  # A long legend does not take space from the plots.
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


def of_whom(what: str, num_clients: int, num_repeats: int) -> str:
  """Describes the clients of a figure, for its caption."""
  repeats = f', {num_repeats} repeats' if num_repeats > 1 else ''
  clients = words.noun(num_clients, 'test clients')
  return f'{what}, {num_clients:,} {clients}{repeats}'


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
  """Removes labels of ticks that would touch the label before."""
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


def figure_files(folder: pathlib.Path, name: str) -> dict[str, pathlib.Path]:
  """Returns the files of a figure by their endings, see `save`."""
  stem = re.sub(r'[^\w.+=, -]', lambda m: f'%{ord(m[0]):02x}', name)
  return {ending: folder / f'{stem}.{ending}' for ending in ENDINGS}


def save(figure: Figure, folder: pathlib.Path, name: str) -> str:
  """Writes a figure into a folder, as PNG, SVG and PDF.

  Args:
    figure: The figure.
    folder: The folder; it is created if it does not exist.
    name: The name of the files, without endings. Characters that a file's name
      cannot have, such as a slash, are written as their number.

  Returns:
    The names of the files, for the user.

  Raises:
    UserError: If a file exists that the programs did not write, or a file
      cannot be written.
  """
  paths = figure_files(folder, name)
  for path in paths.values():
    folders.check_own(path)
  with errors.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  with matplotlib.rc_context(_STYLE):
    figure.draw_without_rendering()
    for plot in figure.axes:
      _wrap(plot.xaxis.label, figure.bbox.width)
      _thin_out(plot.xaxis)
      _thin_out(plot.yaxis)
    for ending, path in paths.items():
      with whole_files.writing(path) as temporary:
        figure.savefig(temporary, format=ending, metadata=_METADATA[ending])
  return f'{paths["png"]}, .' + ', .'.join(ENDINGS[1:])
