"""The runtimes that the tests run on."""

from collections.abc import Iterator
import os

import pytest

# TensorFlow reads it when it is imported: XLA shall tell what it compiles.
os.environ['TF_CPP_VMODULE'] = 'device_compilation_profiler=1'

from tests.algorithms import helpers  # noqa: E402


@pytest.fixture(autouse=True)
def _cohort() -> Iterator[None]:
  """Runs every test on the cohort runtime, unless it says otherwise."""
  with helpers.use_runtime('cohort'):
    yield


@pytest.fixture(name='runtime', params=helpers.RUNTIMES)
def _runtime(request: pytest.FixtureRequest) -> Iterator[str]:
  """Runs a test once on every runtime."""
  with helpers.use_runtime(request.param):
    yield request.param
