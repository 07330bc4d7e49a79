"""StackOverflow: the next word of a post; each user is a client (Motley).

TFF's `tff.simulation.datasets.stackoverflow`: 342,477 users to train on and
38,758 held-out users; a sentence is an example. As in Motley (appendix B.1),
10,000 of the held-out users are validation clients and the rest test clients,
and the split that TFF calls test is not used. The first 1,024 sentences of each
user in the database are used; the largest user has 194,167. (Motley draws new
sentences of a training user in each round.) Held-out users adapt to the older
half of their sentences and are evaluated on the newer half.

A sentence is its first 20 words, numbered as in `tff.simulation.baselines`: 0
is padding, then follow the vocabulary, the 10,000 words that most users have,
one number for all other words, the beginning and the end of a sentence.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from base import settings
from tasks import registry
from tasks import task
from tasks.data import devices
from tasks.data import files
from tasks.data import populations
from tasks.data import tff_databases
from tasks.models import lstm

_FEATURES = {
  'tokens': tf.io.FixedLenFeature((), tf.string),
  'creation_date': tf.io.FixedLenFeature((), tf.string),
}
# Motley's 10,000 of the 38,758 held-out users; the others are test clients.
_VALIDATION = 10_000 / 38_758
_SENTENCE_LENGTH = 20


@dataclasses.dataclass(frozen=True)
class StackOverflowSettings(devices.HeldOutSettings):
  """The settings of StackOverflow."""

  max_examples: int = settings.field(
    1024, 'The largest number of sentences to take from a user.', minimum=1
  )
  vocabulary_size: int = settings.field(
    10_000, 'The number of words in the vocabulary.', minimum=1
  )
  word_counts: str | None = settings.field(
    None,
    'A file of all words, the most frequent first, with a line "word count"'
    ' for each; a relative path starts at the data_dir. None for the file that'
    ' TFF downloads.',
  )


def _read_word_counts(
  settings: StackOverflowSettings, data_dir: str | None
) -> Mapping[str, int]:
  """Reads the vocabulary and its counts, as TFF's `load_word_counts` does."""
  size = settings.vocabulary_size
  if settings.word_counts is None:
    try:
      return tff.simulation.datasets.stackoverflow.load_word_counts(
        cache_dir=data_dir, vocab_size=size
      )
    except Exception as error:  # Keras raises Exception itself.
      raise errors.UserError(
        f'TFF cannot download the word counts to {data_dir or "its cache"}'
        f' ({error}). Save stackoverflow.word_count there and name it as'
        ' task.word_counts.'
      ) from error
  path = pathlib.Path(
    data_dir or '', pathlib.Path(settings.word_counts).expanduser()
  )
  counts: dict[str, int] = {}
  where = f'{path}, which task.word_counts names,'
  advice = 'Name another file, or none to have it downloaded.'
  with (
    files.reading(where, 'lines of a word and its count', advice),
    path.open(encoding='utf-8') as file,
  ):
    for line in itertools.islice(file, size):
      word, count = line.split()
      counts[word] = int(count)
  return counts


class Vocabulary:
  """Words and their numbers."""

  def __init__(self, words: Sequence[str]):
    """Numbers these words from 1 on, and then the special words."""
    self._ids = {word.encode(): i for i, word in enumerate(words, 1)}
    self._unknown = len(words) + 1
    self._begin = len(words) + 2
    self._end = len(words) + 3

  def to_ids(
    self, sentences: Iterable[bytes], separator: bytes | None = b' '
  ) -> np.ndarray:
    """Numbers the words of sentences.

    Args:
      sentences: The sentences.
      separator: The bytes between two words; None for any white space.

    Returns:
      The numbers, `[sentences, 21]` int32: the beginning and 20 words, or the
      beginning, fewer words, the end and padding.
    """
    sentences = list(sentences)
    ids = np.zeros((len(sentences), 1 + _SENTENCE_LENGTH), np.int32)
    for row, sentence in zip(ids, sentences):
      numbers = [
        self._ids.get(word, self._unknown)
        for word in sentence.split(separator, _SENTENCE_LENGTH)[
          :_SENTENCE_LENGTH
        ]
      ]
      numbers = [self._begin, *numbers, self._end][: len(row)]
      row[: len(numbers)] = numbers
    return ids

  def to_examples(
    self, sentences: Iterable[bytes], separator: bytes | None = b' '
  ) -> populations.Examples:
    """Makes examples: 20 numbers, 'x', and the number after each, 'y'."""
    ids = self.to_ids(sentences, separator)
    return {'x': ids[:, :-1], 'y': ids[:, 1:]}


def load(
  settings: StackOverflowSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from TFF's database in `data_dir`, its cache folder."""
  del seed  # All randomness follows from `split_seed`.
  train, held_out = tff_databases.open_splits(
    'stackoverflow.sqlite',
    data_dir,
    tff.simulation.datasets.stackoverflow.load_data,
    ['train', 'heldout'],
    _FEATURES,
  )
  words = list(_read_word_counts(settings, data_dir))
  if len(words) < settings.vocabulary_size:
    raise errors.UserError(
      f'task.vocabulary_size is {settings.vocabulary_size}, but only'
      f' {len(words)} words are counted. Set at most this number.'
    )
  vocabulary = Vocabulary(words)

  def load_train(client_id: str, limit: int | None) -> populations.Examples:
    return vocabulary.to_examples(train.read(client_id, limit)['tokens'])

  def load_by_date(client_id: str, limit: int | None) -> populations.Examples:
    examples = held_out.read(client_id, limit)
    # The alphabetical order of the dates is their order in time.
    order = np.argsort(examples['creation_date'], kind='stable')
    return vocabulary.to_examples(examples['tokens'][order])

  train_ids = tuple(train.num_examples)
  validation, test, _ = (
    devices.Devices(client_ids, load_by_date, held_out.sizes(client_ids))
    for client_ids in settings.split(
      settings.permuted(list(held_out.num_examples)),
      _VALIDATION,
      1 - _VALIDATION,
    )
  )
  return task.Task(
    name='stackoverflow',
    model=lstm.NextWordLstm(settings.vocabulary_size),
    metric='accuracy',
    higher_is_better=True,
    batch_size=16,
    padded=False,
    vocabulary=tuple(words),
    **devices.make_populations(
      train=devices.Devices(train_ids, load_train, train.sizes(train_ids)),
      validation=validation,
      test=test,
      max_train_examples=settings.max_examples,
      max_held_out_examples=settings.max_examples,
    ),
  )


registry.register_task('stackoverflow', StackOverflowSettings)
