"""The package is built as a wheel and runs without the rest of the project."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import tff_runtimes

_FOLDER = pathlib.Path(next(iter(tff_runtimes.__path__)))
_PROGRAM = """
import numpy as np
import tensorflow_federated as tff
from tff_runtimes import cohort

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def mean(clients):
  return tff.federated_mean(clients)

with cohort.create_cohort_context() as context:
  tff.framework.set_default_context(context)
  print(cohort.__file__)
  print(mean([1.0, 2.0, 6.0]))
"""


@pytest.fixture(name='wheel', scope='module')
def _wheel(tmp_path_factory) -> zipfile.ZipFile:
  folder = tmp_path_factory.mktemp('wheel')
  # A copy, as building leaves files behind.
  (folder / 'source').mkdir()
  for pattern in ('*.py', '*.toml', '*.md', 'py.typed'):
    for path in _FOLDER.glob(pattern):
      shutil.copy(path, folder / 'source')
  command = 'pip wheel --quiet --no-deps --no-build-isolation --no-index'
  subprocess.run(
    [sys.executable, '-m', *command.split(), '--wheel-dir=.', './source'],
    cwd=folder,
    check=True,
  )
  (path,) = folder.glob('tff_runtimes-*-py3-none-any.whl')
  return zipfile.ZipFile(path)


def test_it_asks_for_nothing_but_tff(wheel):
  (metadata,) = (n for n in wheel.namelist() if n.endswith('/METADATA'))
  needs = [
    line
    for line in wheel.read(metadata).decode().splitlines()
    if line.startswith('Requires-Dist')
  ]
  assert needs == ['Requires-Dist: tensorflow-federated~=0.87.0']


def test_it_has_all_modules(wheel):
  assert {name for name in wheel.namelist() if name.endswith('.py')} == {
    f'tff_runtimes/{path.name}' for path in _FOLDER.glob('*.py')
  }


def test_it_has_a_version(wheel):
  version = tff_runtimes.__version__
  assert f'tff_runtimes-{version}.dist-info/METADATA' in wheel.namelist()


def _pins(path: pathlib.Path) -> dict[str, str]:
  """Reads the versions of packages."""
  lines = path.read_text().splitlines()
  pins = (line.split()[0].split('==') for line in lines if '==' in line)
  return {name: version for name, version in pins}


def test_what_it_is_installed_with_is_all_that_tff_needs():
  locked = _pins(_FOLDER.parent / 'requirements.lock')
  needed, left = set(), ['tensorflow-federated']
  while left:
    name = re.sub('[-_.]+', '-', left.pop()).lower()
    # The lock has none of what other systems need.
    if name in locked and name not in needed:
      needed.add(name)
      for requirement in importlib.metadata.requires(name) or ():
        if 'extra ==' not in requirement:
          left += re.findall(r'^[\w.-]+', requirement)
  pins = _pins(_FOLDER / 'requirements.txt')
  assert pins == {name: locked[name] for name in needed}


def test_it_says_that_it_has_types(wheel):
  assert 'tff_runtimes/py.typed' in wheel.namelist()


def test_it_runs_by_itself(wheel, tmp_path):
  wheel.extractall(tmp_path)
  result = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(tmp_path)},
    stdout=subprocess.PIPE,
    check=True,
    text=True,
  )
  where, mean = result.stdout.splitlines()
  assert pathlib.Path(where).parent == tmp_path / 'tff_runtimes'
  assert float(mean) == 3.0
