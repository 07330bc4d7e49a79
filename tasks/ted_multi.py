"""TedMulti-EnEs: the next word of a TED talk, in two languages (Motley).

A client is a talk in English or in Spanish with at least 20 sentences: 3,969
are training clients, 98 validation clients and 117 test clients. The vocabulary
has the 15,814 words that at least 20 clients have. `tasks.data.ted_talks` makes
the database, which has the split and the vocabulary. A client trains on at most
its first 512 sentences; held-out clients adapt to the first half of their talk
and are evaluated on the second.

A sentence is its first 20 words, numbered as in `tasks.stackoverflow`.
"""

import dataclasses

import tensorflow as tf

from base import settings
from tasks import registry
from tasks import stackoverflow
from tasks import task
from tasks.data import devices
from tasks.data import downloads
from tasks.data import populations
from tasks.data import ted_talks
from tasks.data import tff_databases
from tasks.models import transformer

_ADVICE = (
  'Make it from the public transcripts with the program'
  ' experiments/prepare_ted_multi, whose --help says how.'
)
_FEATURES = {ted_talks.FEATURE: tf.io.FixedLenFeature((), tf.string)}
_MAX_TRAIN_EXAMPLES = 512


@dataclasses.dataclass(frozen=True)
class TedMultiSettings(settings.Settings):
  """No settings: the database has the split and the vocabulary."""


def load(
  settings: TedMultiSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; a client's sentences are read each time they are needed."""
  del settings, seed
  path = downloads.find(ted_talks.DATABASE, data_dir, _ADVICE)
  splits = tff_databases.open_database(
    path, list(ted_talks.FILES), _FEATURES, _ADVICE
  )
  with tff_databases.reading(path, _ADVICE):
    rows = tff_databases.query(path, 'SELECT word FROM vocabulary')
    words = [word for (word,) in rows]
    if not words:
      raise ValueError('no words in its vocabulary')
    vocabulary = stackoverflow.Vocabulary(words)
    languages = {
      client_id: ted_talks.LANGUAGES.index(ted_talks.language(client_id))
      for clients in splits
      for client_id in clients.num_examples
    }

  def make_devices(clients: tff_databases.DatabaseClients) -> devices.Devices:
    def load_client(client_id: str, limit: int | None) -> populations.Examples:
      sentences = clients.read(client_id, limit)[ted_talks.FEATURE]
      return vocabulary.to_examples(sentences, separator=None)

    client_ids = tuple(clients.num_examples)
    return devices.Devices(client_ids, load_client, clients.sizes(client_ids))

  train, validation, test = map(make_devices, splits)
  return task.Task(
    name='ted_multi',
    model=transformer.NextWordTransformer(len(words)),
    metric='accuracy',
    higher_is_better=True,
    batch_size=16,
    padded=False,
    vocabulary=tuple(words),
    attributes={task.GROUP: task.Attribute(ted_talks.LANGUAGES, languages)},
    **devices.make_populations(
      train=train,
      validation=validation,
      test=test,
      max_train_examples=_MAX_TRAIN_EXAMPLES,
    ),
  )


registry.register_task('ted_multi', TedMultiSettings)
