"""Tests of what the runtimes depend on."""

import ast
from collections.abc import Iterator
import pathlib
import sys

import pytest

import tff_runtimes

_MODULES = sorted(
  path
  for folder in tff_runtimes.__path__
  for path in pathlib.Path(folder).glob('*.py')
)
_PACKAGES = {'grpc', 'numpy', 'tensorflow', 'tensorflow_federated', 'tree'}
_ANY_MODULE = pytest.mark.parametrize('path', _MODULES, ids=lambda p: p.name)


def _imports(path: pathlib.Path) -> Iterator[str]:
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.module and not node.level, 'A relative import.'
      yield node.module


def test_the_modules_are_found():
  assert {'cohort.py', 'native.py'} <= {path.name for path in _MODULES}


@_ANY_MODULE
def test_nothing_else_of_this_project_is_imported(path):
  packages = {name.partition('.')[0] for name in _imports(path)}
  assert packages <= {'tff_runtimes', *_PACKAGES, *sys.stdlib_module_names}


@_ANY_MODULE
def test_private_modules_are_imported_in_one_place(path):
  private = [
    name
    for name in _imports(path)
    if name.startswith(('tensorflow.', 'tensorflow_federated.'))
  ]
  assert bool(private) == (path.name == 'private_api.py')


@_ANY_MODULE
def test_private_attributes_are_used_in_one_place(path):
  private = [
    node.attr
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Attribute)
    and node.attr.startswith('_')
    and not (isinstance(node.value, ast.Name) and node.value.id == 'self')
    and not (node.attr.startswith('__') and node.attr.endswith('__'))
  ]
  of_private_api = {'_get_protocol_attrs', '_make_callable_from_options'}
  is_private_api = path.name == 'private_api.py'
  assert set(private) == (of_private_api if is_private_api else set())


@_ANY_MODULE
def test_the_module_for_tests_of_tff_is_used_in_one_place(path):
  is_used = 'tff.backends.test' in path.read_text()
  assert is_used == (path.name == 'private_api.py')
