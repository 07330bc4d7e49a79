"""Begins and ends a process of tests.

What is imported stays, and what tests make is mostly kept in caches: to look
through it for garbage as often as Python does takes a quarter of the time.
"""

import gc
import sys

gc.disable()


def pytest_collection_finish() -> None:
  """Looks for garbage from now on, seldom, and not among what is imported."""
  gc.freeze()
  gc.set_threshold(20_000)
  gc.enable()


def pytest_unconfigure() -> None:
  """Has TFF end without an error, also where the runtimes are not imported."""
  if 'tensorflow_federated' in sys.modules:
    from tff_runtimes import private_api

    private_api.forget_default_context()
