"""Tests of the registry of tasks."""

import pathlib
import re
import subprocess
import sys

import pytest

from base import errors
from base import settings
from tasks import registry


def test_a_wrong_name_is_answered_without_importing_tensorflow():
  code = """if True:
    import sys
    from base import errors
    from tasks import registry
    assert 'school' in registry.task_names()
    try:
      registry.load('scool')
    except errors.UserError as error:
      print(error)
    heavy = {'tensorflow', 'tensorflow_federated', 'numpy', 'sklearn'}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
  """
  # The parent's path, wherever the test is run from.
  code = f'import sys; sys.path[:] = {sys.path!r}\n{code}'
  output = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  ).stdout
  assert "Did you mean 'school'?" in output


def test_loads_a_task_with_its_settings():
  task = registry.load('synthetic', seed=1, num_test_clients='7')
  assert task.name == 'synthetic'
  assert len(task.test.client_ids) == 7


def test_an_unknown_setting_is_refused():
  with pytest.raises(
    errors.UserError, match="task synthetic: Unknown .* Did you mean 'alpha'?"
  ):
    registry.load('synthetic', alhpa=1)


def test_a_setting_out_of_its_range_is_refused():
  with pytest.raises(
    errors.UserError, match='task synthetic: beta must be at least 0, not -1.0'
  ):
    registry.load('synthetic', beta=-1)


@pytest.mark.parametrize('name', registry.task_names())
def test_each_task_has_a_class_of_settings_of_its_own(name):
  cls = registry.settings_class(name)
  assert issubclass(cls, settings.Settings)
  assert cls.__module__ == f'tasks.{name}'
  assert cls()  # Every setting has a default.


@pytest.mark.parametrize('name', registry.task_names())
def test_each_task_is_described(name):
  docs = pathlib.Path(__file__).parents[2] / 'docs'
  table = (docs / 'tasks.md').read_text('utf-8')
  assert re.search(rf'^\| .*`{name}`.* \|', table, re.MULTILINE)
