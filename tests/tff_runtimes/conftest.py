"""The runtimes, which all tests share, as starting one takes a while."""

import pytest
import tensorflow_federated as tff

from tff_runtimes import cohort
from tff_runtimes import native


@pytest.fixture(name='native_context', scope='session')
def _native_context() -> tff.framework.SyncContext:
  return native.create_native_context(allow_exposed=True)


@pytest.fixture(name='cohort_context', scope='session')
def _cohort_context() -> cohort.CohortContext:
  return cohort.create_cohort_context()


@pytest.fixture(name='each_context', scope='session')
def _each_context() -> cohort.CohortContext:
  """The cohort runtime, when it stacks no clients."""
  return cohort.create_cohort_context(stack=False)
