"""Trains a small GPT-2 on texts, in minutes.

  pretrain --source=wikitext-2 --tokenizer=gpt2_bpe --output_dir=small_gpt2
  pretrain --source=wikitext-2,posts.jsonl --leave_out=user=@users.txt …

The output folder then has the weights (model.safetensors), the sizes
(config.json) and the tokenizer (vocab.json, merges.txt), like the folder of a
published GPT-2: federated learning can begin with either. One of 50 pieces of
the texts is held out to show how well the words are predicted. The headings of
WikiText are left out, and so is <unk>, which stands for its rare words; the
token behind it is not predicted. The same command continues where it was
stopped.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from base import errors
from base import inputs
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags

_SOURCE = flags.DEFINE_list(
  'source',
  ['wikitext-2'],
  'The texts in the data folder, with commas between them: a folder of'
  ' wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or of some of'
  ' them; a file of WikiText (.tokens); a plain text (.txt); or lines of JSON'
  ' (.jsonl). Files may be compressed (.gz).',
)
_TEXT_FIELD = flags.DEFINE_string(
  'text_field', 'text', 'The field of the text in lines of JSON.'
)
_LEAVE_OUT = flags.DEFINE_multi_string(
  'leave_out',
  [],
  'A user or a context whose lines of JSON are left out, as in user=NAME,'
  ' play,who=NAME for a name of several fields with spaces between, or'
  ' user=@FILE for a file with a name in each line. It can be given more than'
  ' once. It applies to the files that have these fields.',
)
_TOKENIZER = flags.DEFINE_string(
  'tokenizer',
  'gpt2_bpe',
  'The folder, in the data folder, of the tokenizer of GPT-2, whose first'
  ' tokens are used; or "learned" to learn a tokenizer from the texts.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'The folder to write to.', required=True
)
_DATA_DIR = shared_flags.data_dir()
_EPOCHS = flags.DEFINE_integer(
  'epochs',
  4,
  'The number of passes over the texts.',
  lower_bound=1,
  upper_bound=10_000,
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
  'vocabulary_size',
  8_192,
  'The number of tokens.',
  lower_bound=256,
  upper_bound=1_000_000,
)
_WIDTH = flags.DEFINE_integer(
  'width',
  128,
  'The width of the model; it has an attention head for each 64.',
  lower_bound=1,
  upper_bound=16_384,
)
_NUM_BLOCKS = flags.DEFINE_integer(
  'num_blocks',
  4,
  'The number of blocks of the model.',
  lower_bound=1,
  upper_bound=200,
)
_JOIN_TOKENS = flags.DEFINE_boolean(
  'join_tokens',
  True,
  "Whether to remove WikiText's spaces around punctuation marks, so that it is"
  ' spaced like other texts.',
)
_SEED = flags.DEFINE_integer(
  'seed',
  0,
  'The seed of all that is random.',
  lower_bound=0,
  upper_bound=2**31 - 1,
)


def _left_out() -> dict[str, list[str]]:
  """Reads --leave_out: the names, by the fields."""
  found: dict[str, list[str]] = {}
  for given in _LEAVE_OUT.value:
    fields, _, name = given.partition('=')
    if not (fields and name):
      raise errors.UserError(
        f'--leave_out takes FIELD=NAME or FIELD=@FILE, not {given!r}.'
      )
    names = [name]
    if name.startswith('@'):
      path = paths.user_path(name[1:])
      try:
        names = inputs.read_text(path).splitlines()
      except (OSError, ValueError) as error:
        raise errors.UserError(
          f'--leave_out: {path} cannot be read: {error}.'
        ) from error
    found.setdefault(fields, []).extend(filter(None, names))
  return found


def main() -> int:
  """Trains the model, and returns the exit status."""
  left_out, data_dir = _left_out(), _DATA_DIR()
  pretraining = launch.load('experiments.language_models.pretraining')
  return pretraining.main(
    pretraining.Settings(
      sources=tuple(_SOURCE.value),
      tokenizer=_TOKENIZER.value,
      epochs=_EPOCHS.value,
      vocabulary_size=_VOCABULARY_SIZE.value,
      width=_WIDTH.value,
      num_blocks=_NUM_BLOCKS.value,
      seed=_SEED.value,
      join_tokens=_JOIN_TOKENS.value,
      text_field=_TEXT_FIELD.value,
      left_out=left_out,
    ),
    data_dir,
    paths.user_path(_OUTPUT_DIR.value),
  )


if __name__ == '__main__':
  launch.start(main)
