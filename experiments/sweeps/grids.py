"""Carries out what is left of a grid, by several processes.

Several programs, on one machine or on many, may work on the same folder:

runs/      the records of the finished runs
leases/    the jobs that programs are working on
logs/      the errors of failed runs, and what the processes print
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import secrets
import socket
import sys
import time

import rich.live

from base import errors
from base import words
from experiments.command_line import launch
from experiments.command_line import own_modules
from experiments.command_line import paths
from experiments.command_line import stopping
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.reporting import manifests
from experiments.reporting import sources
from experiments.reporting.figures import drawing
from experiments.reporting.figures import figure
from experiments.runs import ledgers
from experiments.sweeps import grid_display
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from experiments.sweeps import grid_work
from experiments.sweeps import halving
from experiments.sweeps import job_queue
from experiments.sweeps import launching
from experiments.sweeps import leases as grid_leases
from experiments.sweeps import workers
from personalization.privacy import ledger

# The number of rounds that a dry run times.
_TIMED_ROUNDS = 100
# How often a program looks for the best points, and for news of other programs.
_SECONDS_PER_LOOK = 2
_RUNS, _LEASES, _LOGS = 'runs', 'leases', 'logs'
# The lease of who writes what the manifest lists. Jobs have other names.
_MANIFEST = 'manifest'


class _Rung:
  """The points of a grid, or of a rung of successive halving, and their runs.

  Attributes:
    contents: The grid's file with these points.
    runs: The runs, each of which is done once, whatever points have it.
  """

  def __init__(
    self, contents: grid_file.GridFile, records: grid_records.GridRecords
  ):
    self.contents = contents
    self._records = records
    runs = grid_work.make_runs(contents)
    # The runs are those of all points with the first seed, then the second, …
    num_points = len(contents.points)
    self._keys = [
      [run.key for run in runs[i::num_points]] for i in range(num_points)
    ]
    first: dict[str, grid_work.GridRun] = {}
    for run in runs:
      if contents.runs_row(run.point.name):
        first.setdefault(run.key, run)
    self.runs = list(first.values())

  @property
  def num_done(self) -> int:
    """The number of runs that are finished."""
    return sum(run.key in self._records.by_key for run in self.runs)

  def results(self) -> list[grid_results.PointResult]:
    """Returns the result of each point, from the runs that are finished."""
    find = self._records.by_key.get
    return [
      grid_results.summarize(point, list(map(find, keys)))
      for point, keys in zip(self.contents.points, self._keys)
    ]

  def distinct_results(self) -> list[grid_results.PointResult]:
    """Returns the results without points that repeat a point of their row."""
    distinct: dict[tuple[str, ...], grid_results.PointResult] = {}
    for result, keys in zip(self.results(), self._keys):
      distinct.setdefault((result.point.name, *keys), result)
    return list(distinct.values())


class Grid:
  """A grid, and the runs of it that are finished."""

  def __init__(
    self,
    contents: grid_file.GridFile,
    folder: pathlib.Path,
    records: grid_records.GridRecords,
    data_dir: str | None,
    launcher: launching.Launcher,
  ):
    self._contents = contents
    self._folder = folder
    self._records = records
    self._data_dir = data_dir
    self._launcher = launcher
    self._rungs_to_come = halving.rungs(
      contents, lambda: self._rungs[-1].results()
    )
    self._rungs = [_Rung(next(self._rungs_to_come), records)]

  @property
  def is_another(self) -> bool:
    """Whether there are finished runs, but none of this grid."""
    finished = self._records.by_key
    results = self._rungs[0].results()
    return bool(finished) and not any(result.records for result in results)

  def jobs(self) -> list[grid_work.Job]:
    """Makes the jobs that are left to do."""
    rung = self._rungs[-1]
    done = rung.num_done
    if done:
      total = words.count(len(rung.runs), 'runs')
      terminal.say(f'{self._folder} has {done} of {total} already.')
    if done == len(rung.runs):
      return []
    contents = self._contents
    jobs, uses = grid_work.make_jobs(
      rung.runs, contents.metric, self._data_dir, contents.detailed
    )
    if rung is self._rungs[0]:
      self._write_ledger(uses)
    # A job has the same name whatever is left of it.
    left = [job.drop(self._records.by_key) for job in jobs]
    return [job for job in left if job.runs]

  def _write_ledger(self, uses: list[ledger.Use]) -> None:
    """Writes all uses of protected data, if there are some.

    With successive halving they are those of points that all go on to the end,
    which is an upper bound.

    Args:
      uses: The uses of the first rung.
    """
    contents = self._contents
    if uses and contents.halving:
      runs = grid_work.make_runs(contents)
      _, uses = grid_work.make_jobs(runs, contents.metric, self._data_dir)
    # If there are none, too, as there is a manifest from the beginning.
    _write(self._folder, ledgers.files(uses))

  def dry_run(self) -> None:
    """Lists the points, and says how long they take."""
    contents = self._rungs[0].contents
    points = [p for p in contents.points if contents.runs_row(p.name)]
    for point in points:
      print(point)
    jobs = self.jobs()
    to_do = sum(len(job.runs) for job in jobs)
    rounds = sum(job.rounds for job in jobs)
    print(
      f'{words.count(len(points), "points")}, {words.count(to_do, "runs")}'
      f' to do, in {words.count(len(jobs), "trainings")} of'
      f' {words.count(rounds, "rounds")} in all.'
    )
    print(
      f'They take about {terminal.duration(self._estimate(jobs))} with'
      f' {self._launcher}.'
    )
    if self._contents.halving:
      print('The best of them then go on, by successive halving.')

  def _estimate(self, jobs: Sequence[grid_work.Job]) -> float:
    """Estimates the seconds that jobs take, by timing one of each program."""
    runner = grid_work.Runner(self._data_dir)
    by_program: dict[str, list[grid_work.Job]] = {}
    for job in jobs:
      by_program.setdefault(job.program, []).append(job)
    total = 0.0
    for number, alike in enumerate(by_program.values(), 1):
      job = alike[0]
      terminal.say(
        f'Timing {job.runs[-1].point} ({number} of {len(by_program)})'
      )
      rounds = min(_TIMED_ROUNDS, job.rounds)
      total += _seconds(runner, job, rounds)  # This includes compiling.
      evaluation = _seconds(runner, job, 0)
      training = max(_seconds(runner, job, rounds) - evaluation, 0)
      total += sum(
        job.rounds * training / max(rounds, 1) + len(job.runs) * evaluation
        for job in alike
      )
    # A Ray cluster may have no machines yet.
    return total / max(self._launcher.num_workers, 1)

  def results(self) -> list[grid_results.PointResult]:
    """Returns the results so far of all points, those of all rungs."""
    return [
      result for rung in self._rungs for result in rung.distinct_results()
    ]

  def _best(self) -> dict[str, grid_results.PointResult]:
    """Returns the best points of the last rung."""
    return grid_results.best(self._rungs[-1].results())

  def run(self) -> int:
    """Does what is left to do; returns how many runs failed.

    What other programs work on in the meantime is left to them.
    """
    with (
      contextlib.closing(grid_leases.Leases(self._folder / _LEASES)) as leases,
      contextlib.closing(self._launcher.start(self._work())) as crew,
    ):
      failed = self._run_rung(leases, crew)
      for contents in self._rungs_to_come:
        self._rungs.append(_Rung(contents, self._records))
        most = max(point.values['total_rounds'] for point in contents.points)
        terminal.say(
          f'Rung {len(self._rungs)}:'
          f' {words.count(len(contents.points), "points")} with up to'
          f' {words.count(most, "rounds")}'
        )
        failed += self._run_rung(leases, crew)
    return failed

  def _run_rung(
    self, leases: grid_leases.Leases, crew: launching.Workers
  ) -> int:
    """Does what is left of the last rung; returns how many runs failed."""
    jobs = self.jobs()
    queue = job_queue.JobQueue(jobs, self._records, leases)
    console = terminal.console(sys.stderr)
    display = grid_display.GridDisplay(
      sum(max(job.rounds, 1) for job in jobs),
      sum(len(job.runs) for job in jobs),
      console.is_terminal,
    )
    self._say_outlook()
    live: contextlib.AbstractContextManager = contextlib.nullcontext()
    if console.is_terminal:
      live = rich.live.Live(display, console=console, refresh_per_second=2)
    next_look = 0.0
    with live:
      for event in crew.run(queue):
        if event is not None:
          self._handle(event, queue)
        if time.monotonic() > next_look:
          queue.look()
          display.best = self._best()
          next_look = time.monotonic() + _SECONDS_PER_LOOK
        display.runs, display.failed = queue.runs_done, len(queue.failed)
        display.rounds = queue.rounds_done
        display.waits = queue.only_others_work
        display.show()
    queue.look()
    rung = self._rungs[-1]
    return len(rung.runs) - rung.num_done

  def _handle(self, event: launching.Event, queue: job_queue.JobQueue) -> None:
    """Notes what a worker has done, or that it failed or was lost."""
    if event.item is not None:
      queue.add(event.result)
      self._say_outlook()
    if event.progress is not None:
      queue.progress[event.job.name] = event.progress
    if event.lost:
      queue.put_back(event.job)
    elif event.ended:
      self._report(queue.end(event.job), event.error)

  def _work(self) -> launching.Work:
    """Tells workers what they need to know."""
    arguments = self._contents, self._folder.absolute(), self._data_dir
    return launching.Work(
      launch.LateCall('experiments.sweeps.grid_work', 'Runner', arguments[2:]),
      launch.LateCall('experiments.sweeps.grids', 'work', arguments),
      self._folder.absolute() / _LOGS / f'worker-{self._records.program}',
    )

  def _say_outlook(self) -> None:
    rung = self._rungs[-1]
    stopping.say_outlook(
      f'{rung.num_done} of {len(rung.runs)} runs are finished;'
      ' the same command goes on with the others.'
    )

  def _report(
    self, runs: Sequence[grid_work.GridRun], error: str | None
  ) -> None:
    error = error or 'The process had no result.'
    for run in runs:
      log = self._folder / _LOGS / f'{run.key}.log'
      text = f'{run.point} seed={run.config.training.seed}\n{error}'
      folders.write(log, text)
      reason = error.strip().splitlines()[-1]
      terminal.say(f'Failed: {run.point}: {reason} (see {log})')

  def exit_status(self, num_failed: int) -> int:
    """Says how many runs failed, if any; returns a program's exit status."""
    if not num_failed:
      return 0
    terminal.say(
      f'{words.count(num_failed, "runs")} failed; see {self._folder / _LOGS}.'
      ' The same command tries again.'
    )
    return 1

  def write(self) -> dict[str, grid_results.PointResult]:
    """Writes the results; returns the best points."""
    winners = self._best()
    _write(
      self._folder,
      grid_results.files(self._contents, self.results(), winners),
    )
    _draw(self._folder / 'plots', winners, self._rungs[0].runs[0].config.task)
    return winners

  def show_best(self) -> None:
    """Writes the results, and shows the best points."""
    winners = self.write()
    for line in self.diverged():
      terminal.say(line)
    terminal.print_table(grid_display.make_table(winners))
    ledgers.show(self._folder)
    terminal.say(f'Written to {self._folder}')

  def diverged(self) -> list[str]:
    """Says which points had numbers that are not finite, a line for each."""
    lines = []
    for result in self.results():
      dropped = sum(record['dropped_updates'] for record in result.records)
      if any(map(grid_results.has_diverged, result.records)):
        lines.append(f'Diverged: {result.point}')
      elif dropped:
        lines.append(
          f'Diverged in part: {result.point}: dropped'
          f' {words.count(dropped, "updates")} with numbers that are not'
          ' finite'
        )
    return lines


