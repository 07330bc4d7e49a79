"""Lists the modules that touch clients' data, in a run of School with Ditto.

A module touches them if one of its functions takes or returns an array or a
tensor, a structure of these, or a row of a client's results. Modules come in
the order in which they first do.

  python -m tests.end_to_end.client_path     what docs/architecture.md lists
"""

from collections.abc import Mapping
import pathlib
import sys
import tempfile
import threading
import types
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from tests import data
from tff_runtimes import values

_ROOT = pathlib.Path(__file__).parents[2]
_PACKAGES = ('algorithms', 'base', 'experiments', 'personalization', 'tasks')
# Structures are searched to this depth.
_DEPTH = 5


def _is_data(value: Any, depth: int = _DEPTH) -> bool:
  if isinstance(value, (np.ndarray, tf.Tensor, values.StackedClients)):
    return True
  if not depth:
    return False
  if isinstance(value, Mapping):
    if 'client' in value:
      return True
    value = list(value.values())
  return isinstance(value, (list, tuple)) and any(
    _is_data(part, depth - 1) for part in value
  )


def find() -> dict[str, str]:
  """Returns the modules, and of each the first function that touches data."""
  # Whoever has no data learns it here.
  folder = data.path('school/school.mat').parents[1]
  config = configs.resolve(
    user_settings.read(
      None,
      ['total_rounds=2', 'clients_per_round=5'],
      {'task.name': 'school', 'algorithms': 'ditto'},
    )
  )
  roots = [str(_ROOT / package) for package in (*_PACKAGES, 'tff_runtimes')]
  found: dict[str, str] = {}

  def watch(frame: types.FrameType, event: str, result: Any) -> None:
    code = frame.f_code
    if not code.co_filename.startswith(tuple(roots)):
      return
    module = str(pathlib.Path(code.co_filename).relative_to(_ROOT))[
      : -len('.py')
    ]
    if module in found or event not in ('call', 'return'):
      return
    touched = [*frame.f_locals.values(), result]
    # A comprehension is a function, too, but its name says nothing.
    if not code.co_name.startswith('<') and any(map(_is_data, touched)):
      found[module] = code.co_name

  with tempfile.TemporaryDirectory() as output:
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
      single_run.run(config, pathlib.Path(output) / 'run', str(folder))
    finally:
      sys.setprofile(None)
      threading.setprofile(None)
  return found


if __name__ == '__main__':
  for name, function in find().items():
    print(f'{name:45} {function}')
