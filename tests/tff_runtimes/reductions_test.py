"""Tests of loops that take the place of reductions of data sets."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import operations
from tff_runtimes import reductions


def _graph_with_loops(computation: tff.Computation) -> tf.compat.v1.GraphDef:
  graph_def = tf.compat.v1.GraphDef()
  block = computation.to_building_block()
  block.proto.tensorflow.graph_def.Unpack(graph_def)
  reductions.make_loops(graph_def)
  return graph_def


def _operations(graph_def: tf.compat.v1.GraphDef) -> set[str]:
  bodies = [f.node_def for f in graph_def.library.function]
  return {node.op for nodes in [graph_def.node, *bodies] for node in nodes}


def _sum(limit: tf.Tensor) -> tf.Tensor:
  data = tf.data.Dataset.range(limit)
  return data.reduce(np.int64(0), lambda a, b: a + b)


def test_no_reduction_is_left():
  for work in (_sum, tf.function(_sum)):
    graph_def = _graph_with_loops(tff.tensorflow.computation(work, np.int64))
    assert 'ReduceDataset' not in _operations(graph_def)
    assert operations.find_state(graph_def) is None


def test_a_reduction_within_a_reduction_becomes_a_loop():
  nested = tff.tensorflow.computation(
    lambda n: tf.data.Dataset.range(n).reduce(n, lambda a, b: a + _sum(b)),
    np.int64,
  )
  assert 'ReduceDataset' not in _operations(_graph_with_loops(nested))


def test_a_reduction_whose_function_begins_anew_each_time_stays():
  draw = tff.tensorflow.computation(
    lambda n: tf.data.Dataset.range(n).reduce(
      0.0, lambda a, _: a + tf.random.uniform([], seed=1)
    ),
    np.int64,
  )
  assert 'ReduceDataset' in _operations(_graph_with_loops(draw))
