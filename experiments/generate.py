"""Generates a user's text under any context, with the model of a finished run.

  generate FOLDER --list                   lists the clients and the contexts
  generate FOLDER --client=NAME --prompt="We Must" --prompt="I think"
  generate FOLDER:fedpc --client=NAME --context=A --context=B --prompt="We Must"

FOLDER is the output folder of a run of a dialogue task; name a method if the
run trained several. The user's state is the one from its last round; a user
that was never in training has the state from which it would start to adapt.
Each next word is drawn among the most likely ones, by their probabilities.
Contexts are shown in one table. With the same seed, the text under a context
does not depend on the other contexts.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

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
  'The context; by default all contexts of the client. It can be given more'
  ' than once.',
)
_PROMPTS = flags.DEFINE_multi_string(
  'prompt',
  [],
  'The beginning of the text. It can be given more than once.',
)
_LENGTH = flags.DEFINE_integer(
  'length', 20, 'The number of tokens to generate.', lower_bound=1
)
_TOP = flags.DEFINE_integer(
  'top',
  50,
  'The number of most likely tokens to draw among.',
  lower_bound=1,
)
_SEED = flags.DEFINE_integer('seed', 0, 'The seed of the draws.', lower_bound=0)
_DATA_DIR = shared_flags.data_dir()


def main(folder: str) -> int:
  """Generates the texts that the flags ask for, and returns the exit status."""
  if not _LIST.value and not (_CLIENT.value and _PROMPTS.value):
    raise app.UsageError('Name a client with --client, and a --prompt.')
  source = str(paths.user_path(folder))
  data_dir = _DATA_DIR()
  generation = launch.load('experiments.language_models.generation')
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


if __name__ == '__main__':
  launch.start(main, 'Name the output folder of a run.')
