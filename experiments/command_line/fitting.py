"""Makes tables fit into a terminal.

Where a table is too wide, rich would cut figures off. Here figures stay whole:
headers and texts are broken into lines first, then the table into several, each
with the first column.
"""

from collections.abc import Iterable, Iterator, Sequence
import copy

import rich.cells
import rich.table
import rich.text

# Texts may be broken into lines as short as this, even within words.
_NARROW_TEXT = 24


def _longest(texts: Iterable[str]) -> int:
  return max(map(rich.cells.cell_len, texts), default=0)


def _plain(cell: object) -> str:
  return rich.text.Text.from_markup(str(cell)).plain


def _limits(column: rich.table.Column) -> tuple[int, int]:
  """Returns how wide a column must be, and how wide it need not be exceeded."""
  header, *cells = map(_plain, (column.header, *column.cells))
  most = _longest('\n'.join([header, *cells]).splitlines())
  words = _longest(header.split())
  if column.justify == 'right':  # Figures.
    return max(words, _longest(cells)), most
  words = max(words, _longest(' '.join(cells).split()))
  return min(words, _NARROW_TEXT), most


def _groups(least: Sequence[int], width: int) -> Iterator[list[int]]:
  """Yields the columns of each part of a table, of which all have the first."""
  group = [0]
  for place in range(1, len(least)):
    if len(group) > 1 and sum(least[i] for i in (*group, place)) > width:
      yield group
      group = [0]
    group.append(place)
  yield group


def _part(
  table: rich.table.Table, widths: dict[int, int], with_title: bool
) -> rich.table.Table:
  """Takes columns of a table.

  Args:
    table: The table.
    widths: The width of each of the columns, by their places.
    with_title: Whether the part has the title.
  """
  part = copy.copy(table)
  part.title = table.title if with_title else None
  part.columns, part.rows = [], []
  columns = [table.columns[place] for place in widths]
  for column, width in zip(columns, widths.values()):
    part.add_column(
      column.header, justify=column.justify, overflow='fold', width=width
    )
  for row, cells in zip(table.rows, zip(*(column.cells for column in columns))):
    part.add_row(*cells, end_section=row.end_section)
  return part


def fit(table: rich.table.Table, width: int) -> list[rich.table.Table]:
  """Makes a table that is no wider than a terminal, if need be of parts.

  Args:
    table: The table, of texts. Columns of figures are at the right.
    width: The width of the terminal, in cells.

  Returns:
    The table, or its parts.
  """
  _, right, _, left = table.padding
  least, most = zip(*map(_limits, table.columns))
  between = left + right + 1
  # Of columns, the space beside them included.
  width -= 1
  if sum(most) + between * len(most) <= width:
    return [table]
  parts: list[rich.table.Table] = []
  for group in _groups([own + between for own in least], width):
    widths = {place: least[place] for place in group}
    spare = width - sum(widths.values()) - between * len(group)
    # Texts are broken last.
    for place in sorted(
      group, key=lambda place: table.columns[place].justify == 'right'
    ):
      more = min(max(spare, 0), most[place] - least[place])
      widths[place] += more
      spare -= more
    parts.append(_part(table, widths, not parts))
  return parts
