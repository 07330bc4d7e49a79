"""What reruns of published tables and of published curves have in common."""

from collections.abc import Callable, Mapping
import json
import pathlib
import time
from typing import Any

from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.sweeps import grid_file
from experiments.sweeps import grids
from experiments.sweeps import launching


def rerun(
  contents: grid_file.GridFile,
  show: Callable[[grids.Grid], Mapping[str, Any]],
  json_file: pathlib.Path | None,
  folder: pathlib.Path,
  data_dir: str | None,
  launcher: launching.Launcher,
  is_dry_run: bool,
) -> int:
  """Runs the grid of a publication again and shows its results.

  Args:
    contents: The grid.
    show: Shows the results of the grid, and returns its figures.
    json_file: The file to write the figures to, if any.
    folder: The folder of the results.
    data_dir: The folder of the data sets.
    launcher: Starts the workers.
    is_dry_run: Whether to only list the points and estimate the time.

  Returns:
    The exit status.
  """
  start = time.monotonic()
  grid = grids.open_grid(contents, folder, data_dir, launcher)
  if is_dry_run:
    grid.dry_run()
    return 0
  num_failed = grid.carry_out()
  figures = show(grid)
  if json_file:
    folders.write(json_file, json.dumps(figures, indent=2) + '\n')
  duration = terminal.duration(time.monotonic() - start)
  terminal.say(f'Written to {folder}, in {duration} with {launcher}.')
  return grid.exit_status(num_failed)
