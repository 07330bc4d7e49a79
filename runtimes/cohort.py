"""A TFF runtime that lives in this process and works on whole cohorts.

`tff.framework.set_default_context(create_cohort_context())` makes every TFF
computation run here. Clients whose work is small and plain arithmetic are
stacked: the work of all of them, and the aggregation, is one XLA program. The
others run one client a core; their results are merged in the clients' order, so
that the result does not depend on which client is ready first.
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

from runtimes import programs
from runtimes import rounds
from runtimes import stacking
from runtimes import values

# Here, as `CohortContext` has a method that is called `rounds` too.
_Plan = rounds.Plan
_Rounds = rounds.Rounds

# Number of computations that are kept compiled.
_CACHE_SIZE = 64


class _Compiled:
  """A computation, its program, and what runs the program."""

  def __init__(self, computation: tff.framework.ConcreteComputation):
    self.computation = computation
    self.program = programs.Program(computation)
    self.rounds: dict[_Plan, _Rounds] = {}

  @functools.cached_property
  def stacked_runner(self) -> stacking.StackedRunner | None:
    """The runner for stacked clients; None if they cannot be stacked."""
    found = stacking.find_stacking(self.program)
    return stacking.StackedRunner(self.program, found) if found else None


def _stack(
  clients: Sequence[Any], type_spec: tff.Type
) -> programs.Leaves | None:
  """Stacks the clients' values; returns None if their shapes differ."""
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
    """Makes the context; see `create_cohort_context`."""
    self._default_num_clients = default_num_clients
    self._stack_clients = stack
    self._compiled: collections.OrderedDict[int, _Compiled] = (
      collections.OrderedDict()
    )
    # TensorFlow's functions complain if TensorFlow itself is deleted before.
    atexit.register(self._compiled.clear)
    num_threads = len(os.sched_getaffinity(0))
    self._window = 2 * num_threads
    self._threads = concurrent.futures.ThreadPoolExecutor(num_threads)
    self._lanes: queue.SimpleQueue[int] = queue.SimpleQueue()
    for lane in range(num_threads):
      self._lanes.put(lane)

  def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    """Runs a computation; TFF calls this.

    Args:
      comp: The computation.
      arg: Its argument; None if it takes none.

    Returns:
      The result, in the Python containers of its type. What is one value for
      each client is a list or `values.StackedClients`.
    """
    compiled = self._compile(comp)
    program = compiled.program
    parts = values.split(arg, program.parameter_type)
    arguments: dict[str, programs.Leaves] = {}
    clients: dict[str, Sequence[Any]] = {}
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

  def _compile(
    self, computation: tff.framework.ConcreteComputation
  ) -> _Compiled:
    # By identity, as to hash a computation TFF serializes it every time.
    key = id(computation)
    if key not in self._compiled:
      self._compiled[key] = _Compiled(computation)
      if len(self._compiled) > _CACHE_SIZE:
        self._compiled.popitem(last=False)
    self._compiled.move_to_end(key)
    return self._compiled[key]

  def rounds(
    self, comp: tff.framework.ConcreteComputation, plan: _Plan
  ) -> _Rounds | None:
    """Makes many rounds of an iterative process one program.

    Args:
      comp: The `next` of the process. The module `rounds` tells its form.
      plan: How its rounds follow from one another.

    Returns:
      What runs the rounds, with the same results as calling `comp` round by
      round; None if `comp` has another form or cannot be one XLA program.
    """
    compiled = self._compile(comp)
    if plan not in compiled.rounds:
      runner = self._stacked_runner(compiled)
      if (
        runner is None
        or not runner.stacking.whole
        or not rounds.fits(compiled.program)
      ):
        return None
      compiled.rounds[plan] = _Rounds(compiled.program, runner, plan)
    return compiled.rounds[plan]

  def _stacked_runner(
    self, compiled: _Compiled
  ) -> stacking.StackedRunner | None:
    """Returns the runner; None if clients of equal shapes are not stacked."""
    if self._stack_clients is False or compiled.stacked_runner is None:
      return None
    runner = compiled.stacked_runner
    is_small = runner.stacking.client_bytes <= stacking.MAX_CLIENT_BYTES
    return runner if self._stack_clients or is_small else None

  def _run_stacked(
    self,
    compiled: _Compiled,
    arguments: programs.Arguments,
    clients: Mapping[str, Sequence[Any]],
    size: int,
  ) -> list[Any] | None:
    """Runs with stacked clients; returns None if they cannot be stacked."""
    runner = self._stacked_runner(compiled) if size else None
    if runner is None:
      return None
    stacked = {}
    for name, part in clients.items():
      leaves = _stack(part, compiled.program.part_types[name])
      if leaves is None:
        return None
      stacked[name] = leaves
    return runner(arguments, stacked, size)

  def _run_each(
    self,
    program: programs.Program,
    arguments: programs.Arguments,
    clients: Mapping[str, Sequence[Any]],
    size: int,
  ) -> list[Any]:
    """Runs each client by itself, one a core at a time."""
    # Once, and not again for each client.
    arguments = {
      name: [
        programs.to_tensor(leaf, spec.dtype)
        for leaf, spec in zip(
          leaves, values.leaf_specs(program.part_types[name])
        )
      ]
      for name, leaves in arguments.items()
    }
    server: dict[str, programs.Leaves] = {}
    kept: list[dict[str, programs.Leaves]] = [{} for _ in range(size)]
    aggregates: list[programs.Leaves] = []
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
      name: programs.ClientLeaves([own[name] for own in kept])
      for stage in program.stages
      for name in stage.keep
    }
    everything: dict[str, Any] = dict(arguments)
    for part, of_clients in clients.items():
      part_type = program.part_types[part]
      everything[part] = programs.ClientLeaves(
        values.flatten(own, part_type) for own in of_clients
      )
    return program.result(everything, server, kept_results)

  def _in_order(self, jobs: Iterator[Callable[[], Any]]) -> Iterator[Any]:
    """Yields the jobs' results in the jobs' order, with few jobs under way."""
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
  """Puts the parts of a result in the Python containers of its type."""
  parts: list[Any] = []
  for leaves, part_type in zip(result, values.parts(type_spec)):
    if not isinstance(leaves, programs.ClientLeaves):
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
  """Makes a context that runs TFF computations in this process.

  Args:
    default_num_clients: The number of clients where the argument of a
      computation does not tell it.
    stack: Whether to stack the clients of a cohort. By default clients are
      stacked whose values are tensors of the same shapes and whose work is
      small and compiled well by XLA. False stacks none; True stacks also those
      with much work.

  Returns:
    The context, for `tff.framework.set_default_context`.
  """
  return CohortContext(default_num_clients, stack)
