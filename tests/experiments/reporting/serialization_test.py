"""Tests of outcomes as results.json and per_client.csv have them."""

import numpy as np
import pytest

from experiments.reporting import serialization
from tests.experiments.reporting import small_outcomes


class TestResult:
  def test_the_chosen_candidates_are_what_is_reported(self):
    result = small_outcomes.result([1, 1, 0])
    assert result['chosen'] == {'0 epochs': 1, '1 epoch': 2}
    assert result['test']['mean'] == pytest.approx(
      (0.5 + 0.25 + 0.5) / 3, abs=5e-8
    )
    assert result['test']['hurt'] == pytest.approx(1 / 3, abs=5e-8)
    assert result['before']['mean'] == pytest.approx(
      (0.25 + 0.5 + 0.5) / 3, abs=5e-8
    )
    candidate = result['candidates']['1 epoch']
    numbers = {'value', 'unit', 'label'}
    assert [name for name in candidate if name not in numbers] == [
      'validation',
      'validation_hurt',
      'test',
      'test_hurt',
    ]
    np.testing.assert_allclose(
      list(candidate.values())[3:], [1.75 / 3, 1 / 3, 1.25 / 3, 1 / 3]
    )
    assert result['skipped_in_evaluation'] == ['d']

  def test_without_a_baseline_nobody_is_hurt(self):
    result = small_outcomes.result(baseline=None)
    assert result['before'] is None
    assert result['test']['hurt'] is None
    assert 'hurt' not in small_outcomes.rows(baseline=None)[0]

  def test_rows(self):
    assert small_outcomes.rows(chosen=[1, 1, 0])[1] == {
      'method': 'fedavg',
      'client': 'b',
      'examples': 2,
      'personalization_examples': 20,
      'metric': 0.25,
      'candidate': '1 epoch',
      'before': 0.5,
      'hurt': 1,
    }
    assert [row['hurt'] for row in small_outcomes.rows()] == [0, 1, 0]

  def test_candidates_have_their_numbers(self):
    candidate = small_outcomes.result()['candidates']['1 epoch']
    assert (candidate['value'], candidate['unit']) == (1, 'epochs')
    assert candidate['label'] == ''

  def test_pooled_is_the_metric_of_all_examples(self):
    # Of clients with 1, 2 and 3 examples.
    result = small_outcomes.result()
    assert result['pooled'] == pytest.approx((0.5 + 2 * 0.25 + 3 * 0.5) / 6)

  def test_known_groups_are_reported_each(self):
    outcome = small_outcomes.make(groups=dict(a='x', b='y', c='x'))
    assert serialization.make_result(outcome)['groups'] == {
      'x': {
        'num_clients': 2,
        'mean': 0.5,
        'pooled': 0.5,
        'before': {'mean': 0.375, 'pooled': 1.75 / 4},
      },
      'y': {
        'num_clients': 1,
        'mean': 0.25,
        'pooled': 0.25,
        'before': {'mean': 0.5, 'pooled': 0.5},
      },
    }

  def test_groups_without_a_baseline_have_nothing_before(self):
    outcome = small_outcomes.make(
      baseline=None, groups=dict(a='x', b='x', c='x')
    )
    group = serialization.make_result(outcome)['groups']['x']
    assert list(group) == ['num_clients', 'mean', 'pooled']

  def test_a_task_without_groups_has_none(self):
    assert 'groups' not in small_outcomes.result()


class TestFurtherMeasurements:
  def test_in_the_results(self):
    result = serialization.make_result(small_outcomes.measured())
    assert result['out_of_distribution']['mean'] == pytest.approx(
      0.25, abs=5e-8
    )
    assert result['out_of_distribution']['hurt'] == pytest.approx(
      2 / 3, abs=5e-8
    )
    part = result['evaluation_fractions']['0.5']
    assert part['hurt'] == pytest.approx(1 / 3, abs=5e-8)
    fraction = result['personalization_fractions']['0.25']
    assert fraction['mean'] == pytest.approx(1.25 / 3, abs=5e-8)
    acceptance = result['acceptance']
    assert acceptance['min_examples']['accepted'] == pytest.approx(
      2 / 3, abs=5e-8
    )
    assert acceptance['margin']['accepted'] == pytest.approx(1 / 3, abs=5e-8)
    assert acceptance['margin']['test']['hurt'] == 0
    assert result['clusters'] == dict(
      sizes={'0': 1, '1': 2},
      groups={'x': {'0': 0, '1': 2}, 'y': {'0': 1, '1': 0}},
      adjusted_rand_index=1.0,
      matched=1.0,
    )

  def test_of_each_client(self):
    rows = serialization.make_rows('fedavg', small_outcomes.measured())
    usual = small_outcomes.rows()[1]
    assert {name: rows[1][name] for name in rows[1] if name not in usual} == {
      'metric_ood': 0.25,
      'before_ood': 0.5,
      'metric_part_0.5': 1.0,
      'before_part_0.5': 0.0,
      'accepted_min_examples': 1,
      'accepted_margin': 0,
      'cluster': 0,
      'group': 'y',
    }


def test_the_metrics_in_rows_are_those_that_were_written():
  outcome = small_outcomes.measured()
  metrics = serialization.read_metrics(serialization.make_rows('x', outcome))
  assert list(metrics) == ['', 'ood', 'part_0.5']
  assert list(metrics[''].values()) == outcome.test.values.tolist()
  assert list(metrics['ood'].values()) == outcome.further['ood'].values.tolist()
