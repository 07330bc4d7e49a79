"""Where tests find real data, which is not part of this repository."""

import os
import pathlib
import unittest


def path(name: str) -> pathlib.Path:
  """The path of a file or folder of data; skips the test if it is not there.

  Looks in the folder $PFL_DATA_DIR, or else in shared/data beside the
  repository.

  Args:
    name: The path under the folder of data, or '' for that folder itself.

  Returns:
    The path.
  """
  repository = pathlib.Path(__file__).resolve().parents[1]
  folder = os.environ.get('PFL_DATA_DIR', repository.parent / 'shared/data')
  found = pathlib.Path(folder) / name
  if not found.exists():
    raise unittest.SkipTest(f'needs {found}; set PFL_DATA_DIR to the data')
  return found
