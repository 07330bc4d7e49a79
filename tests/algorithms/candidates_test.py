"""Tests of the names of candidates."""

import pytest

from algorithms import candidates


@pytest.mark.parametrize(
  ('candidate', 'name'),
  [
    (candidates.Candidate(0, 'epochs'), '0 epochs'),
    (
      candidates.Candidate(3, 'epochs', 'rate 0.005'),
      '3 epochs, rate 0.005',
    ),
    (candidates.Candidate(label='last layer'), 'last layer'),
    (
      candidates.Candidate(0.1, 'coefficient', text='coefficient 0.1'),
      'coefficient 0.1',
    ),
    (candidates.Candidate(text='global'), 'global'),
  ],
)
def test_the_name_of_a_candidate(candidate, name):
  assert candidate.name == str(candidate) == name
