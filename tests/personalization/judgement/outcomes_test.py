"""Tests of what is derived from the evaluation of a method."""

import dataclasses

import numpy as np
import pytest

from personalization.judgement import choosing
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import outcomes
from tasks import registry
from tasks import task
from tasks.models import metrics
from tests.personalization import evaluations

_NAN = np.nan
_DEVICES = registry.load('synthetic', num_train_clients=1)
_SILOS = dataclasses.replace(_DEVICES, cross_silo=True)
# One candidate is as before; the last is best on validation.
_VALIDATION = [[1, 0, 2], [1, 1, 3], [1, 2, 0.5]]
_TEST = [[2, 4, 6], [2, 2, 2], [2, 6, 1]]


def _evaluation(**fields):
  fields = dict(num_personalization=np.array([3, 20, 7])) | fields
  return evaluations.make(
    fields.pop('validation', _VALIDATION), fields.pop('test', _TEST), **fields
  )


class TestChosenCandidates:
  VALIDATION = [[0, 1, 0]] * 3
  TEST = [[4, 5, 0], [4, 0, 6], [4, 3, 9]]

  def outcome(self, **fields):
    test = evaluations.client_metrics(self.TEST, weights=[1, 2, 3])
    validation = self.VALIDATION
    if not fields.get('higher_is_better', True):
      validation = -np.array(validation)
    return outcomes.Outcome(
      evaluations.make(validation, test, **fields), _DEVICES
    )

  @pytest.mark.parametrize(
    ('higher_is_better', 'hurt'), [(True, [0, 1, 1]), (False, [1, 0, 0])]
  )
  def test_statistics_of_the_clients(self, higher_is_better, hurt):
    test = self.outcome(higher_is_better=higher_is_better).test
    assert test.values.tolist() == [5, 0, 3]
    assert test.hurt.tolist() == hurt
    assert test.summary.hurt == np.mean(hurt)
    assert test.summary.num_clients == 3
    assert test.summary.mean == pytest.approx(8 / 3)
    assert test.summary.weighted_mean == pytest.approx((5 + 0 + 3 * 3) / 6)
    assert test.summary.worst_tenth == (0 if higher_is_better else 5)
    assert test.summary.best_tenth == (5 if higher_is_better else 0)
    assert test.summary.largest_tenth == 3

  def test_before_personalization(self):
    before = self.outcome().test.before
    assert before.values.tolist() == [4, 4, 4]
    assert before.summary.hurt == 0

  def test_without_a_baseline_nobody_is_hurt(self):
    test = self.outcome(baseline=None).test
    assert test.hurt is test.before is test.summary.hurt is None

  def test_without_a_baseline_clients_can_be_hurt_by_another_method(self):
    without_baseline = self.outcome(baseline=None)
    client_ids = without_baseline.evaluated.test.client_ids
    others = {'': dict(zip(client_ids, [5, 1, 3]))}
    outcome = dataclasses.replace(without_baseline, others=others)
    assert outcome.test.hurt.tolist() == [False, True, False]
    assert outcome.test.before is None
    with_baseline = dataclasses.replace(self.outcome(), others=others)
    assert with_baseline.test.hurt.tolist() == self.outcome().test.hurt.tolist()

  def test_how_many_clients_use_which_candidate(self):
    assert self.outcome().num_chosen == {'some': 3}
    each = outcomes.Outcome(
      _evaluation(), _SILOS, choice=choosing.Choice(each=True)
    )
    assert each.num_chosen == {'some': 1, 'more': 2}

  def test_validation_is_the_mean_at_the_chosen_candidates(self):
    assert self.outcome().validation == 1
    each = outcomes.Outcome(
      _evaluation(), _SILOS, choice=choosing.Choice(each=True)
    )
    assert each.validation == pytest.approx((2 + 3 + 2) / 3)

  def test_another_metric_to_choose_by_is_better_the_lower(self):
    validation = evaluations.client_metrics(
      _VALIDATION, loss=[[3, 1, 2], [3, 2, 2], [3, 2, 1]]
    )
    outcome = outcomes.Outcome(
      _evaluation(validation=validation),
      _DEVICES,
      choice=choosing.Choice(metric='loss'),
    )
    assert outcome.num_chosen == {'some': 3}
    assert outcome.validation == pytest.approx(5 / 3)
    assert outcome.test.values.tolist() == [4, 2, 6]


def test_where_none_is_chosen_all_candidates_are_reported():
  outcome = outcomes.Outcome(_evaluation(candidates_compete=False), _SILOS)
  assert not outcome.num_chosen
  assert not outcome.tuning
  values = {n: at.values.tolist() for n, at in outcome.all_reported.items()}
  assert values == {'none': [2, 2, 2], 'some': [4, 2, 6], 'more': [6, 2, 1]}
  assert outcome.test.values.tolist() == values['more']
  assert not outcomes.Outcome(_evaluation(), _SILOS).all_reported


