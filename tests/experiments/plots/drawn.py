"""What is in a figure that was drawn."""

from matplotlib import axes
import numpy as np


def lines(plot: axes.Axes) -> dict[str, list[list[float]]]:
  """The curves with bars of a plot, as points, by their labels."""
  return {
    container.get_label(): np.transpose(container.lines[0].get_data()).tolist()
    for container in plot.containers
  }
