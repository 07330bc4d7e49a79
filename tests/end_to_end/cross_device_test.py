"""Runs on stand-ins for TFF's databases, each from its preset."""

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from tests import data
from tests.end_to_end import written

_SETTINGS = {
  'emnist': (
    'task.only_digits=true',
    'task.rotate_half=true',
    'clients_per_round=5',
  ),
  'emnist_hypcluster': (
    'task.only_digits=true',
    'clients_per_round=3',
    'warmstart_rounds=1',
  ),
  'stackoverflow': (
    'task.word_counts=datasets/stackoverflow.word_count',
    'task.vocabulary_size=50',
    'task.max_examples=16',
    'task.num_validation_clients=2',
    'task.num_test_clients=3',
    'clients_per_round=4',
  ),
}
_METHODS = {
  'emnist': ('finetuning', 'knn_per'),
  'emnist_hypcluster': ('hypcluster',),
  'stackoverflow': ('knn_per',),
}


@pytest.mark.parametrize('preset', _SETTINGS)
def test_a_preset_runs(preset, tmp_path):
  folder = data.tff_cache()
  config = configs.resolve(
    user_settings.read(
      preset,
      [*_SETTINGS[preset], 'total_rounds=2'],
      {'algorithms': ','.join(_METHODS[preset])},
    )
  )
  single_run.run(config, tmp_path / 'output', str(folder))
  methods = written.accuracies(tmp_path / 'output')
  assert tuple(methods) == _METHODS[preset]
  num_test = 3 if preset == 'stackoverflow' else 2
  for result in methods.values():
    assert result['test']['num_clients'] == num_test


def test_hypcluster_begins_with_the_models_of_an_ensemble(tmp_path):
  # As the README has it.
  folder = data.tff_cache()
  small = ('task.only_digits=true', 'clients_per_round=3')
  for name, preset, algorithm, settings in (
    ('warm', 'emnist', 'ensemble', ()),
    (
      'output',
      'emnist_hypcluster',
      'hypcluster',
      ('warmstart_rounds=0', f'warmstart_from={tmp_path / "warm"}'),
    ),
  ):
    config = configs.resolve(
      user_settings.read(
        preset,
        [*small, *settings, 'total_rounds=1'],
        {'algorithms': algorithm},
      )
    )
    single_run.run(config, tmp_path / name, str(folder))
  result = written.accuracies(tmp_path / 'output')['hypcluster']
  assert result['warmstart_from'] == [str(tmp_path / 'warm')]
