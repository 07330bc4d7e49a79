"""A TFF runtime that lives in this process and works on whole cohorts.

`tff.framework.set_default_context(create_cohort_context())` makes every TFF
computation run here. Clients whose work is small and known to give the same
under XLA are stacked: the work of all of them, and the aggregation, is one XLA
program. The others run one client a core, or one a GPU if there are GPUs; what
they give is aggregated in the clients' order, so that the result does not
depend on which client is ready first.
"""

import asyncio
import collections
from collections.abc import (
  Callable,
  Mapping,
  Sequence,
)
import concurrent.futures
import dataclasses
import functools
import logging
import sys
import threading
from types import TracebackType
from typing import Any, TypeAlias, TypeVar
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import aliases
from tff_runtimes import caches
from tff_runtimes import errors
from tff_runtimes import interpreting
from tff_runtimes import lanes
from tff_runtimes import programs
from tff_runtimes import rounds
from tff_runtimes import sequences
from tff_runtimes import stacking
from tff_runtimes import values

# Here, as `CohortContext` has a method that is called `rounds` too.
_Plan = rounds.Plan
_Rounds = rounds.Rounds

# What a client keeps, and its value for each aggregate.
_ClientResult: TypeAlias = tuple[
  dict[str, aliases.Leaves], list[aliases.Leaves]
]
# A result that clients keep: stacked leaves, or the leaves of each client.
_Kept = TypeVar('_Kept', aliases.Leaves, list[aliases.Leaves])

# After so many calls in turn whose data sets cannot be read into arrays, it is
# not tried again.
_MAX_UNREAD = 3
# Number of computations that are kept compiled.
_CACHE_SIZE = 64

_logger = logging.getLogger(__name__)


class _Compiled:
  """A computation, its program, and what runs the program."""

  def __init__(
    self,
    computation: tff.framework.ConcreteComputation,
    stack: bool | None,
    trust_xla: bool,
  ):
    self.computation = computation
    self.program = programs.Program(computation)
    self.rounds: dict[_Plan, _Rounds] = {}
    if stack is False:
      self.stacking = stacking.Stacking('the context was made to stack none')
    else:
      self.stacking = stacking.find_stacking(self.program, trust_xla)
    self.runner = stacking.StackedRunner(
      self.program, trust_xla, self.stacking.reads_data
    )
    # The most bytes that a data set of a client may have.
    self.max_read = stacking.MAX_CLIENT_BYTES if stack is None else sys.maxsize
    self.stackers: dict[str, dict[int, sequences.Stacker]] = (
      collections.defaultdict(dict)
    )
    # Why the data sets of the last call could not be read, and in how many
    # calls in turn it was so.
    self.against_reading: str | None = None
    self._num_unread = 0
    size = self.stacking.client_bytes
    if stack is None and size > stacking.MAX_CLIENT_BYTES:
      self.stacking = stacking.Stacking(
        f'a client reads or gives {size} bytes, and more than'
        f' {stacking.MAX_CLIENT_BYTES} are faster on a core of their own'
      )
    _logger.info('%s', self)

  def note_read(self, error: sequences.CannotReadError | None) -> None:
    """Takes note that data sets could be read into arrays, or why not."""
    self.against_reading = None if error is None else str(error)
    self._num_unread = 0 if error is None else self._num_unread + 1
    if self._num_unread == _MAX_UNREAD:
      self.stacking = stacking.Stacking(str(error))
      _logger.info('%s', self)

  def refuse(self, error: Exception) -> None:
    """Takes note that the work of stacked clients cannot be compiled."""
    reason = str(error).strip()
    if isinstance(error, tf.errors.OpError):
      reason = f'XLA does not compile it: {reason}'
    if self.stacking.reads_data and self.stacking.against_whole is None:
      # Without the server's work it may be possible.
      self.stacking = dataclasses.replace(self.stacking, against_whole=reason)
    else:
      self.stacking = stacking.Stacking(reason)
    _logger.info('%s', self)

  def __str__(self) -> str:
    lines = [f'The computation has the type {self.computation.type_signature}.']
    if self.stacking.against is not None:
      way = (
        'Its clients are not stacked and run one on each core, because'
        f' {self.stacking.against}.'
      )
    elif self.stacking.against_whole is None:
      way = 'Its clients are stacked, and a call is one XLA program.'
    else:
      way = (
        'Its clients are stacked, but the server is no part of their XLA'
        f' program, because {self.stacking.against_whole}.'
      )
    lines.append(way)
    if self.stacking.against is None and self.stacking.reads_data:
      lines.append(
        'They read data sets. It depends on these whether clients can be'
        ' stacked, which is found out in each call.'
      )
    if self.stacking.against is None and self.against_reading is not None:
      lines.append(
        'In the last call they were not stacked, because'
        f' {self.against_reading}.'
      )
    for what, operation in self.program.isolated():
      lines.append(
        f'{what} needs a TensorFlow session of its own for each call, which is'
        f' slow, because of {operation}.'
      )
    return '\n'.join(lines)


