"""Draws the results of runs, as PNG, SVG and PDF files.

  plot FOLDER          of one run, into FOLDER/plots
  plot FOLDER FOLDER…  of repeats, runs that differ in seed: clients are pooled,
                       means have error bars, and are also shown in a table

Figures are as wide as a column of a paper. If there are numbers for them, these
figures are drawn:

  clients            each method's metric over the test clients
  shares             the share of the test clients up to each value
  hurt_METHOD        who is hurt, how much, and with how many examples
  candidates_METHOD  the mean and the share hurt by epochs, coefficients, …
  change_METHOD      each client's relative change by the last training, such as
                     from fedadam+finetuning to group+finetuning; of all
                     clients, and of each known group
  learning           the training metrics by round, and the share of updates
                     that were dropped, if any were
  communication      the metric by parameters sent; for a curve, name runs that
                     differ in total_rounds
  clusters_METHOD    the share of each cluster by round
  groups_METHOD      known groups of clients in clusters
  known_groups       the metric of each known group of clients
  embeddings_METHOD  where the embeddings of clients lie, by known groups
  confusion_METHOD   known groups in clusters, or in those of their embeddings
  steps_TRAINING     of Self-FL, the steps that clients chose in the last round
  trajectory_TRAINING  of Self-FL, the means of steps and uncertainty by round
  tuning             one candidate for all clients, or one for each

Further figures need a setting of experiments:run, which --set can give:

  validation                 with rounds_per_evaluation: the validation clients
                             during training
  ood                        with ood_examples
  acceptance                 with acceptance_margin or acceptance_min_examples
  personalization_fractions  with the setting of this name
  evaluation_fractions       with the setting of this name, which also gives
                             hurt_METHOD_part_…
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_OUTPUT_DIR = shared_flags.output_dir("plots in the first run's")


def main(run: str, *repeats: str) -> int:
  """Draws the runs that the user names, and returns the exit status."""
  folders = [paths.user_path(path) for path in (run, *repeats)]
  output_dir = _OUTPUT_DIR() or folders[0] / 'plots'
  return launch.load('experiments.reporting.figures.drawing').main(
    folders, output_dir
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run, or of several.')
