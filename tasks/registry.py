"""The tasks by name.

The module of a task registers it, see `base.registrations`. No such module is
imported before its task is loaded.
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import types
from typing import TYPE_CHECKING

from base import errors
from base import registrations
from base import settings

if TYPE_CHECKING:
  from tasks import task

# Each task's module, and the class of its settings.
TASKS: dict[str, str] = {}


def register_task(name: str, settings_class: type[settings.Settings]) -> None:
  """Registers a task under a name.

  Its module has a function `load(settings, data_dir, seed)`.

  Args:
    name: The name, in lower case.
    settings_class: The class of its settings.

  Raises:
    ValueError: If the name is no name, or another task has it.
    TypeError: If the class is no class of settings.
  """
  path = registrations.path_of(settings_class, settings.Settings)
  registrations.add(TASKS, name, path)


def _read_registrations() -> None:
  """Registers what the modules of this folder register."""
  here = pathlib.Path(__file__).parent
  for name, path, _ in registrations.read(here, 'tasks', 'register_task'):
    registrations.add(TASKS, name, path)


_read_registrations()


def task_names() -> tuple[str, ...]:
  """Lists the names of all tasks."""
  return tuple(sorted(TASKS))


def _find(name: str) -> tuple[types.ModuleType, type[settings.Settings]]:
  """Imports the module of a task, and finds the class of its settings."""
  if name not in TASKS:
    raise errors.unknown('task', name, TASKS)
  module_name, _, class_name = TASKS[name].partition(':')
  module = importlib.import_module(module_name)
  return module, getattr(module, class_name)


def settings_class(name: str) -> type[settings.Settings]:
  """Finds the class of a task's settings."""
  return _find(name)[1]


def load(
  name: str,
  *,
  data_dir: str | None = None,
  seed: int = 0,
  **values: settings.Value,
) -> task.Task:
  """Loads a task.

  Args:
    name: The name of the task.
    data_dir: The folder of the user's data, or None for the cache only.
    seed: The seed of all randomness in the task's data.
    **values: The task's settings, as text or with their types.

  Returns:
    The task.

  Raises:
    UserError: If there is no such task or setting, or the data cannot be found
      or read. Examples that the model cannot take raise one when they are
      loaded, see `checks`.
  """
  module, cls = _find(name)
  own_settings = settings.parse(cls, values, f'task {name}')
  checks = importlib.import_module('tasks.checks')
  loaded = module.load(own_settings, data_dir, seed)
  return checks.checked(
    dataclasses.replace(loaded, settings=(seed, own_settings))
  )
