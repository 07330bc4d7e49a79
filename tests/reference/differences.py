"""Prints how far trainers are from their references, as a table in Markdown.

python -m tests.reference.differences            all cases
python -m tests.reference.differences ditto      some cases
"""

from collections.abc import Sequence
import sys

from tests.reference import cases


def main(names: Sequence[str]) -> None:
  """Prints the table, with the largest difference of each case."""
  print('| case | settings | reference | largest difference |')
  print('|---|---|---|---|')
  for name in names or cases.CASES:
    case = cases.CASES[name]
    largest = max(
      cases.compare(case, cohorts, epochs).difference
      for cohorts in cases.COHORTS
      for epochs in cases.EPOCHS
    )
    settings = ', '.join(f'`{n}={v}`' for n, v in case.settings.items())
    reference = case.reference
    module = reference.__module__.rpartition('.')[2]
    print(
      f'| {name} | {settings} | `{module}.{reference.__name__}` |'
      f' {largest:.0e} |',
      flush=True,
    )


if __name__ == '__main__':
  main(sys.argv[1:])
