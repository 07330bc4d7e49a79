"""Looks of methods: each method has the same look in all figures.

The look depends only on the method's name, not on the methods it is compared
with, and every name has one. The methods that are listed here differ in their
color, or else in their shapes and lines. Color-blind readers can distinguish
the first eight colors (Okabe and Ito 2008, without the yellow). Things that are
not methods, such as clusters, have other colors.
"""

import dataclasses
import hashlib

import numpy as np

COLORS = (
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
# Colors of things that are not methods, such as clusters (Petroff 2021, also
# for color-blind readers).
CATEGORIES = (
  *('#3f90da', '#ffa90e', '#bd1f01', '#94a4a2', '#832db6', '#a96b59'),
  *('#e76300', '#b9ac70', '#717581', '#92dadd'),
)
# Clients that are worse off than before, better off, and neither.
WORSE, BETTER, SAME = '#d55e00', '#0072b2', '#7f7f7f'
# Some of viridis, the colors of ordered values, from dark to light.
_VIRIDIS = (
  *('#440154', '#482878', '#3e4a89', '#31688e', '#26828e'),
  *('#1f9e89', '#35b779', '#6ece58', '#addc30'),
)

# Names of Vega's shapes, and paths of others in the square from -1 to 1.
_CIRCLE, _SQUARE, _DIAMOND = 'circle', 'square', 'diamond'
_UP, _DOWN = 'triangle-up', 'triangle-down'
_LEFT, _RIGHT = 'triangle-left', 'triangle-right'
_PLUS = 'cross'
_CROSS = (
  'M-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0L-1,-.5Z'
)
_THIN = 'M0,-1.2L.7,0L0,1.2L-.7,0Z'
_HEXAGON = 'M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z'
_PENTAGON = 'M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z'
SHAPES = _CIRCLE, _SQUARE, _DIAMOND, _UP, _DOWN, _PLUS, _CROSS

# The lengths of dashes and gaps in turn.
Dashes = tuple[int, ...]
SOLID: Dashes = (1, 0)
DOTTED: Dashes = (2, 3)
_DASHED: Dashes = (8, 4)
_DASHED_AND_DOTTED: Dashes = (8, 3, 2, 3)


@dataclasses.dataclass(frozen=True)
class Look:
  """The look of a method.

  Attributes:
    color: Its color.
    shape: The shape of its points.
    line: The dashes of its lines.
    hollow: Whether its points and boxes are lighter inside.
    edge: The color of their edges.
  """

  color: str
  shape: str = _CIRCLE
  line: Dashes = SOLID
  hollow: bool = False
  edge: str = ''

  def __post_init__(self) -> None:
    if not self.edge:
      object.__setattr__(self, 'edge', self.color)

  @property
  def opacity(self) -> float:
    """The opacity of its boxes."""
    return 0.15 if self.hollow else 0.5

  @property
  def fill(self) -> str:
    """The color inside its points."""
    if not self.hollow:
      return self.color
    # The inside of a pair's point shows its trainer.
    return '#ffffff' if self.edge == self.color else lighter(self.color, 0.35)


# The shapes of the listed methods, which have the colors in their order: first
# with solid lines, then with dashed lines and hollow points, and so on.
_LISTED = {
  **{'fedavg': _CIRCLE, 'finetuning': _SQUARE, 'knn_per': _DIAMOND},
  **{'hypcluster': _UP, 'ditto': _DOWN, 'local': _PLUS, 'mocha': _CROSS},
  **{'ensemble': _CIRCLE, 'fedavgm': _LEFT, 'fedadam': _RIGHT},
  **{'fedprox': _PENTAGON, 'scaffold': _SQUARE, 'fedrep': _CIRCLE},
  **{'perfedavg': _UP, 'apfl': _SQUARE, 'fedembed_type': _CIRCLE},
  **{'fedpc': _SQUARE, 'pfedme': _DIAMOND, 'mr_mtl': _THIN},
  **{'fedper': _CIRCLE, 'self_fl': _SQUARE, 'pfedkm': _UP, 'group': _UP},
  **{'self_fl_clusters': _UP, 'fedembed_personal': _CIRCLE},
  **{'fedembed_prototype': _DIAMOND, 'fedrod': _SQUARE},
  **{'fedpc_generated': _CIRCLE, 'fedbabu': _CIRCLE, 'global_plus': _UP},
  **{'fedembed_som': _SQUARE, 'lg_fedavg': _CIRCLE},
}

# A pair has the color and the filling of its trainer, the shape and the edge
# of its personalizer, and a line that differs from both.
_LINES_OF_PAIRS = {
  SOLID: (10, 2, 2, 2),
  _DASHED: (5, 2, 2, 2, 2, 2),
  _DASHED_AND_DOTTED: (10, 2, 2, 2, 2, 2, 2, 2),
}
# The looks of all other names, chosen by a number that follows from the name.
_OTHER_SHAPES = _THIN, _HEXAGON, _PENTAGON, _LEFT, _RIGHT, _DOWN, _CROSS, _UP
_OTHER_LINES = DOTTED, (2, 5), (2, 6, 2, 2)
_LINES = SOLID, _DASHED, _DASHED_AND_DOTTED, *_OTHER_LINES


def listed_methods() -> tuple[str, ...]:
  """Lists the methods whose looks are certain to differ from all others."""
  return tuple(_LISTED)


def look(method: str) -> Look:
  """Returns the look of a method, which may be TRAINER+PERSONALIZER."""
  if method in _LISTED:
    style, color = divmod([*_LISTED].index(method), len(COLORS))
    line = _LINES[style % len(_LINES)]
    return Look(COLORS[color], _LISTED[method], line, hollow=line == _DASHED)
  trainer, plus, personalizer = method.partition('+')
  if plus:
    of_trainer, of_personalizer = look(trainer), look(personalizer)
    return dataclasses.replace(
      of_trainer,
      shape=of_personalizer.shape,
      edge=of_personalizer.color,
      line=_LINES_OF_PAIRS.get(of_trainer.line, of_trainer.line),
    )
  number = int.from_bytes(hashlib.sha256(method.encode()).digest()[:8], 'big')
  number, color = divmod(number, len(COLORS))
  number, shape = divmod(number, len(_OTHER_SHAPES))
  number, other_line = divmod(number, len(_OTHER_LINES))
  return Look(
    COLORS[color],
    _OTHER_SHAPES[shape],
    _OTHER_LINES[other_line],
    hollow=number % 2 == 1,
  )


def shades(number: int) -> list[str]:
  """Returns colors of ordered values, such as rates, from dark to light."""
  places = np.linspace(0, len(_VIRIDIS) - 1, number)
  return [
    _mixed(_VIRIDIS[int(x)], _VIRIDIS[-int(-x // 1)], x % 1) for x in places
  ]


def lighter(color: str, share: float) -> str:
  """Mixes a share of a color with white."""
  return _mixed('#ffffff', color, share)


def _mixed(one: str, other: str, share: float) -> str:
  parts = (
    ((1 - share) * _parts(one) + share * _parts(other)).round().astype(int)
  )
  return f'#{bytes(parts.tolist()).hex()}'


def _parts(color: str) -> np.ndarray:
  return np.frombuffer(bytes.fromhex(color[1:]), np.uint8).astype(float)


def choose_ink(color: str) -> str:
  """Returns black or white, whichever is readable as text on a color."""
  parts = _parts(color) / 255
  linear = np.where(
    parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4
  )
  # Both are equally readable on this luminance, see WCAG 2.
  is_light = linear @ (0.2126, 0.7152, 0.0722) > 0.179
  return 'black' if is_light else 'white'
