"""The systems that `benchmark` measures, each in a process of its own."""

import collections
from collections.abc import Callable, Mapping
import dataclasses
import functools
import multiprocessing.connection
import os
import pathlib
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from algorithms import aggregation
from algorithms import methods
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import distributed_noise
from algorithms.privacy import private_aggregation
from base.aliases import Structure
from experiments.benchmarks import bare_methods
from experiments.benchmarks import learning_workloads
from experiments.benchmarks import reference_loops
from experiments.benchmarks import task_workloads
from experiments.benchmarks import workloads
from experiments.configuration import user_settings
from experiments.runs import execution
from personalization.rounds import cohorts
from tasks import task as tasks
from tasks.models import protections

# Takes the number of rounds to run, and returns the model after them.
_Run = task_workloads.Run
# The numbers by which each client protects its examples: S, z, the batch size
# of all clients, and the numbers that private choices need.
_PROTECTED = (1.0, 1.0, 32.0, 1.0, 1.0)
# The private aggregators of updates.
_AGGREGATORS = {
  'gaussian': private_aggregation.Gaussian,
  'local': private_aggregation.Local,
  'distributed': distributed_noise.Distributed,
}
# In each turn, rounds are repeated for at least this long.
_SECONDS_PER_TURN = 0.3


def _build(
  workload: reference_loops.Work,
  name: str,
  aggregator: tff.aggregators.AggregationFactory,
) -> methods.Method:
  """Builds a method with the settings of a workload."""
  return registry.build(
    name,
    workload.model,
    registry.make_settings(
      name,
      {'client_learning_rate': workload.learning_rate, **workload.settings},
    ),
    aggregator,
    ('evaluation',),
    num_clients=len(workload.clients),
  )


def _federated_rounds(
  workload: reference_loops.Work, system: str, name: str
) -> _Run:
  """Makes rounds of a method on a runtime; private rounds run on ours."""
  runtime = 'cohort' if system in workloads.PRIVATE else system
  execution.set_runtime(user_settings.RunSettings(runtime=runtime))
  model, aggregator = workload.model, aggregation.mean()
  size = len(workload.clients)
  if system in _AGGREGATORS:
    make = _AGGREGATORS[system]
    aggregator = make(noise=1.0, clip=1.0, clients=float(size))
  if system == 'example':
    model = dataclasses.replace(model, protection=protections.Protection())
  method = _build(dataclasses.replace(workload, model=model), name, aggregator)
  state = method.initial_state((0, 0))
  # As in training, the clients of small models are passed in stacked.
  data: Structure = list(workload.clients)
  if workload.name == 'linear' and runtime == 'cohort':
    data = cohorts.stack(data)
  attributes: dict[str, np.ndarray] = collections.OrderedDict()
  if system == 'example':
    numbers = np.tile(np.array(_PROTECTED, np.float32), [size, 1])
    attributes[tasks.PROTECTION] = numbers
  if tasks.SIZE in method.needs:
    sizes = [len(client.examples['y']) for client in workload.clients]
    attributes[tasks.SIZE] = np.array(sizes, np.int32)
  states: Structure = [
    method.initialize_client(np.array([0, k], np.int32)) for k in range(size)
  ]
  if not isinstance(data, list):
    states = cohorts.stack(states)

  def run(num_rounds: int) -> Mapping[str, np.ndarray]:
    nonlocal state, states
    for _ in range(num_rounds):
      clients = cohorts.clients(
        trainers.Client,
        size,
        data=data,
        state=states,
        seed=np.zeros([size, 2], np.int32),
        attributes=attributes,
      )
      state, new, _ = method.next(state, clients, *method.constants)
      states = cohorts.stack(new) if not isinstance(data, list) else list(new)
    return state.server.model

  return run


def _reference_rounds(
  workload: reference_loops.Work, system: str, name: str
) -> _Run:
  """Makes rounds of a method in a loop without federated machinery."""
  if system == 'bare':
    run_round = bare_methods.bare_round(workload, name)
  else:
    run_round = reference_loops.vectorized_round(workload)
  method = _build(workload, name, aggregation.mean())
  weights = method.trainer.initialize(tf.constant([0, 0])).model

  def run(num_rounds: int) -> Mapping[str, np.ndarray]:
    nonlocal weights
    for _ in range(num_rounds):
      weights = run_round(weights)
    # Converting the weights waits for asynchronous computations to end.
    return {name: weight.numpy() for name, weight in weights.items()}

  return run


def _task_rounds(name: str, system: str, data_dir: str) -> _Run:
  """Makes rounds of a real task."""
  if system != 'bare':
    execution.set_runtime(user_settings.RunSettings(runtime=system))
  return task_workloads.WORKLOADS[name](data_dir, system == 'bare')


def _processes(pid: str = 'self') -> list[str]:
  """Lists a process, its children, their children and so on."""
  pids = [pid]
  for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
    for child in (task / 'children').read_text().split():
      pids += _processes(child)
  return pids


def _cpu_seconds() -> float:
  """Returns the seconds of cores that the processes have used."""
  ticks = 0
  for pid in _processes():
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    # The name of the program, in brackets, may have blanks.
    user, system = stat.rpartition(')')[2].split()[11:13]
    ticks += int(user) + int(system)
  return ticks / os.sysconf('SC_CLK_TCK')


def _peak_bytes() -> int:
  """Returns the most memory that the processes have used."""
  total = 0
  for pid in _processes():
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
    (line,) = (s for s in status.splitlines() if s.startswith('VmHWM'))
    total += 1024 * int(line.split()[1])
  return total


def _made_up_workload(name: str, size: int) -> reference_loops.Work:
  """Makes a workload with `size` clients, or its default number if 0."""
  make = getattr(reference_loops, workloads.MADE_UP[name])
  # A larger cohort repeats the same ten clients, so that the data do not grow.
  workload = make(num_clients=min(size, 10)) if size else make()
  if size:
    clients = [workload.clients[k % 10] for k in range(size)]
    workload = dataclasses.replace(workload, clients=clients)
  return workload


def serve(
  connection: multiprocessing.connection.Connection,
  name: str,
  system: str,
  size: int,
  data_dir: str,
  method: str,
) -> None:
  """Runs rounds whenever the other end of the connection asks for them."""
  make: Callable[[], _Run]
  if name in workloads.TASKS:
    make = functools.partial(_task_rounds, name, system, data_dir)
  elif name in workloads.LEARNING:
    make = functools.partial(learning_workloads.make, name, system)
  else:
    workload = _made_up_workload(name, size)
    federated = system in ('native', 'cohort', *workloads.PRIVATE)
    make = functools.partial(
      _federated_rounds if federated else _reference_rounds,
      workload,
      system,
      method,
    )
  connection.send('ready')

  connection.recv()
  start = time.perf_counter()
  run = make()
  model = run(1)
  connection.send((time.perf_counter() - start, list(model.values())))
  num_rounds = workloads.TASKS.get(name, 1)
  while connection.recv():
    seconds: list[float] = []
    of_cores = _cpu_seconds()
    end = time.perf_counter() + _SECONDS_PER_TURN
    while not seconds or time.perf_counter() < end:
      start = time.perf_counter()
      run(num_rounds)
      seconds.append((time.perf_counter() - start) / num_rounds)
    of_cores = (_cpu_seconds() - of_cores) / (num_rounds * len(seconds))
    connection.send((seconds, of_cores, _peak_bytes()))
