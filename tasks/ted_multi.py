"""TedMulti-EnEs: the next word of a TED talk, in two languages (Motley).

A client is a talk in English or in Spanish, of 20 sentences at least: 3,969 are
to train on, 98 for the validation and 117 for the test. The vocabulary is the
words that 20 clients have, 15,814. `tasks.ted_talks` makes the database that is
read here. A client is trained on 512 sentences at most; those that are held out
adapt to the first half of their talk and are judged by the second.

A sentence is its first 20 words, numbered as `tasks.models.next_word` says.
"""

from collections.abc import Iterable, Mapping
import contextlib
import dataclasses
import functools
import pathlib
import sqlite3

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import client_data
from tasks import downloads
from tasks import errors
from tasks import parameters as parameters_lib
from tasks import task
from tasks.models import transformer

FILE = 'ted_multi/ted_multi_en_es.sqlite'

_ADVICE = (
  'Make it of the public transcripts by the program'
  ' experiments/prepare_ted_multi, whose --help says how.'
)
_LENGTH = 20
_MAX_TRAIN_EXAMPLES = 512


@dataclasses.dataclass(frozen=True)
class Parameters(parameters_lib.Parameters):
  """The task has no settings: the split is that of its source."""


def _query(path: pathlib.Path, query: str) -> list[tuple]:
  """The rows that the database answers with."""
  try:
    uri = f'{path.absolute().as_uri()}?mode=ro'
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
      return database.execute(query).fetchall()
  except sqlite3.Error as error:
    raise errors.UserError(
      f'{path} cannot be read as a database of talks ({error}). {_ADVICE}'
    ) from error


def to_examples(
  sentences: Iterable[bytes], vocabulary: Mapping[bytes, int]
) -> client_data.Examples:
  """Sentences as numbers of words, 'x', and of the words that follow, 'y'."""
  unknown, begin, end = range(len(vocabulary) + 1, len(vocabulary) + 4)
  sentences = [sentence.split()[:_LENGTH] for sentence in sentences]
  ids = np.zeros([len(sentences), _LENGTH + 1], np.int32)
  for row, words in zip(ids, sentences):
    numbers = [begin, *(vocabulary.get(word, unknown) for word in words), end]
    row[: len(numbers)] = numbers[: len(row)]
  return {'x': ids[:, :-1], 'y': ids[:, 1:]}


def load(parameters: Parameters, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; the sentences of a client are read once, when needed."""
  del parameters, seed
  path = downloads.find(FILE, data_dir, _ADVICE)
  words = _query(path, 'SELECT word FROM vocabulary ORDER BY rowid')
  vocabulary = {word.encode(): i for i, (word,) in enumerate(words, 1)}
  clients = _query(path, 'SELECT client_id, split_name FROM client_metadata')
  talks = tff.simulation.datasets.load_and_parse_sql_client_data(
    str(path), {'tokens': tf.TensorSpec([], tf.string)}
  )

  # All of them take some 80 MB.
  @functools.cache
  def examples(client_id: str) -> client_data.Examples:
    dataset = talks.create_tf_dataset_for_client(client_id)
    return to_examples(
      [own['tokens'] for own in dataset.as_numpy_iterator()], vocabulary
    )

  def some_examples(client_id: str) -> client_data.Examples:
    return {
      name: values[:_MAX_TRAIN_EXAMPLES]
      for name, values in examples(client_id).items()
    }

  def population(
    split: str, sets: Mapping[str, client_data.Load]
  ) -> client_data.Population:
    return client_data.Population(
      tuple(client_id for client_id, own in clients if own == split), sets
    )

  held_out = client_data.halves(examples)
  return task.Task(
    name='ted_multi',
    model=transformer.next_word_transformer(
      len(vocabulary), sequence_length=_LENGTH
    ),
    metric='accuracy',
    higher_is_better=True,
    train=population('train', {'train': some_examples}),
    validation=population('validation', held_out),
    test=population('test', held_out),
    cross_silo=False,
    batch_size=16,
    padded=False,
  )
