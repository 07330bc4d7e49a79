"""The tasks by name.

TensorFlow Federated takes seconds to import. No task's module is imported
before it is needed, so that the names can be listed, and a wrong name refused,
without this wait.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING

from base import errors
from base import settings

if TYPE_CHECKING:
  from tasks import task

# Each task's module, which has a function `load(settings, data_dir, seed)`, and
# the class of its settings.
TASKS = {
  'adni': 'tasks.adni:AdniSettings',
  'audiomnist_preference': (
    'tasks.audiomnist_preference:AudiomnistPreferenceSettings'
  ),
  'cifar10': 'tasks.cifar10:Cifar10Settings',
  'emnist': 'tasks.emnist:EmnistSettings',
  'femnist_letters': 'tasks.femnist_letters:FemnistLettersSettings',
  'gaussian': 'tasks.gaussian:GaussianSettings',
  'landmarks': 'tasks.landmarks:LandmarksSettings',
  'mnist': 'tasks.mnist:MnistSettings',
  'mnist_preference': 'tasks.mnist_preference:MnistPreferenceSettings',
  'reddit_dialogue': 'tasks.reddit_dialogue:RedditDialogueSettings',
  'school': 'tasks.school:SchoolSettings',
  'sent140': 'tasks.sent140:Sent140Settings',
  'shakespeare_dialogue': (
    'tasks.shakespeare_dialogue:ShakespeareDialogueSettings'
  ),
  'speech_preference': 'tasks.speech_preference:SpeechPreferenceSettings',
  'spoken_digits': 'tasks.spoken_digits:SpokenDigitsSettings',
  'stackexchange': 'tasks.stackexchange:StackExchangeSettings',
  'stackexchange_dialogue': (
    'tasks.stackexchange_dialogue:StackExchangeDialogueSettings'
  ),
  'stackoverflow': 'tasks.stackoverflow:StackOverflowSettings',
  'synthetic': 'tasks.synthetic:SyntheticSettings',
  'table': 'tasks.table:TableSettings',
  'ted_multi': 'tasks.ted_multi:TedMultiSettings',
  'tv_dialogue': 'tasks.tv_dialogue:TvDialogueSettings',
  'vehicle': 'tasks.vehicle:VehicleSettings',
  'wakeword': 'tasks.wakeword:WakewordSettings',
  'wikitext': 'tasks.wikitext:WikitextSettings',
}


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
  return checks.checked(module.load(own_settings, data_dir, seed))
