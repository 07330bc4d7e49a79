"""TedMulti-EnEs: the next word of a TED talk, in two languages (Motley).

A client is a talk in English or in Spanish, of 20 sentences at least: 3,969 are
to train on, 98 to choose by and 117 to report. The vocabulary is the words that
20 clients have, 15,814. `tasks.data.ted_talks` makes the database that is
read here, and has the split. A client is trained on its first 512 sentences at
most; those that are held out adapt to the first half of their talk and are
judged by the second.

A sentence is its first 20 words, numbered as in `tasks.stackoverflow`.
"""

import dataclasses
import sqlite3

import numpy as np
import tensorflow as tf

from base import errors
from base import settings
from tasks import stackoverflow
from tasks import task
from tasks.data import client_data
from tasks.data import downloads
from tasks.data import ted_talks
from tasks.data import tff_databases
from tasks.models import transformer

_ADVICE = (
  'Make it of the public transcripts by the program'
  ' experiments/prepare_ted_multi, whose --help says how.'
)
_FEATURES = {ted_talks.FEATURE: tf.io.FixedLenFeature((), tf.string)}
_MAX_TRAIN_EXAMPLES = 512


@dataclasses.dataclass(frozen=True)
class Parameters(settings.Settings):
  """None: the database has the split and the vocabulary."""


def load(parameters: Parameters, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; the sentences of a client are read when asked for."""
  del parameters, seed
  path = downloads.find(ted_talks.DATABASE, data_dir, _ADVICE)
  splits = tff_databases.open_database(
    path, list(ted_talks.FILES), _FEATURES, _ADVICE
  )
  try:
    rows = tff_databases.query(path, 'SELECT word FROM vocabulary')
  except sqlite3.Error as error:
    raise errors.UserError(f'{path} is damaged ({error}). {_ADVICE}') from error
  vocabulary = stackoverflow.Vocabulary([word for (word,) in rows])

  def loader(
    clients: tff_databases.Clients, limit: int | None = None
  ) -> client_data.Load:
    def load_client(client_id: str) -> client_data.Examples:
      sentences = clients.read(client_id, limit)[ted_talks.FEATURE]
      ids = vocabulary.to_ids(sentences, separator=None)
      return {'x': ids[:, :-1], 'y': ids[:, 1:]}

    return load_client

  def population(
    clients: tff_databases.Clients, is_held_out: bool
  ) -> client_data.Population:
    client_ids = tuple(clients.num_examples)
    sizes = clients.sizes(client_ids)
    if is_held_out:
      return client_data.Population(
        client_ids,
        client_data.halves(loader(clients)),
        client_data.half_sizes(sizes),
      )
    return client_data.Population(
      client_ids,
      {'train': loader(clients, _MAX_TRAIN_EXAMPLES)},
      {'train': np.minimum(sizes, _MAX_TRAIN_EXAMPLES)},
    )

  train, validation, test = splits
  return task.Task(
    name='ted_multi',
    model=transformer.NextWordTransformer(len(rows)),
    metric='accuracy',
    higher_is_better=True,
    train=population(train, is_held_out=False),
    validation=population(validation, is_held_out=True),
    test=population(test, is_held_out=True),
    cross_silo=False,
    batch_size=16,
    padded=False,
    attributes={
      task.GROUP: task.Attribute(
        ted_talks.LANGUAGES,
        {
          client_id: ted_talks.LANGUAGES.index(ted_talks.language(client_id))
          for clients in splits
          for client_id in clients.num_examples
        },
      )
    },
  )
