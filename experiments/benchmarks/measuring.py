"""Measures the systems of a benchmark in turns, and compares them."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import pathlib
import statistics
from typing import Any

import numpy as np
from rich import box
from rich import table as rich_table

from base import errors
from experiments.benchmarks import workloads
from experiments.command_line import children
from experiments.command_line import launch
from experiments.command_line import terminal
from experiments.reporting import folders

_SIZES = (10, 100, 1000)
# The systems with which all systems are compared.
_COMPARED = ('native', 'cohort', 'bare')


class _System:
  """A system in a process of its own.

  Attributes:
    first_seconds: The seconds from the start to the end of the first round.
    model: The model after that round.
    seconds: The seconds of each round after the first.
    of_cores: The mean seconds of cores that a round took, in each turn.
    peak_bytes: The most memory that was used.
  """

  def __init__(
    self,
    workload: str,
    system: str,
    data_dir: str | None,
    size: int = 0,
    method: str = 'fedavg',
  ):
    self._name = f'{system} on {workload}'
    self._process, self._connection = children.start(
      launch.LateCall('experiments.benchmarks.systems', 'serve'),
      workload,
      system,
      size,
      data_dir,
      method,
    )
    self._receive()
    self._connection.send(True)
    self.first_seconds, self.model = self._receive()
    self.seconds: list[float] = []
    self.of_cores: list[float] = []
    self.peak_bytes = 0

  def _receive(self) -> Any:
    try:
      return self._connection.recv()
    except (EOFError, ConnectionResetError) as error:
      self._process.join()
      raise errors.ResourceError(
        f'The process of {self._name} ended unexpectedly with exit status'
        f' {self._process.exitcode} (-9 may mean that memory ran out).'
      ) from error

  def take_turn(self) -> None:
    self._connection.send(True)
    seconds, of_cores, self.peak_bytes = self._receive()
    self.seconds += seconds
    self.of_cores.append(of_cores)

  @property
  def median(self) -> float:
    return statistics.median(self.seconds)

  @property
  def cpu_time(self) -> float:
    return statistics.median(self.of_cores)

  def close(self) -> None:
    with contextlib.suppress(BrokenPipeError):
      self._connection.send(False)
    self._process.join()


@contextlib.contextmanager
def _systems(
  workload: str, names: Sequence[str], data_dir: str | None, method: str
) -> Iterator[Mapping[str, _System]]:
  started: dict[str, _System] = {}
  try:
    for name in names:
      started[name] = _System(workload, name, data_dir, method=method)
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


def _compare(
  workload: str,
  turns: int,
  data_dir: str | None,
  method: str,
) -> dict[str, float]:
  """Measures all systems on a workload; returns their medians."""
  names = ['cohort', 'bare']
  if workload in workloads.LEARNING:
    names = ['native', 'cohort', *(['bare'] if method == 'fedavg' else [])]
  elif method == workloads.OWN_METHODS.get(workload, 'fedavg'):
    if workload not in workloads.TASKS:
      names.insert(0, 'native')
    if workload == 'W2':
      names.append('vectorized')
    if workload in workloads.WITH_PRIVATE:
      names += workloads.PRIVATE
  reference = 'bare' if 'bare' in names else names[0]
  with _systems(workload, names, data_dir, method) as systems:
    for _ in range(turns):
      for system in systems.values():
        system.take_turn()
    table = _table(
      f'{workload}, {method}: seconds a round',
      'system',
      'median',
      *(f'of {other}' for other in names if other in _COMPARED),
      'CPU time',
      f'of {reference}',
      'first round',
      'peak memory',
      f'largest difference from {reference} weights',
    )
    for name, system in systems.items():
      distance = max(
        float(np.max(np.abs(np.reshape(a, -1) - np.reshape(b, -1))))
        for a, b in zip(system.model, systems[reference].model, strict=True)
      )
      table.add_row(
        name,
        f'{system.median:.4g} s',
        *(
          f'{system.median / systems[other].median:.3g}'
          for other in names
          if other in _COMPARED
        ),
        f'{system.cpu_time:.4g} s',
        f'{system.cpu_time / systems[reference].cpu_time:.3g}',
        f'{system.first_seconds:.1f} s',
        f'{system.peak_bytes / 2**30:.2f} GiB',
        '–' if name in workloads.PRIVATE else f'{distance:.0e}',
      )
    terminal.print_table(table)
    return {name: system.median for name, system in systems.items()}


def _scale(workload: str) -> None:
  table = _table(
    f'{workload} on the cohort runtime, by the number of clients',
    'clients',
    'seconds a round',
    'a client',
    'peak memory',
  )
  for size in _SIZES:
    system = _System(workload, 'cohort', None, size)
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
  terminal.print_table(table)


def main(
  chosen: Sequence[str],
  methods: Sequence[str],
  turns: int,
  is_scaled: bool,
  data_dir: str | None,
  json_file: pathlib.Path | None,
) -> int:
  """Measures workloads and shows the medians; returns the exit status.

  Args:
    chosen: The workloads.
    methods: The methods that are measured beside federated averaging.
    turns: How often each system has its turn.
    is_scaled: Whether to measure cohorts of different sizes, too.
    data_dir: The folder of the databases of the real tasks.
    json_file: A file to write the medians to.
  """
  medians = {}
  for name in chosen:
    own_method = (workloads.OWN_METHODS | workloads.LEARNING).get(
      name, 'fedavg'
    )
    medians[name] = _compare(name, turns, data_dir, own_method)
    for method in methods if name in workloads.WITH_METHODS else ():
      medians[f'{name} {method}'] = _compare(name, turns, data_dir, method)
  if is_scaled:
    for name in workloads.SCALED:
      if name in chosen:
        _scale(name)
  if json_file:
    folders.write_json(json_file, medians)
  return 0
