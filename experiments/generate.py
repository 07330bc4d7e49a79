"""Generates text for a user under any context, by the model of a finished run.

  generate FOLDER --list                   who there is, and which contexts
  generate FOLDER --client=NAME --prompt="We Must" --prompt="I think"
  generate FOLDER:fedpc --client=NAME --context=A --context=B --prompt="We Must"

FOLDER is the output folder of a run of a task of dialogue; a method is to be
named if it has trained several. The user has what it keeps from its last round;
one that was never trained has what it would start to adapt from. Each next word
is drawn among the most likely ones, by their probabilities. Contexts are shown
in one table, and with one seed the text under a context is the same whichever
others are beside it.
"""

from absl import app
from absl import flags

from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_LIST = flags.DEFINE_bool('list', False, 'Lists the clients and the contexts.')
_CLIENT = flags.DEFINE_string('client', None, 'The client.')
_CONTEXTS = flags.DEFINE_multi_string(
  'context',
  [],
  "The context; by default all of the client's own. It can be given more than"
  ' once.',
)
_PROMPTS = flags.DEFINE_multi_string(
  'prompt', [], 'How the text begins. It can be given more than once.'
)
_LENGTH = flags.DEFINE_integer(
  'length', 20, 'The number of tokens to generate.', lower_bound=1
)
_TOP = flags.DEFINE_integer(
  'top', 50, 'How many of the likeliest tokens to draw among.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'The seed of the draws.', lower_bound=0)
_DATA_DIR = shared_flags.data_dir()


def _main(folder: str) -> int:
  source = str(paths.user_path(folder))
  data_dir = paths.folder(_DATA_DIR.value)
  generation = launch.load('experiments.runs.generation')
  if _LIST.value:
    return generation.show_known(source, data_dir)
  return generation.main(
    source,
    _CLIENT.value,
    _CONTEXTS.value,
    _PROMPTS.value,
    _LENGTH.value,
    _TOP.value,
    _SEED.value,
    data_dir,
  )


def main(argv: list[str]) -> int:
  """Generates what the flags say, and returns the exit status."""
  if len(argv) != 2:
    raise app.UsageError('Name the output folder of a run.')
  if not _LIST.value and not (_CLIENT.value and _PROMPTS.value):
    raise app.UsageError('Name a client with --client, and a --prompt.')
  return launch.carry_out(lambda: _main(argv[1]))


if __name__ == '__main__':
  launch.start(main)
