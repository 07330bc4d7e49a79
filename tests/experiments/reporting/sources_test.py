"""Tests of how the folders of runs, of repeats and of grids are read."""

import math

import pytest

from base import errors
from experiments.reporting import manifests
from experiments.reporting import sources
from tests.experiments import made_up_folders
from tests.experiments import run_folders


def test_a_finished_run_has_the_clients_of_each_method(tmp_path):
  (run,) = sources.read([made_up_folders.write_run(tmp_path / 'run')])
  assert run.status == 'finished'
  repeat = run.repeat('finetuning')
  names = [row['client'] for row in repeat.clients]
  assert names == list(made_up_folders.CLIENTS)
  assert repeat.client_values('metric')[:2] == [0.5, 0.75]
  assert math.isnan(repeat.mean)


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


def test_the_guarantee_of_all_repeats_is_read_as_it_was_written(tmp_path):
  for seed in (0, 1):
    made_up_folders.write_run(tmp_path / f'seed_{seed}', seed=seed)
  text = '{"text": "All is private."}'
  manifests.Manifest(tmp_path).write({'privacy.json': text})
  (run, _) = sources.read([tmp_path])
  assert run.privacy == 'All is private.'
  (tmp_path / 'privacy.json').write_text(text.replace('All', 'More'))
  with pytest.raises(errors.UserError, match='privacy.json is not as it was'):
    print(run.privacy)


def test_a_folder_that_is_named_twice_is_read_once(tmp_path):
  folder = made_up_folders.write_run(tmp_path / 'run')
  assert len(sources.read([folder, tmp_path, folder])) == 1


def test_runs_that_differ_in_seed_alone_are_repeats(tmp_path):
  paths = [made_up_folders.write_run(tmp_path / str(s), seed=s) for s in (0, 1)]
  series = sources.list_series(sources.read(paths))
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
  series = sources.list_series(sources.read(paths))
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
  series = sources.list_series(
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
  series = sources.list_series(sources.read(paths))
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


def test_lines_are_those_of_all_trainings_on_disk(tmp_path):
  for seed, finished in ((0, 2), (1, 0)):
    made_up_folders.write_run(
      tmp_path / str(seed), finished=finished, seed=seed
    )
  (curve,) = sources.list_curves(sources.read([tmp_path]), 'rounds')
  assert (curve.name, curve.method) == ('FedAvg', 'fedavg')
  assert [rounds['loss'] for rounds in curve.repeats] == [[0.5, 0.25]] * 2


def test_repeats_have_the_methods_that_all_have_finished(tmp_path):
  (three,) = sources.read_repeats(
    [
      run_folders.write(tmp_path / 'a', {'fedavg': 0.25, 'local': 1.0}, seed=1),
      run_folders.write(
        tmp_path / 'b', {'local': None, 'fedavg': 0.75}, seed=2
      ),
      run_folders.write(
        tmp_path / 'c', {'fedavg': 0.5, 'local': 1, 'ditto': 1}, seed=3
      ),
    ]
  )
  fedavg, local = sources.list_series(three)
  assert (fedavg.method, local.method) == ('fedavg', 'local')
  assert fedavg.values('test', 'mean') == [0.25, 0.75, 0.5]
  assert fedavg.client_values('metric') == [1, 2] * 3
  assert math.isnan(local.values('test', 'mean')[1])


def test_repeats_are_by_their_number_of_rounds(tmp_path):
  folders = [
    run_folders.write(
      tmp_path / f'{k}', {'fedavg': k}, total_rounds=rounds, seed=k
    )
    for k, rounds in enumerate([20, 5, 10, 20])
  ]
  means = [
    sources.list_series(runs)[0].values('test', 'mean')
    for runs in sources.read_repeats(folders)
  ]
  assert means == [[1], [2], [0, 3]]


def test_a_run_does_not_count_twice(tmp_path):
  folders = [
    run_folders.write(tmp_path / name, {'fedavg': 0.5}, seed=1) for name in 'ab'
  ]
  with pytest.raises(errors.UserError, match='a and .*b have the same run'):
    sources.read_repeats(folders)


def test_runs_that_are_no_repeats(tmp_path):
  folders = [
    run_folders.write(
      tmp_path / name, {'fedavg': 1}, batch_size=size, choose=choose
    )
    for name, size, choose in (('a', 1, 'all'), ('b', 2, 'each'))
  ]
  with pytest.raises(
    errors.UserError, match='differ in batch_size, choose. Name folders'
  ):
    sources.read_repeats(folders)


def test_nothing_that_all_have_finished(tmp_path):
  folders = [
    run_folders.write(tmp_path / name, {name: 1}, seed=seed)
    for seed, name in enumerate(('fedavg', 'local'))
  ]
  with pytest.raises(errors.UserError, match='no method that has been'):
    sources.read_repeats(folders)
