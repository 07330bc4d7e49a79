"""Writes a report of runs and grids: one HTML page that needs no network.

  report FOLDER --output=report.html           of a run or a grid
  report FOLDER FOLDER… --output=report.html   of several, side by side
  report FOLDER --output=report.html --watch   of one that is in progress

Runs that differ only in their seed are taken together. The page has tables that
can be sorted, and downloaded as CSV, Markdown or LaTeX. It shows the individual
test clients, who is hurt, curves by round and by candidate, groups and
clusters, privacy, costs, and the points of grids.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_OUTPUT = shared_flags.path('output', 'The page to write.', 'report.html')
_EXPORT_DIR = shared_flags.path(
  'export_dir',
  'A folder to write each chart to as SVG, PNG and PDF, and each table as CSV,'
  ' Markdown and LaTeX.',
)
_WATCH = flags.DEFINE_bool(
  'watch',
  False,
  'Rewrites the page every few seconds, until everything is finished. A browser'
  ' that shows the page reloads it automatically.',
)


def main(folder: str, *others: str) -> int:
  """Writes the report that the user asks for, and returns the exit status."""
  stopping.say_outlook(
    'The page shows everything that was finished.'
    if _WATCH.value
    else 'The same command writes the page.'
  )
  return launch.load('experiments.reporting.pages.report').main(
    [paths.user_path(path) for path in (folder, *others)],
    _OUTPUT(),
    _EXPORT_DIR(),
    _WATCH.value,
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run or of a grid.')
