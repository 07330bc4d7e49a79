"""Runs a grid of settings on all cores, and finds each method's best point.

  grid GRID.toml             all points, and their repeats
  grid GRID.toml --dry_run   what that is, and how long it takes

GRID.toml has a preset and lists of values:

  preset = "school"
  repeats = [100, 1100]            # seeds

  [[grid]]                         # there can be several
  algorithms = ["fedavg", "ditto"]
  settings = {total_rounds = 500}
  [grid.values]                    # of which all combinations are run
  client_learning_rate = [0.01, 0.03, 0.1]

The best point is chosen by the mean of the validation metric over clients and
repeats. The same command again goes on where it was stopped.
"""

# Nothing that imports TensorFlow Federated is imported here, see run.py.
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from absl import app
from absl import flags
import rich.box
import rich.console
import rich.live
import rich.markup
import rich.progress
import rich.table

from base import errors
from experiments.configuration import config as config_lib
from experiments.configuration import execution
from experiments.reporting import terminal
from experiments.sweeps import grid_file
from experiments.sweeps import workers

if TYPE_CHECKING:
  from experiments.sweeps import grid_results
  from experiments.sweeps import grid_work

DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Lists the points, times one of each kind, and estimates how long all take.',
)

# Where there is no terminal to draw on.
_SECONDS_PER_LINE = 10.0
# What a dry run times.
_TIMED_ROUNDS = 100


def define_flags() -> None:
  """Defines the flags of every program that runs grids."""
  flags.DEFINE_string(
    'data_dir',
    os.environ.get('PFL_DATA_DIR'),
    'The folder of the data sets, by default $PFL_DATA_DIR. What is not there'
    ' is downloaded.',
  )
  flags.DEFINE_string(
    'output_dir',
    None,
    'The folder to write to; by default one of this grid only, in results/.',
  )
  flags.DEFINE_integer(
    'workers',
    len(os.sched_getaffinity(0)),
    'How many processes to run, each on a core of its own.',
    lower_bound=1,
  )


def make_runner(data_dir: str | None) -> 'grid_work.Runner':
  """What carries out jobs in a process."""
  from experiments.sweeps import grid_work

  return grid_work.Runner(data_dir)


def data_dir() -> str | None:
  folder = flags.FLAGS.data_dir
  return folder and str(config_lib.user_path(folder))


