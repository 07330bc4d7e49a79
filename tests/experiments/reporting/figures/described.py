"""Functions that read the description of a figure, and its drawing."""

import html
import re

from experiments.reporting.figures import figure

# The columns of lines that are not coordinates.
_OTHERS = {'method', 'panel', 'place', 'size', 'hidden', 'repeats'}


def lines(
  drawn: figure.Figure, panel: str = ''
) -> dict[str, list[list[float]]]:
  """Returns the points of each line, or of those of a panel, by name."""
  found: dict[str, list[list[float]]] = {}
  for row in drawn.data:
    if row.get('panel', '').startswith(panel):
      point = [
        value
        for name, value in row.items()
        if name not in _OTHERS and not name.endswith((' from', ' to'))
      ]
      found.setdefault(row['method'], []).append(point)
  return found


def texts(drawn: figure.Figure) -> str:
  """Draws a figure; returns all that it says, on one line."""
  svg = drawn.files()['svg'].decode()
  found = re.findall('<text[^>]*>(.*?)</text>', svg, re.DOTALL)
  plain = re.sub('<[^>]*>', ' ', ' '.join(found))
  return ' '.join(html.unescape(plain).split())
