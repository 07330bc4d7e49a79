"""A figure: one description, which is drawn on a page and in print.

A description is Vega-Lite with its data. Figures are as wide as a column of a
paper, unless they show many clients or settings. A method has the same look in
all figures, see `looks`, and its name as papers write it, see `names`. Nothing
is shown by color alone: a position, a shape or a text shows it, too.
"""

from collections.abc import Sequence
import dataclasses
import html
import pathlib
import re
import struct
import textwrap
from typing import Any
import zlib

import vl_convert

from base import errors
from base import names
from base import whole_files
from base import words
from experiments.reporting import folders

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

_SCHEMA = 'https://vega.github.io/schema/vega-lite/v6.json'
# A column of a paper, 3.4 inches wide, and the units that Vega has in an inch.
WIDTH, _PER_INCH = 425, 125
_POINTS_PER_INCH, _DOTS_PER_INCH = 72, 300
# Characters per line of a title, and of a caption.
_TITLE, _CAPTION = 62, 82
# The endings of the files of a figure.
ENDINGS = ('png', 'svg', 'pdf')
# All text is in one font: with several, equal figures would not give equal PDF
# files.
_FONT = 'Liberation Sans, Arial, Helvetica, sans-serif'
_SMALL, _LARGE = 12, 14
_SIZES: Spec = {
  'font': _FONT,
  'axis': {
    'labelFontSize': _SMALL,
    'titleFontSize': _LARGE,
    'titleFontWeight': 'normal',
    'labelFlush': False,
    'labelSeparation': 6,
    'domainWidth': 1,
  },
  'header': {'labelFontSize': _LARGE},
  'legend': {
    'orient': 'top',
    'labelFontSize': _SMALL,
    'labelLimit': 0,
    'titleFontSize': _SMALL,
    'titleFontWeight': 'normal',
    'titleLimit': 0,
    'columnPadding': 14,
    'offset': 8,
  },
  'text': {'fontSize': _SMALL},
  'title': {
    'anchor': 'start',
    'frame': 'bounds',
    'fontSize': _LARGE,
    'fontWeight': 'normal',
    'subtitleFontSize': 11,
    'subtitlePadding': 4,
    'offset': 8,
  },
  'view': {'stroke': None},
}
# The colors in print; a page has its own, for light and dark screens.
_COLORS: Spec = {
  'axis': {'gridColor': '#e6e6e6', 'domainColor': '#000', 'tickColor': '#000'},
  'title': {'subtitleColor': '#404040'},
}


@dataclasses.dataclass(frozen=True)
class Figure:
  """A figure.

  Attributes:
    name: The name of its files.
    title: What it shows.
    data: Its data, the values of each row by column.
    spec: Its description without the data.
    subject: Of whom it shows that, such as a method, if there is such a figure
      of others, too.
    note: How to read it.
    captions: Of which clients it is, and what else to know; for print.
    omitted: Which values it does not show, as they are far out.
  """

  name: str
  title: str
  data: Rows
  spec: Spec
  subject: str = ''
  note: str = ''
  captions: Sequence[str] = ()
  omitted: str = ''

  def add_captions(self, *lines: str) -> 'Figure':
    """Returns the figure with captions."""
    return dataclasses.replace(self, captions=lines)

  def to_spec(self) -> Spec:
    """Returns the whole description, but for colors, title and captions."""
    fixed = {'concat', 'hconcat', 'vconcat', 'width'} & self.spec.keys()
    width = {
      'width': WIDTH,
      'autosize': {'type': 'fit-x', 'contains': 'padding'},
    }
    return names.visible(
      {
        '$schema': _SCHEMA,
        'config': _SIZES,
        'data': {'values': self.data},
        **({} if fixed else width),
        **self.spec,
      }
    )

  def _to_print(self) -> Spec:
    """Returns the description of what is printed."""
    config = {
      part: {**_SIZES.get(part, {}), **colors}
      for part, colors in _COLORS.items()
    } | {'aria': False}
    captions = [
      line
      for caption in (self.omitted, *self.captions)
      for line in textwrap.wrap(caption, _CAPTION)
    ]
    title = textwrap.wrap(self.subject or self.title, _TITLE)
    return self.to_spec() | {
      'config': _SIZES | config,
      'background': 'white',
      'title': names.visible({'text': title, 'subtitle': captions}),
    }

  def files(self) -> dict[str, bytes]:
    """Draws the figure; returns the contents of its files by their endings.

    Each has the mark by which programs recognize their figures. Equal figures
    give equal files.
    """
    svg = vl_convert.vegalite_to_svg(self._to_print())
    width, height = map(float, _SIZE.findall(svg)[0])

    def scaled(per_inch: float, unit: str = '') -> str:
      factor = per_inch / _PER_INCH
      size = (
        f'width="{width * factor:g}{unit}" height="{height * factor:g}{unit}"'
      )
      return _SIZE.sub(size, svg, count=1)

    marked = scaled(1, 'in').replace('>', f'><!-- {folders.MARK} -->', 1)
    marked = _TEXT.sub(_fix_lengths, marked)
    png = vl_convert.svg_to_png(svg, scale=_DOTS_PER_INCH / _PER_INCH)
    # What names refer to is in any order.
    pdf = _NAMED.sub(
      lambda match: b''.join(sorted(match[0].splitlines(keepends=True))),
      vl_convert.svg_to_pdf(scaled(_POINTS_PER_INCH)),
    )
    return {
      'png': _marked_png(png),
      'svg': marked.encode(),
      'pdf': pdf + f'\n% {folders.MARK}\n'.encode(),
    }


