"""A report as one HTML page that needs no network."""

import base64
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import html
import json
import pathlib
import string
from typing import Any

import vl_convert

from base import errors
from base import names
from experiments.reporting import folders
from experiments.reporting.figures import figure
from experiments.reporting.pages import sheets

_HERE = pathlib.Path(__file__).parent
# Tables with more rows are folded.
_MOST_ROWS = 40
# File systems take names of up to 255 bytes, with an ending.
_LONGEST_ID = 200
_KINDS = {
  'csv': ('CSV', 'text/csv'),
  'md': ('Markdown', 'text/markdown'),
  'tex': ('LaTeX', 'text/x-tex'),
}


def _id(name: str) -> str:
  """Makes a name that is valid for an HTML element and for a file."""
  made = ''.join(c if c.isalnum() or c in '-_.' else '-' for c in name)
  if len(made.encode()) <= _LONGEST_ID:
    return made
  return f'{made[:20]}-{hashlib.sha256(name.encode()).hexdigest()}'


def _escape(text: str) -> str:
  return html.escape(names.visible(text))


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of a report.

  Attributes:
    title: Its title.
    parts: Its tables and figures.
    text: A text that is shown above the parts.
  """

  title: str
  parts: Sequence[sheets.Sheet | figure.Figure]
  text: str = ''

  @property
  def anchor(self) -> str:
    """The name of the section in links."""
    return _id(self.title.lower())

  def renamed(self, addition: str) -> 'Section':
    """Returns the section with a suffix on its title and its parts' names."""
    parts = [
      dataclasses.replace(part, name=part.name + addition)
      for part in self.parts
    ]
    return dataclasses.replace(self, title=self.title + addition, parts=parts)


@dataclasses.dataclass(frozen=True)
class Report:
  """The contents of a report.

  Attributes:
    title: The title of the page.
    summary: A sentence about its contents, shown below the title.
    command: The command that writes the report.
    sections: Its sections; those without parts and text are left out.
  """

  title: str
  summary: str
  command: str
  sections: Sequence[Section]

  @property
  def parts(self) -> list[sheets.Sheet | figure.Figure]:
    """All of its tables and figures."""
    return [part for section in self.sections for part in section.parts]


def _of_sheet(sheet: sheets.Sheet) -> str:
  links = []
  for ending, text in sheet.files.items():
    name, kind = _KINDS[ending]
    data = base64.b64encode(text.encode()).decode()
    links.append(
      f'<a download="{_id(sheet.name)}.{ending}"'
      f' href="data:{kind};charset=utf-8;base64,{data}">{name}</a>'
    )
  table = f'<div class="wide" tabindex="0">{sheet.to_html()}</div>'
  if len(sheet.rows) > _MOST_ROWS:
    table = (
      f'<details><summary>All {len(sheet.rows)} rows</summary>{table}</details>'
    )
  return (
    f'<h3>{_escape(sheet.title)}</h3>'
    f'<p class="note">{_escape(sheet.note)}</p>{table}'
    f'<p class="take">Download: {"".join(links)}</p>'
  )


def _of_figures(figures: Sequence[figure.Figure], command: str) -> str:
  """Writes figures that show the same of others, of which one is chosen."""
  first = figures[0]
  options = ''.join(
    f'<option value="{_id(one.name)}">{_escape(one.subject)}</option>'
    for one in figures
  )
  label = _escape(first.title)
  choice = f'<select aria-label="{label}">{options}</select>'
  places = ''.join(
    f'<div class="chart" id="chart-{_id(one.name)}"'
    f'{"" if one is first else " hidden"}>'
    f'<p class="note">{_escape(_note(one))}</p><div></div>'
    '<details class="take"><summary>Data and command</summary>'
    f'<button type="button" data-chart="{_id(one.name)}">Data as CSV</button>'
    f'<pre>{_escape(command)}</pre></details></div>'
    for one in figures
  )
  wide = ' wide' if first.spec.get('width', 0) > figure.WIDTH else ''
  return (
    f'<div class="figure{wide}"><h3>{label}</h3>'
    f'{choice if first.subject else ""}{places}</div>'
  )


