"""Tests of the program that reruns published tables."""

import json

import pytest

from tests import data
from tests.experiments import programs


class TestReproduce:
  def test_schools_best_points_have_the_published_figures(self, tmp_path):
    completed = programs.run(
      'reproduce',
      '--table=motley_school',
      '--best',
      f'--data_dir={data.path("school").parent}',
      f'--output_dir={tmp_path / "out"}',
      f'--json={tmp_path / "figures.json"}',
    )
    assert completed.returncode == 0, completed.stderr
    figures = json.loads((tmp_path / 'figures.json').read_text())
    assert len(figures) == 8
    for method, row in figures.items():
      assert row['ours'] == pytest.approx(row['published'], abs=0.0004), method
    # Motley has 33 % and 37.4 %, with its own splits into batches.
    assert 0.29 <= figures['finetuning']['hurt'] <= 0.41
    assert 0.34 <= figures['knn_per']['hurt'] <= 0.42
    drawn = {path.name for path in (tmp_path / 'out/plots').iterdir()}
    assert set({'clients.png', 'clients.svg', 'hurt_finetuning.png'}) <= set(
      drawn
    )

  @pytest.mark.parametrize(
    ('arguments', 'message'),
    [
      ((), 'Name a table with --table: adapters'),
      (('--table=motley_shool',), "Did you mean 'motley_school'?"),
      (('--table=self_fl_gaussian', '--best'), 'which show every point'),
      (
        ('--table=fedpc_tv', '--weights=/nowhere/model.npz'),
        '--weights: there is no file /nowhere/model.npz',
      ),
      (
        ('--table=motley_school', '--data_dir=/nowhere'),
        'The data folder /nowhere does not exist',
      ),
      (
        ('--table=motley_school', '--json=/nowhere/figures.json'),
        'there is no folder /nowhere',
      ),
      (
        ('--table=motley_school', '--repeats=99'),
        '--repeats=99: the table has only 5 seeds',
      ),
    ],
  )
  def test_bad_input(self, arguments, message):
    completed = programs.run_without_tensorflow('reproduce', *arguments)
    assert completed.returncode == 1
    assert message in completed.stderr
    assert 'Traceback' not in completed.stderr
