"""The tasks by name.

Nothing heavy is imported before a task is loaded, so that the names can be
listed, and a wrong one answered, without the seconds TensorFlow Federated takes
to import.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

from base import errors
from base import settings

if TYPE_CHECKING:
  from tasks import task as task_lib

# A task's module has its settings, `Parameters`, and
# `load(parameters, data_dir, seed) -> Task`.
_MODULES = {
  'adni': 'tasks.adni',
  'emnist': 'tasks.emnist',
  'landmarks': 'tasks.landmarks',
  'school': 'tasks.school',
  'stackoverflow': 'tasks.stackoverflow',
  'synthetic': 'tasks.synthetic',
  'ted_multi': 'tasks.ted_multi',
  'vehicle': 'tasks.vehicle',
}


def task_names() -> tuple[str, ...]:
  """The names of all tasks."""
  return tuple(sorted(_MODULES))


def parameters_class(name: str) -> type[settings.Settings]:
  """The class of a task's own settings."""
  return _module(name).Parameters


def _module(name: str) -> types.ModuleType:
  if name not in _MODULES:
    raise errors.unknown('task', name, _MODULES)
  return importlib.import_module(_MODULES[name])


def load(
  name: str,
  *,
  data_dir: str | None = None,
  seed: int = 0,
  **parameters: Any,
) -> task_lib.Task:
  """Loads a task.

  Args:
    name: The name of the task.
    data_dir: The folder of the user's data, or None for the cache only.
    seed: The seed of whatever is random in the task's data.
    **parameters: The task's own settings, as text or with their types.

  Returns:
    The task.

  Raises:
    UserError: If there is no such task or parameter, or the data is not to be
      had.
  """
  module = _module(name)
  own = settings.from_dict(module.Parameters, parameters, f'task {name}')
  return module.load(own, data_dir, seed)