class TestTuning:
  def test_silos_can_choose_for_all_or_each_for_itself(self):
    tuning = outcomes.Outcome(_evaluation(), _SILOS).tuning
    values = {way: tuned.values.tolist() for way, tuned in tuning.items()}
    assert values == {'all': [6, 2, 1], 'each': [6, 2, 6]}

  def test_devices_cannot(self):
    assert not outcomes.Outcome(_evaluation(), _DEVICES).tuning

  def test_of_one_candidate_there_is_nothing_to_choose(self):
    assert not outcomes.Outcome(evaluations.make([[1]] * 3), _SILOS).tuning


def test_clients_personalized_on_less_choose_anew():
  less = _evaluation(validation=[[0, 5, 0]] * 3)
  outcome = outcomes.Outcome(
    _evaluation(partly_personalized={0.5: less}),
    _DEVICES,
    measurements.MeasurementSettings(personalization_fractions=(0.5, 1.0)),
  )
  values = {
    f: result.values.tolist()
    for f, result in outcome.partly_personalized.items()
  }
  assert values == {0.5: [4, 2, 6], 1.0: [6, 2, 1]}


def test_clients_with_nothing_in_a_further_set_are_left_out_of_its_summary():
  values = np.array([[1, 1, 3], [_NAN] * 3, [1, 2, 4]], np.float32)
  weights = np.array([[1] * 3, [0] * 3, [2] * 3], np.float32)
  metrics_of_set = evaluation.ClientMetrics(
    ('a', 'b', 'c'), {evaluations.METRIC: (np.nan_to_num(values), weights)}
  )
  outcome = outcomes.Outcome(
    _evaluation(further={'ood': metrics_of_set}), _DEVICES
  )
  summary = outcome.further['ood'].summary
  assert summary.num_clients == 2
  assert summary.mean == pytest.approx((3 + 4 / 2) / 2)


class TestPooled:
  """The metric of the sums over clients."""

  def outcome(self, sums, not_means, attributes=None):
    of_clients = evaluation.ClientMetrics(
      ('a', 'b', 'c'), {evaluations.METRIC: sums}, not_means
    )
    return outcomes.Outcome(
      evaluations.make(of_clients),
      dataclasses.replace(_DEVICES, attributes=attributes or {}),
    )

  def test_a_mean_is_over_all_examples(self):
    total = np.array([[1.0], [2.0], [9.0]], np.float32)
    weight = np.array([[1.0], [4.0], [3.0]], np.float32)
    test = self.outcome((total, weight), {}).test
    assert test.values.tolist() == [1, 0.5, 3]
    assert test.weights.tolist() == [1, 4, 3]
    assert test.pooled() == 12 / 8
    assert test.pooled(np.array([True, True, False])) == 3 / 5

  def test_a_perplexity_is_of_the_mean_over_all_words(self):
    total = np.log(np.array([[2.0], [4.0], [8.0]]))
    weight = np.array([[1.0], [2.0], [1.0]])
    test = self.outcome(
      (total, weight), {evaluations.METRIC: metrics.PERPLEXITY}
    ).test
    np.testing.assert_allclose(test.values, [2, 2, 8])
    assert test.pooled() == pytest.approx(64 ** (1 / 4))

  def test_f1_is_of_the_sum_of_the_confusion_matrices(self):
    confusions = np.array([[[2, 0], [0, 0]], [[0, 0], [2, 0]], [[0, 0]] * 2])
    test = self.outcome(
      np.float32(confusions)[:, np.newaxis],
      {evaluations.METRIC: metrics.MACRO_F1},
    ).test
    np.testing.assert_allclose(test.values, [0.5, 0, _NAN])
    assert test.weights.tolist() == [2, 2, 0]
    # Of the first class 2 * 2 / (2 + 4), of the second none.
    assert test.pooled() == pytest.approx(1 / 3)

  def test_each_client_counts_at_its_own_candidate(self):
    total = np.array([[1.0, 2.0], [5.0, 0.0]], np.float32)
    of_clients = evaluation.ClientMetrics(
      ('a', 'b'), {evaluations.METRIC: (total, np.ones_like(total))}
    )
    outcome = outcomes.Outcome(
      evaluations.make(of_clients), _SILOS, choice=choosing.Choice(each=True)
    )
    assert outcome.test.pooled() == 7 / 2
    assert outcome.test.before.pooled() == 6 / 2

  def test_known_groups_are_those_of_the_task(self):
    total = np.array([[1.0], [2.0], [9.0]], np.float32)
    group = task.Attribute(('x', 'y'), dict(a=0, b=1, c=0, d=1))
    outcome = self.outcome((total, np.ones_like(total)), {}, dict(group=group))
    assert outcome.groups == ['x', 'y', 'x']
    assert self.outcome((total, np.ones_like(total)), {}).groups is None


def _silos(held_out=_VALIDATION, **fields):
  """An evaluation of which a part of the validation sets is held out."""
  further = dict(
    not_held_out=evaluations.client_metrics(
      fields.pop('not_held_out', _VALIDATION)
    ),
    held_out=evaluations.client_metrics(held_out),
  )
  return _evaluation(further=further, **fields)


def _accept(evaluated, each=False, task=_SILOS, **criteria):
  return outcomes.Outcome(
    evaluated,
    task,
    measurements.MeasurementSettings(**criteria),
    choosing.Choice(each),
  ).acceptance


