"""The fixture `parity`: the native runtime beside two cohort contexts."""

import os
import sys

import pytest

from tests.tff_runtimes.parity import checks
from tff_runtimes import cohort


def pytest_unconfigure() -> None:
  """Ends the process if calls hang in it, for which Python would wait."""
  if checks.hung:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(pytest.ExitCode.TESTS_FAILED)


@pytest.fixture(name='parity', scope='session')
def _parity(native_context, each_context) -> checks.Parity:
  # By default a context does the one or the other, by the size of clients, as
  # `cohort_test` checks.
  return checks.Parity(
    native_context,
    {
      'stack=True': cohort.create_cohort_context(stack=True),
      'stack=False': each_context,
    },
  )
