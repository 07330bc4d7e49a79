"""Draws what runs have measured, as PNG and SVG files.

  plot FOLDER          of one run, into FOLDER/plots
  plot FOLDER FOLDER…  of repeats, runs that differ in seed: clients are pooled,
                       means have bars of their deviation, and are in a table

The figures, of what there are numbers for, are as wide as a column of a paper:

  clients            each method's metric over the test clients
  hurt_METHOD        who is hurt, how much, and with how many examples
  candidates_METHOD  the mean and the share hurt by epochs, coefficients, …
  communication      the metric by parameters sent; for a curve, name runs that
                     differ in total_rounds
  clusters_METHOD    the share of each cluster by round
  groups_METHOD      known groups of clients in clusters
  tuning             one candidate for all clients, or one for each

and, where experiments:run was told by --set to measure more,

  ood                        with ood_examples
  acceptance                 with acceptance_margin or acceptance_min_examples
  personalization_fractions  with these settings; the latter
  evaluation_fractions       has hurt_METHOD_part_… as well
"""

# Nothing heavy is imported here: --help is answered without it.
import sys

from absl import app
from absl import flags

from base import errors
from experiments.configuration import config as config_lib

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  "The folder to write to; by default plots in the first run's.",
)


def main(argv: list[str]) -> int:
  """Draws what the arguments and flags say, and returns the exit status."""
  paths = [config_lib.user_path(path) for path in argv[1:]]
  if not paths:
    raise app.UsageError('Name the output folder of a run, or of several.')
  try:
    from experiments.reporting import figures
    from experiments.reporting import plots
    from experiments.reporting import report

    by_rounds = report.read_repeats(paths)
    output_dir = paths[0] / 'plots'
    if _OUTPUT_DIR.value is not None:
      output_dir = config_lib.user_path(_OUTPUT_DIR.value)
    for name, figure in figures.draw(by_rounds):
      plots.save(figure, output_dir / name)
      print(f'{output_dir / name}.png, .svg', flush=True)
    if len(by_rounds[-1].runs) > 1:
      report.print_table(by_rounds[-1])
  except (errors.UserError, OSError) as error:  # The latter of what it writes.
    print(f'Error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  app.run(main)
