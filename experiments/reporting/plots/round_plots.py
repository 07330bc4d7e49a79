"""Figures of measurements by round."""

from collections.abc import Collection, Mapping, Sequence
import itertools

import matplotlib.axes

from experiments.reporting import looks
from experiments.reporting import names
from experiments.reporting.plots import lines
from experiments.reporting.plots import style

# The numbers that were measured in each round, by the number of the round.
Series = Mapping[int, lines.OfRepeats]


def _panels(number: int) -> tuple[style.Figure, list[matplotlib.axes.Axes]]:
  """Makes a figure of panels one above the other, which share their rounds."""
  figure = style.new_figure(0.8 + 1.3 * number)
  plots = figure.subplots(number, sharex=True, squeeze=False)[:, 0].tolist()
  style.in_whole_numbers(plots[-1].xaxis)
  plots[-1].set_xlabel('round')
  return figure, plots


@style.styled
def learning_curves(
  panels: Mapping[str, Mapping[str, Series]],
  shares: Collection[str] = (),
  *,
  title: str = '',
) -> style.Figure:
  """Draws methods' measurements by round, with a panel for each measure.

  Args:
    panels: For the label of each measure, each method's numbers by round. They
      may be of only some rounds, and need not be finite.
    shares: The measures that are drawn in percent.
    title: The title.

  Returns:
    The figure: means over repeats, and their deviation. The axis of a loss is
    logarithmic if its values differ much.
  """
  figure, plots = _panels(len(panels))
  for plot, (label, methods) in zip(plots, panels.items()):
    points = {
      method: [([number], series[number]) for number in sorted(series)]
      for method, series in methods.items()
    }
    lines.draw_methods(plot, points, marker='')
    plot.set_ylabel(label)
    if label in shares:
      style.in_shares(plot, label)
    elif 'loss' in label:
      style.log_if_wide(plot, 'y')
  style.add_legend(figure, plots, title)
  return figure


@style.styled
def cluster_shares(
  shares: Mapping[str, Sequence[float]], *, title: str = ''
) -> style.Figure:
  """Draws the share of the clients that choose each cluster, by round.

  As in Motley, figure 6 (a).

  Args:
    shares: Each cluster's share in each round.
    title: The title, such as the name of the method.

  Returns:
    The figure.
  """
  figure, plots = _panels(1)
  (plot,) = plots
  for (cluster, by_round), color in zip(
    shares.items(), itertools.cycle(looks.CATEGORIES)
  ):
    plot.plot(range(1, len(by_round) + 1), by_round, color=color, label=cluster)
  plot.set_ylim(0, 1)
  style.in_shares(plot, 'share of clients')
  style.add_legend(figure, plots, title)
  return figure


@style.styled
def trajectories(
  measured: Mapping[str, Sequence[float]], method: str, *, title: str = ''
) -> style.Figure:
  """Draws a method's measurements by round, in panels above each other.

  As in Chen et al. 2022, figure 12, which shows a single client.

  Args:
    measured: The numbers of all rounds, by name.
    method: The name of the method.
    title: The title; by default the method's name.

  Returns:
    The figure.
  """
  figure, plots = _panels(len(measured))
  for plot, (name, values) in zip(plots, measured.items()):
    plot.plot(range(1, len(values) + 1), values, color=looks.look(method).color)
    plot.set_ylabel(name)
  style.add_title(plots[0], title or names.written_out(method))
  return figure
