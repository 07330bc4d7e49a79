"""Colors of ordered values, and of text on a colored background."""

import matplotlib
from matplotlib import colors
import numpy as np

# From the dark end of `shades` to the light one.
_SHADES = 'viridis', 0.0, 0.85
# Black and white text are equally readable on this luminance, see WCAG 2.
_READABLE = 0.179


def shades(number: int) -> list[str]:
  """Returns colors of ordered values, such as rates, from dark to light."""
  name, dark, light = _SHADES
  color_map = matplotlib.colormaps[name]
  return [
    colors.to_hex(color_map(place))
    for place in np.linspace(dark, light, number)
  ]


def text_on(color: str) -> str:
  """Returns black or white, whichever is readable as text on a color."""
  parts = np.array(list(colors.to_rgb(color)))
  linear = np.where(
    parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4
  )
  return 'black' if linear @ (0.2126, 0.7152, 0.0722) > _READABLE else 'white'
