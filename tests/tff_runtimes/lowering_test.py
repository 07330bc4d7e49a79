"""Tests of TFF computations as stages."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tff_runtimes import lowering
from tff_runtimes import values

_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
_multiply = tff.tensorflow.computation(
  lambda x, y: x * y, (np.float32, np.float32)
)


def _shape(lowered: lowering.LoweredComputation) -> list[tuple[bool, int]]:
  """Returns for each stage whether clients work in it, and its aggregations."""
  return [(s.is_federated, len(s.aggregations)) for s in lowered.stages]


def test_a_tensorflow_computation_is_work_of_the_server():
  lowered = lowering.lower(_double)
  assert _shape(lowered) == [(False, 0)]
  assert len(lowered.stages[0].server) == 1


def test_work_of_clients_alone_is_one_stage():
  @tff.federated_computation(_AT_CLIENTS)
  def run(x):
    return tff.federated_map(_double, tff.federated_map(_double, x))

  assert _shape(lowering.lower(run)) == [(True, 0)]


def test_independent_aggregations_share_a_stage():
  @tff.federated_computation(_AT_CLIENTS, _AT_CLIENTS)
  def run(x, y):
    return tff.federated_sum(x), tff.federated_max(y)

  assert _shape(lowering.lower(run)) == [(True, 2), (False, 0)]


@pytest.mark.parametrize('depth', [1, 2, 3])
def test_each_dependent_aggregation_is_a_stage(depth):
  @tff.federated_computation(_AT_CLIENTS)
  def run(x):
    for _ in range(depth):
      total = tff.federated_broadcast(tff.federated_sum(x))
      x = tff.federated_map(_multiply, (x, total))
    return x

  assert _shape(lowering.lower(run)) == [(True, 1)] * depth + [(True, 0)]


@tff.federated_computation(_AT_CLIENTS, _AT_SERVER)
def _uses_results_twice(x, factor):
  doubled = tff.federated_map(_double, x)
  sent = tff.federated_broadcast(tff.federated_map(_double, factor))
  product = tff.federated_map(_multiply, (doubled, sent))
  total = tff.federated_broadcast(tff.federated_sum(product))
  return tff.federated_sum(tff.federated_map(_multiply, (doubled, total)))


def test_what_clients_read_of_the_server_is_noted():
  first, second, last = lowering.lower(_uses_results_twice).stages
  # What the server sends, and the zeros that the sums begin with.
  assert len(first.reads) == len(second.reads) == 2
  at_first = {name for name, _ in first.server}
  assert set(first.reads) <= at_first
  assert set(second.reads) <= at_first | {name for name, _ in second.server}
  assert not last.reads


def test_what_clients_need_later_is_kept():
  first, second, last = lowering.lower(_uses_results_twice).stages
  assert len(first.keep) == 1
  assert set(first.keep) <= {name for name, _ in first.clients}
  assert not second.keep
  assert not last.keep


def test_the_results_of_clients_are_kept():
  @tff.federated_computation(_AT_CLIENTS)
  def run(x):
    doubled = tff.federated_map(_double, x)
    return doubled, tff.federated_sum(doubled)

  stage = lowering.lower(run).stages[0]
  assert len(stage.keep) == 1


def test_every_result_has_the_type_of_one_party():
  types = lowering.lower(_uses_results_twice).types
  assert not any(
    tff.types.contains(t, lambda part: isinstance(part, tff.FederatedType))
    for t in types.values()
  )


def test_a_secure_sum_is_a_sum():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def run(x):
    return tff.federated_secure_sum_bitwidth(x, 8)

  assert _shape(lowering.lower(run)) == [(True, 1), (False, 0)]


def test_the_containers_of_the_result_are_kept():
  @tff.federated_computation(_AT_SERVER)
  def run(x):
    return collections.OrderedDict(a=x)

  result_type = lowering.lower(run).result_type
  assert result_type.python_container is collections.OrderedDict


def _evaluate(computation: tff.Computation, *arguments: Any) -> Any:
  """Runs a computation of one party, as the only stage of it."""
  lowered = lowering.lower(computation)
  (stage,) = lowered.stages
  parameter_type: Any = lowered.parameter_type
  parameter = arguments[0] if len(arguments) == 1 else arguments

  leaves = values.flatten(parameter, parameter_type)

  @tf.function
  def run() -> list[Any]:
    argument = values.unflatten(leaves, parameter_type)
    environment = stage.run_server({lowered.parameter_name: argument})
    result = lowering.evaluate(lowered.result, environment)
    return values.flatten(result, lowered.result_type)

  return values.to_python(run(), lowered.result_type)


class SequenceElement(NamedTuple):
  """An element of a sequence."""

  x: Any
  y: Any


@pytest.mark.parametrize(
  ('element_type', 'elements'),
  [
    (np.int32, [1, 2]),
    ((np.int32,), [(1,), (2,)]),
    ((np.int32, np.int32), [(1, 2), (3, 4)]),
    (
      SequenceElement(np.int32, (np.int32,)),
      [SequenceElement(1, (2,)), SequenceElement(3, (4,))],
    ),
    (
      collections.OrderedDict(b=SequenceElement(np.int32, np.int32)),
      [collections.OrderedDict(b=SequenceElement(1, 2))],
    ),
  ],
  ids=['tensor', 'tuple of one', 'tuple', 'NamedTuple', 'dict'],
)
def test_sequences_of_any_elements_can_be_mapped(element_type, elements):
  same = tff.tensorflow.computation(
    lambda x: tf.nest.map_structure(tf.identity, x), element_type
  )

  @tff.federated_computation(tff.SequenceType(element_type))
  def run(sequence):
    return tff.sequence_map(same, sequence)

  result = list(_evaluate(run, elements).as_numpy_iterator())
  assert helpers.leaves(result) == helpers.leaves(elements)


def test_a_sequence_can_be_reduced():
  step = tff.tensorflow.computation(
    lambda total, element: total + element.x * element.y,
    (np.int32, SequenceElement(np.int32, np.int32)),
  )

  @tff.federated_computation(
    tff.SequenceType(SequenceElement(np.int32, np.int32))
  )
  def run(sequence):
    return tff.sequence_reduce(sequence, 1, step)

  assert _evaluate(run, [SequenceElement(1, 2), SequenceElement(3, 4)]) == 15


def test_a_sequence_can_be_summed():
  element_type = collections.OrderedDict(a=np.int32, b=(np.float32, [2]))

  @tff.federated_computation(tff.SequenceType(element_type))
  def run(sequence):
    return tff.sequence_sum(sequence)

  element = collections.OrderedDict(a=1, b=np.array([1, 2], np.float32))
  total = _evaluate(run, [element] * 3)
  assert total['a'] == 3
  np.testing.assert_array_equal(total['b'], [3, 6])


def _unknown_intrinsic() -> tff.framework.ComputationBuildingBlock:
  return tff.framework.Intrinsic(
    'no_such_intrinsic', tff.FunctionType(np.int32, np.int32)
  )


def _placement() -> tff.framework.ComputationBuildingBlock:
  return tff.framework.Placement(tff.CLIENTS)


@pytest.mark.parametrize(
  ('make', 'name'),
  [(_unknown_intrinsic, 'no_such_intrinsic'), (_placement, 'Placement')],
)
def test_what_cannot_run_is_an_error_that_names_it(
  make: Callable[[], Any], name: str
):
  with pytest.raises(NotImplementedError, match=name):
    lowering.evaluate(make(), {})
