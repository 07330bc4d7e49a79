"""Tables that a reader can sort and download as CSV, Markdown or LaTeX."""

from collections.abc import Sequence
import csv
import dataclasses
import html
import io
import math
import re

from base import names
from experiments.reporting import repeats


@dataclasses.dataclass(frozen=True)
class Cell:
  """A cell of a table.

  Attributes:
    text: The text.
    value: The number that the cell is sorted by; None to sort by its text.
  """

  text: str
  value: float | None = None


def number(value: float | None, form: str = '.4g') -> Cell:
  """Makes the cell of a number; NaN is the metric of a model that diverged."""
  if value is None:
    return Cell('–')
  if math.isnan(value):
    return Cell('diverged')
  return Cell(f'{value:{form}}', value)


def share(value: float | None) -> Cell:
  """Makes the cell of a share, in percent."""
  if value is None or math.isnan(value):
    return Cell('–')
  return Cell(f'{value:.1%}', value)


def spread(values: Sequence[float], form: str = '.4g') -> Cell:
  """Makes the cell of a mean, with the deviation if it is not 0."""
  mean, deviation = repeats.mean_and_deviation(values)
  if math.isnan(mean):
    return Cell('diverged')
  if not deviation:
    return number(mean, form)
  return Cell(f'{mean:{form}} ± {deviation:.2g}', mean)


# Special characters, as LaTeX needs them.
_LATEX = {
  '\\': r'\textbackslash{}',
  '&': r'\&',
  '%': r'\%',
  '$': r'\$',
  '#': r'\#',
  '_': r'\_',
  '{': r'\{',
  '}': r'\}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  '|': r'\textbar{}',
  # After the end of a row, these are its options.
  '[': '{[}',
  '*': '{*}',
  '\n': ' ',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '±': r'$\pm$',
  'ε': r'$\varepsilon$',
  'δ': r'$\delta$',
  '∞': r'$\infty$',
  '–': '--',
}


# A text that begins so, and is no number, is a formula to a spreadsheet; also
# if the character is a wide one.
_FORMULA = re.compile(
  r'[=+@\t\r\uff1d\uff0b\uff20\uff0d-](?![\d.]+(e[+-]?\d+)?$)'
)


def _to_latex(text: str) -> str:
  return ''.join(_LATEX.get(character, character) for character in text)


def _to_csv(cell: Cell) -> str:
  """Writes a cell such that no spreadsheet computes what a name says."""
  is_formula = cell.value is None and _FORMULA.match(cell.text)
  return f"'{cell.text}" if is_formula else cell.text


@dataclasses.dataclass(frozen=True)
class Sheet:
  """A table.

  Attributes:
    name: The name of its files.
    title: Its title.
    columns: The headers of its columns.
    rows: The cells of each row.
    note: An explanation, shown between the title and the table.
  """

  name: str
  title: str
  columns: Sequence[str]
  rows: Sequence[Sequence[Cell]]
  note: str = ''

  def _cells(self) -> list[list[Cell]]:
    """Returns the cells of the header and the rows, with all that they have."""
    return [
      [dataclasses.replace(cell, text=names.visible(cell.text)) for cell in row]
      for row in [[*map(Cell, self.columns)], *self.rows]
    ]

  def _is_number(self, column: int) -> bool:
    return any(row[column].value is not None for row in self.rows)

  def to_csv(self) -> str:
    """Writes the table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerows([map(_to_csv, row) for row in self._cells()])
    return text.getvalue()

  def to_markdown(self) -> str:
    """Writes the table as Markdown."""
    marks = [
      '--:' if self._is_number(i) else ':--' for i in range(len(self.columns))
    ]
    head, *rows = [
      [names.to_markdown(cell.text) for cell in row] for row in self._cells()
    ]
    return ''.join(f'| {" | ".join(row)} |\n' for row in [head, marks, *rows])

  def to_latex(self) -> str:
    """Writes the table as a LaTeX tabular, which needs the package booktabs."""
    columns = ''.join(
      'r' if self._is_number(i) else 'l' for i in range(len(self.columns))
    )
    head, *rows = (
      f'{" & ".join(_to_latex(cell.text) for cell in row)} \\\\'
      for row in self._cells()
    )
    return '\n'.join(
      [
        f'\\begin{{tabular}}{{{columns}}}',
        '\\toprule',
        head,
        '\\midrule',
        *rows,
        '\\bottomrule',
        '\\end{tabular}\n',
      ]
    )

  @property
  def files(self) -> dict[str, str]:
    """The table in each format, by the ending of the file's name."""
    return {
      'csv': self.to_csv(),
      'md': self.to_markdown(),
      'tex': self.to_latex(),
    }

  def to_html(self) -> str:
    """Writes the table as HTML, with buttons that sort it by a column."""
    first, *rows = self._cells()
    head = ''.join(
      f'<th scope="col"{_number_class(self._is_number(i))}>'
      f'<button type="button">{html.escape(column.text)}</button></th>'
      for i, column in enumerate(first)
    )
    body = ''.join(
      '<tr>'
      + ''.join(
        _cell(cell, i == 0, self._is_number(i)) for i, cell in enumerate(row)
      )
      + '</tr>'
      for row in rows
    )
    return (
      '<table class="sortable"><thead><tr>'
      f'{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _number_class(is_number: bool) -> str:
  return ' class="number"' if is_number else ''


def _cell(cell: Cell, is_first: bool, is_number: bool) -> str:
  tag = 'th scope="row"' if is_first else 'td'
  value = '' if cell.value is None else f' data-value="{cell.value!r}"'
  text = html.escape(cell.text).replace('\n', '<br>')
  return f'<{tag}{_number_class(is_number)}{value}>{text}</{tag.split()[0]}>'


# The cells of each row by their columns, which are those of all rows.
Rows = list[dict[str, Cell | str]]


def make(
  name: str,
  title: str,
  rows: Rows,
  note: str = '',
) -> list[Sheet]:
  """Makes a table, or none without rows.

  Args:
    name: See `Sheet`.
    title: Likewise.
    rows: Its rows.
    note: See `Sheet`.

  Returns:
    The table, if there are rows.
  """
  cells = [
    [Cell(c) if isinstance(c, str) else c for c in row.values()] for row in rows
  ]
  return [Sheet(name, title, [*rows[0]], cells, note)] if rows else []
