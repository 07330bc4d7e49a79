"""Lists methods, tasks, presets and tables, and the settings of one of them.

  list                   everything, with a line each
  list methods           or tasks, presets, tables, privacy
  list run               the settings of every run: help, default and range
  list method ditto      those of a method, such as hypcluster+finetuning
  list task school       those of a task
  list privacy gaussian  those of a way to train privately
  list preset school     what a preset sets

A setting is given to experiments:run by --set, or in a preset.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from collections.abc import Iterable

from algorithms import registry as algorithm_registry
from base import errors
from experiments.command_line import launch
from experiments.configuration import user_settings
from experiments.listings import overviews
from personalization.privacy import ways
from tasks import registry as task_registry

_OVERVIEWS = {
  'methods': overviews.methods,
  'tasks': overviews.tasks,
  'presets': overviews.presets,
  'tables': overviews.published_tables,
  'privacy': overviews.privacy_ways,
}
# The topics that need a name, and the names that they have.
_NAMES = {
  'method': algorithm_registry.short_names,
  'task': task_registry.task_names,
  'privacy': ways.ways,
  'preset': user_settings.preset_names,
}


def _lines(topic: str, name: str) -> Iterable[str]:
  """Returns the lines that a user asked for."""
  if not name and topic == 'run':
    return _texts('run')
  if not name and topic in _OVERVIEWS:
    return _OVERVIEWS[topic]()
  known = {*_OVERVIEWS, *_NAMES, 'run'}
  if topic not in known:
    raise errors.unknown('topic', topic, known)
  if topic.removesuffix('s') not in _NAMES:
    raise errors.UserError(f'list {topic} takes no name: {errors.quote(name)}.')
  topic = topic.removesuffix('s')
  if not name:
    raise errors.UserError(
      f'Name one, as in list {topic} {_NAMES[topic]()[0]}.'
    )
  if topic == 'method':
    name = algorithm_registry.canonical_name(name)
  elif name not in _NAMES[topic]():
    raise errors.unknown(topic, name, _NAMES[topic]())
  if topic == 'preset':
    return overviews.preset(name)
  return _texts(topic, name)


def _texts(topic: str, *name: str) -> Iterable[str]:
  texts = launch.load('experiments.listings.setting_texts')
  return getattr(texts, f'{topic}_lines')(*name)


def main(topic: str = '', name: str = '') -> int:
  """Lists what the arguments name, and returns the exit status."""
  for line in _lines(topic, name) if topic else overviews.everything():
    print(line)
  return 0


if __name__ == '__main__':
  launch.start(main, 'Name one thing, as in list method ditto.')
