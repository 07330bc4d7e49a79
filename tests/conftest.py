"""Ends TFF without an error, after all tests."""

import sys


def pytest_unconfigure() -> None:
  """Has TFF end without an error, also where the runtimes are not imported."""
  if 'tensorflow_federated' in sys.modules:
    from tff_runtimes import private_api

    private_api.forget_default_context()
