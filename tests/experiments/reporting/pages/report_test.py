"""Tests of what a report has, and of when it is written."""

import json
import math

import pytest

from base import errors
from experiments.reporting import sources
from experiments.reporting.pages import report
from tests.experiments import made_up_folders
from tests.experiments import run_folders


def _texts(made, name):
  (sheet,) = [part for part in made.parts if part.name == name]
  return [dict(zip(sheet.columns, (c.text for c in r))) for r in sheet.rows]


def test_the_table_of_results_has_means_over_clients(tmp_path):
  made_up_folders.write_run(tmp_path / 'run')
  path = tmp_path / 'run' / 'per_client.csv'
  path.write_text(path.read_text().replace('nan', '1'))
  made = report.make(sources.read([run_folders.sealed(tmp_path / 'run')]), '')
  row = _texts(made, 'results')[1]
  assert row['method'] == 'FedAvg + fine-tuning'
  assert (row['mean'], row['median'], row['hurt']) == ('0.75', '0.75', '50.0%')


def test_a_model_that_diverged_has_no_mean(tmp_path):
  made_up_folders.write_run(tmp_path / 'run')
  made = report.make(sources.read([tmp_path / 'run']), '')
  assert _texts(made, 'results')[0]['mean'] == 'diverged'


def test_settings_in_which_runs_differ_are_listed(tmp_path):
  for size in (5, 10):
    made_up_folders.write_run(tmp_path / str(size), batch_size=size)
  made = report.make(sources.read([tmp_path]), '')
  (row,) = _texts(made, 'differences')
  assert list(row.values()) == ['batch_size', '10', '5']


def test_the_points_of_a_grid_begin_with_the_best(tmp_path):
  made = report.make(
    sources.read([made_up_folders.write_grid(tmp_path / 'g')]), ''
  )
  rows = _texts(made, 'g_points')
  assert [row['rate'] for row in rows] == ['1.0', '0.1', '10.0']
  assert rows[-1]['validation'] == 'diverged'


def test_the_best_points_of_a_grid_are_those_that_it_chose(tmp_path):
  grids = [made_up_folders.write_grid(tmp_path / name) for name in 'ab']
  for folder, rate in zip(grids, (0.1, 1.0)):
    (folder / 'results.json').write_text(
      json.dumps({'ditto': {'values': {'rate': rate}}})
    )
    (folder / 'ditto.toml').write_text(
      'algorithms = ["ditto"]\ntask = {name = "t"}\n'
      f'ditto = {{rate = {rate}}}'
    )
  entries = sources.read(grids)
  assert [grid.best()[0].values['rate'] for grid in entries] == [0.1, 1.0]
  made = report.make(entries, '')
  assert _texts(made, 'differences') == [
    {'setting': 'rate', 'a: Ditto': '0.1', 'b: Ditto': '1.0'}
  ]
  assert [row['task'] for row in _texts(made, 'runs')] == ['t', 't']


def test_watching_ends_when_all_is_finished(tmp_path, monkeypatch):
  folder = made_up_folders.write_run(tmp_path / 'run', finished=1)
  page = tmp_path / 'report.html'
  looks = []

  def finish(seconds):
    looks.append('refresh' in page.read_text().split('<title>')[0])
    for path in folder.glob('*.*'):
      path.unlink()
    (folder / 'metrics/fedavg.csv').unlink()
    (folder / 'metrics').rmdir()
    made_up_folders.write_run(folder)

  monkeypatch.setattr(report.time, 'sleep', finish)
  assert report.main([folder], page, None, watch=True) == 0
  assert looks == [True]
  assert 'refresh' not in page.read_text().split('<title>')[0]


@pytest.mark.parametrize('last', ['results.json', 'plots'])
def test_watching_a_grid_or_curves_ends_with_their_results(
  tmp_path, monkeypatch, last
):
  folder = made_up_folders.write_grid(tmp_path / 'grid')
  looks = []

  def finish(seconds):
    looks.append(seconds)
    if last == 'plots':
      (folder / last).mkdir()
    else:
      (folder / last).write_text('{}')

  monkeypatch.setattr(report.time, 'sleep', finish)
  page = tmp_path / 'report.html'
  assert report.main([folder], page, None, watch=True) == 0
  assert len(looks) == 1


def test_a_report_replaces_itself_but_no_page_of_others(tmp_path):
  folder = made_up_folders.write_run(tmp_path / 'run')
  page = tmp_path / 'report.html'
  for _ in range(2):
    assert report.main([folder], page, None, watch=False) == 0
  page.write_text('mine')
  with pytest.raises(errors.UserError, match='report.html is there already'):
    report.main([folder], page, None, watch=False)
  assert page.read_text() == 'mine'


@pytest.mark.parametrize(
  ('values', 'median'), [((1.0, 2.0, 4.0), 2.0), ((1.0, math.nan), math.nan)]
)
def test_quantiles_of_what_diverged_are_unknown(values, median):
  assert report._quantile(values, 0.5) == pytest.approx(median, nan_ok=True)


def test_each_task_has_sections_of_its_own(tmp_path):
  for task in ('school', 'mnist'):
    made_up_folders.write_run(tmp_path / task, task={'name': task})
  made = report.make(sources.read([tmp_path]), '')
  titles = [section.title for section in made.sections]
  assert {'Results: school', 'Results: mnist'} <= set(titles)
  names = [part.name for part in made.parts]
  assert len(set(names)) == len(names)


def test_each_target_of_tables_has_sections_of_its_own(tmp_path):
  for target in ('price', 'kind'):
    made_up_folders.write_run(
      tmp_path / target, task={'name': 'table', 'target_column': target}
    )
  made = report.make(sources.read([tmp_path]), '')
  titles = [section.title for section in made.sections]
  assert {'Results: price (table)', 'Results: kind (table)'} <= set(titles)


def test_each_metric_of_a_task_has_sections_of_its_own(tmp_path):
  for metric in ('accuracy', 'macro_f1'):
    folder = made_up_folders.write_run(
      tmp_path / metric, task={'name': 'school', 'target': metric}
    )
    path = folder / 'results.json'
    path.write_text(path.read_text().replace('"accuracy"', f'"{metric}"'))
    run_folders.sealed(folder)
  made = report.make(sources.read([tmp_path]), '')
  titles = [section.title for section in made.sections]
  assert {'Results: accuracy', 'Results: macro f1'} <= set(titles)


def test_folders_of_one_name_are_told_apart(tmp_path):
  settings = {f'setting_{k}': k for k in range(9)}
  for k in range(2):
    others = {name: value + k for name, value in settings.items()}
    made_up_folders.write_run(tmp_path / f'{k}' / 'run', **others)
  runs = sources.read([tmp_path / '0', tmp_path / '1'])
  labels = [
    configuration.label for configuration in sources.configurations(runs)
  ]
  assert labels == [str(tmp_path / f'{k}' / 'run') for k in range(2)]
