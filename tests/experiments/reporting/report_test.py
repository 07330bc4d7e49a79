"""Tests of reading the output folders of runs."""

import json
import math

import pytest

from base import errors
from experiments.reporting import report


def _folder(path, means, seed=0, total_rounds=5, **settings):
  """A folder as a run leaves it, with a mean for each method."""
  (path / 'metrics').mkdir(parents=True)
  results = {
    'configuration': {
      'seed': seed,
      'total_rounds': total_rounds,
      'task': {'name': 'school'},
      **settings,
    },
    'methods': {
      name: {
        'metric': 'loss',
        'higher_is_better': False,
        'test': {'mean': mean, 'deviation': 0.5, 'hurt': None},
      }
      for name, mean in means.items()
    },
  }
  (path / 'results.json').write_text(json.dumps(results))
  rows = [f'{name},c{k},{k},\n' for name in means for k in (1, 2)]
  (path / 'per_client.csv').write_text(
    'method,client,metric,before\n' + ''.join(rows)
  )
  (path / 'metrics' / 'fedavg.csv').write_text('round,loss\n1,0.5\n2,0.25\n')
  return path


def test_a_folder(tmp_path):
  run = report.read(_folder(tmp_path, {'fedavg': 0.25}))
  assert run.configuration['task.name'] == 'school'
  assert run.methods['fedavg']['test']['mean'] == 0.25
  assert [row['client'] for row in run.clients['fedavg']] == ['c1', 'c2']
  assert run.rounds == {'fedavg': {'round': [1, 2], 'loss': [0.5, 0.25]}}


def test_numbers_of_repeats(tmp_path):
  (repeats,) = report.read_repeats(
    [
      _folder(tmp_path / 'a', {'fedavg': 0.25, 'local': 1.0}, seed=1),
      _folder(tmp_path / 'b', {'local': None, 'fedavg': 0.75}, seed=2),
      _folder(tmp_path / 'c', {'fedavg': 0.5, 'local': 1, 'ditto': 1}, seed=3),
    ]
  )
  # Those that all have finished.
  assert repeats.methods == ('fedavg', 'local')
  assert (repeats.metric, repeats.higher_is_better) == ('loss', False)
  assert repeats.values('fedavg', 'test', 'mean') == [0.25, 0.75, 0.5]
  assert math.isnan(repeats.values('local', 'test', 'mean')[1])
  assert all(map(math.isnan, repeats.values('local', 'no', 'such')))
  assert repeats.names('fedavg', 'test') == ['mean', 'deviation', 'hurt']
  assert repeats.names('fedavg', 'no', 'such') == []
  assert repeats.of_clients('fedavg', 'metric') == [1, 2] * 3
  assert all(map(math.isnan, repeats.of_clients('fedavg', 'before')))


def test_numbers_of_rounds(tmp_path):
  folders = [
    _folder(tmp_path / f'{k}', {'fedavg': k}, total_rounds=rounds)
    for k, rounds in enumerate([20, 5, 10, 20])
  ]
  means = [
    repeats.values('fedavg', 'test', 'mean')
    for repeats in report.read_repeats(folders)
  ]
  assert means == [[1], [2], [0, 3]]


def test_a_table_of_repeats(tmp_path, capsys):
  (repeats,) = report.read_repeats(
    [
      _folder(tmp_path / 'a', {'fedavg': 0.2, 'local': None}),
      _folder(tmp_path / 'b', {'fedavg': 0.4, 'local': 1.0}, seed=2),
    ]
  )
  report.print_table(repeats)
  lines = [' '.join(s.split()) for s in capsys.readouterr().out.splitlines()]
  assert lines[0] == 'loss over 2 repeats; lower is better'
  # The deviation of a sample: 0.2 / sqrt(2).
  assert 'fedavg 0.3000 ± 0.1414 0.5000 ± 0.000 –' in lines
  assert 'local – 0.5000 ± 0.000 –' in lines


class TestMistakes:
  def test_no_folder_of_a_run(self, tmp_path):
    with pytest.raises(errors.UserError, match='is no output folder of a run'):
      report.read(tmp_path)

  @pytest.mark.parametrize('text', ['{', '[]', '{"methods": {}}'])
  def test_damaged_results(self, tmp_path, text):
    _folder(tmp_path / 'a', {'fedavg': 1})
    (tmp_path / 'a' / 'results.json').write_text(text)
    with pytest.raises(errors.UserError, match='are damaged'):
      report.read(tmp_path / 'a')

  def test_runs_that_are_no_repeats(self, tmp_path):
    folders = [
      _folder(tmp_path / name, {'fedavg': 1}, batch_size=size, choose=choose)
      for name, size, choose in (('a', 1, 'all'), ('b', 2, 'each'))
    ]
    with pytest.raises(
      errors.UserError, match='differ in batch_size, choose. Name folders'
    ):
      report.read_repeats(folders)

  def test_nothing_that_all_have_finished(self, tmp_path):
    folders = [
      _folder(tmp_path / name, {name: 1}) for name in ('fedavg', 'local')
    ]
    with pytest.raises(errors.UserError, match='no method that has been'):
      report.read_repeats(folders)
