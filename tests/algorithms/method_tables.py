"""Writes the tables of docs/methods.md, from what methods say of themselves.

  python -m tests.algorithms.method_tables

A test checks that they are up to date.
"""

from collections.abc import Iterator
import pathlib
import re

from algorithms import methods
from algorithms import registry
from base import errors
from tests.algorithms import helpers

DOCUMENT = pathlib.Path(__file__).parents[2] / 'docs' / 'methods.md'
# A table stands between two lines, which name it.
_PLACE = '<!-- {name} -->\n(.*?)<!-- end -->\n'
# Names of settings and of methods, and settings with a value.
_CODE = re.compile(r'\w+=[\w.]+|\w*[a-z]_\w+')


def _code(name: str) -> str:
  return f'`{name}`'


def _format(text: str) -> str:
  """Returns a text with settings and methods in the type of code."""
  # Other names are words as well, such as group.
  known = '|'.join(
    rf'\b{name}\b' for name in registry.TRAINERS if 'fed' in name
  )
  return re.sub(f'{_CODE.pattern}|{known}', lambda found: _code(found[0]), text)


def _table(*rows: tuple[str, ...]) -> Iterator[str]:
  """Writes a table in Markdown; the first row names its columns."""
  for place, row in enumerate(rows):
    yield f'| {" | ".join(row)} |'
    if place == 0:
      yield '|' + '---|' * len(row)


def _why_examples_not_private(method: methods.Method) -> str | None:
  reason: str | None = method.trainer.why_examples_not_private
  try:
    method.trainer.example_uses(1)
  except errors.UserError as error:
    reason = str(error)
  return reason


def _describe_privacy(reason: str | None) -> str:
  return 'yes' if reason is None else f'no: {_format(reason)}'


def trainers() -> Iterator[str]:
  """Writes the table of what each trainer trains."""
  yield from _table(
    ('trainer', 'method', 'what it trains'),
    *(
      (
        _code(name),
        f'{entry.title} ({entry.paper})' if entry.paper else entry.title,
        _format(entry.does),
      )
      for name, entry in sorted(registry.TRAINERS.items())
    ),
  )


def personalizers() -> Iterator[str]:
  """Writes the table of what each personalizer does."""
  yield from _table(
    ('personalizer', "what it does with a client's personalization set"),
    *(
      (_code(name), _format(entry.does))
      for name, entry in sorted(registry.PERSONALIZERS.items())
    ),
  )


def short_names() -> Iterator[str]:
  """Writes the table of the pairs that have a short name."""
  pairs = {name: registry.halves(name) for name in registry.short_names()}
  yield from _table(
    ('short name', 'pair'),
    *(
      (_code(name), _code('+'.join(pair)))
      for name, pair in pairs.items()
      if pair != (name, registry.AS_TRAINED)
    ),
    ("any other trainer's name", f'the trainer `+{registry.AS_TRAINED}`'),
  )


def messages() -> Iterator[str]:
  """Writes the table of what leaves a client, and what can be private."""
  built = {
    name: helpers.build(f'{name}+as_trained', helpers.model_for(name))
    for name in registry.TRAINERS
  }
  yield from _table(
    (
      'trainer',
      'it sends',
      'it keeps',
      'passes by gradients in a round',
      'clients can be private',
      'examples of silos can be private',
    ),
    *(
      (
        _code(name),
        _format(entry.sends),
        _format(entry.keeps),
        f'{built[name].trainer.passes(1).gradients:g}',
        _describe_privacy(built[name].trainer.why_not_private),
        _describe_privacy(_why_examples_not_private(built[name])),
      )
      for name, entry in sorted(registry.TRAINERS.items())
    ),
  )


_TABLES = {
  'trainers': trainers,
  'personalizers': personalizers,
  'short names': short_names,
  'messages': messages,
}


def renew(text: str) -> str:
  """Returns the text of the document with its tables made anew."""
  for name, make in _TABLES.items():
    place = re.compile(_PLACE.format(name=name), re.DOTALL)
    table = '\n'.join(make())
    text, number = place.subn(
      lambda _, name=name, table=table: (  # type: ignore[misc]
        f'<!-- {name} -->\n{table}\n<!-- end -->\n'
      ),
      text,
    )
    assert number == 1, name
  return text


if __name__ == '__main__':
  DOCUMENT.write_text(renew(DOCUMENT.read_text('utf-8')), 'utf-8')
