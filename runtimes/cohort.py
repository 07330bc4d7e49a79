"""A TFF runtime that lives in this process and works on whole cohorts.

`tff.framework.set_default_context(create_cohort_context())` makes every TFF
computation run here. Clients whose work is small and plain arithmetic are
stacked: the work of all of them, and the aggregation, is one XLA program. The
others run one client a core; their results are merged in the clients' order, so
that the result does not depend on which of them is ready first.
"""

import atexit
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import concurrent.futures
import functools
import os
import queue
from typing import Any

import numpy as np
import tensorflow_federated as tff

from runtimes import program as program_lib
from runtimes import rounds as rounds_lib
from runtimes import stacking
from runtimes import values

# How many computations are kept compiled.
_CACHE_SIZE = 64


class _Compiled:
  """A computation, its program, and how to run it."""

  def __init__(self, computation: tff.Computation):
    self.computation = computation
    self.program = program_lib.Program(computation)
    self.rounds: dict[rounds_lib.Plan, rounds_lib.Rounds] = {}

  @functools.cached_property
  def stacked_runner(self) -> stacking.StackedRunner | None:
    """Runs it with stacked clients; None if they cannot be stacked."""
    found = stacking.find_stacking(self.program)
    return found and stacking.StackedRunner(self.program, found)


def _stack(
  clients: Sequence[Any], type_spec: tff.FederatedType
) -> program_lib.Leaves | None:
  """The clients' values, stacked; None if their shapes differ."""
  if isinstance(clients, values.StackedClients):
    return values.flatten(clients.stacked, type_spec, stacked=True)
  rows = [values.flatten(client, type_spec) for client in clients]
  columns = list(zip(*rows))
  if any(len({tuple(leaf.shape) for leaf in column}) > 1 for column in columns):
    return None
  return [np.stack(column) for column in columns]


