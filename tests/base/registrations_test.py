"""Registrations of methods and tasks, read from sources and made."""

import pytest

from base import registrations

_MODULE = '''"""A module."""

import nothing_that_exists


class Plain:
  pass


registry.register_thing('plain', Plain)
registry.register_thing(
  'other',
  Plain,
  title='Other',
  does=(
    'one thing'
    ' and another'
  ),
  defaults={'rate': 0.5},
)
registry.register_something_else('not_a_thing', Plain)
'''


def test_reads_what_a_module_registers_without_importing_it(tmp_path):
  (tmp_path / 'a_module.py').write_text(_MODULE)
  (tmp_path / 'another.py').write_text('"""Registers nothing."""\n')
  found = list(registrations.read(tmp_path, 'things', 'register_thing'))
  assert found == [
    ('plain', 'things.a_module:Plain', {}),
    (
      'other',
      'things.a_module:Plain',
      dict(title='Other', does='one thing and another', defaults={'rate': 0.5}),
    ),
  ]


@pytest.mark.parametrize('name', ['Fed', 'fed avg', '1d', 'fed+avg', ''])
def test_refuses_what_is_no_name(name):
  with pytest.raises(ValueError, match='is no name: use lower-case letters'):
    registrations.add({}, name, 'entry')


def test_adds_an_entry_once():
  entries = {}
  registrations.add(entries, 'name', 'entry')
  registrations.add(entries, 'name', 'entry')  # As when a module is imported.
  assert entries == {'name': 'entry'}
  with pytest.raises(ValueError, match='name is registered already, by entry'):
    registrations.add(entries, 'name', 'another')


@pytest.mark.parametrize('registered', [str, 'a text', None])
def test_refuses_what_is_not_of_the_class(registered):
  with pytest.raises(TypeError, match='is not a class that is derived from'):
    registrations.path_of(registered, Exception)