def _stack(
  clients: Sequence[aliases.Value],
  type_spec: tff.Type,
  capacity: int,
  max_read: int,
  stackers: dict[int, sequences.Stacker],
) -> aliases.Leaves | None:
  """Stacks the clients' values.

  Args:
    clients: The values.
    type_spec: Their type.
    capacity: The number of rows.
    max_read: The most bytes that are read from a data set.
    stackers: Stack data sets, by their place among the leaves.

  Returns:
    The leaves; None if their shapes differ.

  Raises:
    CannotReadError: If data sets cannot be read.
  """
  if isinstance(clients, values.StackedClients):
    columns = values.flatten(clients.stacked, type_spec, stacked=True)
    missing = capacity - len(clients)
    if not missing:
      return columns
    return [
      np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])
      for column in columns
    ]
  rows = [
    values.flatten(client, type_spec, keep_data_sets=True) for client in clients
  ]
  rows += rows[-1:] * (capacity - len(rows))
  columns = []
  for place, column in enumerate(zip(*rows)):
    if isinstance(column[0], tf.data.Dataset):
      stacker = stackers.setdefault(place, sequences.Stacker())
      leaf = stacker(column, max_read)
    elif len({tuple(leaf.shape) for leaf in column}) > 1:
      return None
    else:
      leaf = np.stack(list(map(np.asarray, column)))
    columns.append(leaf)
  return columns


