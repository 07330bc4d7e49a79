"""A grid under way: what is left of it is done by several processes."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import sys
import time

import rich.live

from base import errors
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import stopping
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import names
from experiments.reporting.plots import client_plots
from experiments.reporting.plots import style
from experiments.sweeps import grid_display
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from experiments.sweeps import grid_work
from experiments.sweeps import workers

# The number of rounds that a dry run times.
_TIMED_ROUNDS = 100
# The best points so far are looked for this often.
_SECONDS_PER_BEST = 2


class Grid:
  """A grid, and the runs of it that are finished."""

  def __init__(
    self,
    contents: grid_file.GridFile,
    folder: pathlib.Path,
    store: grid_results.RunStore,
    data_dir: str | None,
    num_workers: int,
  ):
    self._contents = contents
    self._folder = folder
    self._store = store
    self._data_dir = data_dir
    self._num_workers = num_workers
    self._runs = grid_work.make_runs(contents)
    self._keys: dict[int, list[str]] = {}
    place = {id(point): i for i, point in enumerate(contents.points)}
    for run in self._runs:
      self._keys.setdefault(place[id(run.point)], []).append(run.key)

  @property
  def is_another(self) -> bool:
    """Whether there are finished runs, but none of this grid."""
    own = {run.key for run in self._runs}
    return bool(self._store.records) and own.isdisjoint(self._store.records)

  def jobs(self) -> list[grid_work.Job]:
    """Makes the jobs that are left to do."""
    left = [run for run in self._runs if run.key not in self._store.records]
    if len(left) < len(self._runs):
      terminal.say(
        f'{len(self._runs) - len(left)} of {len(self._runs)} runs are in'
        f' {self._folder} already.'
      )
    own = self._contents
    return grid_work.make_jobs(left, own.metric, self._data_dir, own.detailed)

  def dry_run(self) -> None:
    """Lists the points, and says how long they take."""
    points = self._contents.points
    for point in points:
      print(point)
    jobs = self.jobs()
    print(
      f'{len(points)} points, {sum(len(job.runs) for job in jobs)} runs to do,'
      f' which are {len(jobs)} trainings of {sum(job.rounds for job in jobs)}'
      ' rounds in all.'
    )
    print(
      f'They take about {terminal.duration(self._estimate(jobs))} with'
      f' {self._num_workers} processes.'
    )

  def _estimate(self, jobs: Sequence[grid_work.Job]) -> float:
    """Estimates the seconds that jobs take, by timing one of each program."""
    runner = grid_work.Runner(self._data_dir)
    by_program: dict[str, list[grid_work.Job]] = {}
    for job in jobs:
      by_program.setdefault(job.program, []).append(job)
    total = 0.0
    for number, own in enumerate(by_program.values(), 1):
      run = own[0].runs[-1]
      terminal.say(f'Timing {run.point} ({number} of {len(by_program)})')

      def timed(rounds: int, run: grid_work.GridRun = run) -> float:
        settings = dataclasses.replace(
          run.config.training,
          total_rounds=min(rounds, own[0].rounds),  # noqa: B023
          total_epochs=0,
        )
        config = dataclasses.replace(run.config, training=settings)
        run = dataclasses.replace(run, config=config)
        job = dataclasses.replace(own[0], runs=(run,))  # noqa: B023
        start = time.monotonic()
        list(runner.run(job, lambda _: None))
        return time.monotonic() - start

      first = timed(_TIMED_ROUNDS)
      evaluation = timed(0)
      rounds = min(_TIMED_ROUNDS, own[0].rounds)
      per_round = (timed(rounds) - evaluation) / max(rounds, 1)
      total += first + sum(
        job.rounds * max(per_round, 0) + len(job.runs) * evaluation
        for job in own
      )
    return total / self._num_workers

  def results(self) -> list[grid_results.PointResult]:
    """Takes together what came so far of each point."""
    return [
      grid_results.of_point(
        self._contents.points[i], [self._store.records.get(k) for k in keys]
      )
      for i, keys in self._keys.items()
    ]

  def carry_out(self) -> int:
    """Does what is left to do; returns how many runs failed."""
    jobs = self.jobs()
    console = terminal.console(sys.stderr)
    display = grid_display.GridDisplay(
      sum(max(job.rounds, 1) for job in jobs),
      sum(len(job.runs) for job in jobs),
      console.is_terminal,
    )
    self._say_outlook()
    under_way: dict[int, int] = {}
    ended = 0
    live: contextlib.AbstractContextManager = contextlib.nullcontext()
    if console.is_terminal:
      live = rich.live.Live(display, console=console, refresh_per_second=2)
    events = workers.carry_out(
      jobs,
      launch.LateCall(
        'experiments.sweeps.grid_work', 'Runner', (self._data_dir,)
      ),
      self._num_workers,
      self._folder / 'logs',
    )
    last_best = 0.0
    with live, contextlib.closing(events):
      done: dict[int, int] = {}
      for event in events:
        if event is not None:
          job = event.job
          if event.item is not None:
            self._store.add(event.result)
            self._say_outlook()
            display.runs += 1
            done[id(job)] = done.get(id(job), 0) + 1
          if event.progress is not None:
            under_way[id(job)] = event.progress
          if event.error is not None:
            missing = job.runs[done.get(id(job), 0) :]
            display.failed += len(missing)
            self._report(missing, event.error)
          if event.ended:
            under_way.pop(id(job), None)
            ended += max(job.rounds, 1)
        display.rounds = ended + sum(under_way.values())
        if time.monotonic() > last_best + _SECONDS_PER_BEST:
          display.best = grid_results.best(self.results())
          last_best = time.monotonic()
        display.show()
    return display.failed

  def _say_outlook(self) -> None:
    done = sum(run.key in self._store.records for run in self._runs)
    stopping.say_outlook(
      f'{done} of {len(self._runs)} runs are finished; the same command goes on'
      ' with the others.'
    )

  def _report(self, runs: Sequence[grid_work.GridRun], error: str) -> None:
    for run in runs:
      log = self._folder / 'logs' / f'{run.key}.log'
      text = f'{run.point} seed={run.config.training.seed}\n{error}'
      folders.write(log, text)
      reason = error.strip().splitlines()[-1]
      terminal.say(f'Failed: {run.point}: {reason} (see {log})')

  def write(self) -> dict[str, grid_results.PointResult]:
    """Writes the results; returns the best points."""
    results = self.results()
    winners = grid_results.best(results)
    grid_results.write(self._folder, self._contents, results, winners)
    _draw(self._folder / 'plots', winners)
    return winners

  def diverged(self) -> list[str]:
    """Says which points had numbers that are not finite, a line for each."""
    lines = []
    for own in self.results():
      dropped = sum(record['dropped_updates'] for record in own.records)
      if any(record['validation'] is None for record in own.records):
        lines.append(f'Diverged: {own.point}')
      elif dropped:
        lines.append(
          f'Diverged in part: {own.point}: dropped {dropped} updates that were'
          ' not finite'
        )
    return lines


def _draw(
  folder: pathlib.Path, winners: Mapping[str, grid_results.PointResult]
) -> None:
  """Draws the test clients at the best points, those of all repeats."""
  if not winners:
    return
  of_clients = {name: own.of_clients('test') for name, own in winners.items()}
  record = next(iter(winners.values())).records[0]
  judged = record['metric'], record['higher_is_better']
  style.save(client_plots.box_plot(of_clients, *judged), folder, 'clients')
  for name, own in winners.items():
    if own.records[0].get('hurt'):
      figure = client_plots.hurt_scatter(
        own.of_clients('before'),
        own.of_clients('test'),
        own.of_clients('personalization_examples'),
        *judged,
        title=names.written_out(name),
      )
      style.save(figure, folder, f'hurt_{name}')


@contextlib.contextmanager
def open_grid(
  contents: grid_file.GridFile,
  folder: pathlib.Path,
  data_dir: str | None,
  num_workers: int,
) -> Iterator[Grid]:
  """Opens a grid with the results that are in its folder.

  Args:
    contents: The grid's file.
    folder: The folder of its results.
    data_dir: The folder of the data sets.
    num_workers: The number of processes.

  Yields:
    The grid, which no other process can open in the meantime.

  Raises:
    UserError: If the folder has other results, which would be lost.
  """
  with grid_results.open_store(folder) as store:
    grid = Grid(contents, folder, store, data_dir, num_workers)
    if grid.is_another:
      raise errors.UserError(
        f'{folder} has the results of another grid: {len(store.records)} runs,'
        ' of which none is of this one. Name another output_dir.'
      )
    yield grid


def default_folder(
  contents: grid_file.GridFile, path: pathlib.Path
) -> pathlib.Path:
  """Returns the folder of a grid that is in a file, and of no other."""
  text = json.dumps(dataclasses.asdict(contents), sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return paths.user_path(f'results/{path.stem}-{digest}')


def main(
  contents: grid_file.GridFile,
  folder: pathlib.Path,
  data_dir: str | None,
  num_workers: int,
  is_dry_run: bool,
) -> int:
  """Runs a grid and shows its best points; returns the exit status."""
  with open_grid(contents, folder, data_dir, num_workers) as grid:
    if is_dry_run:
      grid.dry_run()
      return 0
    failed = grid.carry_out()
    winners = grid.write()
    for line in grid.diverged():
      terminal.say(line)
  terminal.print_table(grid_display.make_table(winners))
  terminal.say(f'Written to {folder}')
  if failed:
    terminal.say(f'{failed} runs failed. The same command tries them again.')
  return 1 if failed else 0
