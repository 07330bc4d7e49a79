"""Errors of a user's modules, which their author sees."""

import importlib
import sys

import pytest

from experiments.command_line import launch
from experiments.command_line import own_modules


@pytest.fixture(name='own')
def _own(tmp_path, monkeypatch):
  """A module of the user that fails when it is called."""
  (tmp_path / 'my_methods.py').write_text(
    'def fail(settings):\n  return undefined + settings\n'
  )
  monkeypatch.setattr(own_modules, '_files', set())
  monkeypatch.syspath_prepend(tmp_path)
  own_modules.note('my_methods')
  yield importlib.import_module('my_methods')
  del sys.modules['my_methods']


def test_a_failure_of_a_users_module_is_shown_with_its_traceback(own, capsys):
  assert launch.attempt(lambda: own.fail(1)) == 1
  said = capsys.readouterr().err
  assert 'A module of your own failed' in said
  assert 'my_methods.py", line 2, in fail' in said
  assert "NameError: name 'undefined' is not defined" in said
  assert 'bug in the program' not in said
  assert 'launch.py' not in said


def test_of_other_errors_it_says_nothing(own):
  assert own_modules.describe(ValueError('elsewhere')) is None


@pytest.mark.parametrize('name', ['no_such_module', 'no.such', ''])
def test_a_module_that_cannot_be_found_is_not_noted(monkeypatch, name):
  monkeypatch.setattr(own_modules, '_files', set())
  own_modules.note(name)
  assert not own_modules._files
