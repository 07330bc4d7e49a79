"""Tests of the page of a report."""

import json
import re

import pytest

from experiments.reporting import sources
from experiments.reporting.figures import drawing
from experiments.reporting.pages import page
from experiments.reporting.pages import report
from tests.experiments import made_up_folders


@pytest.fixture(name='made', scope='module')
def _made(tmp_path_factory) -> page.Report:
  root = tmp_path_factory.mktemp('folders')
  paths = [
    made_up_folders.write_run(root / 'one', batch_size=5),
    made_up_folders.write_run(root / 'two', batch_size=10),
    made_up_folders.write_grid(root / 'grid'),
  ]
  return report.make(sources.read(paths), 'report one two grid')


def test_nothing_is_loaded_from_elsewhere(made):
  text = re.sub('<script.*?</script>', '', page.to_html(made), flags=re.DOTALL)
  assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
  assert '@import' not in text


def test_no_name_ends_a_script(made):
  text = page.to_html(made)
  # The libraries, the data and our own script.
  assert text.count('</script>') == text.count('<script') == 3


def test_no_name_begins_a_tag(made):
  text = page.to_html(made)
  data = text.split('type="application/json">')[1].split('</script>')[0]
  assert '<' not in data
  names = {
    name
    for spec in json.loads(data).values()
    for name in spec['data'].get('client', ())
  }
  # As it is in the folder, once it is read.
  assert '</script><b>a' in names
  assert '<b>a' not in text


def test_of_figures_of_several_methods_one_is_chosen():
  series = [made_up_folders.series(name) for name in ('finetuning', '<b>')]
  parts = [*drawing.draw_clients(series)]
  text = page.to_html(page.Report('', '', '', [page.Section('A', parts)]))
  (choice,) = re.findall('<select.*?</select>', text)
  assert 'FedAvg + fine-tuning</option>' in choice
  assert '&lt;b&gt;</option>' in choice
  assert [*re.findall('id="chart-(hurt[^"]*)"( hidden)?', text)] == [
    ('hurt_finetuning', ''),
    ('hurt_-b-', ' hidden'),
  ]


def test_there_is_a_place_for_every_chart(made):
  text = page.to_html(made)
  places = re.findall(r'id="chart-([^"]*)"', text)
  assert len(places) == len(set(places)) >= 4
  assert all(re.search(f'"{name}":', text) for name in places)


def test_empty_sections_are_left_out(made):
  assert 'Privacy' not in page.to_html(made)


def test_only_a_page_under_way_is_loaded_again(made):
  assert 'http-equiv="refresh" content="5"' in page.to_html(made, 5)
  assert 'refresh' not in page.to_html(made).split('<title>')[0]


def test_exports_each_table_and_chart(made, tmp_path):
  page.export(made, tmp_path / 'files')
  names = {path.name for path in (tmp_path / 'files').iterdir()}
  for ending in ('csv', 'md', 'tex'):
    assert f'runs.{ending}' in names
  for ending in ('svg', 'png', 'pdf'):
    assert f'clients--school.{ending}' in names