class CohortContext(tff.framework.SyncContext):
  """Runs TFF computations in this process; see the module's docstring.

  Several threads can use it at once. It is a context manager, which closes it.
  """

  def __init__(
    self,
    default_num_clients: int,
    stack: bool | None,
    trust_xla: bool,
    devices: Sequence[str] | None,
  ):
    """Makes the context; see `create_cohort_context`."""
    self._default_num_clients = default_num_clients
    self._stack_clients = stack
    self._trust_xla = trust_xla
    self._compiled = caches.Cache[_Compiled](_CACHE_SIZE)
    # TensorFlow's functions complain if TensorFlow itself is deleted before.
    weakref.finalize(self, self._compiled.clear)
    self._is_closed = False
    self._lanes = lanes.Lanes(devices)
    self._caller = concurrent.futures.ThreadPoolExecutor(1)

  def __enter__(self) -> 'CohortContext':
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.close()

  def close(self) -> None:
    """Frees what was compiled and ends the threads."""
    self._is_closed = True
    self._compiled.clear()
    self._lanes.shut_down()
    self._caller.shutdown(wait=False)

  def _check_open(self) -> None:
    if self._is_closed:
      raise RuntimeError('The context is closed. Make a new one to go on.')

  def invoke(
    self, comp: tff.framework.ConcreteComputation, arg: aliases.Value
  ) -> aliases.Value:
    """Runs a computation; TFF calls this.

    Args:
      comp: The computation.
      arg: Its argument; None if it takes none.

    Returns:
      The result, in the Python containers of its type. What is one value for
      each client is a list, or `values.StackedClients` if the clients in the
      argument are.
    """
    self._check_open()
    cancellation = programs.Cancellation()
    if threading.current_thread() is not threading.main_thread():
      return self.run(comp, arg, cancellation)
    # In another thread, as Ctrl-C reaches this one only between operations.
    call = self._caller.submit(self.run, comp, arg, cancellation)
    try:
      return call.result()
    except BaseException:
      if not call.done():
        cancellation.cancel()
        # What cannot be cancelled must not hold up what comes next.
        self._lanes.shut_down()
        self._caller.shutdown(wait=False)
        self._lanes.restart()
        self._caller = concurrent.futures.ThreadPoolExecutor(1)
      raise

  def explain(self, comp: tff.framework.ConcreteComputation) -> str:
    """Tells how a computation runs here, and why not faster.

    Args:
      comp: The computation.

    Returns:
      Sentences for a reader: whether its clients are stacked and if not, what
      operation or size is against it.
    """
    return str(self._compile(comp))

  def rounds(
    self, comp: tff.framework.ConcreteComputation, plan: _Plan
  ) -> _Rounds | None:
    """Makes many rounds of an iterative process one program.

    Args:
      comp: The `next` of the process. The module `rounds` tells its form.
      plan: How its rounds follow from one another.

    Returns:
      What runs the rounds, with the same results as calling `comp` round by
      round; None if `comp` has another form or cannot be one XLA program, or if
      XLA is not trusted, as rounds that are not finite are not done again.
    """
    compiled = self._compile(comp)
    found = compiled.stacking
    if (
      not self._trust_xla
      or found.against is not None
      or found.against_whole is not None
      or found.reads_data
      or not rounds.fits(compiled.program)
    ):
      return None
    if plan not in compiled.rounds:
      compiled.rounds[plan] = _Rounds(compiled.program, compiled.runner, plan)
    return compiled.rounds[plan]

  def _compile(
    self, computation: tff.framework.ConcreteComputation
  ) -> _Compiled:
    self._check_open()
    # By identity, as to hash a computation TFF serializes it every time.
    return self._compiled.get(
      id(computation),
      lambda: _Compiled(computation, self._stack_clients, self._trust_xla),
    )

  def run(
    self,
    comp: tff.framework.ConcreteComputation,
    arg: aliases.Value,
    cancellation: programs.Cancellation,
  ) -> aliases.Value:
    """Runs a computation in the calling thread.

    Args:
      comp: The computation.
      arg: Its argument.
      cancellation: What can end the call.

    Returns:
      As `invoke`.
    """
    compiled = self._compile(comp)
    program = compiled.program
    arguments: dict[str, aliases.Leaves] = {}
    clients: dict[str, Sequence[aliases.Value]] = {}
    parts = values.split(arg, program.parameter_type)
    for part, (name, type_spec) in zip(parts, program.part_types.items()):
      if values.is_per_client(type_spec):
        clients[name] = values.to_clients(part)
      else:
        arguments[name] = values.flatten(part, type_spec)
    size = values.count_clients(clients.values(), self._default_num_clients)
    run = _Run(compiled, arguments, clients, size, cancellation)
    try:
      result = run.run_stacked() or run.run_one_by_one(self._lanes)
    except tf.errors.OpError as error:
      raise errors.also_of_grpc(error) from error.__cause__
    stay_stacked = any(
      isinstance(part, values.StackedClients) for part in clients.values()
    )
    return _to_python(result, program.result_type, stay_stacked)


