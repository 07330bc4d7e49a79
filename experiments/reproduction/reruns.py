"""Reruns of published tables and curves."""

from collections.abc import Callable, Mapping
import dataclasses
import json
import pathlib
import time
from typing import Any

from experiments.command_line import launch
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.sweeps import grid_file
from experiments.sweeps import launching


@dataclasses.dataclass(frozen=True)
class Rerun:
  """Runs the grid of a published table, or of published curves, again.

  Attributes:
    json_file: The file to write our and the published figures to, if any.
    folder: The folder of the results.
    data_dir: The folder of the data sets.
    launcher: Starts the workers.
    is_dry_run: Whether to only list the points and estimate the time.
  """

  json_file: pathlib.Path | None
  folder: pathlib.Path
  data_dir: str | None
  launcher: launching.Launcher
  is_dry_run: bool

  def carry_out(
    self, contents: grid_file.GridFile, show: Callable[..., Mapping[str, Any]]
  ) -> int:
    """Runs a grid and shows its results; returns the exit status.

    Args:
      contents: The grid.
      show: Shows the results of a `grids.Grid`, and returns its figures.
    """
    start = time.monotonic()
    # Imported late, as wrong flags are answered at once.
    grid = launch.load('experiments.sweeps.grids').open_grid(
      contents, self.folder, self.data_dir, self.launcher
    )
    if self.is_dry_run:
      grid.dry_run()
      return 0
    num_failed = grid.carry_out()
    figures = show(grid)
    if self.json_file:
      folders.write(self.json_file, json.dumps(figures, indent=2) + '\n')
    duration = terminal.duration(time.monotonic() - start)
    terminal.say(
      f'Written to {self.folder}, in {duration} with {self.launcher}.'
    )
    status: int = grid.exit_status(num_failed)
    return status
