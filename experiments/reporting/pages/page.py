"""A report as one HTML page that needs no network."""

import base64
from collections.abc import Sequence
import dataclasses
import functools
import html
import json
import pathlib
import string
from typing import Any

import vl_convert

from base import errors
from base import whole_files
from experiments.reporting import folders
from experiments.reporting.pages import charts
from experiments.reporting.pages import sheets

_HERE = pathlib.Path(__file__).parent
# Tables with more rows are folded.
_MOST_ROWS = 40
_KINDS = {
  'csv': ('CSV', 'text/csv'),
  'md': ('Markdown', 'text/markdown'),
  'tex': ('LaTeX', 'text/x-tex'),
}


def _id(name: str) -> str:
  """Makes a name that is valid for an HTML element and for a file."""
  return ''.join(c if c.isalnum() or c in '-_.' else '-' for c in name)


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of a report.

  Attributes:
    title: Its title.
    parts: Its tables and charts.
    text: A text that is shown above the parts.
  """

  title: str
  parts: Sequence[sheets.Sheet | charts.Chart]
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
  def parts(self) -> list[sheets.Sheet | charts.Chart]:
    """All of its tables and charts."""
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
    f'<h3>{html.escape(sheet.title)}</h3>'
    f'<p class="note">{html.escape(sheet.note)}</p>{table}'
    f'<p class="take">Download: {"".join(links)}</p>'
  )


def _of_chart(chart: charts.Chart, command: str) -> str:
  name = _id(chart.name)
  return (
    f'<h3>{html.escape(chart.title)}</h3>'
    f'<p class="note">{html.escape(chart.note)}</p>'
    f'<div class="chart" id="chart-{name}"></div>'
    f'<details class="take"><summary>Data and command</summary>'
    f'<button type="button" data-chart="{name}">Data as CSV</button>'
    f'<pre>{html.escape(command)}</pre></details>'
  )


def _of_section(section: Section, command: str) -> str:
  parts = [
    _of_sheet(part)
    if isinstance(part, sheets.Sheet)
    else _of_chart(part, command)
    for part in section.parts
  ]
  text = f'<p>{html.escape(section.text)}</p>' if section.text else ''
  return (
    f'<section id="{section.anchor}"><h2>{html.escape(section.title)}</h2>'
    f'{text}{"".join(parts)}</section>'
  )


@functools.cache
def _libraries() -> str:
  """Returns Vega, Vega-Lite and Vega-Embed as one script."""
  return vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')


def _in_script(text: str) -> str:
  """Escapes a text so that it cannot end the script element around it."""
  return text.replace('</script', '<\\/script')


def _by_column(rows: charts.Rows) -> dict[str, list[Any]]:
  """Arranges rows by column, which is shorter; page.js restores the rows."""
  names = dict.fromkeys(name for row in rows for name in row)
  return {name: [row.get(name) for row in rows] for name in names}


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
    _id(part.name): part.to_spec() | {'data': _by_column(part.data)}
    for part in report.parts
    if isinstance(part, charts.Chart)
  }
  template = string.Template((_HERE / 'page.html').read_text(encoding='utf-8'))
  return template.substitute(
    refresh=''
    if seconds_to_refresh is None
    else f'<meta http-equiv="refresh" content="{seconds_to_refresh}">',
    mark=folders.MARK,
    title=html.escape(report.title),
    summary=html.escape(report.summary),
    navigation=''.join(
      f'<a href="#{section.anchor}">{html.escape(section.title)}</a>'
      for section in sections
    ),
    sections=''.join(
      _of_section(section, report.command) for section in sections
    ),
    style=(_HERE / 'page.css').read_text(encoding='utf-8'),
    script=_in_script((_HERE / 'page.js').read_text(encoding='utf-8')),
    libraries=_in_script(_libraries()),
    charts=_in_script(
      json.dumps(specs, separators=(',', ':'), allow_nan=False)
    ),
  )


def export(report: Report, folder: pathlib.Path) -> None:
  """Writes each table and each chart as files.

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
    spec = part.to_spec() | {'width': 480, 'background': 'white'}
    svg = vl_convert.vegalite_to_svg(spec)
    drawn = {
      'svg': svg.encode(),
      'png': vl_convert.svg_to_png(svg, scale=2),
      'pdf': vl_convert.svg_to_pdf(svg),
    }
    for ending, contents in drawn.items():
      with whole_files.writing(
        path.with_name(f'{path.name}.{ending}')
      ) as temporary:
        temporary.write_bytes(contents)
