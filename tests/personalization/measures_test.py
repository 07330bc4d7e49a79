"""Tests of what an evaluation tells beside the chosen candidates' metric."""

import dataclasses

import numpy as np
import pytest

from personalization import evaluation as evaluation_lib
from personalization import measures

_NAN = np.nan


def _metrics(values, **others):
  values = {'accuracy': values, **others}
  return evaluation_lib.Metrics(
    tuple(f'client{k}' for k in range(len(values['accuracy']))),
    {name: np.array(rows, np.float32) for name, rows in values.items()},
    {name: np.ones(len(rows)) for name, rows in values.items()},
  )


# One candidate is as before; the last is best on validation.
_VALIDATION = [[1, 0, 2], [1, 1, 3], [1, 2, 0.5]]
_TEST = [[2, 4, 6], [2, 2, 2], [2, 6, 1]]


def _evaluation(**fields):
  return evaluation_lib.Evaluation(
    **dict(
      metric='accuracy',
      higher_is_better=True,
      candidates=('none', 'some', 'more'),
      baseline=0,
      validation=_metrics(_VALIDATION),
      test=_metrics(_TEST),
      skipped=(),
      num_personalization=np.array([3, 20, 7]),
    )
    | fields
  )


class TestByCandidate:
  def test_means_and_shares_hurt(self):
    result = measures.by_candidate(_evaluation())
    assert list(result) == ['none', 'some', 'more']
    assert result['none'] == dict(
      validation=1, validation_hurt=0, test=2, test_hurt=0
    )
    assert result['some'] == dict(
      validation=1, validation_hurt=pytest.approx(1 / 3), test=4, test_hurt=0
    )
    assert result['more']['test'] == 3
    assert result['more']['test_hurt'] == pytest.approx(1 / 3)

  def test_where_lower_is_better(self):
    result = measures.by_candidate(_evaluation(higher_is_better=False))
    assert result['some']['test_hurt'] == pytest.approx(2 / 3)

  def test_without_a_baseline_nobody_is_hurt(self):
    result = measures.by_candidate(_evaluation(baseline=None))
    assert result['some'] == dict(validation=1, test=4)

  def test_out_of_distribution(self):
    ood = _metrics([[2, 1, 0], [2, 3, 4], [2, 2, 2]])
    result = measures.by_candidate(_evaluation(further=dict(ood=ood)))
    assert result['more']['out_of_distribution'] == 2
    assert result['more']['out_of_distribution_hurt'] == pytest.approx(1 / 3)


def _accept(evaluation, each=False, **criteria):
  return measures.acceptance(
    evaluation,
    evaluation_lib.Measured(**criteria),
    evaluation_lib.Choice(each),
  )


class TestAcceptance:
  def test_with_enough_examples(self):
    result = _accept(_evaluation(), acceptance_min_examples=7)['min_examples']
    assert result.accepted.tolist() == [False, True, True]
    # 2 as before, and 2 and 1.
    assert result.summary.mean == pytest.approx(5 / 3)
    assert result.summary.hurt == pytest.approx(1 / 3)

  def test_if_it_is_better_on_the_validation_examples_of_a_silo(self):
    result = _accept(_evaluation(), acceptance_margin=0.0)['margin']
    assert result.accepted.tolist() == [True, True, False]
    # 6, 2, and 2 as before: it would have been hurt.
    assert result.summary.mean == pytest.approx(10 / 3)
    assert result.summary.hurt == 0

  @pytest.mark.parametrize(
    ('margin', 'accepted'), [(0.5, [1, 1, 0]), (1.0, [0, 1, 0]), (2.0, [0] * 3)]
  )
  def test_by_more_than_a_margin(self, margin, accepted):
    result = _accept(_evaluation(), acceptance_margin=margin)['margin']
    assert result.accepted.tolist() == accepted

  def test_where_lower_is_better(self):
    evaluation = _evaluation(
      higher_is_better=False, validation=_metrics([[1, 0, 2], [1, 1, 0.5]] * 2)
    )
    result = _accept(
      dataclasses.replace(evaluation, test=_metrics([[2, 1, 9]] * 4)),
      acceptance_margin=0.0,
    )['margin']
    # The one of the lowest mean is 'some'.
    assert result.accepted.tolist() == [True, False] * 2
    assert result.summary.mean == 1.5

  def test_a_device_takes_the_model_that_it_tried(self):
    """It has seen a part of the examples, and was tried on the others."""
    less = _evaluation(
      validation=_metrics([[0, 5, 0]]),  # So that another one is chosen.
      test=_metrics([[2, 1, 0], [2, 3, 0], [2, 4, 0]]),
      further=dict(held_out=_metrics([[1, 2, 0], [_NAN] * 3, [1, 1.5, 0]])),
    )
    result = _accept(
      _evaluation(after_less={0.75: less, 0.5: _evaluation()}),
      acceptance_margin=0.2,
      acceptance_fraction=0.25,
    )['margin']
    # The second has nothing to try it on.
    assert result.accepted.tolist() == [True, False, True]
    assert result.summary.mean == pytest.approx((1 + 2 + 4) / 3)
    assert result.summary.hurt == pytest.approx(1 / 3)

  def test_a_silo_does_so_whatever_else_is_measured(self):
    other = _evaluation(test=_metrics([[0, 0, 0]] * 3))
    evaluation = _evaluation(after_less={0.8: other})
    assert _accept(evaluation, acceptance_margin=0.0)['margin'] == (
      _Same(_accept(_evaluation(), acceptance_margin=0.0)['margin'])
    )

  def test_each_with_its_own_candidate(self):
    result = _accept(_evaluation(), each=True, acceptance_margin=0.0)['margin']
    assert result.accepted.all()
    assert result.summary.mean == pytest.approx((6 + 2 + 6) / 3)

  def test_there_is_nothing_to_refuse(self):
    criteria = dict(acceptance_margin=0.0, acceptance_min_examples=1)
    assert not _accept(_evaluation(baseline=None), **criteria)
    alone = _evaluation(candidates=('global',))
    assert not _accept(alone, **criteria)
    assert not _accept(_evaluation())


class _Same:
  def __init__(self, acceptance):
    self._acceptance = acceptance

  def __eq__(self, other):
    return self._acceptance.summary == other.summary and np.array_equal(
      self._acceptance.accepted, other.accepted
    )


class TestClusters:
  def test_are_those_of_the_chosen_candidates(self):
    cluster = [[0, 1, 2], [0, 1.0000001, 0], [2, 0, 1]]
    evaluation = _evaluation(test=_metrics(_TEST, cluster=cluster))
    clusters = measures.clusters(evaluation, np.array([2, 1, 0]))
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

  def test_without_groups(self):
    result = measures.describe_clusters(np.array([0, 0]), None)
    assert result == {'sizes': {'0': 2}}
