"""Tests of the rounds of unmodified `tff.learning` code."""

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments.benchmarks import learning_workloads


@pytest.fixture(autouse=True)
def _same_context():
  """Leaves TFF's context as it was."""
  before = tff.framework.get_context_stack().current
  yield
  tff.framework.set_default_context(before)


@pytest.mark.parametrize('name', ['F1', 'F5'])
def test_the_bare_loop_does_what_the_rounds_do(name):
  rounds = [learning_workloads.make(name, s)(2) for s in ('cohort', 'bare')]
  for one, other in zip(*(list(r.values()) for r in rounds), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
