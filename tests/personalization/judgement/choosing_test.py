"""Tests of the choice among candidates."""

import numpy as np
import pytest

from personalization.judgement import choosing
from tests.personalization import evaluations

_NAN, _INF = np.nan, np.inf


@pytest.mark.parametrize(
  ('validation', 'higher_is_better', 'expected'),
  [
    pytest.param([[1, 2, 3], [4, 6, 4]], True, 1, id='best_mean'),
    pytest.param([[1, 2, 3], [9, 6, 8]], False, 1, id='lowest_mean'),
    pytest.param([[1, 2, 3], [4, 5, 4]], True, 1, id='first_on_a_tie'),
    pytest.param([[7, 7, 7], [7, 7, 7]], False, 0, id='all_equal'),
    pytest.param([[1, _NAN, 2], [1, 9, 2]], True, 2, id='nan'),
    pytest.param([[3, _NAN, 2], [3, 0, 2]], False, 2, id='nan_lower'),
    pytest.param([[1, _INF, 2], [1, 9, 2]], True, 2, id='infinite'),
    pytest.param([[3, -_INF, 2], [3, 0, 2]], False, 2, id='minus_inf'),
    pytest.param([[_NAN, _INF], [1, 1]], True, 0, id='all_diverged'),
  ],
)
def test_one_candidate_for_all(validation, higher_is_better, expected):
  # Whatever the test clients would choose, and however many they are.
  test = [[9, 0, 0][: len(validation[0])]] * 4
  chosen = choosing.choose(
    evaluations.make(validation, test, higher_is_better=higher_is_better)
  )
  assert chosen.tolist() == [expected] * 4


@pytest.mark.parametrize(
  'choice',
  [
    choosing.Choice(),
    choosing.Choice(each=True),
    choosing.Choice(given={'client0': 'none', 'client1': 'none'}),
  ],
)
def test_of_candidates_that_do_not_compete_the_last_one_is_shown(choice):
  evaluated = evaluations.make([[3, 1, 2]] * 2, candidates_compete=False)
  assert choosing.choose(evaluated, choice).tolist() == [2, 2]


def test_all_clients_count_the_same():
  # Though the second has twice as many examples.
  weighted = evaluations.client_metrics([[4, 1], [1, 3]], weights=[1, 2])
  chosen = choosing.choose(evaluations.make(weighted))
  assert chosen.tolist() == [0, 0]


@pytest.mark.parametrize('each', [True, False])
def test_the_baseline_may_be_out_of_the_question(each):
  choice = choosing.Choice(each, offer_baseline=False)
  one = evaluations.make([[3, 1, 2], [3, 2, 1]], baseline=0)
  assert choosing.choose(one, choice).tolist() == ([2, 1] if each else [1] * 2)
  # Unless there is nothing else, or no baseline.
  alone = evaluations.make([[3], [3]], baseline=0)
  assert choosing.choose(alone, choice).tolist() == [0, 0]
  none = evaluations.make([[3, 1], [3, 1]], baseline=None)
  assert choosing.choose(none, choice).tolist() == [0, 0]


@pytest.mark.parametrize(('metric', 'expected'), [(None, 1), ('loss', 2)])
def test_by_another_metric(metric, expected):
  validation = evaluations.client_metrics(
    [[1, 3, 2]] * 2, loss=[[1, 1, 0.5]] * 2
  )
  chosen = choosing.choose(
    evaluations.make(validation), choosing.Choice(metric=metric)
  )
  assert chosen.tolist() == [expected] * 2


@pytest.mark.parametrize('higher_is_better', [True, False])
def test_each_its_own(higher_is_better):
  validation = [
    [1, 2, 3],
    [3, 1, 1],
    [5, 5, 5],
    [_NAN, 4, 4],
    [_NAN, _INF, 8],
    [_NAN, _NAN, _NAN],
  ]
  expected = [2, 0, 0, 1, 2, 0] if higher_is_better else [0, 1, 0, 1, 2, 0]
  chosen = choosing.choose(
    evaluations.make(
      validation, [[9, 0, 0]] * 6, higher_is_better=higher_is_better
    ),
    choosing.Choice(each=True),
  )
  assert chosen.tolist() == expected
