"""Shows the progress of a grid, and its best points."""

from collections.abc import Mapping
import time

import rich.box
import rich.console
import rich.progress_bar
import rich.table

from base import words
from experiments.command_line import fitting
from experiments.command_line import terminal
from experiments.reporting import repeats
from experiments.sweeps import grid_results


def make_table(
  winners: Mapping[str, grid_results.PointResult],
) -> rich.table.Table:
  """Makes the table of the best point of each method, by validation."""
  table = rich.table.Table(box=rich.box.SIMPLE)
  table.add_column('method')
  table.add_column('best point', overflow='fold')
  for name in ('validation', 'test ± over repeats', 'deviation', 'hurt'):
    table.add_column(name, justify='right')
  for name, winner in winners.items():
    hurt = winner.statistic('hurt')
    table.add_row(
      name,
      winner.point.describe(),
      f'{winner.validation:#.4g}',
      repeats.spread(*winner.mean, '#.4g', '#.2g'),
      f'{winner.deviation[0]:#.4g}',
      f'{hurt[0]:.1%}' if hurt else '–',
    )
  return table


class GridDisplay:
  """Shows how far a grid is, and what is best so far.

  Attributes:
    rounds: The number of rounds that are done.
    runs: The number of runs that are done.
    failed: The number of runs that failed.
    waits: Whether all that is left is what other programs work on.
    best: The best points so far, by method.
  """

  def __init__(self, total_rounds: int, total_runs: int, on_terminal: bool):
    self._totals = total_rounds, total_runs
    self._on_terminal = on_terminal
    self._start = time.monotonic()
    self._pace = terminal.Pace(total_rounds)
    self._next_line = terminal.NowAndThen()
    self.rounds = self.runs = self.failed = 0
    self.waits = False
    self.best: Mapping[str, grid_results.PointResult] = {}
    self._said: Mapping[str, str] = {}

  def _line(self) -> str:
    failed = f', {self.failed} failed' if self.failed else ''
    passed = terminal.duration(time.monotonic() - self._start)
    left = self._pace.seconds_left(self.rounds) if self.rounds else None
    about = '' if left is None else f', about {terminal.duration(left)} left'
    waits = ', others work on the rest' if self.waits else ''
    return (
      f'{self.runs} of {words.count(self._totals[1], "runs")}{failed},'
      f' {passed}{about}{waits}'
    )

  def __rich_console__(
    self, console: rich.console.Console, options: rich.console.ConsoleOptions
  ) -> rich.console.RenderResult:
    del console
    yield rich.progress_bar.ProgressBar(
      total=self._totals[0], completed=self.rounds, width=60
    )
    yield self._line()
    yield from fitting.fit(make_table(self.best), options.max_width)

  def show(self) -> None:
    """Prints a line now and then, where no table is drawn anew."""
    if not self._on_terminal and self._next_line.is_due():
      best = {
        name: f'{winner.validation:.4g}' for name, winner in self.best.items()
      }
      better = [
        f'{name} {value}'
        for name, value in best.items()
        if value != self._said.get(name)
      ]
      self._said = best
      new = f'; better by validation: {", ".join(better)}' if better else ''
      terminal.say(self._line() + new)
