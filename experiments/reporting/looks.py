"""Looks of methods: each method has the same look in all figures.

The look depends only on the method's name, not on the methods it is compared
with. Known methods differ in their color, or else in their markers and lines.
Color-blind readers can distinguish the first eight colors (Okabe and Ito 2008,
without the yellow). Things that are not methods, such as clusters, have other
colors.
"""

import dataclasses
import hashlib

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
MARKERS = 'osD^vPX'

# A name of matplotlib's, or an offset and the lengths of dashes and gaps.
LineStyle = str | tuple[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Look:
  """The look of a method.

  Attributes:
    color: Its color.
    marker: Its marker.
    line: The style of its lines.
    hollow: Whether its markers and boxes are white inside.
    edge: The color of their edges.
  """

  color: str
  marker: str
  line: LineStyle
  hollow: bool
  edge: str


# The methods with solid lines and full markers, those with dashed lines and
# hollow markers, and those with dashes and dots, each in the order of colors.
_SOLID = {
  'fedavg': 'o',
  'finetuning': 's',
  'knn_per': 'D',
  'hypcluster': '^',
  'ditto': 'v',
  'local': 'P',
  'mocha': 'X',
  'ensemble': 'o',
  'fedavgm': '<',
  'fedadam': '>',
  'fedprox': 'p',
}
_DASHED = {
  'scaffold': 's',
  'fedrep': 'o',
  'perfedavg': '^',
  'apfl': 's',
  'fedembed_type': 'o',
  'fedpc': 's',
  'pfedme': 'D',
  'mr_mtl': 'd',
  'fedper': 'o',
  'self_fl': 's',
  'ifca': '^',
}
_DASHED_AND_DOTTED = {
  'group': '^',
  'self_fl_clusters': '^',
  'fedembed_personal': 'o',
  'fedembed_prototype': 'D',
  'fedrod': 's',
  'fedpc_generated': 'o',
  'fedbabu': 'o',
  'global_plus': '^',
  'fedembed_som': 's',
  'lg_fedavg': 'o',
  'pfedkm': 's',
}
_KNOWN = {
  method: Look(color, marker, line, hollow, edge=color)
  for methods, line, hollow in (
    (_SOLID, '-', False),
    (_DASHED, '--', True),
    (_DASHED_AND_DOTTED, '-.', False),
  )
  for (method, marker), color in zip(methods.items(), COLORS, strict=True)
}

# A pair has the color and the filling of its trainer, the marker and the edge
# of its personalizer, and a line that differs from both.
_LINES_OF_PAIRS: dict[LineStyle, LineStyle] = {
  '-': (0, (6, 1, 1, 1)),
  '--': (0, (3, 1, 1, 1, 1, 1)),
  '-.': (0, (6, 1, 1, 1, 1, 1, 1, 1)),
}
# The looks of all other names, chosen by a number that follows from the name.
_OTHER_MARKERS = 'dhp<>vX^'
_OTHER_LINES: tuple[LineStyle, ...] = (':', (0, (1, 2)), (0, (1, 3, 1, 1)))


def known_methods() -> tuple[str, ...]:
  """Lists the methods whose looks are certain to differ from all others."""
  return tuple(_KNOWN)


def look(method: str) -> Look:
  """Returns the look of a method, which may be TRAINER+PERSONALIZER."""
  if method in _KNOWN:
    return _KNOWN[method]
  trainer, plus, personalizer = method.partition('+')
  if plus:
    of_trainer, of_personalizer = look(trainer), look(personalizer)
    return dataclasses.replace(
      of_trainer,
      marker=of_personalizer.marker,
      edge=of_personalizer.color,
      line=_LINES_OF_PAIRS.get(of_trainer.line, of_trainer.line),
    )
  number = int.from_bytes(hashlib.sha256(method.encode()).digest()[:8], 'big')
  number, color = divmod(number, len(COLORS))
  number, marker = divmod(number, len(_OTHER_MARKERS))
  number, line = divmod(number, len(_OTHER_LINES))
  return Look(
    COLORS[color],
    _OTHER_MARKERS[marker],
    _OTHER_LINES[line],
    hollow=number % 2 == 1,
    edge=COLORS[color],
  )
