"""Every trainer against its paper's equations in float64, after some rounds."""

import pytest

from tests.reference import cases


@pytest.mark.parametrize('name', cases.CASES)
def test_rounds_are_those_of_the_reference(name):
  cases.check(cases.CASES[name])
