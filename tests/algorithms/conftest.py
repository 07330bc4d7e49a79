"""The runtimes, which all tests share, as starting one takes a while."""

from collections.abc import Iterator, Mapping

import pytest
import tensorflow_federated as tff

from runtimes import cohort
from runtimes import native


@pytest.fixture(name='contexts', scope='session')
def _contexts() -> Mapping[str, tff.framework.SyncContext]:
  """The contexts of all runtimes, by name."""
  return {
    'native': native.create_native_context(),
    'cohort': cohort.create_cohort_context(),
    'unstacked': cohort.create_cohort_context(stack=False),
  }


@pytest.fixture(autouse=True)
def _cohort(
  contexts: Mapping[str, tff.framework.SyncContext],
) -> Iterator[None]:
  """Runs every test on the cohort runtime, unless it says otherwise."""
  with tff.framework.get_context_stack().install(contexts['cohort']):
    yield


@pytest.fixture(name='runtime', params=['cohort', 'unstacked', 'native'])
def _runtime(
  request: pytest.FixtureRequest,
  contexts: Mapping[str, tff.framework.SyncContext],
) -> Iterator[str]:
  """Runs a test once on every runtime."""
  with tff.framework.get_context_stack().install(contexts[request.param]):
    yield request.param
