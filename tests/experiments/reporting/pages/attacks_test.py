"""Tests that no name in data does more than to be shown."""

import base64
import csv
import dataclasses
import hashlib
import html.parser
import io
import re
from xml.etree import ElementTree

import pytest

from experiments.reporting.pages import page
from experiments.reporting.pages import sheets
from tests import attacks
from tests.experiments.reporting.pages import attacked_reports

_OF_PICTURES = (
  *('svg', 'g', 'path', 'text', 'tspan', 'rect', 'line', 'style'),
  *('defs', 'clipPath', 'linearGradient', 'stop'),
)


class _Tags(html.parser.HTMLParser):
  """Collects the elements of a page and what it shows, as a browser does."""

  def __init__(self, text):
    super().__init__()
    self.tags: list[tuple[str, dict[str, str | None]]] = []
    self.texts: list[str] = []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_data(self, data):
    self.texts.append(data)


@pytest.fixture(name='text', scope='module')
def _text() -> str:
  return page.to_html(attacked_reports.make())


def test_no_name_makes_an_element_or_an_attribute(text):
  plain = _Tags(page.to_html(attacked_reports.make(['a\n', 'b', 'c']))).tags
  found = _Tags(text).tags
  known = {(tag, *sorted(attributes)) for tag, attributes in plain}
  assert {(tag, *sorted(attributes)) for tag, attributes in found} <= known
  assert sum(tag == 'script' for tag, _ in found) == 3


def test_links_lead_nowhere_else(text):
  links = [a['href'] for _, a in _Tags(text).tags if 'href' in a]
  assert len(links) > len(attacked_reports.NAMES)
  assert all(link.startswith(('#', 'data:text/')) for link in links)


def test_names_are_shown_as_they_are(text):
  shown = ''.join(_Tags(text).texts)
  for name in attacked_reports.NAMES:
    if name.isprintable():
      assert name in shown


def test_only_the_scripts_of_the_page_are_allowed(text):
  policy = re.search('Security-Policy" content="([^"]*)"', text)[1]
  rules = dict(rule.strip().split(' ', 1) for rule in policy.split(';'))
  scripts = re.findall('<script type="module">(.*?)</script>', text, re.DOTALL)
  assert rules['script-src'].split() == [
    f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
    for code in scripts
  ]
  assert rules['default-src'] == "'none'"
  # A browser reads it before any script.
  assert text.index('Security-Policy') < text.index('<script')


@pytest.mark.parametrize('name', attacked_reports.NAMES)
def test_files_of_a_table_have_one_cell_for_a_name(name):
  sheet = sheets.Sheet('a', 'b', [name, 'c'], [[sheets.Cell(name)] * 2])
  rows = [*csv.reader(io.StringIO(sheet.to_csv(), newline=''))]
  assert [len(row) for row in rows] == [2, 2]
  assert not rows[1][0].startswith(('=', '+', '-', '@', '\t', '\r'))
  lines = sheet.to_markdown().splitlines()
  assert len(lines) == 3
  bars = re.findall(r'(?<!\\)(?:\\\\)*\|', lines[2])
  assert len(bars) == 3
  assert not re.search(r'(?<!\\)(?:\\\\)*[<\[`*]', lines[2].replace('<br>', ''))
  (row,) = re.findall(r'\\midrule\n(.*) \\\\\n\\bottomrule', sheet.to_latex())
  without = re.sub(
    r'\\(text(backslash|ascii\w+|less|greater|bar))?\{\}|\\[&%$#_{}]|\{[*[]\}',
    '',
    row,
  )
  assert without.count('&') == 1
  assert not re.search(r'[\\%$#_{}~^\[*]', without)
  sheet.to_latex().encode()


def test_numbers_are_no_formulas():
  texts = ['-1', '+2.5e-3', '-1 apples']
  sheet = sheets.Sheet('a', 'b', ['c'], [[sheets.Cell(text)] for text in texts])
  assert sheet.to_csv().split() == ['c', '-1', '+2.5e-3', "'-1", 'apples']


def test_pictures_show_names_and_nothing_else():
  names = [name[:60] for name in attacked_reports.NAMES]
  for drawn in attacked_reports.figures(names):
    for element in ElementTree.fromstring(drawn.files()['svg']).iter():
      assert element.tag.rpartition('}')[2] in _OF_PICTURES
      assert not any(
        key.startswith('on') or 'href' in key for key in element.keys()
      )


def test_files_are_written_for_any_name(tmp_path):
  names = [attacks.NAMES[kind] for kind in ('long', 'folder above', 'path')]
  made = attacked_reports.make(names)
  page.export(dataclasses.replace(made, sections=made.sections[1:]), tmp_path)
  assert {path.parent for path in tmp_path.rglob('*')} == {tmp_path}
  assert len([*tmp_path.glob('*.csv')]) == len(names)