def _gallery(
  figures: Sequence[Sequence[figure.Figure]], command: str
) -> list[str]:
  drawn = ''.join(_of_figures(alike, command) for alike in figures)
  return [f'<div class="figures">{drawn}</div>'] if drawn else []


def _note(one: figure.Figure) -> str:
  omitted = f'{one.omitted.capitalize()}.' if one.omitted else ''
  return ' '.join(filter(None, (one.note, omitted)))


def _of_section(section: Section, command: str) -> str:
  parts: list[str] = []
  figures: list[list[figure.Figure]] = []
  for part in section.parts:
    if isinstance(part, sheets.Sheet):
      parts += [*_gallery(figures, command), _of_sheet(part)]
      figures = []
    elif figures and figures[-1][0].title == part.title:
      figures[-1].append(part)
    else:
      figures.append([part])
  parts += _gallery(figures, command)
  text = f'<p>{_escape(section.text)}</p>' if section.text else ''
  return (
    f'<section id="{section.anchor}"><h2>{_escape(section.title)}</h2>'
    f'{text}{"".join(parts)}</section>'
  )


@functools.cache
def _libraries() -> str:
  """Returns Vega, Vega-Lite and Vega-Embed as one script."""
  return vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')


def _in_script(code: str) -> str:
  """Escapes code so that it cannot end the script element around it."""
  return code.replace('</script', '<\\/script')


def _digest(script: str) -> str:
  """Returns the name by which a page allows a script, see page.html."""
  digest = hashlib.sha256(script.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


def _to_json(value: Any) -> str:
  """Writes a value for a script element, in which no text begins a tag."""
  text = json.dumps(value, separators=(',', ':'), allow_nan=False)
  return text.replace('<', '\\u003c')


def _by_column(rows: figure.Rows) -> dict[str, list[Any]]:
  """Arranges rows by column, which is shorter; page.js restores the rows."""
  columns = dict.fromkeys(name for row in rows for name in row)
  return {name: [row.get(name) for row in rows] for name in columns}


def to_html(report: Report, seconds_to_refresh: int | None = None) -> str:
  """Writes a report as an HTML page.

  Args:
    report: The report.
    seconds_to_refresh: The seconds after which a browser reloads the page;
      None if it is final.

  Returns:
    The HTML of the page.
  """
  sections = [
    section for section in report.sections if section.parts or section.text
  ]
  specs = {
    _id(part.name): spec | {'data': _by_column(spec['data']['values'])}
    for part in report.parts
    if isinstance(part, figure.Figure)
    for spec in [part.to_spec()]
  }
  libraries = _in_script(_libraries())
  script = _in_script((_HERE / 'page.js').read_text(encoding='utf-8'))
  template = string.Template((_HERE / 'page.html').read_text(encoding='utf-8'))
  return template.substitute(
    refresh=''
    if seconds_to_refresh is None
    else f'<meta http-equiv="refresh" content="{seconds_to_refresh}">',
    mark=folders.MARK,
    title=_escape(report.title),
    summary=_escape(report.summary),
    navigation=''.join(
      f'<a href="#{section.anchor}">{_escape(section.title)}</a>'
      for section in sections
    ),
    sections=''.join(
      _of_section(section, report.command) for section in sections
    ),
    style=(_HERE / 'page.css').read_text(encoding='utf-8'),
    script=script,
    libraries=libraries,
    digests=f'{_digest(libraries)} {_digest(script)}',
    charts=_to_json(specs),
  )


def export(report: Report, folder: pathlib.Path) -> None:
  """Writes each table and each figure as files.

  Args:
    report: The report.
    folder: The folder to write to; it is created if it does not exist.
  """
  with errors.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  for part in report.parts:
    path = folder / _id(part.name)
    if isinstance(part, sheets.Sheet):
      for ending, text in part.files.items():
        folders.write(path.with_name(f'{path.name}.{ending}'), text)
      continue
    figure.save(dataclasses.replace(part, name=_id(part.name)), folder)
