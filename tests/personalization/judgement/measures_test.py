"""Tests of what an evaluation tells beside the chosen candidates' metric."""

import numpy as np
import pytest

from personalization.judgement import measures
from tests.personalization import evaluations

# One candidate is as before; the last is best on validation.
_VALIDATION = [[1, 0, 2], [1, 1, 3], [1, 2, 0.5]]
_TEST = [[2, 4, 6], [2, 2, 2], [2, 6, 1]]


def _evaluation(**fields):
  return evaluations.make(
    fields.pop('validation', _VALIDATION), fields.pop('test', _TEST), **fields
  )


class TestByCandidate:
  def test_means_and_shares_hurt(self):
    result = measures.describe_candidates(_evaluation())
    assert len(result) == 3
    assert result[0] == dict(
      validation=1, validation_hurt=0, test=2, test_hurt=0
    )
    assert result[1] == dict(
      validation=1, validation_hurt=pytest.approx(1 / 3), test=4, test_hurt=0
    )
    assert result[2]['test'] == 3
    assert result[2]['test_hurt'] == pytest.approx(1 / 3)

  def test_where_lower_is_better(self):
    result = measures.describe_candidates(_evaluation(higher_is_better=False))
    assert result[1]['test_hurt'] == pytest.approx(2 / 3)

  def test_without_a_baseline_nobody_is_hurt(self):
    result = measures.describe_candidates(_evaluation(baseline=None))
    assert result[1] == dict(validation=1, test=4)

  def test_who_would_be_hurt_by_which_candidate(self):
    evaluated = _evaluation()
    hurt = measures.are_hurt(evaluated, evaluated.test)
    assert hurt.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    alone = _evaluation(baseline=None)
    assert measures.are_hurt(alone, alone.test) is None

  def test_nobody_can_be_compared_with_a_baseline_that_diverged(self):
    evaluated = _evaluation(test=[[np.nan, 4, np.nan], [2, np.nan, 1]])
    hurt = measures.are_hurt(evaluated, evaluated.test)
    np.testing.assert_array_equal(hurt, [[np.nan] * 3, [0, 1, 1]])
    assert np.isnan(measures.describe_candidates(evaluated)[1]['test_hurt'])

  def test_out_of_distribution(self):
    ood = evaluations.client_metrics([[2, 1, 0], [2, 3, 4], [2, 2, 2]])
    result = measures.describe_candidates(_evaluation(further=dict(ood=ood)))
    assert result[2]['out_of_distribution'] == 2
    assert result[2]['out_of_distribution_hurt'] == pytest.approx(1 / 3)


class TestDescribingClusters:
  def test_are_those_of_the_chosen_candidates(self):
    cluster = [[0, 1, 2], [0, 1.0000001, 0], [2, 0, 1]]
    evaluated = _evaluation(
      test=evaluations.client_metrics(_TEST, cluster=cluster)
    )
    clusters = measures.clusters(evaluated, np.array([2, 1, 0]))
    assert clusters.tolist() == [2, 1, 2]

  def test_not_all_methods_have_them(self):
    assert measures.clusters(_evaluation(), np.zeros(3, int)) is None

  def test_against_known_groups(self):
    result = measures.describe_clusters(
      np.array([1, 0, 1, 0, 1, 1]), ['en', 'es'] * 3
    )
    assert result['sizes'] == {'0': 2, '1': 4}
    assert result['groups'] == {
      'en': {'0': 0, '1': 3},
      'es': {'0': 2, '1': 1},
    }
    # By Hubert and Arabie's formula: (4 - 2.8) / (6.5 - 2.8).
    assert result['adjusted_rand_index'] == pytest.approx(1.2 / 3.7)
    assert result['matched'] == pytest.approx(5 / 6)

  def test_without_groups(self):
    result = measures.describe_clusters(np.array([0, 0]), None)
    assert result == {'sizes': {'0': 2}}
