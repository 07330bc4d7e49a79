"""Figures of how methods do, from plain numbers.

They are as wide as a column of a paper. A method has the same look in all
figures, see `looks`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
import pathlib
from typing import Any

import matplotlib
from matplotlib import ticker
import matplotlib.axes
import matplotlib.axis
import matplotlib.colors
import matplotlib.figure
import numpy as np
from sklearn import manifold

from algorithms import candidates
from base import errors
from experiments.reporting import looks
from personalization import summaries

_WORSE, _BETTER, _SAME = '#d55e00', '#0072b2', '#7f7f7f'

_WIDTH = 3.4
# More points than these have no markers, and a band instead of bars.
_MOST_BARS = 25
# The most candidates of a method to be drawn out of distribution.
_MOST_OOD = 12
# Figures are high enough for a legend of so many lines.
_LINES_OF_LEGEND = 4
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
  # The same figure is the same file.
  'svg.hashsalt': 'pfl',
}

Figure = matplotlib.figure.Figure
# A number in each of several repeats. Their mean is drawn and, if they are
# several, their deviation to either side.
OfRepeats = Sequence[float]


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
  """Has a figure drawn in our style, whatever the caller's is."""

  @functools.wraps(draw)
  def styled(*args: Any, **kwargs: Any) -> Figure:
    with matplotlib.rc_context(_STYLE):
      return draw(*args, **kwargs)

  return styled


def _figure(height: float) -> Figure:
  return Figure(figsize=(_WIDTH, height), layout='constrained')


def _in_look(method: str) -> dict[str, Any]:
  """Returns a method's look as matplotlib's lines have it."""
  own = looks.look(method)
  face: Any = own.color
  if own.hollow:
    # Of a pair, its trainer shows inside.
    face = 'white' if own.edge == own.color else (own.color, 0.35)
  return dict(
    color=own.color,
    marker=own.marker,
    linestyle=own.line,
    markerfacecolor=face,
    markeredgecolor=own.edge,
  )


def _direction(
  metric: str, higher_is_better: bool, separator: str = ' '
) -> str:
  """Writes a metric and its direction as a label."""
  better = 'higher' if higher_is_better else 'lower'
  return f'{metric.replace("_", " ")}{separator}({better} is better)'


def _in_percent(axis: matplotlib.axis.Axis, label: str) -> None:
  """Has an axis show shares."""
  axis.set_major_formatter(lambda share, _: f'{100 * share:.3g}%')
  axis.set_label_text(label)


