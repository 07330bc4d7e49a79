"""Tests of the work of a grid: its runs, trainings and records."""

from unittest import mock

import numpy as np
import pytest

from base import errors
from experiments.sweeps import grid_file
from experiments.sweeps import grid_work
from personalization.privacy import accounting
from personalization.privacy import ledger
from personalization.rounds import training
from tests.experiments import small_grids
from tests.experiments import small_runs
from tests.tasks import table_source


class TestJobs:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.folder = tmp_path
    self.grid = grid_file.read(small_grids.write(self.folder))
    self.runs = grid_work.make_runs(self.grid)

  def test_what_trains_alike_is_trained_once(self):
    assert len(self.runs) == 2 * (6 + 3)
    jobs, _ = grid_work.make_jobs(self.runs, None, None)
    # A training for each rate and seed, for both methods and numbers of rounds.
    assert len(jobs) == 2 * 3
    for job in jobs:
      assert [run.config.training.total_rounds for run in job.runs] == [
        8,
        12,
        12,
      ]
      assert len({run.config.training.seed for run in job.runs}) == 1
    assert len({job.program for job in jobs}) == 1

  def test_the_numbers_are_those_of_a_run_by_itself(self):
    jobs, _ = grid_work.make_jobs(self.runs[:9], None, None, detailed=True)
    (job,) = (
      job
      for job in jobs
      if job.runs[0].point.values['client_learning_rate'] == 0.1
    )
    runner = grid_work.Runner(None)
    progress = []
    for member, record in runner.run(job, progress.append):
      folder = self.folder / member.key
      result = small_runs.run(member.config, folder)[record['algorithm']]
      np.testing.assert_allclose(
        np.mean(record['test']), result['test']['mean'], rtol=1e-5
      )
      assert record['hurt'] == result['test']['hurt']
      assert record['chosen'] == result['chosen']
      rows = small_runs.rows(folder)
      np.testing.assert_allclose(
        record['test'], [float(row['metric']) for row in rows], rtol=1e-5
      )
      # All clients have the same candidate.
      (chosen,) = record['chosen']
      assert record['candidates'][chosen]['test'] == record['test']
      np.testing.assert_allclose(
        record['candidates'][chosen]['pooled'],
        result['test']['weighted_mean'],
        rtol=1e-5,
      )
      assert record['frozen_weights'] == 0
    assert set(range(1, 13)) <= set(progress)

  def test_a_private_training_of_several_points_is_one_use_of_the_data(self):
    private = {
      'privacy.name': 'gaussian',
      'privacy.noise': 2.0,
      'client_weighting': 'uniform',
      'client_sampling': 'poisson',
    }
    runs = grid_work.make_runs(self.grid.changed(None, private))
    jobs, uses = grid_work.make_jobs(runs, None, None)
    assert sum(use.times for use in uses) == len(jobs) == 2 * 3
    # Whoever sees the training with most rounds sees those of the others.
    event = accounting.poisson(2.0, 0.5, 2 * 3 * 12)
    total = ledger.add(uses)
    assert total.epsilon == accounting.epsilon(event, total.delta)[0]

  def test_within_silos_points_that_are_alike_are_counted(self):
    private = {
      'privacy.name': 'example',
      'privacy.noise': 5.0,
      'privacy.delta': 1e-3,
      'clients_per_round': 0,
      'client_weighting': 'uniform',
    }
    table = table_source.write(self.folder / 't.csv', table_source.rows())
    task = {
      'name': 'table',
      'path': str(table),
      'client_column': 'who',
      'target_column': 'y',
      'feature_columns': ['a', 'b'],
    }
    values = {'client_learning_rate': [0.01, 0.1]}
    grid = grid_file.parse(
      {
        'repeats': [1, 2],
        'grid': [
          {
            'algorithms': ['fedavg'],
            'settings': private | {f'task.{n}': v for n, v in task.items()},
            'values': values,
          }
        ],
      },
      'grid',
    )
    _, uses = grid_work.make_jobs(grid_work.make_runs(grid), None, None)
    assert [use.times for use in uses] == [4]

  def test_points_are_not_evaluated_in_their_course(self):
    grid = self.grid.changed(None, {'rounds_per_evaluation': 4})
    with pytest.raises(errors.UserError, match='must be 0 in a grid'):
      grid_work.make_runs(grid)

  def test_another_metric_than_there_is(self):
    with pytest.raises(errors.UserError, match="or loss, not 'mse'"):
      grid_work.make_jobs(self.runs, 'mse', None)


def test_what_begins_with_a_training_is_in_its_job():
  small = dict(setting.split('=') for setting in small_runs.SMALL)
  settings = {**small, 'clients_per_round': 0}
  finetuning = {'finetuning_epochs': 1}
  groups = {'groups': 'inferred', 'num_groups': 2, 'group_epochs': 3}
  methods = {
    'fedadam': {},
    'fedadam+finetuning': finetuning,
    'group': groups,
    'group+finetuning': {**groups, **finetuning},
  }
  grids = [
    {
      'algorithms': [name],
      'settings': {**settings, **values},
      'values': {'total_rounds': [4, 6]},
    }
    for name, values in methods.items()
  ]
  grid = grid_file.parse({'repeats': [1], 'grid': grids}, 'grid')
  (job,), _ = grid_work.make_jobs(grid_work.make_runs(grid), None, None)
  assert len(job.runs) == 2 * 4
  trained = []
  real = training.train

  def train(method, *args, **kwargs):
    ended = real(method, *args, **kwargs)
    trained.append((method.trainer.cohort_attribute, ended.round))
    return ended

  with mock.patch.object(training, 'train', train):
    records = list(grid_work.Runner(None).run(job, lambda _: None))
  # The global model goes on from 4 to 6 rounds; groups are trained once from
  # either. What is there already is not trained again.
  assert set(trained) == {(None, 4), (None, 6), ('group', 6)}
  assert trained.count(('group', 6)) == 2
  alone = {
    run.point.algorithm: record
    for run, record in records
    if run.config.training.total_rounds == 6
  }
  np.testing.assert_array_equal(
    alone['group+finetuning']['before'], alone['group']['test']
  )
