"""The fixture `parity`: the native runtime beside three cohort contexts."""

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
def _parity(native_context, each_context, cohort_context) -> checks.Parity:
  return checks.Parity(
    native_context,
    {
      'stack=False': each_context,
      'default': cohort_context,
      'stack=True': cohort.create_cohort_context(stack=True),
    },
  )