def _add_legend(
  figure: Figure, plot: matplotlib.axes.Axes, title: str = ''
) -> None:
  """Adds a legend above, in as few lines as fit."""
  handles, labels = plot.get_legend_handles_labels()
  widest = max(map(len, labels), default=0)
  columns = max(1, min(len(labels), 64 // (widest + 4)))
  # A long one does not take the place of the plot.
  more_lines = -(-len(labels) // columns) - _LINES_OF_LEGEND
  if more_lines > 0:
    figure.set_figheight(figure.get_figheight() + 0.15 * more_lines)
  figure.legend(
    handles,
    labels,
    loc='outside upper center',
    ncols=columns,
    title=title or None,
  )


def add_caption(figure: Figure, text: str) -> None:
  """Adds a text below a figure, if there is any."""
  if text:
    lines = text.count('\n') + 1
    figure.set_figheight(figure.get_figheight() + 0.12 * lines)
    figure.supxlabel(text, fontsize=6)


@_styled
def box_plot(
  methods: Mapping[str, Sequence[float]], metric: str, higher_is_better: bool
) -> Figure:
  """Draws the metric of each test client as box plots (Motley, figure 2).

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
  for box, method in zip(boxes['boxes'], methods):
    look = looks.look(method)
    box.set_facecolor((look.color, 0.15 if look.hollow else 0.5))
    box.set_edgecolor(look.edge)
    box.set_linestyle(look.line)
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
  """Draws whom personalization hurts, and how much (Motley, figures 3, 10).

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
  first, then = np.asarray(before, float), np.asarray(after, float)
  changes, counts = then - first, np.asarray(examples)
  # Models that diverged have no place in the figure, but are in the shares.
  finite = np.isfinite(changes)
  hurt = summaries.is_worse(then, first, higher_is_better)
  better = ~hurt & summaries.is_worse(first, then, higher_is_better)
  kinds = (
    ('hurt', hurt, _WORSE, 'v'),
    ('unchanged', ~(hurt | better), _SAME, 'o'),
    ('better off', better, _BETTER, '^'),
  )
  figure = _figure(2.4)
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
  bars.hist(
    [changes[mask & finite] for _, mask, *_ in kinds],
    bins=_bins_from_zero(changes[finite]),
    color=[color for _, _, color, _ in kinds],
    stacked=True,
    orientation='horizontal',
  )
  for plot in (points, bars):
    plot.axhline(0, color='black', linewidth=0.8, linestyle='--')
  _log_if_wide(points, 'x')
  points.set_xlabel(examples_label)
  side = 'above' if higher_is_better else 'below'
  points.set_ylabel(
    f'change of {metric.replace("_", " ")}\n({side} 0 is better)'
  )
  bars.set_xlabel('clients')
  bars.xaxis.set_major_locator(ticker.MaxNLocator(2, integer=True))
  _add_legend(figure, points, title)
  return figure


@_styled
def relative_changes(
  before: Sequence[float],
  after: Sequence[float],
  metric: str,
  higher_is_better: bool,
  *,
  title: str = '',
) -> Figure:
  """Draws clients' relative changes as a histogram (Liu et al., figure 1).

  Args:
    before: Each client's metric under the method that is compared with.
    after: The same under another.
    metric: The name of the metric.
    higher_is_better: Its direction.
    title: What stands above, such as the names of the methods.

  Returns:
    The figure. Clients whose metric is not finite are in the shares of its
    legend alone.
  """
  first, then = np.asarray(before, float), np.asarray(after, float)
  with np.errstate(divide='ignore', invalid='ignore'):
    changes = (then - first) / np.abs(first)
  worse = summaries.is_worse(then, first, higher_is_better)
  better = ~worse & summaries.is_worse(first, then, higher_is_better)
  finite = np.isfinite(changes)
  kinds = (
    ('worse', worse, _WORSE),
    ('unchanged', ~(worse | better), _SAME),
    ('better', better, _BETTER),
  )
  figure = _figure(1.9)
  plot = figure.subplots()
  shown = [kind for kind in kinds if np.any(kind[1])]
  plot.hist(
    [changes[mask & finite] for _, mask, _ in shown],
    bins=_bins_from_zero(changes[finite]).tolist(),
    color=[color for *_, color in shown],
    label=[f'{name} ({np.mean(mask):.0%})' for name, mask, _ in shown],
    stacked=True,
  )
  plot.axvline(0, color='black', linewidth=0.8, linestyle='--')
  side = 'above' if higher_is_better else 'below'
  name = metric.replace('_', ' ')
  _in_percent(plot.xaxis, f'relative change of {name} ({side} 0 is better)')
  plot.set_ylabel('clients')
  plot.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  _add_legend(figure, plot, title)
  return figure


def _bins_from_zero(values: np.ndarray, most: int = 30) -> np.ndarray:
  """Returns the edges of bins, none of which is on both sides of zero."""
  low, high = min(values, default=0), max(values, default=0)
  width = (high - low) / most or 1.0
  return width * np.arange(np.floor(low / width), np.ceil(high / width) + 1.5)


def _log_if_wide(plot: matplotlib.axes.Axes, which: str) -> None:
  """Makes an axis logarithmic if its data differ by more than a factor of 4."""
  axis = getattr(plot, f'{which}axis')
  low, high = axis.get_data_interval()
  if low > 0 and high > 4 * low:
    getattr(plot, f'set_{which}scale')('log')
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axis.set_minor_locator(ticker.NullLocator())


def _draw_curve(
  plot: matplotlib.axes.Axes,
  points: Sequence[tuple[OfRepeats, OfRepeats]],
  **look: Any,
) -> None:
  """Draws a line through points, with bars for their deviation."""
  (x, x_bars), (y, y_bars) = (
    np.transpose(
      [(np.mean(p), np.std(p, ddof=1) if len(p) > 1 else 0) for p in of_axis]
    )
    for of_axis in zip(*points)
  )
  if len(points) > _MOST_BARS and not np.any(x_bars):
    plot.plot(x, y, **look)
    plot.fill_between(
      x, y - y_bars, y + y_bars, color=look['color'], alpha=0.15, linewidth=0
    )
    return
  plot.errorbar(
    x,
    y,
    yerr=y_bars if np.any(y_bars) else None,
    xerr=x_bars if np.any(x_bars) else None,
    capsize=1.5,
    elinewidth=0.7,
    **look,
  )


def _draw_methods(
  plot: matplotlib.axes.Axes,
  methods: Mapping[str, Sequence[tuple[OfRepeats, OfRepeats]]],
) -> None:
  """Draws a curve for each method, in its look."""
  for method, points in methods.items():
    if points:
      _draw_curve(plot, points, label=method, **_in_look(method))


@dataclasses.dataclass(frozen=True)
class _Curve:
  """Candidates that differ in one number.

  Attributes:
    label: What they have in common, as 'rate 0.1'.
    unit: What the number is of, as 'epochs'.
    points: The candidates, by that number.
  """

  label: str
  unit: str
  points: dict[float, candidates.Candidate]


def _curves(candidates: Sequence[candidates.Candidate]) -> list[_Curve]:
  """Sorts candidates into curves over their values.

  A candidate with no label, as '0 epochs', is on all curves of its unit.

  Args:
    candidates: The candidates.

  Returns:
    The curves. If no candidate has a value, they are on one, in their order.
  """
  curves: dict[tuple[str, str], _Curve] = {}
  for candidate in candidates:
    if candidate.value is not None:
      key = candidate.label, candidate.unit
      curve = curves.setdefault(key, _Curve(*key, {}))
      curve.points[float(candidate.value)] = candidate
  for (label, unit), curve in curves.items():
    common = curves.get(('', unit))
    if label and common:
      curve.points.update(common.points)
  found = list(curves.values()) or [_Curve('', '', dict(enumerate(candidates)))]
  longer = [curve for curve in found if len(curve.points) > 1]
  return [curve for curve in longer if curve.label] or longer or found


@_styled
def candidate_curves(
  candidates: Mapping[candidates.Candidate, Mapping[str, OfRepeats]],
  metric: str,
  higher_is_better: bool,
  *,
  title: str = '',
  chosen: str | None = None,
) -> Figure:
  """Draws the mean and the share of clients hurt by candidate.

  Motley, figures 4 and 7 (a-b): the best one may not be the same for both.

  Args:
    candidates: For each candidate, if all clients used it, the mean over them
      ('test', and 'validation' if it is to be drawn) and the share of them that
      are hurt ('test_hurt', if there is one).
    metric: The name of the metric.
    higher_is_better: Its direction.
    title: What stands above, such as the name of the method.
    chosen: The name of the candidate that was chosen for all, if one was.

  Returns:
    The figure.
  """
  curves = _curves(tuple(candidates))
  measures = set.intersection(*map(set, candidates.values()))
  if len(curves) > 1:
    measures.discard('validation')  # They would be too many lines.
  hurts = 'test_hurt' in measures
  figure = _figure(3.4 if hurts else 2.4)
  plots = figure.subplots(1 + hurts, sharex=True, squeeze=False)[:, 0]
  colors = [looks.look(title).color] if len(curves) == 1 else looks.COLORS
  for curve, color in zip(curves, itertools.cycle(colors)):
    for measure, plot, style in (
      ('test', plots[0], '-'),
      ('validation', plots[0], ':'),
      ('test_hurt', plots[-1], '-'),
    ):
      if measure in measures:
        label = measure if len(curves) == 1 else curve.label
        _draw_curve(
          plot,
          [
            ([x], candidates[candidate][measure])
            for x, candidate in sorted(curve.points.items())
          ],
          color=color,
          linestyle=style,
          marker='o'
          if style == '-' and len(curve.points) <= _MOST_BARS
          else None,
          label=label if plot is plots[0] else None,
        )
    for x, candidate in curve.points.items():
      if str(candidate) == chosen:
        for plot, measure in zip(plots, ('test', 'test_hurt')):
          plot.plot(
            x,
            np.mean(candidates[candidate][measure]),
            linestyle='',
            marker='o',
            markersize=7,
            markerfacecolor='none',
            color='black',
            label='chosen',
          )
  if not higher_is_better:
    _log_if_wide(plots[0], 'y')
  plots[0].set_ylabel(_direction(metric, higher_is_better, '\n'))
  if hurts:
    _in_percent(plots[-1].yaxis, 'clients hurt\n(lower is better)')
  plots[-1].set_xlabel(curves[0].unit)
  if all(float(x).is_integer() for curve in curves for x in curve.points):
    plots[-1].xaxis.set_major_locator(
      ticker.MaxNLocator(integer=True, steps=(1, 2, 5, 10))
    )
  _add_legend(figure, plots[0], title)
  return figure


@_styled
def ood_curves(
  methods: Mapping[
    str, Mapping[candidates.Candidate, tuple[OfRepeats, OfRepeats]]
  ],
  metric: str,
  higher_is_better: bool,
) -> Figure:
  """Draws what personalized models lose on the examples of other clients.

  Motley, figure 5.

  Args:
    methods: For each candidate of each method the means over clients, on their
      own examples and on those of all clients.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure: of each method some candidates that differ in one number, in
    its order, and among them the best on own examples. Those that are far worse
    there than any method's best are left out.
  """
  figure = _figure(2.8)
  plot = figure.subplots()
  sign = 1 if higher_is_better else -1

  def gain(point: tuple[OfRepeats, OfRepeats]) -> float:
    gain = float(sign * np.mean(point[0]))
    return gain if math.isfinite(gain) else -math.inf

  # Of each method the curve with its best point.
  curves = {
    method: max(
      (
        [candidates[own] for _, own in sorted(curve.points.items())]
        for curve in _curves(tuple(candidates))
      ),
      key=lambda points: max(map(gain, points)),
    )
    for method, candidates in methods.items()
  }
  best = [max(map(gain, points)) for points in curves.values()]
  best = [own for own in best if np.isfinite(own)]
  worst = float(np.finfo(float).min)
  if len(best) > 1:
    worst = min(best) - 0.5 * (max(best) - min(best))
  some = {}
  for method, points in curves.items():
    if len(points) > _MOST_OOD:
      # Close to the first one they differ most, as the first epochs do.
      steps = np.geomspace(1, len(points), _MOST_OOD)
      points = [points[k - 1] for k in np.unique(np.rint(steps).astype(int))]
    some[method] = [point for point in points if gain(point) >= worst]
  _draw_methods(plot, some)
  plot.set_xlabel(_direction(f'{metric}, own examples', higher_is_better, '\n'))
  plot.set_ylabel(
    _direction(f"{metric},\nall clients' examples", higher_is_better, '\n')
  )
  _add_legend(figure, plot)
  return figure


@_styled
def cluster_shares(
  shares: Mapping[str, Sequence[float]], *, title: str = ''
) -> Figure:
  """Draws the share of the clients that picks each cluster, by round.

  Motley, figure 6 (a).

  Args:
    shares: Each cluster's share in each round.
    title: What stands above, such as the name of the method.

  Returns:
    The figure.
  """
  figure = _figure(2.2)
  plot = figure.subplots()
  for (cluster, own), color in zip(
    shares.items(), itertools.cycle(looks.COLORS)
  ):
    plot.plot(range(1, len(own) + 1), own, color=color, label=cluster)
  plot.set_ylim(-0.02, 1.02)
  plot.set_xlabel('round')
  _in_percent(plot.yaxis, 'share of clients')
  _add_legend(figure, plot, title)
  return figure


@_styled
def histogram(values: Sequence[int], label: str, *, title: str = '') -> Figure:
  """Draws how many clients have which whole number, of 1 and more.

  Chen et al. 2022, figure 11.

  Args:
    values: The number of each client, as its steps.
    label: What it is.
    title: What stands above, such as the name of the method.

  Returns:
    The figure.
  """
  figure = _figure(2.2)
  plot = figure.subplots()
  numbers, counts = np.unique(values, return_counts=True)
  plot.bar(numbers, counts, width=1.0, color=(looks.COLORS[0], 0.6))
  plot.set_xlim(0, max(values) + 1)
  plot.set_xlabel(label)
  plot.set_ylabel('clients')
  for axis in (plot.xaxis, plot.yaxis):
    axis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  plot.set_title(title)
  return figure


@_styled
def trajectories(
  measured: Mapping[str, Sequence[float]], *, title: str = ''
) -> Figure:
  """Draws what is measured in each round, one above the other.

  Chen et al. 2022, figure 12, where it is of one client.

  Args:
    measured: The numbers of all rounds, by name.
    title: What stands above, such as the name of the method.

  Returns:
    The figure.
  """
  figure = _figure(0.8 + 1.2 * len(measured))
  plots = figure.subplots(len(measured), sharex=True, squeeze=False)[:, 0]
  for plot, (name, own) in zip(plots, measured.items()):
    plot.plot(range(1, len(own) + 1), own, color=looks.COLORS[0])
    plot.set_ylabel(name)
  plots[0].set_title(title)
  plots[-1].set_xlabel('round')
  return figure


@_styled
def cluster_groups(
  groups: Mapping[str, Mapping[str, int]], *, title: str = ''
) -> Figure:
  """Draws how many clients of which known group are in which cluster.

  Motley, figure 6 (d).

  Args:
    groups: For each group, how many of its clients are in each cluster.
    title: What stands above, such as the name of the method.

  Returns:
    The figure.
  """
  clusters = list(next(iter(groups.values())))
  figure = _figure(0.9 + 0.3 * len(clusters))
  plot = figure.subplots()
  places, left = np.arange(len(clusters)), np.zeros(len(clusters))
  for (group, counts), color in zip(
    groups.items(), itertools.cycle(looks.COLORS)
  ):
    own = np.array([counts[cluster] for cluster in clusters])
    bars = plot.barh(
      places, own, left=left, color=(color, 0.6), height=0.6, label=group
    )
    plot.bar_label(
      bars, [str(n) if n else '' for n in own], label_type='center', fontsize=7
    )
    left += own
  plot.invert_yaxis()
  plot.set_yticks(places, clusters)
  plot.grid(visible=False, axis='y')
  plot.set_xlabel('test clients')
  plot.set_ylabel('cluster')
  _add_legend(figure, plot, title)
  return figure


@_styled
def confusion(
  counts: np.ndarray,
  groups: Sequence[str],
  clusters: str,
  share: float,
  *,
  title: str = '',
) -> Figure:
  """Draws how many clients of which known group are in which cluster.

  Silva et al. 2022, figures 3 and 5: a matrix, for many groups and clusters.

  Args:
    counts: The number of clients of each group in each cluster, `[groups,
      clusters]`.
    groups: The names of the groups.
    clusters: What the clusters are.
    share: The share of the clients that are on the diagonal.
    title: What stands above, such as the name of the method.

  Returns:
    The figure.
  """
  rows, columns = counts.shape
  figure = _figure(0.9 + 0.22 * rows)
  plot = figure.subplots()
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  plot.imshow(shares, cmap='Blues', vmin=0, vmax=1, aspect='auto')
  for i, j in zip(*np.nonzero(counts)):
    color = 'white' if shares[i, j] > 0.6 else 'black'
    plot.text(
      j, i, str(counts[i, j]), color=color, ha='center', va='center', fontsize=6
    )
  plot.set_xticks(range(columns), [str(j + 1) for j in range(columns)])
  plot.set_yticks(range(rows), groups)
  plot.grid(visible=False)
  plot.set_xlabel(clusters)
  plot.set_ylabel('group')
  plot.set_title(f'{title}, {share:.0%} in the cluster of their group')
  return figure


@_styled
def embeddings(
  points: Sequence[np.ndarray], groups: Sequence[str], *, title: str = ''
) -> Figure:
  """Draws where clients' embeddings lie, and of which known group each is.

  Silva et al. 2022, figures 3 and 5: t-SNE, where what is near is alike, and
  distances further than that mean nothing.

  Args:
    points: The embedding of each client.
    groups: The group of each client.
    title: What stands above, such as the name of the method.

  Returns:
    The figure.
  """
  # Its default perplexity, unless there are few clients.
  perplexity = min(30.0, (len(points) - 1) / 3)
  places = manifold.TSNE(
    init='pca', perplexity=perplexity, random_state=0
  ).fit_transform(np.array(points))
  figure = _figure(3.4)
  plot = figure.subplots()
  known = np.array(groups)
  names = sorted(set(groups), key=lambda name: (len(name), name))
  looks_of_groups = itertools.product('os^D', looks.COLORS)
  for name, (marker, color) in zip(names, itertools.cycle(looks_of_groups)):
    x, y = places[known == name].T
    plot.scatter(x, y, s=9, marker=marker, color=color, label=name)
  plot.set_xticks([])
  plot.set_yticks([])
  _add_legend(figure, plot, title)
  return figure


@_styled
def communication(
  methods: Mapping[str, Sequence[tuple[OfRepeats, OfRepeats]]],
  metric: str,
  higher_is_better: bool,
) -> Figure:
  """Draws the metric against what it took to communicate.

  Motley, figure 6 (b-c).

  Args:
    methods: For each method, one or more trainings: how many parameters were
      sent in all, and the mean metric over clients.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  figure = _figure(2.6)
  plot = figure.subplots()
  _draw_methods(plot, methods)
  plot.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  plot.set_xlabel('parameters sent to and from clients in training')
  plot.set_ylabel(_direction(metric, higher_is_better, '\n'))
  _add_legend(figure, plot)
  return figure


def _over(
  methods: Mapping[str, Mapping[float, OfRepeats]],
  metric: str,
  higher_is_better: bool,
) -> tuple[Figure, matplotlib.axes.Axes]:
  """Draws a metric of methods over numbers, with a tick for each of these."""
  figure = _figure(2.6)
  plot = figure.subplots()
  points = {
    method: [([x], y) for x, y in sorted(own.items())]
    for method, own in methods.items()
  }
  _draw_methods(plot, points)
  plot.set_xticks(sorted({x for own in methods.values() for x in own}))
  plot.set_ylabel(_direction(metric, higher_is_better, '\n'))
  _add_legend(figure, plot)
  return figure, plot


@_styled
def fractions(
  methods: Mapping[str, Mapping[float, OfRepeats]],
  label: str,
  metric: str,
  higher_is_better: bool,
) -> Figure:
  """Draws what becomes of methods with a part of something only.

  Motley, figures 3 (c-d) and 7 (c).

  Args:
    methods: For each method and fraction, the metric.
    label: What the fraction is, as 'part of the personalization set'.
    metric: The name of the metric; 'clients hurt' is a share.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  figure, plot = _over(methods, metric, higher_is_better)
  _in_percent(plot.xaxis, label)
  if metric == 'clients hurt':
    _in_percent(plot.yaxis, plot.get_ylabel())
  return figure


@_styled
def against(
  methods: Mapping[str, Mapping[float, OfRepeats]],
  label: str,
  ticks: Mapping[float, str],
  metric: str,
  higher_is_better: bool,
) -> Figure:
  """Draws a metric of methods against a number, as noise or ε.

  Args:
    methods: For each method and number, the metric.
    label: What the number is.
    ticks: The text below each number.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  figure, plot = _over(methods, metric, higher_is_better)
  _log_if_wide(plot, 'x')
  plot.set_xticks(list(ticks), list(ticks.values()))
  plot.set_xlabel(label)
  return figure


@_styled
def tuning(
  methods: Mapping[str, Mapping[str, OfRepeats]],
  metric: str,
  higher_is_better: bool,
) -> Figure:
  """Draws a candidate chosen for all clients against one for each.

  Motley, figure 8.

  Args:
    methods: For each method the mean over clients by the way to choose, the
      same ways for all methods.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  ways = list(dict.fromkeys(way for own in methods.values() for way in own))
  figure = _figure(2.6)
  plot = figure.subplots()
  # Beside each other rather than on top of each other.
  several = len(methods) > 1
  shifts = np.linspace(-0.12 * several, 0.12 * several, len(methods))
  _draw_methods(
    plot,
    {
      method: [([ways.index(way) + shift], own[way]) for way in own]
      for (method, own), shift in zip(methods.items(), shifts)
    },
  )
  plot.set_xticks(range(len(ways)), ways)
  plot.set_xlim(-0.4, len(ways) - 0.6)
  plot.grid(visible=False, axis='x')
  plot.set_ylabel(_direction(metric, higher_is_better, '\n'))
  _add_legend(figure, plot)
  return figure


@_styled
def acceptance(
  methods: Mapping[str, Mapping[str, tuple[OfRepeats, OfRepeats]]],
  metric: str,
  higher_is_better: bool,
) -> Figure:
  """Draws what it does to clients to refuse some personalized models.

  Args:
    methods: For each method and criterion, the share of clients hurt and the
      mean metric.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure: a point for each method and criterion.
  """
  figure = _figure(3.0)
  plot = figure.subplots()
  names = list(dict.fromkeys(name for own in methods.values() for name in own))
  markers = dict(zip(names, itertools.cycle(looks.MARKERS)))
  for method, criteria in methods.items():
    look = _in_look(method)
    for name, point in criteria.items():
      _draw_curve(
        plot, [point], **look | dict(marker=markers[name], markersize=4)
      )
    plot.plot([], [], **look | dict(marker='s', linestyle=''), label=method)
  for name, marker in markers.items():
    plot.plot([], [], color=_SAME, marker=marker, linestyle='', label=name)
  _in_percent(plot.xaxis, 'clients hurt (lower is better)')
  plot.set_ylabel(_direction(metric, higher_is_better, '\n'))
  _add_legend(figure, plot)
  return figure


@_styled
def clients_by_class(counts: np.ndarray) -> Figure:
  """Draws how many examples of which class each client has.

  Args:
    counts: The numbers of examples, `[clients, classes]`.

  Returns:
    The figure, twice as wide as the others so that there is a place for each of
    a thousand clients. They are in the order of their most common classes and,
    within these, of their sizes.
  """
  counts = np.asarray(counts)
  sizes = counts.sum(axis=1)
  ordered = counts[np.lexsort((-sizes, counts.argmax(axis=1)))]
  num_clients, num_classes = counts.shape
  figure = Figure(
    figsize=(2 * _WIDTH, 1.7 + min(0.16 * num_classes, 4)), layout='constrained'
  )
  bars, plot = figure.subplots(
    2, 1, sharex=True, gridspec_kw=dict(height_ratios=(1, 0.2 * num_classes))
  )
  edges = np.arange(num_clients + 1) - 0.5
  bars.stairs(ordered.sum(axis=1), edges, fill=True, color=_SAME)
  if sizes.max() > 4 * sizes.min():
    bars.set_yscale('symlog', linthresh=1)
  bars.set_ylim(bottom=0)
  bars.set_ylabel('examples')
  image = plot.imshow(
    np.where(ordered.T > 0, ordered.T, np.nan),
    aspect='auto',
    interpolation='none',
    cmap='viridis_r',
    norm=matplotlib.colors.LogNorm(1, max(counts.max(), 2)),
  )
  plot.grid(visible=False)
  plot.yaxis.set_major_locator(ticker.MaxNLocator(20, integer=True))
  plot.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  plot.set_ylabel('class')
  plot.set_xlabel(
    f'{num_clients:,} clients, by their most common class and size'
  )
  color_bar = figure.colorbar(image, ax=[bars, plot], pad=0.01, aspect=30)
  color_bar.set_label('examples of the class')
  color_bar.ax.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  return figure


def save(figure: Figure, path: pathlib.Path) -> None:
  """Writes a figure as PNG and as SVG; `path` is without the ending."""
  with errors.writing(path.parent), matplotlib.rc_context(_STYLE):
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in ('png', 'svg'):
      metadata = {'Date': None} if ending == 'svg' else None
      figure.savefig(f'{path}.{ending}', metadata=metadata)