def _write(folder: pathlib.Path, texts: Mapping[str, str]) -> None:
  """Writes files of a grid, and lists them, while no other program does so."""
  with (
    contextlib.closing(grid_leases.Leases(folder / _LEASES)) as leases,
    leases.holding(_MANIFEST),
  ):
    manifest = manifests.Manifest(folder)
    manifest.begin()
    manifest.write(texts)


def _seconds(
  runner: grid_work.Runner, job: grid_work.Job, rounds: int
) -> float:
  """Measures the seconds that the last run of a job takes with other rounds."""
  run = job.runs[-1]
  training = dataclasses.replace(
    run.config.training, total_rounds=rounds, total_epochs=0
  )
  config = dataclasses.replace(run.config, training=training)
  run = dataclasses.replace(run, config=config)
  start = time.monotonic()
  list(runner.run(dataclasses.replace(job, runs=(run,)), lambda _: None))
  return time.monotonic() - start


def _draw(
  folder: pathlib.Path,
  winners: Mapping[str, grid_results.PointResult],
  task: str,
) -> None:
  """Draws the test clients at the best points, those of all repeats."""
  if winners:
    series = [
      sources.GridPoint(name, {}, winner.records).series(task)
      for name, winner in winners.items()
    ]
    for drawn in drawing.draw_best_points(series):
      figure.save(drawn, folder)


