"""Random computations give the same, or raise an error, on all runtimes."""

import hypothesis
import pytest

from tests.tff_runtimes.parity import fuzzing

_SETTINGS = hypothesis.settings(
  deadline=None,
  database=None,
  print_blob=True,
  suppress_health_check=list(hypothesis.HealthCheck),
)


def _check(parity, plan: fuzzing.Plan) -> None:
  parity.agrees(
    fuzzing.build(plan),
    lambda: fuzzing.arguments(plan),
    # Rounding adds up over the operations.
    rtol=1e-2 if 'float16' in repr(plan) else 1e-3,
    atol=1e-2 if 'float16' in repr(plan) else 1e-4,
  )


@hypothesis.settings(_SETTINGS, max_examples=40, derandomize=True)
@hypothesis.given(plan=fuzzing.plans())
def test_some_computations(parity, plan):
  _check(parity, plan)


@pytest.mark.slow
@hypothesis.settings(_SETTINGS, max_examples=1000)
@hypothesis.given(plan=fuzzing.plans())
def test_a_thousand_computations(parity, plan):
  _check(parity, plan)
