"""Programs as a user starts them, for tests."""

import os
import subprocess
import sys
from typing import Any

_CODE = """if True:
  import runpy, sys
  sys.argv[0] = {program!r}
  try:
    runpy.run_module(
      'experiments.{program}', run_name='__main__', alter_sys=True
    )
  finally:
    assert not {{'tensorflow', 'numpy', 'vl_convert'}} & set(sys.modules)
"""


def environment(**others: str) -> dict[str, str]:
  """Makes a user's environment, without what TensorFlow has set in ours."""
  variables = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), **others)
  variables.pop('TF_CPP_MIN_LOG_LEVEL', None)
  return variables


def run(
  program: str, *arguments: Any, **others: str
) -> subprocess.CompletedProcess[str]:
  """Runs a program, with other environment variables as well."""
  return subprocess.run(
    [sys.executable, '-m', f'experiments.{program}', *map(str, arguments)],
    env=environment(**others),
    capture_output=True,
    text=True,
  )


def run_without_tensorflow(
  program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
  """Runs a program, and prints a traceback if it has imported TensorFlow."""
  return subprocess.run(
    [sys.executable, '-c', _CODE.format(program=program), *arguments],
    env=environment(),
    capture_output=True,
    text=True,
  )
