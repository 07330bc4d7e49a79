"""Words of messages and tables."""


def noun(number: float, plural: str) -> str:
  """Returns a noun as it stands after a number: 'class', or else 'classes'.

  Args:
    number: The number.
    plural: The noun in the plural, which ends in s.
  """
  if number != 1:
    return plural
  if plural.endswith('ies'):
    return plural.removesuffix('ies') + 'y'
  return plural.removesuffix('es' if plural.endswith('sses') else 's')


def count(number: int, plural: str) -> str:
  """Writes how many there are of something, such as '1 class'."""
  return f'{number} {noun(number, plural)}'
