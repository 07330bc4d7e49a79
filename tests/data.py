"""Where tests find real data, which is not part of this repository."""

import atexit
import functools
import importlib.util
import os
import pathlib
import shutil
import tempfile
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


@functools.cache
def tff_cache() -> pathlib.Path:
  """A folder that TFF takes for its cache of EMNIST and StackOverflow.

  In it are stand-ins: digits of 12 writers, and posts of 602 users of other
  sites. Made once for all tests of a process; skips where there is no data.
  """
  script = path('build_tff_cache.py')
  spec = importlib.util.spec_from_file_location('build_tff_cache', script)
  build = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(build)
  folder = pathlib.Path(tempfile.mkdtemp())
  atexit.register(shutil.rmtree, folder)
  (folder / build.WORD_COUNT).parent.mkdir()
  build.build_emnist(folder, 12)
  build.build_stackoverflow(folder)
  return folder
