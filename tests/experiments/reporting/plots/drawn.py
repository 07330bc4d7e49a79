"""What is in a figure that was drawn."""

from matplotlib import axes
from matplotlib import figure
from matplotlib import text
import numpy as np


def lines(plot: axes.Axes) -> dict[str, list[list[float]]]:
  """The curves with bars of a plot, as points, by their labels."""
  return {
    container.get_label(): np.transpose(container.lines[0].get_data()).tolist()
    for container in plot.containers
  }


def texts(drawn: figure.Figure) -> str:
  """Returns all that a figure says, on one line."""
  drawn.draw_without_rendering()
  found = drawn.findobj(text.Text)
  return ' '.join(' '.join(part.get_text() for part in found).split())
