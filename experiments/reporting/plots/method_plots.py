"""Figures that compare methods by their means over clients."""

from collections.abc import Collection, Mapping, Sequence
import textwrap
from typing import Any

from matplotlib import ticker
import matplotlib.axes
import numpy as np

from experiments.reporting import looks
from experiments.reporting import names
from experiments.reporting.plots import lines
from experiments.reporting.plots import style

# Characters per line of the label of a way, see `_beside`.
_WAY = 12


@style.styled
def communication(
  methods: Mapping[str, Sequence[tuple[lines.OfRepeats, lines.OfRepeats]]],
  metric: str,
  higher_is_better: bool,
) -> style.Figure:
  """Draws the metric by the number of parameters that were sent.

  As in Motley, figure 6 (b-c).

  Args:
    methods: For each method, one or more trainings: how many parameters were
      sent in total, and the mean metric over clients.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  figure = style.new_figure(2.6)
  plot = figure.subplots()
  lines.draw_methods(plot, methods)
  plot.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  plot.set_xlabel('parameters sent to and from clients in training')
  plot.set_ylabel(style.metric_label(metric, higher_is_better))
  style.add_legend(figure, [plot])
  return figure


def _over(
  methods: Mapping[str, Mapping[float, lines.OfRepeats]],
  metric: str,
  higher_is_better: bool,
) -> tuple[style.Figure, matplotlib.axes.Axes]:
  """Draws methods' metric by a number, with a tick for each of its values."""
  figure = style.new_figure(2.6)
  plot = figure.subplots()
  points = {
    method: [([x], y) for x, y in sorted(by_number.items())]
    for method, by_number in methods.items()
  }
  lines.draw_methods(plot, points)
  plot.set_xticks(
    sorted({x for by_number in methods.values() for x in by_number})
  )
  plot.set_ylabel(style.metric_label(metric, higher_is_better))
  return figure, plot


@style.styled
def fractions(
  methods: Mapping[str, Mapping[float, lines.OfRepeats]],
  label: str,
  metric: str,
  higher_is_better: bool,
  trained_on_all: Collection[str] = (),
) -> style.Figure:
  """Draws methods' metric by the fraction of a set that is used.

  As in Motley, figures 3 (c-d) and 7 (c).

  Args:
    methods: For each method and fraction, the metric.
    label: The label, such as 'part of the personalization set'.
    metric: The name of the metric; 'clients hurt' is a share.
    higher_is_better: Its direction.
    trained_on_all: The methods whose models come from training alone, which
      used the whole set. They are drawn as a level to compare with.

  Returns:
    The figure.
  """
  curves = {
    method: by_part
    for method, by_part in methods.items()
    if method not in trained_on_all
  }
  figure, plot = _over(curves, metric, higher_is_better)
  for method in trained_on_all:
    plot.axhline(
      lines.mean(methods[method][max(methods[method])]),
      color=looks.look(method).color,
      linestyle=':',
      label=f'{names.written_out(method)} (trained on all)',
    )
  style.add_legend(figure, [plot])
  style.in_percent(plot.xaxis, label)
  if metric == 'clients hurt':
    style.in_shares(plot, plot.get_ylabel())
  return figure


@style.styled
def against(
  methods: Mapping[str, Mapping[float, lines.OfRepeats]],
  label: str,
  ticks: Mapping[float, str],
  metric: str,
  higher_is_better: bool,
) -> style.Figure:
  """Draws methods' metric by a number, such as the noise or ε.

  Args:
    methods: For each method and number, the metric.
    label: The label of the number.
    ticks: The text below each number.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  figure, plot = _over(methods, metric, higher_is_better)
  style.log_if_wide(plot, 'x')
  plot.set_xticks(list(ticks), list(ticks.values()))
  plot.set_xlabel(label)
  style.add_legend(figure, [plot])
  return figure


def _beside(
  plot: matplotlib.axes.Axes,
  methods: Mapping[str, Mapping[str, lines.OfRepeats]],
  **look: Any,
) -> None:
  """Draws methods side by side, for each way of doing something."""
  ways = list(
    dict.fromkeys(way for by_way in methods.values() for way in by_way)
  )
  spread = min(0.06 * (len(methods) - 1), 0.3)
  shifts = np.linspace(-spread, spread, len(methods))
  points = {
    method: [([ways.index(way) + shift], by_way[way]) for way in by_way]
    for (method, by_way), shift in zip(methods.items(), shifts)
  }
  lines.draw_methods(plot, points, **look)
  plot.set_xticks(range(len(ways)), [textwrap.fill(way, _WAY) for way in ways])
  plot.set_xlim(-0.4, len(ways) - 0.6)
  plot.grid(visible=False, axis='x')


@style.styled
def tuning(
  methods: Mapping[str, Mapping[str, lines.OfRepeats]],
  metric: str,
  higher_is_better: bool,
) -> style.Figure:
  """Compares one candidate for all clients with a chosen one for each client.

  As in Motley, figure 8.

  Args:
    methods: For each method, the mean over clients for each way to choose. All
      methods have the same ways.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure.
  """
  figure = style.new_figure(2.6)
  plot = figure.subplots()
  _beside(plot, methods)
  plot.set_xlabel('candidate chosen')
  plot.set_ylabel(style.metric_label(metric, higher_is_better))
  style.add_legend(figure, [plot])
  return figure


@style.styled
def acceptance(
  means: Mapping[str, Mapping[str, lines.OfRepeats]],
  hurt: Mapping[str, Mapping[str, lines.OfRepeats]],
  metric: str,
  higher_is_better: bool,
) -> style.Figure:
  """Draws the effect of refusing the personalized models of some clients.

  Args:
    means: For each method and criterion, the mean metric.
    hurt: For each method and criterion, the share of clients hurt.
    metric: The name of the metric.
    higher_is_better: Its direction.

  Returns:
    The figure: the metric above, and the share of clients hurt below it.
  """
  figure = style.new_figure(3.6)
  above, below = figure.subplots(2, sharex=True)
  _beside(above, means, linestyle='')
  _beside(below, hurt, linestyle='')
  above.set_ylabel(style.metric_label(metric, higher_is_better))
  style.in_shares(below, 'clients hurt\n(lower is better)')
  below.set_xlabel('who takes the personalized model')
  style.add_legend(figure, [above])
  return figure
