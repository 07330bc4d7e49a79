"""Prints how far each trainer is from its reference, as a table in Markdown.

python -m tests.reference.differences
"""

from tests.algorithms import helpers
from tests.reference import cases


def main() -> None:
  """Prints the table, the largest of the differences of each case."""
  print('| case | settings | reference | largest difference |')
  print('|---|---|---|---|')
  for name, case in cases.CASES.items():
    largest = max(
      cases.compare(name, cohorts, epochs)
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
  with helpers.on('cohort'):
    main()
