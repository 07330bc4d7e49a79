"""Tests of figures of measurements by round."""

from experiments.reporting import sources
from experiments.reporting.figures import rounds
from tests.experiments import made_up_folders
from tests.experiments.reporting.figures import described


def _curve(method, *repeats):
  return sources.Curve(method, method, repeats)


def test_learning_is_drawn_without_who_happened_to_be_in_a_round():
  (drawn,) = rounds.learning(
    [
      _curve(
        'group',
        {
          'round': [1, 2],
          'num_clients': [4, 4],
          'dropped_clients': [0, 0],
          'loss': [2, 1],
          'accuracy': [0.5, 0.75],
          'group_0': [0.25, 1],
          'share_sent': [0.5, 0.5],
        },
      )
    ]
  )
  panels = {row['panel'] for row in drawn.data}
  assert panels == {'training loss', 'training accuracy'}
  assert described.lines(drawn, 'training loss') == {'group': [[1, 2], [2, 1]]}


def test_rounds_without_updates_have_only_a_share_of_dropped_ones():
  (drawn,) = rounds.learning(
    [
      _curve(
        'fedavg',
        {
          'round': [1, 2],
          'num_clients': [3, 0],
          'dropped_clients': [1, 4],
          'loss': [2, 0],
        },
      )
    ]
  )
  assert described.lines(drawn, 'dropped') == {'fedavg': [[1, 0.25], [2, 1]]}
  assert described.lines(drawn, 'training') == {'fedavg': [[1, 2], [2, None]]}


def test_private_rounds_show_their_noise():
  measured = {'clipped': [0.5, 0.25], 'noise_to_signal': [2, 3]}
  (drawn,) = rounds.learning([_curve('fedavg', {'round': [1, 2]} | measured)])
  for panel, values in (
    ('clipped updates', [0.5, 0.25]),
    ('noise over signal', [2, 3]),
  ):
    points = [[k, value] for k, value in enumerate(values, 1)]
    assert described.lines(drawn, panel) == {'fedavg': points}


def test_long_lines_are_thinned_and_keep_their_end():
  numbers = [float(k) for k in range(1, 10_001)]
  (drawn,) = rounds.learning(
    [_curve('fedavg', {'round': numbers, 'loss': numbers})]
  )
  assert 200 < len(drawn.data) <= 302
  assert drawn.data[-1]['round'] == 10_000


def test_repeats_of_different_lengths_are_one_line():
  (drawn,) = rounds.learning(
    [
      _curve(
        'fedavg',
        {'round': [1, 2], 'loss': [2, 1]},
        {'round': [1], 'loss': [4]},
      )
    ]
  )
  assert described.lines(drawn) == {'fedavg': [[1, 3], [2, 1]]}


def test_validation_has_the_hurt_of_methods_that_personalize():
  numbers = {'round': [5, 10], 'metric': [0.5, 0.75], 'hurt': [0, 0.25]}
  (drawn,) = rounds.validation(
    [
      _curve('fedavg', numbers | {'before': [0.5, 0.75], 'hurt': [0, 0]}),
      _curve('finetuning', numbers | {'before': [0.25, 0.5]}),
      _curve('hypcluster', {'round': [5], 'metric': [0.5]}),
    ],
    ['accuracy', '(higher is better)'],
  )
  assert [*described.lines(drawn, 'validation accuracy')] == [
    'fedavg',
    'finetuning',
    'hypcluster',
  ]
  assert described.lines(drawn, 'validation clients hurt') == {
    'finetuning': [[5, 0], [10, 0.25]]
  }


def test_clusters_and_steps_are_drawn_run_by_run():
  measured = {
    'round': [1, 2],
    'cluster_0': [0.25, 0.5],
    'cluster_1': [0.75, 0.5],
    'steps': [1, 3],
    'intra_variance': [0.5, 0.25],
  }
  one, two = (
    made_up_folders.series(name, seeds=2, rounds=measured, training='self_fl')
    for name in ('self_fl', 'self_fl+finetuning')
  )
  first, *others = rounds.cluster_shares([one, two])
  assert len(others) == 3
  assert first.name == 'clusters_self_fl_1'
  assert described.lines(first) == {
    'cluster 0': [[1, 0.25], [2, 0.5]],
    'cluster 1': [[1, 0.75], [2, 0.5]],
  }
  # Both methods share a training.
  drawn = [*rounds.trajectories([one, two])]
  assert [f.name for f in drawn] == [
    'trajectory_self_fl_1',
    'trajectory_self_fl_2',
  ]
  assert described.lines(drawn[0], 'steps') == {'Self-FL': [[1, 1], [2, 3]]}
  assert 'Self-FL, repeat 1, mean over clients' in described.texts(drawn[0])
