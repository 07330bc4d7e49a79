"""Makes tables fit into a terminal.

If a table is too wide, rich would cut numbers off. Here numbers stay whole:
first headers and texts are broken into lines, then the table is split into
several, each with the columns that identify a row.
"""

from collections.abc import Iterable, Iterator, Sequence
import copy

import rich.cells
import rich.table

# Texts may be broken into lines as short as this, even within words.
_NARROW_TEXT = 30


def _longest(texts: Iterable[str]) -> int:
  return max(map(rich.cells.cell_len, texts), default=0)


def _limits(column: rich.table.Column) -> tuple[int, int]:
  """Returns a column's least width, and its width without line breaks."""
  header, *cells = map(str, (column.header, *column.cells))
  most = _longest('\n'.join([header, *cells]).splitlines())
  words = _longest(header.split())
  if column.justify == 'right':  # A column of numbers.
    return max(words, _longest(cells)), most
  words = max(words, _longest(' '.join(cells).split()))
  return min(words, _NARROW_TEXT), most


def _groups(
  least: Sequence[int], width: int, num_keys: int
) -> Iterator[list[int]]:
  """Yields the columns of each part of a table; all parts have the keys."""
  keys = list(range(num_keys))
  group = list(keys)
  for place in range(num_keys, len(least)):
    if group != keys and sum(least[i] for i in (*group, place)) > width:
      yield group
      group = list(keys)
    group.append(place)
  yield group


def _part(
  table: rich.table.Table, widths: dict[int, int], with_title: bool
) -> rich.table.Table:
  """Makes a table of some columns of another.

  Args:
    table: The table.
    widths: The width of each of these columns, by the column's index.
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


def fit(
  table: rich.table.Table, width: int, num_keys: int = 1
) -> list[rich.table.Table]:
  """Makes a table fit into the width of a terminal, if necessary in parts.

  Args:
    table: The table of texts. Columns of numbers are justified to the right.
    width: The width of the terminal, in cells.
    num_keys: The number of columns, the first ones, that identify a row.
  """
  _, right, _, left = table.padding
  least, most = zip(*map(_limits, table.columns))
  between = left + right + 1
  # The width that columns can use, including the space beside each of them.
  width -= 1
  if sum(most) + between * len(most) <= width:
    return [table]
  parts: list[rich.table.Table] = []
  for group in _groups([w + between for w in least], width, num_keys):
    widths = {place: least[place] for place in group}
    for _ in range(width - sum(widths.values()) - between * len(group)):
      # Headers of numbers are broken first, then the longest texts.
      growing = [
        (table.columns[place].justify == 'right', widths[place], place)
        for place in group
        if widths[place] < most[place]
      ]
      if growing:
        widths[min(growing)[-1]] += 1
    parts.append(_part(table, widths, not parts))
  return parts
