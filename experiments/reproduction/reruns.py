"""A published table or curves, run again."""

import pathlib
import time

from base import errors
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reproduction import kinds
from experiments.reproduction import tables
from experiments.sweeps import grids
from experiments.sweeps import launching


def main(
  table: tables.Table,
  only_best: bool,
  folder: pathlib.Path,
  json_file: pathlib.Path | None,
  data_dir: str | None,
  launcher: launching.Launcher,
  is_dry_run: bool,
) -> int:
  """Runs a table again and shows it; returns the exit status.

  Args:
    table: The table.
    only_best: Whether to run only the points that were found best before.
    folder: The folder of the results.
    json_file: The file to write our and the published figures to, if any.
    data_dir: The folder of the data sets.
    launcher: Starts the workers.
    is_dry_run: Whether to only list the points and estimate the time.
  """
  start = time.monotonic()
  contents = table.best if only_best else table.whole
  if contents is None:
    raise errors.UserError(
      '--best: which points are the best of this table is not known yet. Leave'
      ' the flag out to run all of its points.'
    )

  def show(grid: grids.Grid) -> None:
    figures = kinds.SHOW[table.kind](table, grid, folder)
    if json_file:
      folders.write_json(json_file, figures)
    duration = terminal.duration(time.monotonic() - start)
    terminal.say(f'Written to {folder}, in {duration} with {launcher}.')

  return grids.main(contents, folder, data_dir, launcher, is_dry_run, show)
