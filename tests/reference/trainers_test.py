"""Every trainer against its paper's equations in float64, after some rounds."""

import pytest

from algorithms import registry
from tests.reference import cases

_LARGEST_DIFFERENCE = 1e-5


@pytest.mark.parametrize('epochs', cases.EPOCHS)
@pytest.mark.parametrize('cohorts', cases.COHORTS)
@pytest.mark.parametrize('case', cases.CASES)
def test_rounds_are_those_of_the_reference(case, cohorts, epochs):
  difference, moved = cases.compare(case, cohorts, epochs)
  assert difference < _LARGEST_DIFFERENCE
  assert moved > 0.01 or case == 'local'


def test_every_trainer_has_a_reference():
  assert {case.trainer for case in cases.CASES.values()} == {*registry.TRAINERS}
