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
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
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

_CHOSEN = flags.DEFINE_list(
  'workloads',
  list(_WORKLOADS),
  'W1 (CNN, 20 clients of 200 images), W2 (linear, 139 clients of 80 rows)'
  ' and W3 (LSTM, 20 clients of 64 sentences).',
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


def _federated_round(workload: Any, runtime: str) -> Callable[[], Any]:
  """A function that runs a round and returns the model after it."""
  import numpy as np
  import tensorflow_federated as tff

  from algorithms import fedavg
  from experiments import execution
  from personalization import cohorts

  execution.set_runtime(runtime)
  algorithm = fedavg.build(
    workload.model,
    fedavg.Hyperparameters(client_learning_rate=workload.learning_rate),
    tff.aggregators.MeanFactory(no_nan_division=True),
    ('evaluation',),
  )
  state = algorithm.initial_state((0, 0))
  size = len(workload.clients)
  # As in training, small models' clients are stacked before they are handed in.
  data: Any = list(workload.clients)
  if workload.name == 'linear' and runtime == 'cohort':
    data = cohorts.stack(data)
  own = algorithm.initialize_client(np.zeros(2, np.int32))
  clients = cohorts.clients(
    size,
    data=data,
    state=own if not isinstance(data, list) else [own] * size,
    seed=np.zeros([size, 2], np.int32),
  )

  def run_round() -> Any:
    nonlocal state
    state, _, _ = algorithm.next(state, clients)
    return state['server']['model']

  return run_round


def _reference_round(workload: Any, system: str) -> Callable[[], Any]:
  import tensorflow as tf

  from experiments import reference_loops

  make = {
    'bare': reference_loops.keras_loop,
    'vectorized': reference_loops.vectorized_round,
  }
  run = make[system](workload)
  weights = workload.model.init(tf.constant([0, 0]))

  def run_round() -> Any:
    nonlocal weights
    weights = run(weights)
    # What is asynchronous must have ended, too.
    return {name: weight.numpy() for name, weight in weights.items()}

  return run_round


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


def _serve(connection: Any, workload_name: str, system: str, size: int) -> None:
  """Runs rounds when it is told to, in a process of its own."""
  from experiments import execution

  execution.silence_imports()
  from experiments import reference_loops

  make = getattr(reference_loops, _WORKLOADS[workload_name])
  # A larger cohort holds the same ten clients over and over, so that it is not
  # the data that grows.
  workload = make(num_clients=min(size, 10)) if size else make()
  if size:
    clients = [workload.clients[k % 10] for k in range(size)]
    workload = reference_loops.dataclasses.replace(workload, clients=clients)
  connection.send('ready')

  connection.recv()
  start = time.perf_counter()
  if system in ('native', 'cohort'):
    run_round = _federated_round(workload, system)
  else:
    run_round = _reference_round(workload, system)
  model = run_round()
  connection.send((time.perf_counter() - start, list(model.values())))
  while connection.recv():
    seconds = []
    end = time.perf_counter() + 0.3
    while not seconds or time.perf_counter() < end:
      start = time.perf_counter()
      run_round()
      seconds.append(time.perf_counter() - start)
    connection.send((seconds, _peak_bytes()))


class _System:
  """A system in its process."""

  def __init__(self, workload: str, system: str, size: int = 0):
    context = multiprocessing.get_context('spawn')
    self._connection, theirs = context.Pipe()
    self._process = context.Process(
      target=_serve, args=(theirs, workload, system, size)
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

  names = ['native', 'cohort', 'bare']
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
      'of native',
      'of bare',
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
        f'{system.median / systems["native"].median:.3g}',
        f'{system.median / systems["bare"].median:.3g}',
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
  unknown = sorted(set(_CHOSEN.value) - set(_WORKLOADS))
  if unknown:
    raise app.UsageError(
      f'There is no workload {unknown[0]!r}, only {", ".join(_WORKLOADS)}.'
    )
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
