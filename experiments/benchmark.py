"""Measures rounds of federated averaging, side by side in one run.

  native      TFF's own C++ runtime
  cohort      our runtime
  bare        a Keras loop over the same batches, without federated machinery
  vectorized  linear models only: a round written by hand as one XLA program

Each system has a process of its own, and they take turns, so that what else the
machine does hits all alike. Shown are medians of seconds a round, as ratios
too; the seconds from the start to the end of the first round, without imports;
and the most memory used. Then our runtime's time and memory for cohorts of 10,
100 and 1,000 clients.

With the databases of TFF in --data_dir, T1 to T3 are real tasks, through the
whole of training and evaluation, on our runtime and in a bare loop.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import json
import multiprocessing
import pathlib
import statistics
import time
from typing import Any

from absl import app
from absl import flags
from rich import box
from rich import console as rich_console
from rich import table as rich_table

_WORKLOADS = {
  'W1': 'cnn_workload',
  'W2': 'linear_workload',
  'W3': 'lstm_workload',
}
_SCALED = ('W1', 'W2')
_SIZES = (10, 100, 1000)
# See `task_workloads`, and how many of their rounds are measured at a time.
_TASKS = {'T1': 4, 'T2': 4, 'T3': 1}
# From how many rounds to run to the model after them.
_Run = Callable[[int], Mapping[str, Any]]

_CHOSEN = flags.DEFINE_list(
  'workloads',
  list(_WORKLOADS),
  'W1 (CNN, 20 clients of 200 images), W2 (linear, 139 clients of 80 rows),'
  ' W3 (LSTM, 20 clients of 64 sentences); and, with a data_dir, T1 (50 clients'
  ' of emnist), T2 (20 clients of stackoverflow) and T3 (evaluation of 100'
  ' clients of emnist that are fine-tuned for 20 epochs).',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'The folder of the databases that T1 to T3 are of.'
)
_TURNS = flags.DEFINE_integer(
  'turns', 7, 'How often each system has its turn.', lower_bound=1
)
_SCALE = flags.DEFINE_boolean(
  'scale', True, 'Whether to measure cohorts of different sizes, too.'
)
_JSON = flags.DEFINE_string(
  'json',
  None,
  'A file for the medians in seconds, {workload: {system: seconds}}.',
)


def _federated_rounds(workload: Any, runtime: str) -> _Run:
  """Rounds on a runtime."""
  import numpy as np

  from algorithms import aggregation
  from algorithms import registry
  from algorithms import trainers
  from experiments.configuration import execution
  from personalization import cohorts

  execution.set_runtime(runtime)
  method = registry.build(
    'fedavg',
    workload.model,
    registry.make_settings(
      'fedavg', {'client_learning_rate': workload.learning_rate}
    ),
    aggregation.mean(),
    ('evaluation',),
  )
  state = method.initial_state((0, 0))
  size = len(workload.clients)
  # As in training, small models' clients are stacked before they are handed in.
  data: Any = list(workload.clients)
  if workload.name == 'linear' and runtime == 'cohort':
    data = cohorts.stack(data)
  own = method.initialize_client(np.zeros(2, np.int32))
  clients = cohorts.clients(
    trainers.Client,
    size,
    data=data,
    state=own if not isinstance(data, list) else [own] * size,
    seed=np.zeros([size, 2], np.int32),
    attributes=own if not isinstance(data, list) else [own] * size,
  )

  def run(num_rounds: int) -> Mapping[str, Any]:
    nonlocal state
    for _ in range(num_rounds):
      state, _, _ = method.next(state, clients)
    return state.server.model

  return run


def _reference_rounds(workload: Any, system: str) -> _Run:
  """Rounds of a loop without federated machinery."""
  import tensorflow as tf

  from experiments.benchmarks import reference_loops

  make = {
    'bare': reference_loops.keras_loop,
    'vectorized': reference_loops.vectorized_round,
  }
  run_round = make[system](workload)
  weights = workload.model.init(tf.constant([0, 0]))

  def run(num_rounds: int) -> Mapping[str, Any]:
    nonlocal weights
    for _ in range(num_rounds):
      weights = run_round(weights)
    # What is asynchronous must have ended, too.
    return {name: weight.numpy() for name, weight in weights.items()}

  return run


def _task_rounds(name: str, system: str, data_dir: str) -> _Run:
  """Rounds of a real task."""
  from experiments.configuration import execution

  if system != 'bare':
    execution.set_runtime(system)
  from experiments.benchmarks import task_workloads

  return task_workloads.WORKLOADS[name](data_dir, system == 'bare')


def _peak_bytes() -> int:
  """The most memory that this process and its children have used."""
  pids = ['self']
  for task in pathlib.Path('/proc/self/task').iterdir():
    pids += (task / 'children').read_text().split()
  total = 0
  for pid in pids:
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
    (line,) = (s for s in status.splitlines() if s.startswith('VmHWM'))
    total += 1024 * int(line.split()[1])
  return total


def _made_up_workload(name: str, size: int) -> Any:
  """A workload of so many clients; of as many as it has if that is 0."""
  from experiments.benchmarks import reference_loops

  make = getattr(reference_loops, _WORKLOADS[name])
  # A larger cohort holds the same ten clients over and over, so that it is not
  # the data that grows.
  workload = make(num_clients=min(size, 10)) if size else make()
  if size:
    clients = [workload.clients[k % 10] for k in range(size)]
    workload = reference_loops.dataclasses.replace(workload, clients=clients)
  return workload


def _serve(
  connection: Any, name: str, system: str, size: int, data_dir: str
) -> None:
  """Runs rounds when it is told to, in a process of its own."""
  from experiments.configuration import execution

  execution.silence_imports()
  make: Callable[[], _Run]
  if name in _TASKS:
    make = functools.partial(_task_rounds, name, system, data_dir)
  else:
    workload = _made_up_workload(name, size)
    federated = system in ('native', 'cohort')
    make = functools.partial(
      _federated_rounds if federated else _reference_rounds, workload, system
    )
  connection.send('ready')

  connection.recv()
  start = time.perf_counter()
  run = make()
  model = run(1)
  connection.send((time.perf_counter() - start, list(model.values())))
  num_rounds = _TASKS.get(name, 1)
  while connection.recv():
    seconds = []
    end = time.perf_counter() + 0.3
    while not seconds or time.perf_counter() < end:
      start = time.perf_counter()
      run(num_rounds)
      seconds.append((time.perf_counter() - start) / num_rounds)
    connection.send((seconds, _peak_bytes()))


class _System:
  """A system in its process."""

  def __init__(self, workload: str, system: str, size: int = 0):
    context = multiprocessing.get_context('spawn')
    self._connection, theirs = context.Pipe()
    self._process = context.Process(
      target=_serve, args=(theirs, workload, system, size, _DATA_DIR.value)
    )
    self._process.start()
    # With only the child holding it, a child that dies is an EOFError here.
    theirs.close()
    self._connection.recv()
    self._connection.send(True)
    self.first_seconds, self.model = self._connection.recv()
    self.seconds: list[float] = []
    self.peak_bytes = 0

  def take_turn(self) -> None:
    self._connection.send(True)
    seconds, self.peak_bytes = self._connection.recv()
    self.seconds += seconds

  @property
  def median(self) -> float:
    return statistics.median(self.seconds)

  def close(self) -> None:
    self._connection.send(False)
    self._process.join()


@contextlib.contextmanager
def _systems(
  workload: str, names: Sequence[str]
) -> Iterator[Mapping[str, _System]]:
  started: dict[str, _System] = {}
  try:
    for name in names:
      started[name] = _System(workload, name)
    yield started
  finally:
    for system in started.values():
      system.close()


def _table(title: str, *columns: str) -> rich_table.Table:
  table = rich_table.Table(
    title=title, box=box.SIMPLE_HEAD, title_justify='left'
  )
  for i, column in enumerate(columns):
    table.add_column(column, justify='right' if i else 'left')
  return table


def _compare(workload: str, console: rich_console.Console) -> dict[str, float]:
  """Measures all systems on a workload; returns their medians."""
  import numpy as np

  names = ['cohort', 'bare']
  if workload not in _TASKS:
    names.insert(0, 'native')
  if workload == 'W2':
    names.append('vectorized')
  with _systems(workload, names) as systems:
    for _ in range(_TURNS.value):
      for system in systems.values():
        system.take_turn()
    table = _table(
      f'{workload}: seconds a round',
      'system',
      'median',
      *(f'of {other}' for other in names if other in ('native', 'bare')),
      'first round',
      'peak memory',
      'furthest weight from bare',
    )
    for name, system in systems.items():
      distance = max(
        float(np.max(np.abs(np.reshape(a, -1) - np.reshape(b, -1))))
        for a, b in zip(system.model, systems['bare'].model, strict=True)
      )
      table.add_row(
        name,
        f'{system.median:.4g} s',
        *(
          f'{system.median / systems[other].median:.3g}'
          for other in names
          if other in ('native', 'bare')
        ),
        f'{system.first_seconds:.1f} s',
        f'{system.peak_bytes / 2**30:.2f} GiB',
        f'{distance:.0e}',
      )
    console.print(table)
    return {name: system.median for name, system in systems.items()}


def _scale(workload: str, console: rich_console.Console) -> None:
  table = _table(
    f'{workload} on the cohort runtime, by the number of clients',
    'clients',
    'seconds a round',
    'a client',
    'peak memory',
  )
  for size in _SIZES:
    system = _System(workload, 'cohort', size)
    try:
      for _ in range(3 if size < 1000 else 1):
        system.take_turn()
    finally:
      system.close()
    table.add_row(
      f'{size:,}',
      f'{system.median:.4g} s',
      f'{1e3 * system.median / size:.3g} ms',
      f'{system.peak_bytes / 2**30:.2f} GiB',
    )
  console.print(table)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'There is no argument {argv[1]!r}, only flags.')
  known = [*_WORKLOADS, *_TASKS]
  unknown = sorted(set(_CHOSEN.value) - set(known))
  if unknown:
    raise app.UsageError(
      f'There is no workload {unknown[0]!r}, only {", ".join(known)}.'
    )
  if set(_CHOSEN.value) & set(_TASKS) and not _DATA_DIR.value:
    raise app.UsageError('T1 to T3 need the --data_dir of their databases.')
  console = rich_console.Console(width=100)
  medians = {name: _compare(name, console) for name in _CHOSEN.value}
  if _SCALE.value:
    for name in _SCALED:
      if name in _CHOSEN.value:
        _scale(name, console)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(medians, indent=2) + '\n')


if __name__ == '__main__':
  app.run(main)
