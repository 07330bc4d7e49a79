"""Tests of repeats of a run."""

import json
import statistics
import sys
from unittest import mock

import pytest

from base import errors
from experiments.reporting import sources
from experiments.runs import repeated_runs
from personalization.rounds import training
from tests.experiments import small_runs


def _run(folder, *seeds):
  configs = {seed: small_runs.config(f'seed={seed}') for seed in seeds}
  with mock.patch.object(sys, 'stderr'):
    return repeated_runs.run(configs, folder)


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('repeated')
  _run(folder, 1, 2)
  return folder


def test_each_seed_gives_what_it_gives_alone(folder, tmp_path):
  small_runs.run(small_runs.config('seed=2'), tmp_path)
  assert small_runs.numbers(folder / 'seed_2') == small_runs.numbers(tmp_path)


def test_the_summary_has_means_over_the_seeds(folder):
  summary = json.loads((folder / repeated_runs.SUMMARY).read_text())
  means = [
    json.loads((folder / f'seed_{seed}' / 'results.json').read_text())[
      'methods'
    ]['fedavg']['test']['mean']
    for seed in (1, 2)
  ]
  assert summary['seeds'] == [1, 2]
  assert summary['methods']['fedavg']['mean'] == {
    'mean': statistics.fmean(means),
    'deviation': statistics.stdev(means),
    'values': means,
  }


def test_what_is_finished_is_not_run_again(folder):
  with mock.patch.object(training, 'train', side_effect=AssertionError):
    assert [list(run.methods) for run in _run(folder, 2, 1)] == [['fedavg']] * 2


def test_a_folder_of_another_run_is_refused_before_any_training(tmp_path):
  small_runs.run(small_runs.config('total_rounds=0'), tmp_path / 'seed_2')
  with mock.patch.object(training, 'train', side_effect=AssertionError):
    with pytest.raises(errors.UserError, match='another configuration'):
      _run(tmp_path, 1, 2)
  assert [path.name for path in tmp_path.iterdir()] == ['seed_2']


def test_the_folder_of_a_run_takes_no_repeats(tmp_path):
  small_runs.run(small_runs.config('total_rounds=0'), tmp_path)
  with pytest.raises(errors.UserError, match=r'config\.toml, so .* of a run'):
    _run(tmp_path, 1, 2)
  assert not [*tmp_path.glob('seed_*')]


def test_the_folder_of_repeats_takes_no_run_and_is_read_as_repeats(folder):
  with pytest.raises(errors.UserError, match='of repeats of a run, not of a'):
    small_runs.run(small_runs.config(), folder)
  left = folder / 'config.toml'
  left.write_text('seed = 7\n[task]\nname = "synthetic"\n')
  try:
    found = sources.read([folder])
  finally:
    left.unlink()
  assert [run.path.name for run in found] == ['seed_1', 'seed_2']


def test_a_run_that_is_refused_leaves_nothing(tmp_path):
  for config in (
    small_runs.config('choose=each'),
    small_runs.config('runtime=remote', 'remote_workers=127.0.0.1:1'),
    small_runs.config(algorithms='mocha'),
  ):
    with pytest.raises(errors.UserError):
      small_runs.run(config, tmp_path / 'a' / 'run')
    assert not [*tmp_path.iterdir()]