def duration(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  return f'{minutes} min {seconds:02d} s' if minutes else f'{seconds} s'


class _Display:
  """Shows how far a grid is, and what is best so far."""

  def __init__(self, total_rounds: int, total_runs: int, on_terminal: bool):
    self._totals = total_rounds, total_runs
    self._on_terminal = on_terminal
    self._start = self._last_line = time.monotonic()
    self.rounds = self.runs = self.failed = 0
    self.best: Mapping[str, Any] = {}

  def _left(self) -> str:
    passed = time.monotonic() - self._start
    if not self.rounds or passed < 5:
      return ''
    left = passed * (self._totals[0] / self.rounds - 1)
    return f', about {duration(left)} left'

  def _line(self) -> str:
    failed = f', {self.failed} failed' if self.failed else ''
    passed = duration(time.monotonic() - self._start)
    return (
      f'{self.runs} of {self._totals[1]} runs{failed}, {passed}{self._left()}'
    )

  def __rich__(self) -> rich.console.Group:
    bar = rich.progress.ProgressBar(
      total=self._totals[0], completed=self.rounds, width=60
    )
    return rich.console.Group(bar, self._line(), make_table(self.best))

  def show(self) -> None:
    """Prints a line now and then, where no table is drawn anew."""
    now = time.monotonic()
    if not self._on_terminal and now > self._last_line + _SECONDS_PER_LINE:
      self._last_line = now
      best = ', '.join(
        f'{name} {own.validation:.4g}' for name, own in self.best.items()
      )
      terminal.say(
        self._line() + (f'; best by validation: {best}' if best else '')
      )


def make_table(winners: Mapping[str, 'grid_results.Outcome']) -> Any:
  """The best point of each method, by validation."""
  table = rich.table.Table(box=rich.box.SIMPLE)
  table.add_column('method')
  table.add_column('best point', overflow='fold')
  for name in ('validation', 'test ± over repeats', 'deviation', 'hurt'):
    table.add_column(name, justify='right')
  for name, own in winners.items():
    mean, deviation = own.over_repeats('mean'), own.over_repeats('deviation')
    hurt = own.over_repeats('hurt')
    table.add_row(
      name,
      rich.markup.escape(own.point.describe()),
      f'{own.validation:#.4g}',
      f'{mean[0]:#.4g} ± {mean[1]:#.2g}',
      f'{deviation[0]:#.4g}',
      f'{hurt[0]:.1%}' if hurt else '–',
    )
  return table


class Grid:
  """A grid, and the runs of it that are finished."""

  def __init__(
    self,
    contents: grid_file.GridFile,
    folder: pathlib.Path,
    store: 'grid_results.Store',
    data_dir: str | None,
    num_workers: int,
  ):
    from experiments.sweeps import grid_work

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

  def jobs(self) -> list['grid_work.Job']:
    """What is left to do."""
    from experiments.sweeps import grid_work

    left = [run for run in self._runs if run.key not in self._store.records]
    if len(left) < len(self._runs):
      terminal.say(
        f'{len(self._runs) - len(left)} of {len(self._runs)} runs are in'
        f' {self._folder} already.'
      )
    return grid_work.make_jobs(left, self._contents.metric, self._data_dir)

  def dry_run(self) -> None:
    """Lists the points and says how long they take."""
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
      f'They take about {duration(self._estimate(jobs))} with'
      f' {self._num_workers} processes.'
    )

  def _estimate(self, jobs: Sequence['grid_work.Job']) -> float:
    """Times a job of each program for some rounds; seconds that all take."""
    from experiments.sweeps import grid_work

    runner = grid_work.Runner(self._data_dir)
    by_program: dict[str, list[grid_work.Job]] = {}
    for job in jobs:
      by_program.setdefault(job.program, []).append(job)
    total = 0.0
    for number, own in enumerate(by_program.values(), 1):
      run = own[0].runs[-1]
      terminal.say(f'Timing {run.point} ({number} of {len(by_program)})')

      def timed(rounds: int, run: grid_work.Run = run) -> float:
        options = dataclasses.replace(
          run.config.options,
          total_rounds=min(rounds, run.config.options.total_rounds),
        )
        config = dataclasses.replace(run.config, options=options)
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

  def outcomes(self) -> list['grid_results.Outcome']:
    """What came out so far, for each point."""
    from experiments.sweeps import grid_results

    return [
      grid_results.outcome(
        self._contents.points[i], [self._store.records.get(k) for k in keys]
      )
      for i, keys in self._keys.items()
    ]

  def carry_out(self) -> int:
    """Does what is left; returns how many runs failed."""
    from experiments.sweeps import grid_results

    jobs = self.jobs()
    console = rich.console.Console(stderr=True, highlight=False)
    display = _Display(
      sum(max(job.rounds, 1) for job in jobs),
      sum(len(job.runs) for job in jobs),
      console.is_terminal,
    )
    under_way: dict[int, int] = {}
    ended = 0
    live = contextlib.nullcontext()
    if console.is_terminal:
      live = rich.live.Live(display, console=console, refresh_per_second=2)
    events = workers.carry_out(
      jobs,
      functools.partial(make_runner, self._data_dir),
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
        if time.monotonic() > last_best + 2:
          display.best = grid_results.best(self.outcomes())
          last_best = time.monotonic()
        display.show()
    return display.failed

  def _report(self, runs: Sequence['grid_work.Run'], error: str) -> None:
    for run in runs:
      log = self._folder / 'logs' / f'{run.key}.log'
      log.write_text(f'{run.point} seed={run.config.options.seed}\n{error}')
      reason = error.strip().splitlines()[-1]
      terminal.say(f'Failed: {run.point}: {reason} (see {log})')

  def write(self) -> dict[str, 'grid_results.Outcome']:
    """Writes what came out; returns the best points."""
    from experiments.sweeps import grid_results

    outcomes = self.outcomes()
    winners = grid_results.best(outcomes)
    grid_results.write(self._folder, self._contents, outcomes, winners)
    _draw(self._folder / 'plots', winners)
    return winners

  def diverged(self) -> list[str]:
    """What to say of the points with numbers that are not finite."""
    lines = []
    for own in self.outcomes():
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
  folder: pathlib.Path, winners: Mapping[str, 'grid_results.Outcome']
) -> None:
  """Draws the test clients at the best points, those of all repeats."""
  from experiments.reporting import plots

  if not winners:
    return
  folder.mkdir(exist_ok=True)
  of_clients = {name: own.of_clients('test') for name, own in winners.items()}
  record = next(iter(winners.values())).records[0]
  judged = record['metric'], record['higher_is_better']
  plots.save(plots.box_plot(of_clients, *judged), folder / 'clients')
  for name, own in winners.items():
    if own.records[0].get('hurt'):
      figure = plots.hurt_scatter(
        own.of_clients('before'),
        own.of_clients('test'),
        own.of_clients('personalization_examples'),
        *judged,
        title=name,
      )
      plots.save(figure, folder / f'hurt_{name}')


@contextlib.contextmanager
def open_grid(
  contents: grid_file.GridFile, folder: pathlib.Path
) -> Iterator[Grid]:
  """Opens a grid, as the flags say, with the results that are in a folder."""
  from experiments.sweeps import grid_results

  with grid_results.open_store(folder) as store:
    yield Grid(contents, folder, store, data_dir(), flags.FLAGS.workers)


def _main(path: str) -> int:
  contents = grid_file.read(config_lib.user_path(path))
  execution.silence_imports()
  text = json.dumps(dataclasses.asdict(contents), sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  folder = config_lib.user_path(
    flags.FLAGS.output_dir or f'results/{pathlib.Path(path).stem}-{digest}'
  )
  with open_grid(contents, folder) as grid:
    if DRY_RUN.value:
      grid.dry_run()
      return 0
    failed = grid.carry_out()
    winners = grid.write()
    for line in grid.diverged():
      terminal.say(line)
  terminal.print_table(make_table(winners))
  terminal.say(f'Written to {folder}')
  if failed:
    terminal.say(f'{failed} runs failed. The same command tries them again.')
  return 1 if failed else 0


def guarded(action: Any) -> int:
  """Carries out what a program is for; returns the exit status."""
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    return action()
  except errors.UserError as error:
    terminal.say(f'Error: {error}')
    return 1
  except KeyboardInterrupt:
    terminal.say(
      '\nStopped. The same command goes on with what is not finished.'
    )
    return 130


def main(argv: list[str]) -> int:
  """Runs what the flags say, and returns the exit status."""
  if len(argv) != 2:
    raise app.UsageError('Name one file, GRID.toml.')
  return guarded(lambda: _main(argv[1]))


if __name__ == '__main__':
  define_flags()
  app.run(main)
