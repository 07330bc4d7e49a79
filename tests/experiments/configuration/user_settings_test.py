"""Tests of what is told of wrong settings before anything is imported."""

import pathlib
import sys

import pytest

from algorithms import registry
from base import errors
from experiments.configuration import user_settings


@pytest.mark.parametrize(
  ('preset', 'assignments', 'flags', 'message'),
  [
    (None, (), {'task.name': 'scool'}, "task 'scool'. Did you mean 'school'?"),
    (
      None,
      (),
      {'algorithms': 'fedavg,lokal'},
      "algorithm 'lokal'. Did you mean 'local'?",
    ),
    (None, (), {'algorithms': ''}, 'algorithms must not be empty'),
    ('scool', (), {}, "Did you mean 'school'?"),
    (None, ['x'], {}, "takes name=value, not 'x'"),
    (None, ['modules=no.such'], {}, 'no.such cannot be imported: ModuleNotFo'),
  ],
)
def test_is_refused_at_once(preset, assignments, flags, message):
  with pytest.raises(errors.UserError, match=message):
    user_settings.read(preset, assignments, flags)


@pytest.fixture(name='own_module')
def _own_module(tmp_path, monkeypatch):
  """Writes a module where the user is."""
  monkeypatch.setenv('BUILD_WORKING_DIRECTORY', str(tmp_path))
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'modules', {**sys.modules})
  monkeypatch.setattr(registry, 'TRAINERS', {**registry.TRAINERS})
  return tmp_path / 'own_module.py'


def test_a_module_that_registers_nothing_is_refused_each_time(own_module):
  own_module.write_text('from algorithms import registry\n')
  for _ in range(2):
    with pytest.raises(errors.UserError, match='own_module registers no meth'):
      user_settings.read(None, ['modules=own_module'])


def test_a_module_that_registers_something_can_be_named_again(own_module):
  own_module.write_text(
    'from algorithms import registry\n'
    "registry.TRAINERS['own'] = registry.TRAINERS['fedavg']\n"
  )
  for _ in range(2):
    request = user_settings.read(
      None, ['modules=own_module'], {'algorithms': 'own'}
    )
    assert request.algorithms == ('own',)


def test_the_task_and_the_methods_are_known_at_once():
  request = user_settings.read(
    None, ['task.name=school'], {'algorithms': 'local,fedavg,local'}
  )
  assert request.task == 'school'
  assert request.algorithms == ('local', 'fedavg')


def test_a_preset_is_a_layer_of_full_names(tmp_path):
  path = tmp_path / 'preset.toml'
  path.write_text('seed = 1\n[task]\nname = "school"\n["a+b"]\nx = [2]')
  layer = user_settings.read_preset(path)
  assert layer.source == f'preset {path}'
  assert layer.settings == (
    ('seed', 1),
    ('task.name', 'school'),
    ('a+b.x', [2]),
  )
  assert layer.is_preset
  assert layer.last('seed') == 1
  assert layer.last('sed') is None


def test_presets_come_with_the_code():
  assert 'school' in user_settings.preset_names()
  (layer, *_) = user_settings.read('school').layers
  assert pathlib.Path(layer.source.removeprefix('preset ')).name == (
    'school.toml'
  )


def test_methods_are_called_by_their_short_names():
  chosen = 'hypcluster+finetuning,fedavg+finetuning,fedavg'
  request = user_settings.read(None, (), {'algorithms': chosen})
  assert request.algorithms == (
    'hypcluster+finetuning',
    'finetuning',
    'fedavg',
  )