class _Run:
  """One call of a computation."""

  def __init__(
    self,
    compiled: _Compiled,
    arguments: programs.Arguments,
    clients: Mapping[str, Sequence[aliases.Value]],
    size: int,
    cancellation: programs.Cancellation,
  ):
    """Prepares the call.

    Args:
      compiled: The computation.
      arguments: The leaves of the parts of the argument that are not one value
        for each client.
      clients: The values of the other parts.
      size: The number of clients.
      cancellation: What can end the call.
    """
    self._compiled = compiled
    self._program = compiled.program
    self._arguments = arguments
    self._clients = clients
    self._size = size
    self._cancellation = cancellation

  def run_stacked(self) -> list[programs.Part] | None:
    """Runs with stacked clients; returns None if they cannot be stacked."""
    if self._compiled.stacking.against is not None or not self._size:
      return None
    runner = self._compiled.runner
    capacity = runner.capacity(self._size)
    stacked = {}
    for name, part in self._clients.items():
      try:
        leaves = _stack(
          part,
          self._program.part_types[name],
          capacity,
          self._compiled.max_read,
          self._compiled.stackers[name],
        )
      except sequences.CannotReadError as error:
        self._compiled.note_read(error)
        return None
      if leaves is None:
        return None
      stacked[name] = leaves
    self._compiled.note_read(None)
    try:
      if self._compiled.stacking.against_whole is None:
        return runner.run_whole(self._size, self._arguments, stacked)
      return self._run_stacked_clients(stacked)
    except stacking.NotFiniteError:
      return None
    except (
      stacking.CannotStackError,
      interpreting.CannotInterpretError,
      tf.errors.OpError,
    ) as error:
      if self._cancellation.is_cancelled:
        raise
      self._compiled.refuse(error)
      return self.run_stacked()

  def _run_stacked_clients(
    self, stacked: programs.Arguments
  ) -> list[programs.Part]:
    """Runs with stacked clients, and a server that is no part of that."""
    runner = self._compiled.runner

    def run_clients(
      i: int, reads: dict[str, aliases.Leaves], kept: dict[str, aliases.Leaves]
    ) -> tuple[dict[str, aliases.Leaves], list[aliases.Leaves]]:
      needed = self._program.client_arguments(i)
      shared = self._program.shared_arguments(i)
      keep, aggregates = runner.run_clients(
        i,
        self._size,
        {name: self._arguments[name] for name in shared},
        {name: stacked[name] for name in needed if name in stacked},
        reads,
        kept,
      )
      return keep, aggregates

    def make_part(leaves: aliases.Leaves) -> programs.ClientColumns:
      # Copies, as these may be arrays of the argument.
      return programs.ClientColumns(
        [np.array(leaf[: self._size]) for leaf in leaves], self._size
      )

    returned = {
      name: stacked[name]
      for name in self._program.result_arguments
      if name in stacked
    }
    return self._run_stages(self._arguments, run_clients, returned, make_part)

  def run_one_by_one(self, own_lanes: lanes.Lanes) -> list[programs.Part]:
    """Runs each client by itself, one on each core or device at a time.

    Args:
      own_lanes: Where the clients run. The server runs on their first device.
    """
    with lanes.use_device(own_lanes.first_device):
      return self._run_one_by_one(own_lanes)

  def _run_one_by_one(self, own_lanes: lanes.Lanes) -> list[programs.Part]:
    program = self._program
    # Once, and not again for each client.
    arguments = {
      name: [
        programs.to_tensor(leaf, spec.dtype)
        for leaf, spec in zip(
          leaves, values.leaf_specs(program.part_types[name])
        )
      ]
      for name, leaves in self._arguments.items()
    }

    def own_leaves(part: str, k: int) -> aliases.Leaves:
      return values.flatten(self._clients[part][k], program.part_types[part])

    def run_clients(
      i: int,
      reads: dict[str, aliases.Leaves],
      kept: dict[str, list[aliases.Leaves]],
    ) -> tuple[dict[str, list[aliases.Leaves]], list[aliases.Leaves]]:
      client, accumulate = (
        program.client_function(i),
        program.accumulate_function(i),
      )
      needed = program.client_arguments(i)
      shared = {name: arguments[name] for name in program.shared_arguments(i)}

      @functools.cache  # Once for each device, and not for each client.
      def copy_shared(device: str | None) -> list[dict[str, aliases.Leaves]]:
        return [
          {
            name: lanes.copy_to(device, leaves)
            for name, leaves in parts.items()
          }
          for parts in (shared, reads)
        ]

      def job(k: int) -> lanes.Job[_ClientResult]:
        own_arguments = {
          name: own_leaves(name, k) for name in needed if name in self._clients
        }
        own_kept = {name: leaves[k] for name, leaves in kept.items()}

        def run(device: str | None) -> _ClientResult:
          try:
            with lanes.use_device(device):
              shared, reads = copy_shared(device)
              # In the order in which the client takes them.
              given = {name: (own_arguments | shared)[name] for name in needed}
              return client(
                given, reads, own_kept, cancellation=self._cancellation
              )
          except tf.errors.OpError as error:
            raise _name_client(error, k, self._size) from error

        return run

      keeps: list[dict[str, aliases.Leaves]] = []
      aggregates = program.zeros_function(i)(shared, reads)
      for keep, added in own_lanes.run_in_order(map(job, range(self._size))):
        keeps.append(keep)
        aggregates = accumulate(
          shared, reads, aggregates, added, cancellation=self._cancellation
        )
      rows = {
        name: [keep[name] for keep in keeps] for name in program.stages[i].keep
      }
      return rows, aggregates

    everyone = {
      part: [
        # Copies, as the caller may change the argument later.
        [
          programs.to_tensor(leaf, spec.dtype)
          for leaf, spec in zip(
            own_leaves(part, k), values.leaf_specs(program.part_types[part])
          )
        ]
        for k in range(self._size)
      ]
      for part in program.result_arguments
      if part in self._clients
    }
    return self._run_stages(
      arguments, run_clients, everyone, programs.ClientRows
    )

  def _run_stages(
    self,
    arguments: programs.Arguments,
    run_clients: Callable[
      [int, dict[str, aliases.Leaves], dict[str, _Kept]],
      tuple[dict[str, _Kept], list[aliases.Leaves]],
    ],
    clients: Mapping[str, _Kept],
    make_part: Callable[[_Kept], programs.ClientRows | programs.ClientColumns],
  ) -> list[programs.Part]:
    """Runs all stages.

    Args:
      arguments: The parts of the argument that are not one value for each
        client.
      run_clients: Runs the clients' work of a stage: from the stage's number,
        the server's results that it reads, and what the clients kept, to what
        they keep and the aggregates.
      clients: The other parts of the argument, in the form in which
        `run_clients` gives what clients keep.
      make_part: Makes the part of a result out of this form.

    Returns:
      The parts of the result.
    """
    program = self._program
    server: dict[str, aliases.Leaves] = {}
    kept: dict[str, _Kept] = {}
    aggregates: list[aliases.Leaves] = []
    for i, stage in enumerate(program.stages):
      server |= program.server_function(i)(
        arguments, server, aggregates, cancellation=self._cancellation
      )
      if stage.is_federated:
        reads = {name: server[name] for name in stage.reads}
        earlier = program.client_specs(i)[2]
        keep, aggregates = run_clients(
          i, reads, {name: kept[name] for name in earlier}
        )
        kept |= keep
    return program.result(
      arguments,
      server,
      {
        name: make_part(leaves)
        for name, leaves in (kept | dict(clients)).items()
      },
    )


