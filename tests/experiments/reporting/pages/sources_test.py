"""Tests of how the folders of runs and grids are read for a report."""

import math

import pytest

from base import errors
from experiments.reporting.pages import sources
from tests.experiments import made_up_folders


def test_a_finished_run_has_the_clients_of_each_method(tmp_path):
  (run,) = sources.read([made_up_folders.write_run(tmp_path / 'run')])
  assert run.status == 'finished'
  clients = run.repeat('finetuning').clients
  assert [client.name for client in clients] == list(made_up_folders.CLIENTS)
  assert [client.value for client in clients][:2] == [0.5, 0.75]
  assert math.isnan(clients[2].value)


@pytest.mark.parametrize('finished', [0, 1])
def test_a_run_under_way_says_what_is_missing(tmp_path, finished):
  (run,) = sources.read(
    [made_up_folders.write_run(tmp_path / 'run', finished=finished)]
  )
  missing = ('fedavg', 'finetuning')[finished:]
  assert f'{", ".join(missing)} missing; the last round on disk is 2' in (
    run.status
  )
  assert run.rounds['fedavg']['loss'] == [0.5, 0.25]


def test_a_folder_of_folders_has_all_runs_inside(tmp_path):
  for seed in (0, 1):
    made_up_folders.write_run(tmp_path / f'seed_{seed}', seed=seed)
  assert [run.configuration['seed'] for run in sources.read([tmp_path])] == [
    0,
    1,
  ]


def test_a_folder_that_is_named_twice_is_read_once(tmp_path):
  folder = made_up_folders.write_run(tmp_path / 'run')
  assert len(sources.read([folder, tmp_path, folder])) == 1


def test_runs_that_differ_in_seed_alone_are_repeats(tmp_path):
  paths = [made_up_folders.write_run(tmp_path / str(s), seed=s) for s in (0, 1)]
  series = sources.series_of(sources.read(paths))
  assert [(method.name, len(method.repeats)) for method in series] == [
    ('FedAvg', 2),
    ('FedAvg + fine-tuning', 2),
  ]


def test_runs_that_differ_in_settings_are_named_by_them(tmp_path):
  paths = [
    made_up_folders.write_run(
      tmp_path / str(size), ('fedavg',), batch_size=size
    )
    for size in (5, 10)
  ]
  series = sources.series_of(sources.read(paths))
  assert [method.name for method in series] == [
    'FedAvg (batch_size=5)',
    'FedAvg (batch_size=10)',
  ]


def test_runs_that_differ_in_long_settings_are_named_by_their_folders(tmp_path):
  for name in ('first', 'second'):
    for seed in (0, 1):
      made_up_folders.write_run(
        tmp_path / name / f'seed_{seed}',
        ('fedavg',),
        seed=seed,
        path=f'/a/path/that/is/too/long/for/a/chart/{name}.csv',
      )
  series = sources.series_of(
    sources.read([tmp_path / 'first', tmp_path / 'second'])
  )
  assert [method.name for method in series] == [
    'FedAvg (first)',
    'FedAvg (second)',
  ]


def test_methods_of_different_runs_keep_their_names(tmp_path):
  paths = [
    made_up_folders.write_run(tmp_path / name, (name,))
    for name in ('fedavg', 'ditto')
  ]
  series = sources.series_of(sources.read(paths))
  assert [method.name for method in series] == ['FedAvg', 'Ditto']


def test_the_best_point_of_a_grid_did_not_diverge(tmp_path):
  (grid,) = sources.read([made_up_folders.write_grid(tmp_path, '{"cut o')])
  (best,) = grid.best()
  assert best.values == {'rate': 1.0}
  assert len(best.records) == 2
  assert grid.num_runs == 6
  assert grid.failures == ['ditto rate=3 seed=1: Out of memory']


@pytest.mark.parametrize('file', ['config.toml', 'runs.jsonl', None])
def test_a_folder_of_something_else_is_an_error(tmp_path, file):
  if file is not None:
    (tmp_path / file).write_text('[]')
  with pytest.raises(errors.UserError, match=str(tmp_path)):
    sources.read([tmp_path])
