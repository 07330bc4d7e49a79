"""Lists the methods, tasks, presets, tables and ways to train privately.

Each is described by the first line of its docstring, and a preset by the first
sentence of its comment. Modules are parsed and not imported, as importing
TensorFlow Federated takes seconds.
"""

import ast
from collections.abc import Iterator, Mapping
import functools
import importlib.util
import pathlib
import re

from algorithms import registry as algorithm_registry
from base import settings
from experiments.configuration import user_settings
from experiments.listings import layout
from experiments.reproduction import tables
from personalization.privacy import ways
from tasks import registry as task_registry


@functools.cache
def _parse(module: str) -> ast.Module:
  found = importlib.util.find_spec(module)
  if found is None or found.origin is None:
    raise ImportError(f'There is no module {module}.')
  return ast.parse(pathlib.Path(found.origin).read_text(encoding='utf-8'))


def first_line(path: str) -> str:
  """Reads the first line of the docstring of 'module' or 'module:name'."""
  module, _, name = path.partition(':')
  node: ast.Module | ast.ClassDef | ast.FunctionDef = _parse(module)
  if name:
    (node,) = (
      child
      for child in node.body
      if isinstance(child, ast.ClassDef | ast.FunctionDef)
      and child.name == name
    )
  return (ast.get_docstring(node) or '').partition('\n')[0]


def _halves(
  entries: Mapping[str, algorithm_registry.Entry],
) -> Iterator[tuple[str, str]]:
  """Yields trainers or personalizers with their descriptions."""
  for name, entry in sorted(entries.items()):
    text = first_line(entry.path)
    # Some have the same class, and differ only in their defaults.
    if [other.path for other in entries.values()].count(entry.path) > 1:
      defaults = [
        f'{setting}={settings.to_text(value)}'
        for setting, value in entry.defaults.items()
      ]
      text += f' By default {", ".join(defaults)}.' if defaults else ''
    yield name, text


def _pairs() -> Iterator[tuple[str, str]]:
  """Yields the methods with a short name for a trainer and a personalizer."""
  for name in algorithm_registry.short_names():
    trainer, personalizer = algorithm_registry.halves(name)
    if personalizer != 'as_trained':
      yield name, f'{trainer}+{personalizer}'


def methods() -> Iterator[str]:
  """Lists all methods."""
  yield 'Methods: --algorithm=NAME, or --algorithm=TRAINER+PERSONALIZER'
  yield '\nTrainers, which are methods without further personalization'
  yield from layout.column(_halves(algorithm_registry.TRAINERS))
  yield '\nPersonalizers'
  yield from layout.column(_halves(algorithm_registry.PERSONALIZERS))
  yield '\nShort names for a trainer with a personalizer'
  yield from layout.column(_pairs())


def tasks() -> Iterator[str]:
  """Lists all tasks."""
  yield 'Tasks: --task=NAME'
  yield from layout.column(
    (name, first_line(task_registry.TASKS[name].partition(':')[0]))
    for name in task_registry.task_names()
  )


def _comment(text: str) -> str:
  """Returns the first sentence of the comment that a file begins with."""
  lines: list[str] = []
  for line in text.splitlines():
    if not line.startswith('#'):
      break
    lines.append(line.removeprefix('#').strip())
  return re.split(r'(?<=\w\.|\)\.)\s+(?=[A-Z])', ' '.join(lines))[0]


def presets() -> Iterator[str]:
  """Lists the presets that come with the code."""
  yield "Presets: --preset=NAME; by default the one with the task's name"
  yield from layout.column(
    (name, _comment(user_settings.find_preset(name).read_text('utf-8')))
    for name in user_settings.preset_names()
  )


def preset(name: str) -> Iterator[str]:
  """Yields the text of a preset."""
  yield user_settings.find_preset(name).read_text('utf-8').rstrip()


def published_tables() -> Iterator[str]:
  """Lists the published tables and curves that come with the code."""
  yield 'Published tables and curves: experiments:reproduce --table=NAME'
  yield from layout.column(
    (name, tables.read(name).title) for name in tables.names()
  )


def privacy_ways() -> Iterator[str]:
  """Lists the ways to train privately."""
  yield 'Privacy: --privacy=NAME'
  yield from layout.column(
    (name, first_line(ways.ENTRIES[name].path)) for name in ways.ways()
  )


def everything() -> Iterator[str]:
  """Lists everything."""
  for overview in (methods, tasks, presets, published_tables, privacy_ways):
    yield from overview()
    yield ''
  yield 'Settings with help, default and range: list method ditto, list task'
  yield 'school, list privacy gaussian; and list run for those of every run.'
