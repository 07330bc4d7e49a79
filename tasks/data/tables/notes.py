"""Describes a user's table, as text of 80 columns."""

from collections.abc import Mapping, Sequence
import textwrap

import numpy as np

_WIDTH = 80
_NAME_WIDTH = 16
_BAR_WIDTH = 40
_MOST_BARS = 8
_SHOWN = 8


def few(names: Sequence[str], most: int = _SHOWN) -> str:
  """Lists the first names."""
  return ', '.join(names[:most]) + (', …' if len(names) > most else '')


def entry(name: str, text: str) -> str:
  """Writes a name and, in a second column, its description."""
  if len(name) > _NAME_WIDTH:
    name = f'{name[: _NAME_WIDTH - 1]}…'
  return textwrap.fill(
    text,
    _WIDTH,
    initial_indent=f'  {name:<{_NAME_WIDTH}}  ',
    subsequent_indent=' ' * (_NAME_WIDTH + 4),
  )


def item(text: str) -> str:
  """Writes a text as an item of a list."""
  return textwrap.fill(
    text, _WIDTH, initial_indent='  - ', subsequent_indent='    '
  )


def columns(descriptions: Mapping[str, str]) -> str:
  """Writes the description of each column; equal ones are written once."""
  names: dict[str, list[str]] = {}
  for name, text in descriptions.items():
    names.setdefault(text, []).append(name)
  return '\n'.join(
    entry(alike[0], text)
    if len(alike) == 1
    else entry(f'{len(alike)} columns', f'{text} each: {few(alike)}')
    for text, alike in names.items()
  )


def histogram(sizes: np.ndarray) -> str:
  """Draws a histogram of the clients' numbers of examples.

  Args:
    sizes: The number of examples of each client.

  Returns:
    A line for each range of sizes; the ends of ranges grow by about the same
    factor.
  """
  low, high = int(sizes.min()), int(sizes.max())
  ends = np.geomspace(max(low, 1), high + 1, _MOST_BARS + 1)
  starts = np.unique([low, *np.ceil(ends[1:-1]).astype(int)])
  starts = starts[starts <= high]
  counts = np.bincount(
    np.searchsorted(starts, sizes, side='right') - 1, minlength=len(starts)
  )
  lasts = [*(starts[1:] - 1), high]
  lines = []
  for start, last, count in zip(starts, lasts, counts):
    of = f'{start:,}' if start == last else f'{start:,} to {last:,}'
    bar = '█' * int(np.ceil(_BAR_WIDTH * count / counts.max()))
    lines.append(f'  {of:>18}  {bar} {count:,}' if count else f'  {of:>18}  0')
  return '\n'.join(lines)
