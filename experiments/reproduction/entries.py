"""The entries of tables: our figures, and published ones beside them.

An entry has 'ours', the mean over the repeats, None if there is none; its
deviation 'over_repeats'; and the 'published' figure, if there is any.
"""

from collections.abc import Iterable, Mapping
import itertools

from experiments.command_line import terminal
from experiments.reporting import repeats

Entry = dict[str, float | None]


def make(pair: tuple[float, float] | None) -> Entry:
  """Makes an entry of a mean and a deviation over repeats, if there are any."""
  return dict(zip(('ours', 'over_repeats'), pair)) if pair else {'ours': None}


def text(
  entry: Mapping[str, float | None], form: str, published_form: str = ''
) -> str:
  """Writes an entry, a dash if we have no figure.

  Args:
    entry: The entry.
    form: The format of ours, as '.3f'.
    published_form: The format of the published one, which follows in brackets;
      without it, it is not written.
  """
  ours, published = entry['ours'], entry.get('published')
  written = '–'
  if ours is not None:
    written = repeats.spread(ours, entry['over_repeats'] or 0.0, form)
  if published is not None and published_form:
    written += f' ({published:{published_form}})'
  return written


def print_table(
  title: str,
  rows: Mapping[str, Mapping[str, str]],
  columns: Iterable[str] = (),
  corner: str = 'method',
  blank: str = '–',
) -> None:
  """Prints a table of texts.

  Args:
    title: Its title.
    rows: The text of each row and column.
    columns: The columns; by default all that a row has.
    corner: What the rows are.
    blank: What stands where a row has no text.
  """
  columns = tuple(columns) or dict.fromkeys(itertools.chain(*rows.values()))
  table = terminal.make_table(title, corner, numbers=columns)
  for name, row in rows.items():
    table.add_row(name, *(row.get(column, blank) for column in columns))
  terminal.print_table(table)