def _name_client(
  error: tf.errors.OpError, client: int, size: int
) -> tf.errors.OpError:
  """Makes an error that tells which client it comes from."""
  message = f'In the work of client {client} of {size}: {error.message}'
  if type(error) is tf.errors.OpError:
    return tf.errors.OpError(None, None, message, error.error_code)
  return type(error)(None, None, message)


def _to_python(
  result: Sequence[programs.Part], type_spec: tff.Type, stay_stacked: bool
) -> aliases.Value:
  """Puts the parts of a result in the Python containers of its type."""
  parts: list[aliases.Value] = []
  for part, part_type in zip(result, values.parts(type_spec)):
    if isinstance(part, programs.ClientColumns):
      stacked = values.StackedClients(
        values.to_python(part.columns, part_type), part.size
      )
      parts.append(stacked if stay_stacked else list(stacked))
    elif isinstance(part, programs.ClientRows):
      parts.append([values.to_python(row, part_type) for row in part.rows])
    else:
      parts.append(values.to_python(part, part_type))
  return values.join_python(parts, type_spec)


class AsyncCohortContext(tff.framework.AsyncContext):
  """A `CohortContext` for programs that await their computations."""

  def __init__(self, context: CohortContext):
    self._context = context

  async def invoke(
    self, comp: tff.framework.ConcreteComputation, arg: aliases.Value
  ) -> aliases.Value:
    """Runs a computation; TFF calls this. See `CohortContext.invoke`."""
    if asyncio.iscoroutine(arg):
      arg = await arg
    cancellation = programs.Cancellation()
    try:
      return await asyncio.to_thread(self._context.run, comp, arg, cancellation)
    except asyncio.CancelledError:
      cancellation.cancel()
      raise


def create_cohort_context(
  *,
  default_num_clients: int = 0,
  stack: bool | None = None,
  trust_xla: bool = False,
  devices: Sequence[str] | None = None,
) -> CohortContext:
  """Makes a context that runs TFF computations in this process.

  Args:
    default_num_clients: The number of clients where the argument of a
      computation does not tell it.
    stack: Whether to stack the clients of a cohort. By default clients are
      stacked whose work is small and known to give the same under XLA. False
      stacks none; True stacks also those with much work.
    trust_xla: Whether to stack also clients whose work XLA computes differently
      in some cases. It checks no indices and divisors, has other seeded random
      numbers, and may lose NaN in maxima and minima. Without this trust, a call
      in which stacked clients give infinity or NaN is done again, one by one.
    devices: The TensorFlow devices, such as 'GPU:1', that run the clients that
      are not stacked, one client at a time on each. By default these are all
      GPUs or, if there are none, the cores of the CPU.

  Returns:
    The context, for `tff.framework.set_default_context`.
  """
  return CohortContext(default_num_clients, stack, trust_xla, devices)


def create_async_cohort_context(**settings: Any) -> AsyncCohortContext:
  """Makes a context for programs that await their computations.

  Args:
    **settings: As for `create_cohort_context`.

  Returns:
    The context, for `tff.program.NativeFederatedContext`.
  """
  return AsyncCohortContext(create_cohort_context(**settings))