def open_grid(
  contents: grid_file.GridFile,
  folder: pathlib.Path,
  data_dir: str | None,
  launcher: launching.Launcher,
) -> Grid:
  """Opens a grid with the results that are in its folder.

  Args:
    contents: The grid's file.
    folder: The folder of its results.
    data_dir: The folder of the data sets.
    launcher: Starts the workers.

  Returns:
    The grid, on which other programs may work as well.

  Raises:
    UserError: If the folder has other results, which would be lost, or cannot
      be written to.
  """
  program = f'{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}'
  try:
    folder.mkdir(parents=True, exist_ok=True)
    folders.check_free(folder, folders.GRID)
    grid_results.check_presets(
      folder, {point.name for point in contents.points}
    )
    for name in (_RUNS, _LEASES, _LOGS):
      (folder / name).mkdir(exist_ok=True)
  except OSError as error:
    raise folders.unusable(folder, error) from error
  records = grid_records.GridRecords(folder, program)
  grid = Grid(contents, folder, records, data_dir, launcher)
  if grid.is_another:
    raise errors.UserError(
      f'{folder} has the results of another grid: {len(records.by_key)}'
      ' runs, of which none is of this one. Name another output_dir.'
    )
  for origin in contents.origins():
    terminal.say(origin)
  return grid


