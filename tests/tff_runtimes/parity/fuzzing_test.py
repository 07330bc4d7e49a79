"""Random computations give the same, or raise an error, on all runtimes."""

import os
import random
import time

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
def test_many_computations(parity):
  """Checks as many as FUZZ_PLANS says, or for FUZZ_SECONDS, from FUZZ_SEED."""
  seed = os.environ.get('FUZZ_SEED') or random.getrandbits(32)
  end = time.monotonic() + float(os.environ.get('FUZZ_SECONDS', 'inf'))
  number = int(os.environ.get('FUZZ_PLANS', 1000))
  checked, has_failed = 0, False

  @hypothesis.seed(int(seed))
  @hypothesis.settings(_SETTINGS, max_examples=number)
  @hypothesis.given(plan=fuzzing.plans())
  def check(plan: fuzzing.Plan) -> None:
    nonlocal checked, has_failed
    if has_failed or time.monotonic() < end:
      checked += 1
      try:
        _check(parity, plan)
      except BaseException:
        has_failed = True  # A smaller plan that fails is looked for then.
        raise

  check()
  print(f'{checked} computations from the seed {seed}')
  assert checked
