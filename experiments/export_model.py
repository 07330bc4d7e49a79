"""Exports a trained model of a finished run, for use without this project.

  export_model FOLDER --output_dir=OUT         the global model, or each cluster
  export_model FOLDER:ditto --client=NAME --output_dir=OUT   a client's model
  export_model FOLDER:ditto --all_clients --output_dir=OUT   each client's model

FOLDER is the output folder of a run; name a method if the run has several.
A model is a folder with a SavedModel of TensorFlow, its weights for NumPy, a
README.md, and model.json, which describes how data become its inputs. For a
client, the model is personalized again on the client's examples, up to the
candidate that the run chose (such as '3 epochs') or that --candidate names.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_CLIENTS = flags.DEFINE_multi_string(
  'client', [], 'A client; it can be given more than once.'
)
_ALL_CLIENTS = flags.DEFINE_bool(
  'all_clients', False, 'Exports the model of each client that was evaluated.'
)
_CANDIDATE = flags.DEFINE_string(
  'candidate',
  None,
  "The clients' candidate, as results.json and per_client.csv name it; by"
  ' default the one that the run chose.',
)
_OUTPUT_DIR = shared_flags.new_output_dir()
_DATA_DIR = shared_flags.data_dir()


def main(folder: str) -> int:
  """Exports the models that the user names, and returns the exit status."""
  output_dir, data_dir = _OUTPUT_DIR(), _DATA_DIR()
  return launch.load('experiments.runs.exporting').main(
    str(paths.user_path(folder)),
    list(dict.fromkeys(_CLIENTS.value)),
    _ALL_CLIENTS.value,
    _CANDIDATE.value,
    output_dir,
    data_dir,
  )


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run.')
