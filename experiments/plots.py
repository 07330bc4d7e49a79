"""Figures of how methods do, from plain numbers.

They are as wide as a column of a paper. A method has the same colour in all
figures: of the first eight, which the colour-blind can tell apart (Okabe and
Ito 2008, without the yellow), or of three more. Lines have markers as well.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib

import matplotlib
from matplotlib import axes
from matplotlib import figure as figure_lib
from matplotlib import ticker
import numpy as np

_COLORS = (
  '#000000',
  '#0072b2',
  '#e69f00',
  '#009e73',
  '#cc79a7',
  '#56b4e9',
  '#d55e00',
  '#7f7f7f',
  '#332288',
  '#999933',
  '#882255',
)
# So many that a colour comes again with another marker.
_MARKERS = 'osD^vPX'
# So that each has its colour whatever it is compared with.
_METHODS = (
  'fedavg',
  'finetuning',
  'knn_per',
  'hypcluster',
  'ditto',
  'local',
  'mocha',
  'ensemble',
  'fedavgm',
  'fedadam',
)
_WORSE, _BETTER, _SAME = '#d55e00', '#0072b2', '#7f7f7f'

_WIDTH = 3.4
_STYLE = {
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
  'legend.handletextpad': 0.2,
  'legend.columnspacing': 1,
  'lines.linewidth': 1.2,
  'lines.markersize': 3,
  'axes.formatter.limits': (-3, 4),
  'savefig.dpi': 300,
  # The same figure is the same file.
  'svg.hashsalt': 'pfl',
}

Figure = figure_lib.Figure


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
  """Has a figure drawn in our style, whatever the caller's is."""

  @functools.wraps(draw)
  def styled(*args, **kwargs) -> Figure:
    with matplotlib.rc_context(_STYLE):
      return draw(*args, **kwargs)

  return styled


def _figure(height: float) -> Figure:
  return Figure(figsize=(_WIDTH, height), layout='constrained')


def _looks(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
  """The colour and the marker of each method."""
  known = dict.fromkeys((*_METHODS, *methods))
  return {
    method: (_COLORS[i % len(_COLORS)], _MARKERS[i % len(_MARKERS)])
    for i, method in enumerate(known)
  }


def _direction(metric: str, higher_is_better: bool) -> str:
  """A metric's name as a label."""
  better = 'higher' if higher_is_better else 'lower'
  return f'{metric.replace("_", " ")} ({better} is better)'


@_styled
def box_plot(
  methods: Mapping[str, Sequence[float]], metric: str, higher_is_better: bool
) -> Figure:
  """The metric of each test client as box plots (Motley, figure 2).

  Args:
    methods: Each method's metric of each client.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure: the median, the quartiles, whiskers from the 5th to the 95th
    percentile, the other clients as dots, and the mean as a diamond.
  """
  figure = _figure(0.6 + 0.24 * len(methods))
  plot = figure.subplots()
  # A client whose model diverged has no place on the axis.
  values = [np.asarray(own)[np.isfinite(own)] for own in methods.values()]
  boxes = plot.boxplot(
    values,
    orientation='horizontal',
    tick_labels=list(methods),
    whis=(5, 95),
    widths=0.6,
    patch_artist=True,
    showmeans=True,
    medianprops=dict(color='black', linewidth=1),
    meanprops=dict(
      marker='D',
      markersize=3.5,
      markerfacecolor='white',
      markeredgecolor='black',
      markeredgewidth=0.7,
    ),
    flierprops=dict(
      marker='.', markersize=2.5, markerfacecolor='0.3', markeredgewidth=0
    ),
    whiskerprops=dict(linewidth=0.7),
    capprops=dict(linewidth=0.7),
    boxprops=dict(linewidth=0.7),
  )
  looks = _looks(tuple(methods))
  for box, method in zip(boxes['boxes'], methods):
    color, _ = looks[method]
    box.set_facecolor((color, 0.5))
  plot.invert_yaxis()  # The first method at the top.
  plot.grid(visible=False, axis='y')
  plot.xaxis.set_major_locator(ticker.MaxNLocator(6))
  plot.set_xlabel(_direction(metric, higher_is_better))
  return figure


@_styled
def hurt_scatter(
  before: Sequence[float],
  after: Sequence[float],
  examples: Sequence[int],
  metric: str,
  higher_is_better: bool,
  *,
  title: str = '',
  examples_label: str = 'examples to adapt to',
) -> Figure:
  """Whom personalization hurts, and how much (Motley, figures 3 and 10).

  Args:
    before: Each client's metric without personalization.
    after: The same with it.
    examples: Each client's number of examples.
    metric: The name of the metric.
    higher_is_better: Its direction.
    title: What stands above, such as the name of the method.
    examples_label: Which examples were counted.

  Returns:
    The figure: each client's change against its number of examples, and beside
    it how many clients have which change.
  """
  changes = np.asarray(after, float) - np.asarray(before, float)
  examples = np.asarray(examples)
  gains = changes if higher_is_better else -changes
  finite = np.isfinite(changes)
  # Of models that diverged as well, though they have no place in the figure.
  better, same = gains > 0, gains == 0
  kinds = (
    ('hurt', ~(better | same), _WORSE, 'v'),
    ('unchanged', same, _SAME, 'o'),
    ('better off', better, _BETTER, '^'),
  )
  figure = _figure(2.4)
  points, bars = figure.subplots(
    1, 2, sharey=True, gridspec_kw=dict(width_ratios=(3, 1))
  )
  for name, mask, color, marker in kinds:
    if np.any(mask):
      points.scatter(
        examples[mask & finite],
        changes[mask & finite],
        s=9,
        color=color,
        alpha=0.6,
        marker=marker,
        linewidths=0,
        label=f'{name} ({np.mean(mask):.0%})',
      )
  bars.hist(
    [changes[mask & finite] for _, mask, *_ in kinds],
    bins=_bins_from_zero(changes[finite]),
    color=[color for _, _, color, _ in kinds],
    stacked=True,
    orientation='horizontal',
  )
  for plot in (points, bars):
    plot.axhline(0, color='black', linewidth=0.8, linestyle='--')
  _log_if_wide(points, examples)
  points.set_xlabel(examples_label)
  side = 'above' if higher_is_better else 'below'
  points.set_ylabel(
    f'change of {metric.replace("_", " ")}\n({side} 0 is better)'
  )
  bars.set_xlabel('clients')
  bars.xaxis.set_major_locator(ticker.MaxNLocator(2, integer=True))
  figure.legend(loc='outside upper left', ncols=3, title=title or None)
  return figure


def _bins_from_zero(values: np.ndarray, most: int = 30) -> np.ndarray:
  """The edges of bins of which none has values on both sides of zero."""
  low, high = min(values, default=0), max(values, default=0)
  width = (high - low) / most or 1.0
  return width * np.arange(np.floor(low / width), np.ceil(high / width) + 1.5)


def _log_if_wide(plot: axes.Axes, x: np.ndarray) -> None:
  """A logarithmic axis for numbers that differ by more than a factor of 20."""
  if min(x) > 0 and max(x) > 20 * min(x):
    plot.set_xscale('log')
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))


def save(figure: Figure, path: pathlib.Path) -> None:
  """Writes a figure as PNG and as SVG; `path` is without the ending."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with matplotlib.rc_context(_STYLE):
    for ending in ('png', 'svg'):
      metadata = {'Date': None} if ending == 'svg' else None
      figure.savefig(f'{path}.{ending}', metadata=metadata)
