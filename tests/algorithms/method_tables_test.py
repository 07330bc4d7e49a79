"""The tables of methods in the documentation."""

from tests.algorithms import method_tables


def test_the_tables_are_those_that_methods_make():
  text = method_tables.DOCUMENT.read_text('utf-8')
  assert method_tables.renew(text) == text, (
    'Run python -m tests.algorithms.method_tables.'
  )
