"""StackOverflow: the next word of a post, a user a client (Motley).

TFF's `tff.simulation.datasets.stackoverflow`: 342,477 users to train on and
38,758 that are held out, a sentence an example. As in Motley (appendix B.1),
10,000 of those held out are to choose by and the rest to report, and what TFF
calls the test split is left alone. Of no user more than 1,024 sentences are
taken, the first in the database: the largest has 194,167. (Of a user that is
trained on, Motley takes those anew in each round.) Users that are held out
adapt to the older half of theirs and are judged by the newer.

A sentence is its first 20 words, numbered as in `tff.simulation.baselines`: 0
is padding, the vocabulary of the 10,000 words that most users have follows,
then what stands for any other word, the beginning and the end of a sentence.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from base import settings
from tasks import task
from tasks.data import client_data
from tasks.data import tff_databases
from tasks.models import lstm

_FEATURES = {
  'tokens': tf.io.FixedLenFeature((), tf.string),
  'creation_date': tf.io.FixedLenFeature((), tf.string),
}
# Motley's 10,000 of 38,758 that are held out; the others are to report.
_VALIDATION = 10_000 / 38_758
_SENTENCE_LENGTH = 20


@dataclasses.dataclass(frozen=True)
class Parameters(tff_databases.Parameters):
  """The settings of the task."""

  max_examples: int = settings.field(
    1024, 'The most sentences to take of a user.', minimum=1
  )
  vocabulary_size: int = settings.field(
    10_000, 'The number of words that are told apart.', minimum=1
  )
  word_counts: str | None = settings.field(
    None,
    'A file of all words, the most frequent first, a line "word count" each;'
    ' a relative path starts at the data_dir. None for the one that TFF'
    ' downloads.',
  )


def _read_word_counts(
  parameters: Parameters, data_dir: str | None
) -> Mapping[str, int]:
  """The vocabulary's words and their counts, as TFF's `load_word_counts`."""
  size = parameters.vocabulary_size
  if parameters.word_counts is None:
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
    data_dir or '', pathlib.Path(parameters.word_counts).expanduser()
  )
  counts = {}
  try:
    with path.open(encoding='utf-8') as file:
      for line in itertools.islice(file, size):
        word, count = line.split()
        counts[word] = int(count)
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'{path}, which task.word_counts names, cannot be read as lines of a'
      f' word and its count ({error}).'
    ) from error
  return counts


class Vocabulary:
  """Words and their numbers."""

  def __init__(self, words: Sequence[str]):
    self._ids = {word.encode(): i for i, word in enumerate(words, 1)}
    self._unknown = len(words) + 1
    self._begin = len(words) + 2
    self._end = len(words) + 3

  def to_ids(
    self, sentences: Sequence[bytes], separator: bytes | None = b' '
  ) -> np.ndarray:
    """Numbers the words of sentences.

    Args:
      sentences: The sentences.
      separator: What is between two words; None for any white space.

    Returns:
      The numbers, int32: the beginning, 20 words, or less and the end, and
      padding.
    """
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


def load(parameters: Parameters, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task from TFF's database in `data_dir`, its cache folder."""
  del seed  # Only the split is random, and goes by `split_seed`.
  train, held_out = tff_databases.open_splits(
    'stackoverflow.sqlite',
    data_dir,
    tff.simulation.datasets.stackoverflow.load_data,
    ['train', 'heldout'],
    _FEATURES,
  )
  words = list(_read_word_counts(parameters, data_dir))
  if len(words) < parameters.vocabulary_size:
    raise errors.UserError(
      f'task.vocabulary_size is {parameters.vocabulary_size}, but only'
      f' {len(words)} words are counted. Name at most that.'
    )
  vocabulary = Vocabulary(words)

  def to_examples(sentences: Sequence[bytes]) -> client_data.Examples:
    ids = vocabulary.to_ids(sentences)
    return {'x': ids[:, :-1], 'y': ids[:, 1:]}

  def in_database(client_id: str) -> client_data.Examples:
    return to_examples(train.read(client_id, parameters.max_examples)['tokens'])

  def by_date(client_id: str) -> client_data.Examples:
    own = held_out.read(client_id, parameters.max_examples)
    # Dates are written so that their order is that of the alphabet.
    order = np.argsort(own['creation_date'], kind='stable')
    return to_examples(own['tokens'][order])

  def sizes(
    users: tff_databases.Clients, client_ids: Sequence[str]
  ) -> np.ndarray:
    return np.minimum(users.sizes(client_ids), parameters.max_examples)

  def halved(client_ids: Sequence[str]) -> client_data.Population:
    return client_data.Population(
      client_ids,
      client_data.halves(by_date),
      client_data.half_sizes(sizes(held_out, client_ids)),
    )

  validation, test, _ = parameters.split(
    parameters.permuted(list(held_out.num_examples)),
    _VALIDATION,
    1 - _VALIDATION,
  )
  train_ids = tuple(train.num_examples)
  return task.Task(
    name='stackoverflow',
    model=lstm.NextWordLstm(parameters.vocabulary_size),
    metric='accuracy',
    higher_is_better=True,
    train=client_data.Population(
      train_ids, {'train': in_database}, {'train': sizes(train, train_ids)}
    ),
    validation=halved(validation),
    test=halved(test),
    cross_silo=False,
    batch_size=16,
    padded=False,
  )
