"""Tests of the output folder of a run, written and read."""

import contextlib
import csv
import json
import pathlib
from unittest import mock

import pytest

from base import errors
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import results_folder
from tests.experiments import run_folders
from tests.experiments.reporting import small_outcomes


def _config(seed=0, algorithms='fedavg,local'):
  return configs.resolve(
    user_settings.read(None, (), {'seed': seed, 'algorithms': algorithms})
  )


@contextlib.contextmanager
def _open(path, config=None):
  with results_folder.open_folder(path, config or _config()) as folder:
    folder.begin({})
    yield folder


class TestWriting:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.path = tmp_path / 'results' / 'run'

  def rows(self):
    with (self.path / 'per_client.csv').open(newline='') as file:
      return list(csv.DictReader(file))

  def test_the_configuration_is_written_as_a_preset(self):
    with _open(self.path, _config(seed=3)):
      pass
    preset = str(self.path / 'config.toml')
    config = configs.resolve(user_settings.read(preset))
    assert config == _config(seed=3)

  def test_results_are_there_for_the_next_run(self):
    with _open(self.path) as folder:
      folder.add('fedavg', small_outcomes.result(), small_outcomes.rows())
    with _open(self.path) as folder:
      # JSON has no infinite numbers.
      result = {
        **small_outcomes.result(),
        'metric_range': [None, None],
        'against': {},
      }
      assert folder.results == json.loads(json.dumps({'fedavg': result}))
      folder.add(
        'local',
        small_outcomes.result([0, 1, 1]),
        small_outcomes.rows('local', [0, 1, 1]),
      )
    contents = json.loads((self.path / 'results.json').read_text())
    assert contents['configuration'] == _config().to_dict()
    assert list(contents['methods']) == ['fedavg', 'local']
    # The first client is worse off without its epoch, the others are the same.
    against = contents['methods']['local']['against']['fedavg']
    assert (against['better'], against['worse']) == (0, 1)
    assert against['difference'] == pytest.approx(-0.25 / 3, abs=5e-8)
    assert [(row['method'], row['client']) for row in self.rows()] == [
      (m, c) for m in ('fedavg', 'local') for c in 'abc'
    ]

  def test_a_method_that_is_not_in_results_json_is_not_done(self):
    with _open(self.path) as folder:
      folder.add('fedavg', small_outcomes.result(), small_outcomes.rows())
      with mock.patch.object(json, 'dumps', side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
          folder.add(
            'local', small_outcomes.result(), small_outcomes.rows('local')
          )
    with _open(self.path) as folder:
      assert list(folder.results) == ['fedavg']
      folder.add('local', small_outcomes.result(), small_outcomes.rows('local'))
    assert len(self.rows()) == 6

  def test_results_of_an_older_version_have_the_names_of_today(self):
    result = {**small_outcomes.result(), 'begins_with': 'fedadam'}
    with _open(self.path) as folder:
      folder.add('fedavg', result, small_outcomes.rows())
    with _open(self.path) as folder:
      found = folder.results['fedavg']
    assert found['started_from_training'] == 'fedadam'
    assert 'begins_with' not in found

  def test_a_stopped_write_leaves_the_old_file(self):
    with _open(self.path) as folder:
      folder.add('fedavg', small_outcomes.result(), small_outcomes.rows())
      before = (self.path / 'results.json').read_text()
      with mock.patch.object(
        pathlib.Path, 'replace', side_effect=KeyboardInterrupt
      ):
        with pytest.raises(KeyboardInterrupt):
          folder.add(
            'local', small_outcomes.result(), small_outcomes.rows('local')
          )
    assert (self.path / 'results.json').read_text() == before
    assert len(self.rows()) == 3

  def test_what_is_no_number_is_null(self):
    with _open(self.path) as folder:
      folder.add('fedavg', {'test': {'mean': float('nan')}}, [])
    text = (self.path / 'results.json').read_text()
    refuse = mock.Mock(side_effect=AssertionError)
    contents = json.loads(text, parse_constant=refuse)
    assert contents['methods']['fedavg']['test']['mean'] is None

  def test_a_folder_of_another_configuration(self):
    with _open(self.path, _config(seed=1)):
      pass
    with pytest.raises(
      errors.UserError, match=r'another configuration.*\n  seed: 1, not 2'
    ):
      with _open(self.path, _config(seed=2)):
        pass

  def test_a_folder_whose_configuration_makes_no_sense(self):
    self.path.mkdir(parents=True)
    (self.path / 'config.toml').write_text('[task]\nname = "gone"')
    with pytest.raises(errors.UserError, match="another conf.*\n.*'gone'"):
      with results_folder.open_folder(self.path, _config()):
        pass

  def test_results_of_nobody_knows_what(self):
    (self.path / 'checkpoints').mkdir(parents=True)
    with pytest.raises(errors.UserError, match='no config.toml'):
      with results_folder.open_folder(self.path, _config()):
        pass

  def test_other_files_do_no_harm(self):
    self.path.mkdir(parents=True)
    (self.path / 'log.txt').write_text('')
    with results_folder.open_folder(self.path, _config()):
      pass

  def test_damaged_results(self):
    with _open(self.path):
      pass
    (self.path / 'results.json').write_text('{"methods": ')
    with pytest.raises(errors.UserError, match='damaged.*Delete'):
      with _open(self.path):
        pass

  @pytest.mark.parametrize(
    ('name', 'told'),
    [('runs.jsonl', 'of a grid, not'), ('per_client.csv', 'no config.toml')],
  )
  def test_the_folder_of_something_else(self, name, told):
    self.path.mkdir(parents=True)
    (self.path / name).write_text('mine')
    with pytest.raises(errors.UserError, match=f'{name}.* {told}'):
      with results_folder.open_folder(self.path, _config()):
        pass
    assert [path.name for path in self.path.iterdir()] == [name]

  def test_damaged_metrics(self):
    with results_folder.open_folder(self.path, _config()) as folder:
      path = folder.metrics_file('fedavg')
      path.parent.mkdir()
      path.write_text('round,num_clients\n1,x\n')
      with pytest.raises(errors.UserError, match='damaged.*Delete it and'):
        folder.communication('fedavg', 10, 100)

  def test_two_runs_do_not_share_a_folder(self):
    with results_folder.open_folder(self.path, _config()):
      with pytest.raises(errors.UserError, match='Another run is writing'):
        with results_folder.open_folder(self.path, _config()):
          pass
    with results_folder.open_folder(self.path, _config()):
      pass

  def test_a_folder_that_is_a_file(self):
    self.path.parent.mkdir()
    self.path.write_text('')
    with pytest.raises(errors.UserError, match='cannot be the output_dir'):
      with results_folder.open_folder(self.path, _config()):
        pass

  def test_what_was_sent_follows_from_the_metrics_of_rounds(self):
    with results_folder.open_folder(self.path, _config()) as folder:
      path = folder.metrics_file('fedavg')
      path.parent.mkdir()
      path.write_text(
        'round,num_clients,dropped_clients,share_sent\n1,3,1,1\n2,4,0,0.5\n'
      )
      assert folder.communication('fedavg', 10, 100) == {
        'parameters_down': 10,
        'parameters_up': (3 + 2) * 100 / 8,
        'total_parameters': 80 + 500,
      }
      assert set(folder.communication('local', 10, 100).values()) == {0}

  def test_passes_are_means_over_clients_if_they_are_measured(self):
    with results_folder.open_folder(self.path, _config()) as folder:
      path = folder.metrics_file('self_fl')
      path.parent.mkdir()
      path.write_text('round,num_clients,passes\n1,3,2\n2,1,4\n3,0,0\n')
      assert folder.passes('self_fl') == (3 * 2 + 1 * 4) / 4
      assert folder.passes('local') == 1


class TestReading:
  def test_what_is_read(self, tmp_path):
    run = results_folder.read(run_folders.write(tmp_path, {'fedavg': 0.25}))
    assert run.configuration['task.name'] == 'school'
    assert run.methods['fedavg']['test']['mean'] == 0.25
    assert [row['client'] for row in run.clients['fedavg']] == ['c1', 'c2']
    assert run.rounds == {'fedavg': {'round': [1, 2], 'loss': [0.5, 0.25]}}

  def test_no_folder_of_a_run(self, tmp_path):
    with pytest.raises(
      errors.UserError, match='is not an output folder of a run'
    ):
      results_folder.read(tmp_path)

  @pytest.mark.parametrize(
    ('name', 'damage'),
    [
      ('results.json', lambda text: '{'),
      ('results.json', lambda text: '[]'),
      ('results.json', lambda text: '[' * 100_000),
      ('results.json', lambda text: '{"methods": {}}'),
      ('results.json', lambda text: text.replace('"deviation": 0.5', '"x": 0')),
      ('results.json', lambda text: text.replace('"fedavg"', '"../../x"')),
      ('per_client.csv', lambda text: ''),
      ('per_client.csv', lambda text: text[: len(text) - 5]),
      ('per_client.csv', lambda text: text.replace('c1', 'other')),
      ('per_client.csv', lambda text: text.replace('c1', 'x' * 200_000)),
      ('per_client.csv', lambda text: text.replace('\n', ',1\n')),
      ('metrics/fedavg.csv', lambda text: text.replace('0.5', 'x')),
    ],
  )
  def test_damaged_results(self, tmp_path, name, damage):
    path = run_folders.write(tmp_path / 'a', {'fedavg': 1}) / name
    results_folder.read(tmp_path / 'a')
    path.write_text(damage(path.read_text()))
    with pytest.raises(errors.UserError, match='are damaged'):
      results_folder.read(tmp_path / 'a')

  @pytest.mark.parametrize('size', [0, 11, -1, -12])
  def test_metrics_that_are_cut_off(self, tmp_path, size):
    path = run_folders.write(tmp_path / 'a', {'fedavg': 1}) / 'results.json'
    contents = json.loads(path.read_text())
    contents['methods']['fedavg'] |= {'training': 'fedavg', 'rounds': 2}
    path.write_text(json.dumps(contents))
    results_folder.read(run_folders.sealed(tmp_path / 'a'))
    metrics = tmp_path / 'a' / 'metrics' / 'fedavg.csv'
    metrics.write_text(metrics.read_text()[:size])
    with pytest.raises(errors.UserError, match='are damaged'):
      results_folder.read(tmp_path / 'a')
