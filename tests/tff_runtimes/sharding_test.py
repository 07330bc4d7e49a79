"""Tests of how a computation is split for several workers."""

import numpy as np
import tensorflow_federated as tff

from tff_runtimes import sharding

_FLOAT = tff.TensorType(np.float32)
_AT_SERVER = tff.FederatedType(_FLOAT, tff.SERVER)


@tff.federated_computation(
  tff.StructType([('model', _AT_SERVER), ('momentum', _AT_SERVER)]),
  tff.FederatedType(_FLOAT, tff.CLIENTS),
)
def _round(state, data):
  add = tff.tensorflow.computation(lambda x, y: x + y, _FLOAT, _FLOAT)
  model = tff.federated_broadcast(state.model)
  mean = tff.federated_mean(tff.federated_map(add, (model, data)))
  return tff.federated_map(add, (mean, state.momentum)), model


def test_of_the_argument_the_clients_are_sent_only_what_they_need():
  piece = sharding.ShardedComputation(_round).clients(0)
  # Not the model, of which they have what is broadcast, nor the momentum.
  assert [key for key, _ in piece.inputs if isinstance(key, int)] == [2]


def test_the_server_merges_the_aggregates_of_all_workers():
  sharded = sharding.ShardedComputation(_round)
  aggregates = [
    name
    for name, is_per_client in sharded.clients(0).outputs
    if not is_per_client
  ]
  for num_workers in (1, 3):
    inputs = {key for key, _ in sharded.server(1, num_workers).inputs}
    assert inputs >= {
      sharding.partial_name(name, worker)
      for name in aggregates
      for worker in range(num_workers)
    }


def test_a_stage_without_work_has_no_piece():
  sharded = sharding.ShardedComputation(_round)
  assert sharded.num_stages == 2
  assert sharded.clients(1) is None
