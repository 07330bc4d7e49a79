"""What a user did wrong, told so that the user can put it right."""

from collections.abc import Iterable
import difflib


class UserError(Exception):
  """A user's mistake; the message says what is wrong and what to do about it.

  The binaries print the message alone: a traceback would only bury it.
  """


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
  """The error for a `name` that is none of the `known` ones."""
  known = sorted(known)
  nearest = difflib.get_close_matches(name, known, n=1)
  hint = f' Did you mean {nearest[0]!r}?' if nearest else ''
  return UserError(
    f'Unknown {what} {name!r}.{hint} Known: {", ".join(known) or "none"}.'
  )
