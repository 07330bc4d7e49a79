"""Runs on small data of the form that has to be prepared, from the presets."""

import csv
import json

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from tasks.data import ted_talks
from tests.tasks import gld_source
from tests.tasks.data import ted_source

_SETTINGS = {
  'landmarks': (
    'task.image_size=32',
    'task.num_validation_clients=1',
    'task.num_test_clients=2',
    'clients_per_round=2',
  ),
  'ted_multi': ('clients_per_round=3', 'finetuning.finetuning_epochs=2'),
  'ted_multi_hypcluster': ('clients_per_round=3', 'warmstart_rounds=1'),
}
_METHODS = {
  'landmarks': ('knn_per',),
  'ted_multi': ('finetuning', 'knn_per'),
  'ted_multi_hypcluster': ('hypcluster',),
}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  gld_source.write(folder / 'landmarks' / 'gld160k')
  ted_source.write(folder / 'source')
  ted_talks.write(
    ted_talks.read(folder / 'source'), folder / ted_talks.DATABASE
  )
  return folder


@pytest.mark.parametrize('preset', _SETTINGS)
def test_a_preset_runs(preset, data_dir, tmp_path):
  settings = [*_SETTINGS[preset], 'total_rounds=2']
  flags = {'algorithms': ','.join(_METHODS[preset])}
  config = configs.resolve(user_settings.read(preset, settings, flags))
  single_run.run(config, tmp_path / 'output', str(data_dir))
  results = json.loads((tmp_path / 'output/results.json').read_text())
  assert tuple(results['methods']) == _METHODS[preset]
  with (tmp_path / 'output/per_client.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert {row['method'] for row in rows} == set(_METHODS[preset])
  for result in results['methods'].values():
    assert result['dropped_updates'] == 0
    assert 0 <= result['test']['mean'] <= 1