class CohortContext(tff.framework.SyncContext):
  """Runs TFF computations in this process; see the module's docstring."""

  def __init__(self, default_num_clients: int, stack: bool | None):
    self._default_num_clients = default_num_clients
    self._stack_clients = stack
    self._compiled: collections.OrderedDict[int, _Compiled] = (
      collections.OrderedDict()
    )
    # TensorFlow's functions complain when they go after TensorFlow itself.
    atexit.register(self._compiled.clear)
    num_threads = len(os.sched_getaffinity(0))
    self._window = 2 * num_threads
    self._threads = concurrent.futures.ThreadPoolExecutor(num_threads)
    self._lanes: queue.SimpleQueue[int] = queue.SimpleQueue()
    for lane in range(num_threads):
      self._lanes.put(lane)

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    compiled = self._compile(comp)
    program = compiled.program
    parts = values.split(arg, program.parameter_type)
    arguments, clients = {}, {}
    for part, (name, type_spec) in zip(parts, program.part_types.items()):
      if values.is_per_client(type_spec):
        clients[name] = part
      else:
        arguments[name] = values.flatten(part, type_spec)
    sizes = {len(part) for part in clients.values()}
    if len(sizes) > 1:
      raise ValueError(
        f'Got values of different numbers of clients: {sorted(sizes)}.'
      )
    size = sizes.pop() if sizes else self._default_num_clients
    result = self._run_stacked(compiled, arguments, clients, size)
    if result is None:
      result = self._run_each(program, arguments, clients, size)
    return _to_python(result, program.result_type, size)

  def _compile(self, computation: tff.Computation) -> _Compiled:
    # By identity, as hashing a computation serializes it, every time.
    key = id(computation)
    if key not in self._compiled:
      self._compiled[key] = _Compiled(computation)
      if len(self._compiled) > _CACHE_SIZE:
        self._compiled.popitem(last=False)
    self._compiled.move_to_end(key)
    return self._compiled[key]

  def rounds(
    self, comp: tff.Computation, plan: rounds_lib.Plan
  ) -> rounds_lib.Rounds | None:
    """What runs many rounds of `comp` as one program; None if that cannot be.

    Args:
      comp: The `next` of an iterative process, see `rounds`.
      plan: How its rounds follow from one another.

    Returns:
      The rounds. All numbers are those that calling `comp` gives.
    """
    compiled = self._compile(comp)
    if plan not in compiled.rounds:
      runner = compiled.stacked_runner if self._stacks(compiled) else None
      if (
        not runner
        or not runner.stacking.whole
        or not rounds_lib.fits(compiled.program)
      ):
        return None
      compiled.rounds[plan] = rounds_lib.Rounds(compiled.program, runner, plan)
    return compiled.rounds[plan]

  def _stacks(self, compiled: _Compiled) -> bool:
    """Whether to stack clients whose values have the same shapes."""
    if self._stack_clients is False or compiled.stacked_runner is None:
      return False
    client_bytes = compiled.stacked_runner.stacking.client_bytes
    return bool(
      self._stack_clients or client_bytes <= stacking.MAX_CLIENT_BYTES
    )

  def _run_stacked(
    self,
    compiled: _Compiled,
    arguments: program_lib.Arguments,
    clients: Mapping[str, Sequence[Any]],
    size: int,
  ) -> list[Any] | None:
    """The result from stacked clients; None if they cannot be stacked."""
    if not size or not self._stacks(compiled):
      return None
    stacked = {
      name: _stack(part, compiled.program.part_types[name])
      for name, part in clients.items()
    }
    if None in stacked.values():
      return None
    return compiled.stacked_runner(arguments, stacked, size)

  def _run_each(
    self,
    program: program_lib.Program,
    arguments: program_lib.Arguments,
    clients: Mapping[str, Sequence[Any]],
    size: int,
  ) -> list[Any]:
    """The result from one client after another, one a core at a time."""
    server: dict[str, program_lib.Leaves] = {}
    kept: list[dict[str, program_lib.Leaves]] = [{} for _ in range(size)]
    aggregates: list[program_lib.Leaves] = []
    for i, stage in enumerate(program.stages):
      server |= program.server_function(i)(arguments, server, aggregates)
      if not stage.is_federated:
        continue
      reads = {name: server[name] for name in stage.reads}

      def job(k: int) -> Callable[[], Any]:
        own = dict(arguments)
        for part, of_clients in clients.items():
          own[part] = values.flatten(of_clients[k], program.part_types[part])

        def run() -> Any:
          lane = self._lanes.get()
          try:
            return program.client_function(i, lane)(own, reads, kept[k])  # noqa: B023
          finally:
            self._lanes.put(lane)

        return run

      merge = program.merge_function(i)
      for k, (keep, parts) in enumerate(self._in_order(map(job, range(size)))):
        kept[k] |= keep
        aggregates = merge(reads, aggregates, parts) if k else parts
      if not size:
        aggregates = program.zeros_function(i)(arguments, reads)
    kept_results = {
      name: program_lib.OfClients([own[name] for own in kept])
      for stage in program.stages
      for name in stage.keep
    }
    everything = dict(arguments)
    for part, of_clients in clients.items():
      part_type = program.part_types[part]
      everything[part] = program_lib.OfClients(
        values.flatten(own, part_type) for own in of_clients
      )
    return program.result(everything, server, kept_results)

  def _in_order(self, jobs: Iterator[Callable[[], Any]]) -> Iterator[Any]:
    """The jobs' results in the jobs' order, with only a few jobs under way."""
    pending: collections.deque[concurrent.futures.Future] = collections.deque()
    try:
      for job in jobs:
        pending.append(self._threads.submit(job))
        if len(pending) == self._window:
          yield pending.popleft().result()
      while pending:
        yield pending.popleft().result()
    finally:
      for future in pending:
        future.cancel()


def _to_python(result: Sequence[Any], type_spec: tff.Type, size: int) -> Any:
  """A result's parts in the Python containers of its type."""
  parts = []
  for leaves, part_type in zip(result, values.parts(type_spec)):
    if not isinstance(leaves, program_lib.OfClients):
      parts.append(values.to_python(leaves, part_type))
    elif leaves.stacked:
      parts.append(
        values.StackedClients(values.to_python(leaves.leaves, part_type), size)
      )
    else:
      parts.append([values.to_python(own, part_type) for own in leaves.leaves])
  return tff.types.type_to_py_container(
    values.join(parts, type_spec), values.without_clients(type_spec)
  )


def create_cohort_context(
  *, default_num_clients: int = 0, stack: bool | None = None
) -> CohortContext:
  """A context that runs TFF computations on whole cohorts in this process.

  Args:
    default_num_clients: The number of clients of a computation whose argument
      does not tell.
    stack: Whether to stack the clients of a cohort. By default those are
      stacked whose values are tensors of the same shapes and whose work is
      small and something that XLA compiles well; False stacks none; True stacks
      those with much work, too.

  Returns:
    The context, for `tff.framework.set_default_context`.
  """
  return CohortContext(default_num_clients, stack)
