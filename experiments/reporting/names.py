"""Names of methods as papers write them."""

from algorithms import registry


def written_out(method: str) -> str:
  """Returns a method's name as papers write it, or else its name here."""
  return registry.title(method)
