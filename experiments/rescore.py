"""Rescores hypotheses of a speech recognizer with the models of finished runs.

  rescore FOLDER --nbest=FILE               of a run that trained one method
  rescore FOLDER:fedadam OTHER --nbest=FILE     several models, side by side
  rescore FOLDER:fedadam+finetuning --nbest=FILE    with speakers' own models

FILE has a line of JSON for each utterance, with its reference and the
hypotheses of the first pass, each with a text and the logarithm of a score:

  {"reference": "the sea is blue",
   "hypotheses": [{"text": "the see is blue", "score": -3.1}, …]}

Words are separated by spaces, and written as in the task's vocabulary. A
hypothesis scores (1 - weight) first pass + weight log p(words, end) of the
model; the best one of each utterance is compared with the reference. For a
method with a model for each group, the line's "group" names the group; for one
that personalizes, its "client" names a client that the run evaluated.

The word error rates are shown beside that of the first pass alone. --output
names a JSON file to write them to, with the chosen hypotheses.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

import math

from absl import app
from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_NBEST = flags.DEFINE_string('nbest', None, 'The file of the hypotheses.')
_WEIGHT = flags.DEFINE_float(
  'weight', 0.1, 'The weight of the model.', lower_bound=0, upper_bound=1
)
_OUTPUT = shared_flags.new_file('output', 'The JSON file to write.')
_DATA_DIR = shared_flags.data_dir()


def main(run: str, *others: str) -> int:
  """Rescores the file that the user names, and returns the exit status."""
  if math.isnan(_WEIGHT.value):
    raise app.UsageError('--weight must be a number.')
  if not _NBEST.value:
    raise app.UsageError('Name the file of the hypotheses with --nbest.')
  return launch.load('experiments.language_models.rescoring').main(
    [str(paths.user_path(source)) for source in (run, *others)],
    paths.user_path(_NBEST.value),
    _WEIGHT.value,
    _OUTPUT(),
    _DATA_DIR(),
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of at least one run.')
