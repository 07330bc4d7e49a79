"""Figures of the classes of clients' examples."""

from collections.abc import Sequence

from matplotlib import ticker
import matplotlib.colors
import numpy as np

from base import words
from experiments.reporting.plots import style

# The largest number of characters of a class's name that are shown.
_NAME = 24


@style.styled
def clients_by_class(
  counts: np.ndarray, classes: Sequence[str] = ()
) -> style.Figure:
  """Draws how many examples of each class each client has.

  Args:
    counts: The numbers of examples, `[clients, classes]`.
    classes: The names of the classes; by default their numbers.

  Returns:
    The figure, which is twice as wide as the others, so that a thousand clients
    fit. They are sorted by their most common class and then by size.
  """
  counts = np.asarray(counts)
  sizes = counts.sum(axis=1)
  ordered = counts[np.lexsort((-sizes, counts.argmax(axis=1)))]
  num_clients, num_classes = counts.shape
  figure = style.new_figure(1.7 + min(0.16 * num_classes, 4), 2 * style.WIDTH)
  bars, plot = figure.subplots(
    2, 1, sharex=True, gridspec_kw=dict(height_ratios=(1, 0.2 * num_classes))
  )
  edges = np.arange(num_clients + 1) - 0.5
  bars.stairs(ordered.sum(axis=1), edges, fill=True, color=style.SAME)
  if sizes.max() > 4 * sizes.min():
    bars.set_yscale('symlog', linthresh=1)
    bars.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
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
  if classes:
    names = (
      name if len(name) <= _NAME else f'{name[: _NAME - 1]}…'
      for name in classes
    )
    plot.set_yticks(range(num_classes), list(names))
  else:
    style.in_whole_numbers(plot.yaxis, 20)
  style.in_whole_numbers(plot.xaxis, 10)
  plot.set_ylabel('class')
  clients = words.noun(num_clients, 'clients')
  plot.set_xlabel(
    f'{num_clients:,} {clients}, by their most common class and size'
  )
  color_bar = figure.colorbar(image, ax=[bars, plot], pad=0.01, aspect=30)
  color_bar.set_label('examples of the class')
  color_bar.ax.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  return figure
