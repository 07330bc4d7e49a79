"""Errors that are the user's to mend."""

from collections.abc import Iterable
import difflib


class UserError(Exception):
  """A user's mistake; the message says what is wrong and what to do about it.

  The programs print the message without a traceback.
  """


def unknown(
  what: str, name: str, known: Iterable[str], listed_by: str = ''
) -> UserError:
  """Makes the error for a name that is not among the known ones.

  Args:
    what: What is named, as 'task'.
    name: The name.
    known: All names there are.
    listed_by: What lists them for the user, if they are too many for a message.

  Returns:
    The error, which suggests the most similar name.
  """
  known = sorted(known)
  nearest = difflib.get_close_matches(name, known, n=1)
  hint = f' Did you mean {nearest[0]!r}?' if nearest else ''
  rest = f'Known: {", ".join(known) or "none"}.'
  if listed_by:
    rest = f'All are listed by {listed_by}.'
  return UserError(f'Unknown {what} {name!r}.{hint} {rest}')
