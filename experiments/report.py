"""Writes a report of runs and grids: one page of HTML that needs no network.

  report FOLDER --output=report.html           of a run or a grid
  report FOLDER FOLDER… --output=report.html   of several, side by side
  report FOLDER --output=report.html --watch   of one that is under way

Runs that differ in nothing but their seed are taken together. The page has
tables that can be sorted, and taken along as CSV, Markdown or LaTeX; the test
clients one by one, who is hurt, curves by round and by candidate, groups and
clusters, privacy, costs, and the points of grids.
"""

from absl import app
from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths

_OUTPUT = flags.DEFINE_string('output', 'report.html', 'The page to write.')
_EXPORT_DIR = flags.DEFINE_string(
  'export_dir',
  None,
  'A folder to write each chart to as SVG, PNG and PDF, and each table as CSV,'
  ' Markdown and LaTeX.',
)
_WATCH = flags.DEFINE_bool(
  'watch',
  False,
  'Writes the page anew every few seconds, until all is finished. A browser'
  ' that shows it loads it again by itself.',
)


def main(argv: list[str]) -> int:
  """Writes what the arguments and flags say, and returns the exit status."""
  if len(argv) < 2:
    raise app.UsageError('Name the output folder of a run or of a grid.')
  export_dir = _EXPORT_DIR.value
  return launch.carry_out(
    lambda: launch.load('experiments.reporting.pages.report').main(
      [paths.user_path(path) for path in argv[1:]],
      paths.user_path(_OUTPUT.value),
      export_dir and paths.user_path(export_dir),
      _WATCH.value,
    ),
    'The page has what was finished.',
  )


if __name__ == '__main__':
  launch.start(main)
