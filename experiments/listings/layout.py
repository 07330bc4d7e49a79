"""The layout of listings: plain text, as wide as the narrowest terminal."""

from collections.abc import Iterable, Iterator
import textwrap

WIDTH = 80


def column(items: Iterable[tuple[str, str]]) -> Iterator[str]:
  """Writes names in a column, and a text beside each."""
  items = list(items)
  indent = max((len(name) for name, _ in items), default=0) + 4
  for name, text in items:
    yield from textwrap.wrap(
      text,
      WIDTH,
      initial_indent=f'  {name}'.ljust(indent),
      subsequent_indent=' ' * indent,
      break_on_hyphens=False,
    )


def paragraph(text: str, indent: int = 0) -> Iterator[str]:
  """Breaks a text into lines."""
  space = ' ' * indent
  yield from textwrap.wrap(
    text,
    WIDTH,
    initial_indent=space,
    subsequent_indent=space,
    break_on_hyphens=False,
  )
