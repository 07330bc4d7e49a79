"""The runtimes that the tests run on."""

from collections.abc import Iterator

import pytest

from tests.algorithms import helpers


@pytest.fixture(autouse=True)
def _cohort() -> Iterator[None]:
  """Runs every test on the cohort runtime, unless it says otherwise."""
  with helpers.on('cohort'):
    yield


@pytest.fixture(name='runtime', params=helpers.RUNTIMES)
def _runtime(request: pytest.FixtureRequest) -> Iterator[str]:
  """Runs a test once on every runtime."""
  with helpers.on(request.param):
    yield request.param
