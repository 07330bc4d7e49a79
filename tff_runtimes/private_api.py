"""The private functions of TensorFlow, TFF and Python that this package uses.

They may change without notice from one release to the next. So they are used
only here, and importing this module raises an ImportError unless the installed
releases are those that it was written for.
"""

import atexit
from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import os
import typing
from typing import TypeAlias

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import aliases

# The releases that fit: any patch release of these.
_FITTING_VERSIONS = {'tensorflow': '2.14', 'tensorflow_federated': '0.87'}


def check_versions(installed: Mapping[str, str]) -> None:
  """Checks that the installed versions of TensorFlow and TFF fit.

  Args:
    installed: The installed versions, by the names of the packages.

  Raises:
    ImportError: If one does not fit. The message names the versions that fit
      and those that are installed.
  """
  fits = all(
    f'{installed[package]}.'.startswith(f'{version}.')
    for package, version in _FITTING_VERSIONS.items()
  )
  if not fits:
    needed = ' and '.join(f'{p} {v}.x' for p, v in _FITTING_VERSIONS.items())
    found = ' and '.join(f'{p} {installed[p]}' for p in _FITTING_VERSIONS)
    raise ImportError(
      'The runtimes use private functions of TensorFlow and TensorFlow'
      f' Federated. They fit {needed}; installed are {found}.'
    )


check_versions(
  {'tensorflow': tf.__version__, 'tensorflow_federated': tff.__version__}
)

# Only now, as other releases may lack these modules.
# ruff: noqa: E402, I001
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.framework import function_pb2
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.eager import cancellation as tensorflow_cancellation
from tensorflow.python.eager import context as tensorflow_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_registry
from tensorflow.python.saved_model import function_deserialization
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc
from tensorflow_federated.python.core.environments.tensorflow_backend import (
  tensorflow_tree_transformations,
)
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.context_stack import (
  set_default_context,
)
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

# Python 3.11 looks for the members of a protocol anew in each `isinstance`, a
# fifth of the time of tracing. Later ones remember them.
typing._get_protocol_attrs = functools.cache(  # type: ignore[attr-defined]
  typing._get_protocol_attrs  # type: ignore[attr-defined]
)

# Definitions of a function of a graph, and of an operation of TensorFlow.
FunctionDef: TypeAlias = function_pb2.FunctionDef
OpDef: TypeAlias = op_def_pb2.OpDef
# The name of a function in an attribute of a node that calls it.
Called: TypeAlias = attr_value_pb2.NameAttrList
# The names of the tensors of an argument or a result of a TensorFlow block.
Binding: TypeAlias = computation_pb2.TensorFlow.Binding


class CancellationManager(tensorflow_cancellation.CancellationManager):
  """Ends the calls that it is given to; weak references to it are allowed."""


@functools.cache
def _run_all_operations(config_proto: bytes) -> bytes:
  """Returns a configuration that runs operations that others only wait for.

  By default TensorFlow leaves these out, and with them errors they may raise.

  Args:
    config_proto: TensorFlow's configuration of functions.
  """
  config = config_pb2.ConfigProto.FromString(config_proto)
  rewrites = config.graph_options.rewrite_options
  rewrites.dependency_optimization = rewriter_config_pb2.RewriterConfig.OFF
  return config.SerializeToString()


def call_flat(
  function: tf.types.experimental.ConcreteFunction,
  leaves: Sequence[tf.Tensor],
  cancellation: CancellationManager,
) -> list[tf.Tensor]:
  """Calls a concrete function without checking its arguments.

  The result is that of `function(*leaves)` as a flat list. Such a call would
  check the name and the type of each tensor, which takes longer than the work
  of a small client; and it could not be cancelled.

  Args:
    function: The concrete function.
    leaves: One tensor of the right type for each input of the function.
    cancellation: Ends the call at once, with a `tf.errors.CancelledError`, when
      another thread asks for it.

  Returns:
    The function's outputs.
  """
  context = tensorflow_context.context()
  options = context.function_call_options.as_attrs()
  options['config_proto'] = _run_all_operations(options['config_proto'])
  return execute.execute_with_cancellation(
    function.name,
    num_outputs=len(function.outputs),
    inputs=[*leaves, *function.captured_inputs],
    attrs=tuple(itertools.chain(*options.items())),
    ctx=context,
    cancellation_manager=cancellation,
  )


def make_callable(
  session: tf.compat.v1.Session,
  inputs: Sequence[tf.Tensor],
  outputs: Sequence[tf.Tensor],
) -> Callable[..., list[np.ndarray]]:
  """Makes a function that runs a session.

  The public `make_callable` checks each tensor at each call.

  Args:
    session: The session.
    inputs: The placeholders.
    outputs: The tensors to compute.

  Returns:
    A function from an array for each input to an array for each output.
  """
  options = config_pb2.CallableOptions(
    feed=[tensor.name for tensor in inputs],
    fetch=[tensor.name for tensor in outputs],
  )
  return session._make_callable_from_options(options)  # pylint: disable=protected-access