def default_folder(
  contents: grid_file.GridFile, path: pathlib.Path
) -> pathlib.Path:
  """Returns the folder of a grid that is in a file, and of no other."""
  # A file has no rows to choose, and folders keep their names.
  fields = dataclasses.asdict(contents)
  del fields['only']
  text = json.dumps(fields, sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return paths.user_path(f'results/{path.stem}-{digest}')


def work(
  contents: grid_file.GridFile,
  folder: pathlib.Path,
  data_dir: str | None,
  num_workers: int,
) -> int:
  """Works on a grid whose results another program shows; see `launching`."""
  own_modules.trust_all()  # That program has asked the user.
  launcher = workers.OnThisMachine(num_workers)
  return main(contents, folder, data_dir, launcher, False, Grid.write)


def main(
  contents: grid_file.GridFile,
  folder: pathlib.Path,
  data_dir: str | None,
  launcher: launching.Launcher,
  is_dry_run: bool,
  show: Callable[[Grid], object] = Grid.show_best,
) -> int:
  """Runs a grid and shows its results; returns the exit status.

  Args:
    contents: The grid's file.
    folder: The folder of its results.
    data_dir: The folder of the data sets.
    launcher: Starts the workers.
    is_dry_run: Whether to only list the points and estimate the time.
    show: Writes and shows the results.
  """
  of_grid = (folder / name for name in (_RUNS, _LEASES, _LOGS))
  with folders.removed_if_refused(*of_grid):
    grid = open_grid(contents, folder, data_dir, launcher)
    if is_dry_run:
      grid.dry_run()
      return 0
    num_failed = grid.run()
  show(grid)
  return grid.exit_status(num_failed)
