"""Runs on small data of the form of the real ones, from the presets."""

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from tasks.data import ted_talks
from tests.end_to_end import written
from tests.tasks import gld_source
from tests.tasks import mnist_source
from tests.tasks import sent140_source
from tests.tasks import ted_source
from tests.tasks import wakeword_source

_SETTINGS = {
  'landmarks': (
    'task.image_size=32',
    'task.num_validation_clients=1',
    'task.num_test_clients=2',
    'clients_per_round=2',
  ),
  'ted_multi': ('clients_per_round=3', 'finetuning.finetuning_epochs=2'),
  'ted_multi_hypcluster': ('clients_per_round=3', 'warmstart_rounds=1'),
  'mnist_self_fl': ('task.num_clients=20', 'clients_per_round=5'),
  'sent140_self_fl': (
    'task.num_clients=3',
    'task.lstm_size=4',
    'clients_per_round=2',
  ),
}
_METHODS = {
  'landmarks': ('knn_per',),
  'ted_multi': ('finetuning', 'knn_per'),
  'ted_multi_hypcluster': ('hypcluster',),
  'mnist_self_fl': ('fedavg', 'ditto'),
  'sent140_self_fl': ('fedavg',),
}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  gld_source.write(folder / 'landmarks' / 'gld160k')
  ted_source.write(folder / 'source')
  ted_talks.write(
    ted_talks.read(folder / 'source'), folder / ted_talks.DATABASE
  )
  mnist_source.write(folder / 'mnist')
  sent140_source.write(folder)
  wakeword_source.write(folder / 'wakeword')
  return folder


def _run(preset, settings, methods, data_dir, folder):
  settings = [*settings, 'total_rounds=2']
  flags = {'algorithms': ','.join(methods)}
  config = configs.resolve(user_settings.read(preset, settings, flags))
  return single_run.run(config, folder, str(data_dir))


@pytest.mark.parametrize(
  'preset',
  [
    # XLA takes minutes to compile MobileNet.
    pytest.param(
      preset, marks=pytest.mark.slow if preset == 'landmarks' else ()
    )
    for preset in _SETTINGS
  ],
)
def test_a_preset_runs(preset, data_dir, tmp_path):
  _run(
    preset, _SETTINGS[preset], _METHODS[preset], data_dir, tmp_path / 'output'
  )
  assert tuple(written.accuracies(tmp_path / 'output')) == _METHODS[preset]


def test_a_detector_is_judged_by_its_false_accepts(data_dir, tmp_path):
  results = _run(
    'wakeword_self_fl',
    ['task.channels=2,2', 'client_learning_rate=0.01'],
    ('fedavg', 'knn_per'),
    data_dir,
    tmp_path / 'output',
  )
  for result in results.values():
    assert result['metric'] == 'false_accepts'
    assert 0 <= result['test']['mean'] <= 1
    assert result['groups'].keys() == {'phone', 'speaker'}


def test_preferences_are_judged_by_f1_type_by_type(data_dir, tmp_path):
  results = _run(
    'mnist_preference',
    ['task.users=10', 'client_steps=2', 'clients_per_round=4'],
    ('fedembed_prototype',),
    data_dir,
    tmp_path / 'output',
  )
  for result in results.values():
    assert result['metric'] == 'macro_f1'
    assert 0 <= result['test']['mean'] <= 1
    assert result['groups'].keys() == set(map(str, range(10)))
  assert 'clusters' in results['fedembed_prototype']
