"""Runs on small data of the form that has to be prepared, from the presets."""

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from tasks.data import ted_talks
from tests.end_to_end import written
from tests.tasks import gld_source
from tests.tasks import ted_source

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
  assert tuple(written.accuracies(tmp_path / 'output')) == _METHODS[preset]
