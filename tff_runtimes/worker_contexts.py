"""Execution contexts that run TFF computations on TFF's worker."""

from collections.abc import Callable, Sequence

import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import private_api

_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # The first attempt may come before the worker listens; gRPC would otherwise
  # let a whole second pass before the next.
  ('grpc.initial_reconnect_backoff_ms', 20),
  ('grpc.max_reconnect_backoff_ms', 200),
  # Workers are reached directly, whatever proxy the environment names.
  ('grpc.enable_http_proxy', 0),
)


def _list_clients(value: aliases.Value, value_type: tff.Type) -> aliases.Value:
  """Turns the sequences of clients in an argument into lists, as TFF wants.

  Args:
    value: The argument. Whether a tuple in it is two clients or two parts of
      one client's value depends on the type.
    value_type: Its type.

  Returns:
    The argument with lists; nothing else is changed.
  """
  if isinstance(value_type, tff.FederatedType):
    is_sequence = isinstance(value, Sequence) and not isinstance(
      value, (str, bytes)
    )
    return list(value) if is_sequence and not value_type.all_equal else value
  if isinstance(value_type, tff.StructType) and tff.types.contains(
    value_type, lambda part: isinstance(part, tff.FederatedType)
  ):
    parts = tff.structure.to_elements(tff.structure.from_container(value))
    types = tff.structure.to_elements(value_type)
    if len(parts) == len(types):  # Otherwise TFF says what is wrong.
      return tff.structure.Struct(
        (name, _list_clients(part, part_type))
        for (name, part), (_, part_type) in zip(parts, types)
      )
  return value


class _WorkerContext(tff.framework.SyncExecutionContext):
  """An execution context that takes any sequence of clients."""

  def invoke(
    self, comp: tff.framework.ConcreteComputation, arg: aliases.Value
  ) -> aliases.Value:
    """Runs a computation; TFF calls this."""
    parameter_type = comp.type_signature.parameter
    if parameter_type is not None:
      arg = _list_clients(arg, parameter_type)
    return super().invoke(comp, arg)


def compile_for_worker(
  comp: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Brings a computation into the form that a worker runs."""
  return tff.backends.native.desugar_and_transform_to_native(
    private_api.replace_secure_sums(comp)
  )


def create_context(
  stub: tff.framework.RemoteExecutorGrpcStub,
  check: Callable[[], None],
  is_compiled: bool = False,
) -> tff.framework.SyncContext:
  """Makes a context that runs TFF computations on a worker.

  Args:
    stub: Reaches the worker.
    check: Raises an error if the worker is gone. After an error TFF asks for a
      new executor and tries again, without end; the error that is raised here
      ends that.
    is_compiled: Whether it is only for computations that are compiled already.

  Returns:
    The context, which keeps `check` for as long as it lives.
  """

  def create_executor(
    cardinalities: tff.framework.CardinalitiesType,
  ) -> tff.framework.RemoteExecutor:
    check()
    # A computation whose argument tells no number of clients has none.
    cardinalities.setdefault(tff.CLIENTS, 0)
    executor = private_api.RemoteExecutor(stub)
    executor.set_cardinalities(cardinalities)
    return executor

  return _WorkerContext(
    executor_fn=tff.framework.ResourceManagingExecutorFactory(create_executor),
    compiler_fn=None if is_compiled else compile_for_worker,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
