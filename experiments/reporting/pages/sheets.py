"""Tables that a reader can sort and download as CSV, Markdown or LaTeX."""

from collections.abc import Sequence
import csv
import dataclasses
import html
import io
import math

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
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '±': r'$\pm$',
  'ε': r'$\varepsilon$',
  'δ': r'$\delta$',
  '∞': r'$\infty$',
  '–': '--',
}


def _to_latex(text: str) -> str:
  return ''.join(_LATEX.get(character, character) for character in text)


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

  def _texts(self) -> list[list[str]]:
    return [[cell.text for cell in row] for row in self.rows]

  def _is_number(self, column: int) -> bool:
    return any(row[column].value is not None for row in self.rows)

  def to_csv(self) -> str:
    """Writes the table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerows([self.columns, *self._texts()])
    return text.getvalue()

  def to_markdown(self) -> str:
    """Writes the table as Markdown."""
    marks = [
      '--:' if self._is_number(i) else ':--' for i in range(len(self.columns))
    ]
    rows = [self.columns, marks, *self._texts()]
    return ''.join(
      f'| {" | ".join(text.replace("|", chr(92) + "|") for text in row)} |\n'
      for row in rows
    )

  def to_latex(self) -> str:
    """Writes the table as a LaTeX tabular, which needs the package booktabs."""
    columns = ''.join(
      'r' if self._is_number(i) else 'l' for i in range(len(self.columns))
    )
    head, *rows = (
      f'{" & ".join(map(_to_latex, row))} \\\\'
      for row in [self.columns, *self._texts()]
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
    head = ''.join(
      f'<th scope="col"{_number_class(self._is_number(i))}>'
      f'<button type="button">{html.escape(column)}</button></th>'
      for i, column in enumerate(self.columns)
    )
    body = ''.join(
      '<tr>'
      + ''.join(
        _cell(cell, i == 0, self._is_number(i)) for i, cell in enumerate(row)
      )
      + '</tr>'
      for row in self.rows
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