_NAMED = re.compile(rb'(?: +/gs\d+ \d+ 0 R\n)+')
_SIZE = re.compile('width="([^"]*)" height="([^"]*)"')
_TEXT = re.compile(
  r'<text[^>]*font-size="([\d.]+)px"[^>]*>.*?</text>', re.DOTALL
)
# A line of a text: its element, without the end of its tag, and what it says.
_LINE = re.compile(r'(<(?:text|tspan)\b[^>]*)>([^<]+)(?=<)')
# The widths of the characters from space to tilde in our font, of 1000 units.
_WIDTHS = (
  *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333),
  *(278, 278, *[556] * 10, 278, 278, 584, 584, 584, 556, 1015),
  *(667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722),
  *(778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611),
  *(278, 278, 278, 469, 556, 333),
  *(556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556),
  *(556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500),
  *(334, 260, 334, 584),
)


def _fix_lengths(match: re.Match[str]) -> str:
  """Writes how long texts are, so that another font does not go over an edge.

  A viewer may not have our font, which only PDF files contain.
  """

  def fix(line: re.Match[str]) -> str:
    places = [ord(character) - ord(' ') for character in html.unescape(line[2])]
    if not all(0 <= place < len(_WIDTHS) for place in places):
      return line[0]
    length = sum(_WIDTHS[k] for k in places) * float(match[1]) / 1000
    fixed = f'textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'{line[1]} {fixed}>{line[2]}'

  return _LINE.sub(fix, match[0])


_PNG_MARK = b'Software\0' + folders.MARK.encode()


def _marked_png(png: bytes) -> bytes:
  """Adds the mark to a PNG file, and compresses it well."""
  chunks: list[tuple[bytes, bytes]] = []
  place = 8  # After the signature.
  while place < len(png):
    size, kind = struct.unpack('>I4s', png[place : place + 8])
    chunks.append((kind, png[place + 8 : place + 8 + size]))
    place += size + 12
  pixels = b''.join(data for kind, data in chunks if kind == b'IDAT')
  header, *_, end = (chunk for chunk in chunks if chunk[0] != b'IDAT')
  smaller = zlib.compress(zlib.decompress(pixels), 9)
  return png[:8] + b''.join(
    struct.pack('>I', len(data))
    + kind
    + data
    + struct.pack('>I', zlib.crc32(kind + data))
    for kind, data in (header, (b'tEXt', _PNG_MARK), (b'IDAT', smaller), end)
  )


def describe_clients(what: str, num_clients: int, num_repeats: int) -> str:
  """Describes the clients of a figure, for its caption."""
  repeats = f', {num_repeats} repeats' if num_repeats > 1 else ''
  clients = words.noun(num_clients, 'test clients')
  return f'{what}, {num_clients:,} {clients}{repeats}'


def paths(folder: pathlib.Path, name: str) -> dict[str, pathlib.Path]:
  """Returns the files of a figure by their endings, see `save`."""
  stem = re.sub(r'[^\w.+=, -]', lambda m: f'%{ord(m[0]):02x}', name)
  return {ending: folder / f'{stem}.{ending}' for ending in ENDINGS}


def save(figure: Figure, folder: pathlib.Path) -> str:
  """Writes a figure into a folder, as PNG, SVG and PDF.

  Args:
    figure: The figure. Characters of its name that a file's name cannot have,
      such as a slash, are written as their number.
    folder: The folder; it is created if it does not exist.

  Returns:
    The names of the files, for the user.

  Raises:
    UserError: If a file exists that the programs did not write, or a file
      cannot be written.
  """
  files = paths(folder, figure.name)
  for path in files.values():
    folders.check_own(path)
  with errors.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  for ending, contents in figure.files().items():
    with whole_files.writing(files[ending]) as temporary:
      temporary.write_bytes(contents)
  return f'{files["png"]}, .' + ', .'.join(ENDINGS[1:])
