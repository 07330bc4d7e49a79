"""Tests of what is told of wrong settings before anything is imported."""

import pytest

from base import errors
from experiments.command_line import own_modules
from experiments.configuration import user_settings
from tasks import registry as task_registry
from tests import attacks
from tests.experiments import user_modules

_REGISTERS = """
from tasks import registry
from tasks import synthetic

registry.register_task('{name}', synthetic.SyntheticSettings)
"""


def _read_with_own_task(folder, name, monkeypatch):
  monkeypatch.setattr(task_registry, 'TASKS', {**task_registry.TASKS})
  text = _REGISTERS.format(name=name)
  with user_modules.written(folder, 'own_module', text):
    return user_settings.read(
      None, ['modules=own_module'], {'task.name': name, 'algorithms': 'fedavg'}
    )


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


def test_a_module_that_registers_nothing_is_refused_each_time(tmp_path):
  with user_modules.written(tmp_path, 'own_module', 'import algorithms\n'):
    for _ in range(2):
      with pytest.raises(errors.UserError, match='registers no method or task'):
        user_settings.read(None, ['modules=own_module'])


def test_a_module_that_registers_something_can_be_named_again(tmp_path):
  text = user_modules.REGISTERS_OWN
  with user_modules.written(tmp_path, 'own_module', text):
    for _ in range(2):
      request = user_settings.read(
        None, ['modules=own_module'], {'algorithms': 'own'}
      )
      assert request.algorithms == ('own',)


def test_a_preset_for_another_task_does_not_apply_by_its_name(
  tmp_path, monkeypatch
):
  assert 'digits' in user_settings.preset_names()  # It is for emnist.
  request = _read_with_own_task(tmp_path, 'digits', monkeypatch)
  assert request.task == 'digits'
  assert request.origin.endswith('start from the defaults, without a preset.')


def test_a_module_does_not_take_the_name_of_a_task(tmp_path, monkeypatch):
  with pytest.raises(errors.UserError, match='school is registered already'):
    _read_with_own_task(tmp_path, 'school', monkeypatch)


def test_a_file_with_the_name_of_a_task_is_no_preset_of_it(
  tmp_path, monkeypatch
):
  (tmp_path / 'school').write_text('seed = 7')
  monkeypatch.chdir(tmp_path)
  request = user_settings.read(None, (), {'task.name': 'school'})
  assert request.origin == 'Settings start from preset school.'


def test_a_preset_for_another_task_is_said_to_be_one(tmp_path):
  preset = tmp_path / 'mine.toml'
  preset.write_text('[task]\nname = "school"\nsplit_seed = 2')
  request = user_settings.read(str(preset), (), {'task.name': 'synthetic'})
  assert request.origin == (
    f'Settings start from preset {preset} without those of its task school.'
  )


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
  assert layer.source == 'preset school'


def test_methods_are_called_by_their_short_names():
  chosen = 'hypcluster+finetuning,fedavg+finetuning,fedavg'
  request = user_settings.read(None, (), {'algorithms': chosen})
  assert request.algorithms == (
    'hypcluster+finetuning',
    'finetuning',
    'fedavg',
  )


def test_a_preset_of_an_editor_that_marks_unicode(tmp_path):
  path = tmp_path / 'p.toml'
  path.write_text('total_rounds = 3\r\n', encoding='utf-8-sig')
  layer = user_settings.read_preset(path)
  assert layer.settings == (('total_rounds', 3),)


@pytest.mark.parametrize(
  'text, line',
  [
    ('x = 1\nundefined_name\n', 'line 2, in <module>'),
    ('def broken(:\n', 'line 1'),
    (user_modules.REGISTERS_OWN.replace("'own'", "'Own'"), "'Own' is no name"),
  ],
)
def test_the_author_of_a_module_sees_the_traceback(tmp_path, text, line):
  with user_modules.written(tmp_path, 'own_module', text):
    with pytest.raises(errors.UserError, match='own_module cannot be') as error:
      user_settings.read(None, ['modules=own_module'])
  assert line in str(error.value)
  assert 'own_module.py' in str(error.value)
  assert 'importlib' not in str(error.value)


_RUNS = f"""
import pathlib

pathlib.Path(__file__).with_name('it_ran').touch()
{user_modules.REGISTERS_OWN}"""


@pytest.mark.parametrize('name', ['own_module', 'own_package.own_module'])
def test_a_module_that_a_file_names_needs_the_users_word(
  tmp_path, monkeypatch, name
):
  monkeypatch.setattr(own_modules, '_trusted', set())
  package = tmp_path / 'own_package'
  package.mkdir()
  (package / '__init__.py').write_text(_RUNS)
  (package / 'own_module.py').write_text(_RUNS)
  preset = tmp_path / 'config.toml'
  preset.write_text(f'modules = ["{name}"]\nalgorithms = ["own"]\n')
  with user_modules.written(tmp_path, 'own_module', _RUNS):
    with pytest.raises(errors.UserError, match=r'own_module\.py, SHA-256') as e:
      user_settings.read(str(preset))
    assert f'--trust_modules={name}' in str(e.value)
    assert not [*tmp_path.rglob('it_ran')]
    if name == 'own_module':
      own_modules.trust([name])
      assert user_settings.read(str(preset)).algorithms == ('own',)
      assert (tmp_path / 'it_ran').exists()


def test_a_module_that_was_imported_needs_no_more_words(tmp_path, monkeypatch):
  monkeypatch.setattr(own_modules, '_trusted', set())
  preset = tmp_path / 'config.toml'
  preset.write_text('modules = ["own_module"]\nalgorithms = ["own"]\n')
  with user_modules.written(tmp_path, 'own_module', _RUNS):
    user_settings.read(None, ['modules=own_module'])
    assert user_settings.read(str(preset)).algorithms == ('own',)


@pytest.mark.parametrize(
  'text, problem',
  [
    ('raise KeyboardInterrupt\n', 'cannot be imported'),
    ('import sys\nsys.exit(3)\n', 'cannot be imported'),
    (
      'from algorithms import registry\n'
      "registry.TRAINERS['fedavg'] = registry.TRAINERS['ditto']\n",
      "replaces the trainer 'fedavg'",
    ),
    (
      "from tasks import registry\ndel registry.TASKS['school']\n",
      "replaces the task 'school'",
    ),
  ],
)
def test_a_module_may_do_anything_but_is_refused(
  tmp_path, monkeypatch, text, problem
):
  monkeypatch.setattr(task_registry, 'TASKS', {**task_registry.TASKS})
  with user_modules.written(tmp_path, 'own_module', text):
    with pytest.raises(errors.UserError, match=problem):
      user_settings.read(None, ['modules=own_module'])


@pytest.mark.parametrize('kind', attacks.ENDLESS)
def test_a_preset_that_has_no_end_is_named(tmp_path, kind):
  path = tmp_path / 'p.toml'
  attacks.ENDLESS[kind](path)
  with (
    attacks.soon(),
    pytest.raises(errors.UserError, match='p.toml cannot be read'),
  ):
    user_settings.read(str(path), (), {})