class TestAcceptance:
  def test_with_enough_examples(self):
    result = _accept(_evaluation(), acceptance_min_examples=7)['min_examples']
    assert result.accepted.tolist() == [False, True, True]
    # 2 as before, and 2 and 1.
    assert result.test.summary.mean == pytest.approx(5 / 3)
    assert result.test.summary.hurt == pytest.approx(1 / 3)

  def test_if_it_is_better_on_what_a_silo_holds_out(self):
    result = _accept(_silos(), acceptance_margin=0.0)['margin']
    assert result.accepted.tolist() == [True, True, False]
    # 6, 2, and 2 as before: it would have been hurt.
    assert result.test.summary.mean == pytest.approx(10 / 3)
    assert result.test.summary.hurt == 0

  @pytest.mark.parametrize(
    ('margin', 'accepted'), [(0.5, [1, 1, 0]), (1.0, [0, 1, 0]), (2.0, [0] * 3)]
  )
  def test_by_more_than_a_margin(self, margin, accepted):
    result = _accept(_silos(), acceptance_margin=margin)['margin']
    assert result.accepted.tolist() == accepted

  def test_what_a_silo_holds_out_does_not_choose(self):
    held_out = [[0, 9, 1]] * 3
    evaluated = _silos(held_out, validation=held_out)
    # Of the last client, nothing is in the part that chooses.
    evaluated.further['not_held_out'] = evaluations.client_metrics(
      [[1, 0, 2], [1, 0, 2], [0] * 3], weights=[1, 1, 0]
    )
    result = _accept(evaluated, acceptance_margin=0.5)['margin']
    assert result.test.candidates.tolist() == [2, 2, 2]
    assert not _accept(evaluated, acceptance_margin=2)['margin'].accepted.any()

  def test_where_lower_is_better(self):
    both = [[1, 0, 2], [1, 1, 0.5]] * 2
    evaluated = _silos(held_out=both, not_held_out=both, higher_is_better=False)
    result = _accept(
      dataclasses.replace(
        evaluated, test=evaluations.client_metrics([[2, 1, 9]] * 4)
      ),
      acceptance_margin=0.0,
    )['margin']
    # The one of the lowest mean is 'some'.
    assert result.accepted.tolist() == [True, False] * 2
    assert result.test.summary.mean == 1.5

  def test_a_device_takes_the_model_that_it_tried(self):
    """It has seen a part of the examples, and was tried on the others."""
    less = _evaluation(
      validation=evaluations.client_metrics(
        [[0, 5, 0]]
      ),  # So that another one is chosen.
      test=evaluations.client_metrics([[2, 1, 0], [2, 3, 0], [2, 4, 0]]),
      further=dict(
        held_out=evaluations.client_metrics(
          [[1, 2, 0], [_NAN] * 3, [1, 1.5, 0]]
        )
      ),
    )
    result = _accept(
      _evaluation(partly_personalized={0.75: less, 0.5: _evaluation()}),
      task=_DEVICES,
      acceptance_margin=0.2,
      acceptance_fraction=0.25,
    )['margin']
    # The second has nothing to try it on.
    assert result.accepted.tolist() == [True, False, True]
    assert result.test.summary.mean == pytest.approx((1 + 2 + 4) / 3)
    assert result.test.summary.hurt == pytest.approx(1 / 3)

  def test_a_silo_does_so_whatever_else_is_measured(self):
    other = _evaluation(test=evaluations.client_metrics([[0, 0, 0]] * 3))
    evaluated = _silos(partly_personalized={0.8: other})
    assert _accept(evaluated, acceptance_margin=0.0)['margin'] == (
      _Same(_accept(_silos(), acceptance_margin=0.0)['margin'])
    )

  def test_each_with_its_own_candidate(self):
    result = _accept(_silos(), each=True, acceptance_margin=0.0)['margin']
    assert result.accepted.all()
    assert result.test.summary.mean == pytest.approx((6 + 2 + 6) / 3)

  def test_there_is_nothing_to_refuse(self):
    criteria = dict(acceptance_margin=0.0, acceptance_min_examples=1)
    assert not _accept(_evaluation(baseline=None), **criteria)
    alone = evaluations.make([[1]] * 3)
    assert not _accept(alone, **criteria)
    assert not _accept(_evaluation())


class _Same:
  def __init__(self, acceptance):
    self._acceptance = acceptance

  def __eq__(self, other):
    return (
      self._acceptance.test.summary == other.test.summary
      and np.array_equal(self._acceptance.accepted, other.accepted)
    )


class TestClustersOfClients:
  def test_are_those_of_the_chosen_candidates(self):
    test = evaluations.client_metrics(
      _TEST, cluster=[[0, 0, k] for k in range(3)]
    )
    outcome = outcomes.Outcome(_evaluation(test=test), _DEVICES)
    assert outcome.clusters.tolist() == [0, 1, 2]

  def test_not_all_methods_have_them(self):
    assert outcomes.Outcome(_evaluation(), _DEVICES).clusters is None
