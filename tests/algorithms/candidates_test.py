"""Names of candidates."""

import pytest

from algorithms import candidates


@pytest.mark.parametrize(
  'candidate, text',
  [
    (candidates.Candidate(3, 'epochs'), '3 epochs'),
    (candidates.Candidate(3.0, 'epochs'), '3 epochs'),
    (candidates.Candidate(0.25, 'coefficient'), '0.25 coefficient'),
    (candidates.Candidate(0, 'epochs'), '0 epochs'),
    (candidates.Candidate(3, 'epochs', 'rate 0.1'), '3 epochs, rate 0.1'),
    (candidates.Candidate(text='global'), 'global'),
    (
      candidates.Candidate(2, 'epochs', text='personal model, 2 epochs'),
      'personal model, 2 epochs',
    ),
    (candidates.Candidate(2, 'epochs', text=''), ''),
  ],
)
def test_text_of_a_candidate(candidate, text):
  assert str(candidate) == text


def test_a_candidate_of_its_own_name_still_tells_its_number():
  candidate = candidates.Candidate(2, 'epochs', text='personal model')
  assert (candidate.value, candidate.unit) == (2, 'epochs')


def test_candidates_of_equal_fields_are_equal():
  assert candidates.Candidate(1, 'epochs') == candidates.Candidate(1, 'epochs')
  assert candidates.Candidate(1, 'epochs') != candidates.Candidate(2, 'epochs')
