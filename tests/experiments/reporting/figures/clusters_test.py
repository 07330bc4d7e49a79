"""Tests of the figures of clusters, of groups and of what clients keep."""

import numpy as np
import pytest

from experiments.reporting import sources
from experiments.reporting.figures import clusters
from tests.experiments import made_up_folders
from tests.experiments import small_runs
from tests.experiments.reporting.figures import described


def test_known_groups_in_clusters():
  found = {'groups': {'en': {'0': 3, '1': 40}, 'es': {'0': 20, '1': 0}}}
  series = made_up_folders.series('hypcluster', clusters=found)
  (drawn,) = clusters.group_counts([series])
  assert {
    (row['group'], row['cluster']): row['clients'] for row in drawn.data
  } == {('en', '0'): 3, ('en', '1'): 40, ('es', '0'): 20, ('es', '1'): 0}
  text = described.texts(drawn)
  for part in ('en', 'es', '40', 'HypCluster', 'cluster'):
    assert part in text


def test_without_known_groups_clusters_have_their_sizes():
  series = made_up_folders.series(clusters={'sizes': {'0': 3, '1': 1}})
  (drawn,) = clusters.group_counts([series])
  assert [(row['cluster'], row['clients']) for row in drawn.data] == [
    ('0', 3),
    ('1', 1),
  ]
  assert not [*clusters.group_counts([made_up_folders.series()])]


def test_known_groups_of_grids_have_a_number_each():
  (drawn,) = clusters.groups([made_up_folders.series(groups={'en': 0.5})])
  assert [row['value'] for row in drawn.data] == [0.5]


def test_known_groups_have_the_metric_of_all_their_examples():
  series = made_up_folders.series(
    groups={'en': {'pooled': 0.5}, 'es': {'pooled': None}}
  )
  (drawn,) = clusters.groups([series])
  assert [(row['group'], row['value']) for row in drawn.data] == [
    ('en', 0.5),
    ('es', None),
  ]
  assert not [*clusters.groups([made_up_folders.series()])]


def test_confusion_has_a_number_for_each_group_and_cluster():
  """With the same numbers of clusters as in the table of clients."""
  drawn = clusters.confusion(
    ['a', 'a', 'a', 'b', 'b'],
    ['10', '10', '2', '2', '2'],
    np.zeros([5, 1]),
    'confusion',
    'Type',
  )
  assert {
    (row['group'], row['cluster']): row['clients'] for row in drawn.data
  } == {('a', '10'): 2, ('a', '2'): 1, ('b', '10'): 0, ('b', '2'): 2}
  text = described.texts(drawn)
  assert 'Type, 80% in the cluster of their group' in text
  assert 'cluster of the method' in text


def test_embeddings_of_a_group_are_near_each_other():
  rng = np.random.default_rng(0)
  centers = {'9': 0.0, '10': 20.0}
  groups = [name for name in centers for _ in range(12)]
  points = [rng.normal(centers[name], 0.1, size=5) for name in groups]
  drawn = clusters.draw_embeddings(
    np.array(points), groups, 'embeddings', 'Type'
  )
  assert drawn.spec['encoding']['color']['scale']['domain'] == ['9', '10']
  places = {
    name: np.array(
      [[row['x'], row['y']] for row in drawn.data if row['group'] == name]
    )
    for name in centers
  }
  for group, others in (places.values(), reversed(places.values())):
    middle = group.mean(axis=0)
    radius = np.linalg.norm(group - middle, axis=1).max()
    assert np.linalg.norm(others - middle, axis=1).min() > radius


def test_the_steps_that_clients_chose_are_those_of_the_last_round(tmp_path):
  config = small_runs.config(algorithms='self_fl,fedavg')
  small_runs.run(config, tmp_path / 'run')
  ((run,),) = sources.read_repeats([tmp_path / 'run'])
  (drawn,) = clusters.steps(sources.list_series([run]))
  assert drawn.name == 'steps_self_fl'
  measured = run.rounds['self_fl']
  num_clients = sum(row['clients'] for row in drawn.data)
  assert num_clients == measured['num_clients'][-1]
  steps = sum(row['steps'] * row['clients'] for row in drawn.data)
  assert steps / num_clients == pytest.approx(measured['steps'][-1])
  assert 'Self-FL, round 7' in described.texts(drawn)
