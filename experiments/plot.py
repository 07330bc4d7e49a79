"""Draws what runs have measured, as PNG, SVG and PDF files.

  plot FOLDER          of one run, into FOLDER/plots
  plot FOLDER FOLDER…  of repeats, runs that differ in seed: clients are pooled,
                       means have bars of their deviation, and are in a table

The figures, of what there are numbers for, are as wide as a column of a paper:

  clients            each method's metric over the test clients
  hurt_METHOD        who is hurt, how much, and with how many examples
  candidates_METHOD  the mean and the share hurt by epochs, coefficients, …
  change_METHOD      each client's relative change by the last training, as of
                     group+finetuning against fedadam+finetuning; of all
                     clients, and of each known group
  learning           the training metrics by round, and the share of updates
                     that were dropped, if any were
  communication      the metric by parameters sent; for a curve, name runs that
                     differ in total_rounds
  clusters_METHOD    the share of each cluster by round
  groups_METHOD      known groups of clients in clusters
  embeddings_METHOD  where the embeddings of clients lie, by known groups
  confusion_METHOD   known groups in clusters, or in those of their embeddings
  steps_TRAINING     the steps that the clients of the last round chose, and
  trajectory_TRAINING  the means of steps and uncertainty by round, of Self-FL
  tuning             one candidate for all clients, or one for each

and, where experiments:run was told by --set to measure more,

  validation                 with rounds_per_evaluation: the validation clients
                             in the course of a training
  ood                        with ood_examples
  acceptance                 with acceptance_margin or acceptance_min_examples
  personalization_fractions  with these settings; the latter
  evaluation_fractions       has hurt_METHOD_part_… as well
"""

from absl import app

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_OUTPUT_DIR = shared_flags.output_dir("plots in the first run's")


def _main(runs: list[str]) -> int:
  folders = [paths.user_path(path) for path in runs]
  output_dir = folders[0] / 'plots'
  if _OUTPUT_DIR.value is not None:
    output_dir = paths.user_path(_OUTPUT_DIR.value)
  return launch.load('experiments.reporting.plots.figures').main(
    folders, output_dir
  )


def main(argv: list[str]) -> int:
  """Draws what the arguments and flags say, and returns the exit status."""
  if len(argv) < 2:
    raise app.UsageError('Name the output folder of a run, or of several.')
  return launch.carry_out(lambda: _main(argv[1:]))


if __name__ == '__main__':
  launch.start(main)
