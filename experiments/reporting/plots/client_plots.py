"""Figures of individual clients, from plain numbers."""

from collections.abc import Mapping, Sequence
import itertools
import textwrap

from matplotlib import ticker
import numpy as np

from experiments.reporting import looks
from experiments.reporting import names
from experiments.reporting.plots import style
from personalization.judgement import summaries

# A metric is this far out only if a model diverged, see `style.near`.
_FAR_OUT = 1e3
# The title of box plots.
_TITLE_OF_BOXES = (
  'test clients: quartiles, 5th and 95th percentile, and the mean (◇)'
)
# Characters per line of a method's name beside its box.
_NAME = 22


@style.styled
def box_plot(
  methods: Mapping[str, Sequence[float]], metric: str, higher_is_better: bool
) -> style.Figure:
  """Draws the metric of each test client as box plots (Motley, figure 2).

  Args:
    methods: Each method's metric of each client.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure: the median, the quartiles, whiskers from the 5th to the 95th
    percentile, the other clients as dots, and the mean as a diamond.
  """
  # A client whose model diverged has no place on the axis.
  values = [
    np.asarray(metrics)[np.isfinite(metrics)] for metrics in methods.values()
  ]
  shown = style.near(itertools.chain(*values), _FAR_OUT)
  labels = [
    textwrap.fill(
      names.written_out(method)
      + ('' if np.any(np.isin(finite, shown)) else ' (diverged)'),
      _NAME,
    )
    for method, finite in zip(methods, values)
  ]
  # Names of several lines need room, so that none is left out.
  lines = max((label.count('\n') for label in labels), default=0) + 1
  figure = style.new_figure(0.6 + (0.1 + 0.14 * lines) * len(methods))
  plot = figure.subplots()
  boxes = plot.boxplot(
    values,
    orientation='horizontal',
    tick_labels=labels,
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
  for box, method in zip(boxes['boxes'], methods):
    look = looks.look(method)
    box.set_facecolor((look.color, 0.15 if look.hollow else 0.5))
    box.set_edgecolor(look.edge)
    box.set_linestyle(look.line)
  plot.invert_yaxis()  # The first method at the top.
  plot.grid(visible=False, axis='y')
  plot.xaxis.set_major_locator(ticker.MaxNLocator(6))
  style.show_near(plot, 'x', itertools.chain(*values), _FAR_OUT)
  plot.set_xlabel(style.metric_label(metric, higher_is_better, ' '))
  figure.suptitle(_TITLE_OF_BOXES, fontsize=7)
  return figure


@style.styled
def hurt_scatter(
  before: Sequence[float],
  after: Sequence[float],
  examples: Sequence[int],
  metric: str,
  higher_is_better: bool,
  *,
  title: str = '',
  examples_label: str = 'examples to adapt to',
) -> style.Figure:
  """Draws whom personalization hurts, and how much (Motley, figures 3, 10).

  Args:
    before: Each client's metric without personalization.
    after: Each client's metric with personalization.
    examples: Each client's number of examples.
    metric: The name of the metric.
    higher_is_better: Its direction.
    title: The title, such as the name of the method.
    examples_label: The label that says which examples were counted.

  Returns:
    The figure: each client's change by its number of examples and, beside it, a
    histogram of the changes.
  """
  first, then = np.asarray(before, float), np.asarray(after, float)
  changes, counts = then - first, np.asarray(examples)
  # Models that diverged have no place in the figure, but are in the shares.
  finite = np.isfinite(changes)
  hurt = summaries.is_worse(then, first, higher_is_better)
  better = ~hurt & summaries.is_worse(first, then, higher_is_better)
  kinds = (
    ('hurt', hurt, style.WORSE, 'v'),
    ('unchanged', ~(hurt | better), style.SAME, 'o'),
    ('better off', better, style.BETTER, '^'),
  )
  figure = style.new_figure(2.4)
  points, bars = figure.subplots(
    1, 2, sharey=True, gridspec_kw=dict(width_ratios=(3, 1))
  )
  for name, mask, color, marker in kinds:
    if np.any(mask):
      points.scatter(
        counts[mask & finite],
        changes[mask & finite],
        s=9,
        color=color,
        alpha=0.6,
        marker=marker,
        linewidths=0,
        label=f'{name} ({np.mean(mask):.0%})',
      )
  shown = style.near(changes, _FAR_OUT)
  bars.hist(
    [changes[mask & finite] for _, mask, *_ in kinds],
    bins=_bins_from_zero(shown).tolist(),
    color=[color for _, _, color, _ in kinds],
    stacked=True,
    orientation='horizontal',
  )
  for plot in (points, bars):
    plot.axhline(0, color='black', linewidth=0.8, linestyle='--')
  style.in_whole_numbers(points.xaxis, 5)
  style.log_if_wide(points, 'x')
  if not np.any(shown):
    points.set_ylim(-1, 1)
  style.show_near(points, 'y', changes, _FAR_OUT)
  points.set_xlabel(examples_label)
  side = 'above' if higher_is_better else 'below'
  points.set_ylabel(
    f'change of {metric.replace("_", " ")}\n({side} 0 is better)'
  )
  bars.set_xlabel('clients')
  style.in_whole_numbers(bars.xaxis, 2)
  style.add_legend(figure, [points], title)
  return figure


@style.styled
def relative_changes(
  before: Sequence[float],
  after: Sequence[float],
  metric: str,
  higher_is_better: bool,
  *,
  title: str = '',
) -> style.Figure:
  """Draws clients' relative changes as a histogram (Liu et al., figure 1).

  Args:
    before: Each client's metric with the method to compare to.
    after: Each client's metric with the other method.
    metric: The name of the metric.
    higher_is_better: Its direction.
    title: The title, such as the names of the methods.

  Returns:
    The figure. Clients whose metric is not finite count only in the shares of
    its legend.
  """
  first, then = np.asarray(before, float), np.asarray(after, float)
  with np.errstate(divide='ignore', invalid='ignore'):
    changes = (then - first) / np.abs(first)
  worse = summaries.is_worse(then, first, higher_is_better)
  better = ~worse & summaries.is_worse(first, then, higher_is_better)
  finite = np.isfinite(changes)
  kinds = (
    ('worse', worse, style.WORSE),
    ('unchanged', ~(worse | better), style.SAME),
    ('better', better, style.BETTER),
  )
  figure = style.new_figure(1.9)
  plot = figure.subplots()
  shown = [kind for kind in kinds if np.any(kind[1])]
  plot.hist(
    [changes[mask & finite] for _, mask, _ in shown],
    bins=_bins_from_zero(style.near(changes, _FAR_OUT)).tolist(),
    color=[color for *_, color in shown],
    label=[f'{name} ({np.mean(mask):.0%})' for name, mask, _ in shown],
    stacked=True,
  )
  plot.axvline(0, color='black', linewidth=0.8, linestyle='--')
  side = 'above' if higher_is_better else 'below'
  name = metric.replace('_', ' ')
  style.in_percent(
    plot.xaxis, f'relative change of {name} ({side} 0 is better)'
  )
  plot.set_ylabel('clients')
  style.show_near(plot, 'x', changes, _FAR_OUT)
  style.in_whole_numbers(plot.yaxis)
  style.add_legend(figure, [plot], title)
  return figure


def _bins_from_zero(values: np.ndarray, most: int = 30) -> np.ndarray:
  """Returns the edges of bins, none of which is on both sides of zero."""
  low, high = min(values, default=0), max(values, default=0)
  width = (high - low) / most or 1 / most
  return width * np.arange(np.floor(low / width), np.ceil(high / width) + 1.5)


@style.styled
def histogram(
  values: Sequence[int], label: str, *, title: str = ''
) -> style.Figure:
  """Draws a histogram of clients' whole numbers, which are at least 1.

  As in Chen et al. 2022, figure 11.

  Args:
    values: The number of each client, such as its steps.
    label: The label of the numbers.
    title: The title, such as the name of the method.

  Returns:
    The figure.
  """
  figure = style.new_figure(2.2)
  plot = figure.subplots()
  numbers, counts = np.unique(values, return_counts=True)
  plot.bar(numbers, counts, width=1.0, color=(style.SAME, 0.6))
  plot.set_xlim(0, max(values) + 1)
  plot.set_xlabel(label)
  plot.set_ylabel('clients')
  style.in_whole_numbers(plot.xaxis)
  style.in_whole_numbers(plot.yaxis)
  style.add_title(plot, title)
  return figure
