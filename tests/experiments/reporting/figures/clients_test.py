"""Tests of the figures of individual clients."""

import math

import numpy as np
import pytest

from experiments.reporting import looks
from experiments.reporting.figures import clients
from tests.experiments import made_up_folders
from tests.experiments.reporting.figures import described


def _stats(drawn):
  """Returns what boxes are drawn from, by method."""
  rows = drawn.spec['layer'][0]['data']['values']
  return {row['method']: row for row in rows}


class TestBoxes:
  def test_a_box_for_each_method(self):
    values = tuple(map(float, range(101)))
    drawn = clients.boxes(
      [
        made_up_folders.series('fedavg', values, values),
        made_up_folders.series(values=(50.0, 60.0), metric='squared_error'),
      ]
    )
    stats = _stats(drawn)
    assert [*stats] == ['FedAvg', 'FedAvg + fine-tuning']
    numbers = {
      key: stats['FedAvg'][key] for key in ('low', 'q1', 'mean', 'high')
    }
    assert numbers == {'low': 5, 'q1': 25, 'mean': 50, 'high': 95}
    text = described.texts(drawn)
    assert 'accuracy (higher is better)' in text
    assert 'FedAvg + fine-tuning FedAvg' in text
    # The first is at the top.
    assert [row['place'] for row in stats.values()] == [0, 1]
    low, high = drawn.spec['layer'][0]['encoding']['y']['scale']['domain']
    assert low > high

  def test_every_client_is_a_dot_beside_its_box(self):
    drawn = clients.boxes([made_up_folders.series(seeds=2)])
    assert [row['client'] for row in drawn.data] == [
      'client_0',
      'client_1',
      'client_2',
    ] * 2
    assert {row['seed'] for row in drawn.data} == {0, 1}
    assert all(abs(row['place']) < 0.5 for row in drawn.data)

  def test_of_many_clients_only_those_beyond_the_whiskers_are_dots(self):
    values = tuple(map(float, range(1001)))
    drawn = clients.boxes([made_up_folders.series('fedavg', values, values)])
    assert len(drawn.data) == 100

  @pytest.mark.parametrize(
    'values', [(math.nan, math.inf), (1.0, math.nan, 1e300), (1e300, -1e300)]
  )
  def test_what_diverged_can_be_drawn(self, values):
    drawn = clients.boxes(
      [
        made_up_folders.series('fedavg', (1.0, 2.0, 3.0)),
        made_up_folders.series('ditto', values, values),
      ]
    )
    text = described.texts(drawn)
    assert ('Ditto (diverged)' in text) == (values[0] != 1)
    domain = drawn.spec['layer'][0]['encoding']['x']['scale'].get('domain')
    assert domain is None or max(map(abs, domain)) < 10

  def test_a_method_has_the_same_look_whatever_it_is_compared_with(self):
    def color(*methods):
      drawn = clients.boxes([made_up_folders.series(m) for m in methods])
      box = drawn.spec['layer'][4]
      scale = box['encoding']['fill']['scale']
      return dict(zip(scale['domain'], scale['range']))['Ditto']

    assert color('ditto') == color('mine', 'ditto') == looks.look('ditto').color


def test_shares_end_at_all_clients():
  (drawn,) = clients.shares([made_up_folders.series()])
  assert [row['share'] for row in drawn.data] == [
    pytest.approx(share, rel=1e-5) for share in (1 / 3, 2 / 3, 1)
  ]


