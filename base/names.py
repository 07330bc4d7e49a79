"""Names as data have them, which may be any text."""

import re
from typing import Any

# Characters that control a terminal, reorder the text around them, or that no
# file can have: names in data may have them.
_UNSEEN = re.compile(
  '[\x00-\x09\x0b-\x1f\x7f-\x9f'
  '\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]'
)

# What Markdown may take for more than a text. In a word, as in client_weight,
# an underscore is none of it.
_MARKDOWN = re.compile(r'[\\`*\[\]|<>&~$]|(?<!\w)_|_(?!\w)')


def visible(value: Any) -> Any:
  r"""Returns texts with their unseen characters escaped, as in '\x1b'.

  Args:
    value: A text, or lists and dictionaries of texts and anything else.
  """
  if isinstance(value, str):
    # Most are printable, which is known at once.
    return value if value.isprintable() else _UNSEEN.sub(_escape, value)
  if isinstance(value, dict):
    return {visible(key): visible(inner) for key, inner in value.items()}
  if isinstance(value, (list, tuple)):
    return [visible(inner) for inner in value]
  return value


def _escape(found: re.Match[str]) -> str:
  return ascii(found[0])[1:-1]


def to_markdown(text: str) -> str:
  """Writes a text on a line of Markdown, where it is no more than a text."""
  text = _MARKDOWN.sub(lambda found: f'\\{found[0]}', visible(text))
  return text.replace('\n', '<br>')
