"""What programs show: messages, and tables."""

import sys
from typing import TextIO

import rich.console
import rich.table


def say(message: str) -> None:
  """Prints a message for the user, beside what a program is to print."""
  print(message, file=sys.stderr, flush=True)


def print_table(
  table: rich.table.Table, file: TextIO | None = None, width: int = 120
) -> None:
  """Prints a table.

  Args:
    table: The table.
    file: Where to print it; by default stdout.
    width: How wide it may be where there is no terminal.
  """
  file = file or sys.stdout
  rich.console.Console(
    file=file, width=None if file.isatty() else width, highlight=False
  ).print(table)