class TestHurt:
  def draw(self, higher_is_better=True, **columns):
    (drawn,) = clients.hurt(
      [
        made_up_folders.series(
          values=(0.4, 0.7, 0.5, 0.8, math.nan),
          before_values=(0.5,) * 5,
          higher_is_better=higher_is_better,
          columns={'personalization_examples': [1, 2, 3, 4, 50], **columns},
        )
      ]
    )
    return drawn

  def test_each_client_is_a_mark_with_its_change(self):
    rows = self.draw().data
    assert [row['result'].split(' (')[0] for row in rows] == [
      'hurt',
      'better off',
      'unchanged',
      'better off',
    ]
    np.testing.assert_allclose([r['change'] for r in rows], [-0.1, 0.2, 0, 0.3])
    assert [row['examples'] for row in rows] == [1, 2, 3, 4]

  @pytest.mark.parametrize(
    ('higher_is_better', 'side', 'shares'),
    [(True, 'above', (40, 20, 40)), (False, 'below', (60, 20, 20))],
  )
  def test_shares_count_who_diverged_as_hurt(
    self, higher_is_better, side, shares
  ):
    text = described.texts(self.draw(higher_is_better))
    for name, share in zip(('hurt', 'unchanged', 'better off'), shares):
      assert f'{name} ({share}%)' in text
    assert f'({side} 0 is better)' in text
    assert 'FedAvg + fine-tuning' in text

  def test_no_bar_is_on_both_sides_of_zero(self):
    for row in self.draw().data:
      assert row['from'] <= row['change'] + 1e-6
      assert row['change'] <= row['to']
      assert row['from'] >= 0 or row['to'] <= 0

  def test_nobody_changes(self):
    series = made_up_folders.series(values=(1.0, 1.0), before_values=(1.0, 1.0))
    (drawn,) = clients.hurt([series])
    assert 'unchanged (100%)' in described.texts(drawn)
    points = drawn.spec['hconcat'][0]['layer'][1]
    assert points['encoding']['y']['scale']['domain'] == [-1, 1]

  def test_parts_of_evaluation_sets_have_figures_of_their_own(self):
    series = made_up_folders.series(
      evaluation_fractions={'0.5': {}},
      columns={
        'metric_part_0.5': [1.0, '', 0.5],
        'before_part_0.5': [0.5, '', 0.5],
      },
    )
    whole, half = clients.hurt([series])
    assert (whole.name, half.name) == (
      'hurt_finetuning',
      'hurt_finetuning_part_0.5',
    )
    assert [row['after'] for row in half.data] == [1, 0.5]

  @pytest.mark.parametrize(
    'result', [{'candidates': {'global': {}}}, {'hurt': 0.0}]
  )
  def test_nobody_is_hurt_by_the_only_candidate(self, result):
    assert not [*clients.hurt([made_up_folders.series(**result)])]


class TestChanges:
  def draw(self, higher_is_better=False):
    before, after = (
      made_up_folders.series(
        name,
        values,
        values,
        higher_is_better=higher_is_better,
        columns={'group': ['tea', *['beer'] * 5]},
        training=name,
        started_from_training=stage,
      )
      for name, values, stage in (
        ('fedadam', (10.0, 10.0, 20.0, 5.0, 10.0, math.nan), None),
        ('group', (9.0, 8.0, 22.0, 5.0, 9.5, 1.0), 'fedadam'),
      )
    )
    return [*clients.changes([before, after])]

  def test_of_all_clients_and_of_each_group(self):
    assert [(drawn.name, len(drawn.data)) for drawn in self.draw()] == [
      ('change_group', 5),
      ('change_group_beer', 4),
      ('change_group_tea', 1),
    ]

  def test_a_client_counts_by_its_change_relative_to_before(self):
    changes = [row['change'] for row in self.draw()[0].data]
    assert changes == pytest.approx([-0.1, -0.2, 0.1, 0, -0.05])

  def test_shares_are_of_all_clients_also_those_that_diverged(self):
    # Three of six are better; who had diverged before is not worse.
    text = described.texts(self.draw()[0])
    assert 'better (67%)' in text
    assert 'worse (17%)' in text
    assert 'relative change of accuracy (below 0 is better)' in text
    assert 'Group against FedAdam' in text
    assert 'worse (50%)' in described.texts(self.draw(True)[0])

  def test_the_method_without_the_last_training_has_the_same_personalizer(self):
    series = [
      made_up_folders.series(
        f'{trainer}{personalizer}',
        training=trainer,
        started_from_training='fedadam' if trainer == 'group' else None,
      )
      for trainer in ('fedadam', 'group')
      for personalizer in ('', '+finetuning')
    ]
    assert [drawn.subject for drawn in clients.changes(series)] == [
      'Group against FedAdam',
      'Group + fine-tuning against FedAdam + fine-tuning',
    ]
