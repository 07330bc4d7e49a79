"""Lists settings, each with its help, default and range."""

from collections.abc import Iterator, Mapping

from algorithms import registry as algorithm_registry
from base import settings
from experiments.configuration import configs
from experiments.listings import layout
from experiments.listings import overviews
from personalization.privacy import ways
from tasks import registry as task_registry


def _settings(
  cls: type[settings.Settings],
  defaults: Mapping[str, settings.Value] | None = None,
) -> Iterator[str]:
  """Writes all settings of a class."""
  described = settings.describe(cls, defaults)
  if not described:
    yield '\n  It has no settings.'
  for setting in described:
    yield f'\n  {setting.name} = {setting.default}'.rstrip()
    yield from layout.paragraph(setting.help, 6)
    yield from layout.paragraph(f'({setting.values})', 6)


def run_lines() -> Iterator[str]:
  """Writes the settings of every run."""
  yield 'Settings of every run, as in --set batch_size=10'
  for cls in configs.RUN_SETTINGS:
    yield from _settings(cls)


def method_lines(name: str) -> Iterator[str]:
  """Writes the settings of a method."""
  kinds = 'Trainer', 'Personalizer'
  halves = algorithm_registry.halves(name)
  for kind, half, entry in zip(kinds, halves, algorithm_registry.entries(name)):
    module, _, _ = entry.path.partition(':')
    title = f'{kind} {half}: {overviews.first_line(module)}'
    yield from layout.paragraph(title)
    yield from layout.paragraph(overviews.first_line(entry.path))
    yield from _settings(entry.settings_class(), entry.defaults)
    yield ''
  yield from layout.paragraph(
    f'As in --set {name}.NAME=VALUE, or --set NAME=VALUE for every method that'
    ' has it.'
  )


def task_lines(name: str) -> Iterator[str]:
  """Writes the settings of a task."""
  cls = task_registry.settings_class(name)
  module, _, _ = task_registry.TASKS[name].partition(':')
  yield from layout.paragraph(f'Task {name}: {overviews.first_line(module)}')
  yield 'Its settings, as in --set task.NAME=VALUE'
  yield from _settings(cls)


def privacy_lines(name: str) -> Iterator[str]:
  """Writes the settings of a way to train privately."""
  cls = ways.settings_class(name)
  about = overviews.first_line(ways.ENTRIES[name].path)
  yield from layout.paragraph(f'Privacy {name}: {about}')
  yield 'Its settings, as in --set privacy.NAME=VALUE'
  yield from _settings(cls)