def op_definition(name: str) -> OpDef | None:
  """Returns the definition of TensorFlow's operation; None if unknown.

  It says whether the operation is stateful, and which types its inputs and
  outputs have. Operations that this process never used are unknown.

  Args:
    name: The operation's name, as in a `NodeDef`.
  """
  return op_def_registry.get(name)


def load_functions(
  library: function_pb2.FunctionDefLibrary,
) -> dict[str, tf.types.experimental.ConcreteFunction]:
  """Loads the functions of another graph.

  They get new names, as TensorFlow numbers the functions of each graph from
  one. The variables and tables in them get new names, too.

  Args:
    library: The `library` of a `GraphDef`. It is changed.

  Returns:
    The functions by their old names. They can be added to graphs.
  """
  for function in library.function:
    for node in function.node_def:
      # No gradient is needed here, and the loader would warn about it.
      node.attr.pop('_gradient_op_type', None)
  # Otherwise they would belong to the graph that is being built.
  with tensorflow_context.eager_mode():
    functions = function_deserialization.load_function_def_library(library)
  return {
    tf.compat.as_str(name): function for name, function in functions.items()
  }


def replace_secure_sums(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Returns `computation` with plain sums instead of secure sums.

  TFF offers this for tests. In a simulation a secure sum has nobody to hide
  anything from, and TFF's worker cannot run one.

  Args:
    computation: The computation.
  """
  proto = tff.framework.serialize_computation(computation)
  # Most have none, and TFF takes long to look for them.
  if b'federated_secure_' not in proto.SerializeToString():
    return computation
  return tff.backends.test.replace_secure_intrinsics_with_bodies(computation)


def replace_composite_intrinsics(
  block: tff.framework.ComputationBuildingBlock,
) -> tff.framework.ComputationBuildingBlock:
  """Returns `block` with TFF's definitions of all intrinsics that have one.

  Only a few basic intrinsics remain. For instance, a `federated_mean` becomes
  calls of `federated_map` and `federated_aggregate`.

  Args:
    block: The building block.
  """
  block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(
    block
  )
  return block


def is_compatible(value: aliases.Value, dtype: np.dtype) -> bool:
  """Returns whether TFF accepts a number or an array as a `dtype` tensor."""
  return array.is_compatible_dtype(value, dtype.type)


def to_data_set(
  elements: Sequence[aliases.Value], element_type: tff.Type
) -> tf.data.Dataset:
  """Makes a data set from a list of elements, as TFF does for an argument."""
  return tensorflow_utils.make_data_set_from_elements(
    None, elements, element_type
  )


def _to_value(sent: executor_pb2.Value, type_spec: tff.Type) -> aliases.Value:
  """Reads a value that a worker has sent."""
  kind = sent.WhichOneof('value')
  if kind == 'struct':
    parts = tff.structure.to_elements(type_spec)
    return tff.structure.Struct(
      (name, _to_value(element.value, part_type))
      for element, (name, part_type) in zip(sent.struct.element, parts)
    )
  if kind == 'federated' and not (sent.federated.value or type_spec.all_equal):
    return []
  return value_serialization.deserialize_value(sent, type_spec)[0]


class RemoteExecutorStub(tff.framework.RemoteExecutorGrpcStub):
  """Calls a worker through a channel that may be closed.

  TFF's class has a thread watch the channel, which fails when it is closed.
  """

  def __init__(self, channel: grpc.Channel):  # pylint: disable=super-init-not-called
    """Makes a stub, which does not know whether it `is_ready`."""
    self._stub = executor_pb2_grpc.ExecutorGroupStub(channel)


class RemoteExecutor(tff.framework.RemoteExecutor):
  """Runs computations on a worker.

  TFF's class cannot read the results of no clients, which are empty lists.
  """

  async def _compute(
    self, value_ref: executor_pb2.ValueRef, type_spec: tff.Type
  ) -> aliases.Value:
    request = executor_pb2.ComputeRequest(
      executor=self._executor_id, value_ref=value_ref
    )
    return _to_value(self._stub.compute(request).value, type_spec)


def worker_binary() -> str:
  """Returns the path of TFF's worker, a program that TFF's wheel brings."""
  return os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')


def forget_default_context() -> None:
  """Has TFF forget its default context, at first one that it makes itself.

  At its end, Python would delete that one when modules are gone that this
  needs, and print an error.
  """
  set_default_context.set_no_default_context()


atexit.register(forget_default_context)
