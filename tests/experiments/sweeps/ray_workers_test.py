"""Tests of workers on a Ray cluster."""

import pytest

from base import errors
from experiments.reporting import grid_records
from experiments.sweeps import grid_file
from experiments.sweeps import grids
from experiments.sweeps import launchers
from experiments.sweeps import workers
from tests.experiments import small_grids

ray = pytest.importorskip('ray', reason='Ray, which is optional, is not there.')


@pytest.fixture(name='cluster')
def _cluster():
  """A cluster of a head that does no work and two machines of a core each."""
  from ray import cluster_utils

  cluster = cluster_utils.Cluster(
    initialize_head=True,
    head_node_args={'num_cpus': 0, 'include_dashboard': False},
  )
  for _ in range(2):
    cluster.add_node(num_cpus=1)
  yield cluster
  ray.shutdown()
  cluster.shutdown()


def test_what_a_lost_machine_was_doing_is_done_by_another(cluster, tmp_path):
  text = small_grids.GRID.replace('[8, 12]', '[800, 1200]')
  grid = grid_file.read(small_grids.write(tmp_path, text))
  lost = []

  class Launcher(launchers.OnRay):
    def start(self, work):
      started = super().start(work)
      run = started.run

      def watched(queue):
        killed = []
        for event in run(queue):
          yield event
          if event is not None and event.lost:
            lost.append(event.job)
          if not killed and len(queue._given) == 2:
            killed.append(_kill_a_machine(cluster))

      started.run = watched
      return started

  launcher = Launcher(cluster.address)
  assert grids.main(grid, tmp_path / 'out', None, launcher, False) == 0
  assert len(lost) == 1
  (file,) = (tmp_path / 'out/runs').iterdir()
  assert len(file.read_text().splitlines()) == 18
  on_ray = grid_records.GridRecords(tmp_path / 'out').by_key
  alone = workers.OnThisMachine(1)
  assert grids.main(grid, tmp_path / 'alone', None, alone, False) == 0
  assert grid_records.GridRecords(tmp_path / 'alone').by_key == on_ray


def _kill_a_machine(cluster):
  """Kills one of the machines that work, but not that of this program."""
  our_id = ray.get_runtime_context().get_node_id()
  node = next(node for node in cluster.worker_nodes if node.node_id != our_id)
  cluster.remove_node(node, allow_graceful=False)
  return node


def test_no_cluster():
  with pytest.raises(errors.UserError, match='no cluster answers at 127.0.0.1'):
    launchers.OnRay('127.0.0.1:9').start(None)
