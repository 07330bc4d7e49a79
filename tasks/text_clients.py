"""The base of the tasks of group-personalized FL (Liu et al.).

A client has sentences, and belongs to a known group. The character-aware LSTM
of `tasks.models.character_lstm` predicts the next word; the metric is the
perplexity over the words of all sentences together.

Three quarters of each client's sentences, drawn at random, are training
examples, as in the paper. Half of the others are validation examples and the
rest test examples; the paper has no validation. The task may hold out clients
instead: then their examples are halved as in other cross-device tasks, and a
group also has clients that were never trained on. The vocabulary is made from
the training examples.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from base import errors
from base import seeds
from base import settings
from tasks import task
from tasks.data import devices
from tasks.data import populations
from tasks.data import silos
from tasks.data import texts
from tasks.models import character_lstm

_FRACTIONS = {'train': 0.75, 'validation': 0.125, 'test': 0.125}
# The shares of clients, if they are held out.
_VALIDATION, _TEST = 0.125, 0.125


@dataclasses.dataclass(frozen=True)
class TextSettings(devices.HeldOutSettings):
  """The settings of a task of clients' sentences."""

  hold_out: str = settings.field(
    'examples',
    "Whether a quarter of each client's sentences are held out, or a quarter of"
    ' the clients, whose numbers are num_validation_clients and'
    ' num_test_clients.',
    choices=('examples', 'clients'),
  )
  min_sentences: int = settings.field(
    8,
    'The smallest number of sentences of a client; other clients are left out.',
    minimum=8,
  )
  vocabulary_size: int = settings.field(
    5_000,
    'The largest number of words in the vocabulary: the most frequent words in'
    ' the training examples.',
    minimum=1,
  )
  sentence_length: int = settings.field(
    20,
    'The number of words in an example. A longer sentence continues in the next'
    ' example.',
    minimum=2,
  )
  word_length: int = settings.field(
    16, 'The number of characters of a word that the model reads.', minimum=1
  )
  filters: tuple[int, ...] = settings.field(
    (5, 10, 15, 20, 25, 25),
    "The number of the model's filters of 1, 2, … characters. Their sum is the"
    ' width of a word.',
    minimum=1,
  )
  lstm_size: int = settings.field(
    128, "The number of units of each of the model's LSTMs.", minimum=1
  )
  num_lstms: int = settings.field(
    2, "The number of the model's LSTMs.", minimum=1
  )


def _count(text_settings: TextSettings, text: texts.Text) -> int:
  """Counts the examples of a text."""
  return int(
    texts.count_pieces(text.lengths, text_settings.sentence_length).sum()
  )


def _cut(
  text_settings: TextSettings, text: texts.Text, vocabulary: Sequence[str]
) -> populations.Examples:
  """Makes the examples of a text with numbered words."""
  return texts.cut(
    text.sentences(), len(vocabulary), text_settings.sentence_length
  )


def _cross_silo(
  name: str,
  text_settings: TextSettings,
  corpus: texts.Corpus,
  client_ids: Sequence[str],
) -> tuple[list[str], populations.Populations]:
  """Makes the vocabulary and the populations, if sentences are held out."""
  parts = {
    client_id: texts.split(
      corpus.texts[client_id],
      _FRACTIONS,
      seeds.generator(name, text_settings.split_seed, client_id),
    )
    for client_id in client_ids
  }
  vocabulary = corpus.most_frequent(
    (of_client['train'] for of_client in parts.values()),
    text_settings.vocabulary_size,
  )
  numbering = corpus.numbering(vocabulary)

  def load(client_id: str, part: str) -> populations.Examples:
    return _cut(
      text_settings, parts[client_id][part].renumber(numbering), vocabulary
    )

  sizes = {
    part: np.array(
      [_count(text_settings, of_client[part]) for of_client in parts.values()]
    )
    for part in _FRACTIONS
  }
  return vocabulary, silos.make_lazy_populations(client_ids, load, sizes)


def _cross_device(
  text_settings: TextSettings, corpus: texts.Corpus, client_ids: Sequence[str]
) -> tuple[list[str], populations.Populations]:
  """Makes the vocabulary and the populations, if clients are held out."""
  validation, test, train = text_settings.split(
    text_settings.permuted(client_ids), _VALIDATION, _TEST
  )
  vocabulary = corpus.most_frequent(
    (corpus.texts[client_id] for client_id in train),
    text_settings.vocabulary_size,
  )
  numbering = corpus.numbering(vocabulary)

  def load(client_id: str, limit: int | None) -> populations.Examples:
    text = corpus.texts[client_id].renumber(numbering)
    return populations.take(_cut(text_settings, text, vocabulary), slice(limit))

  def make_devices(client_ids: Sequence[str]) -> devices.Devices:
    sizes = [_count(text_settings, corpus.texts[c]) for c in client_ids]
    return devices.Devices(tuple(client_ids), load, np.array(sizes))

  return vocabulary, devices.make_populations(
    train=make_devices(train),
    validation=make_devices(validation),
    test=make_devices(test),
  )


def make_task(
  name: str,
  text_settings: TextSettings,
  corpus: texts.Corpus,
  group_names: Sequence[str],
  groups: Mapping[str, int],
) -> task.Task:
  """Makes the task.

  Args:
    name: Its name.
    text_settings: Its settings.
    corpus: The sentences of all clients.
    group_names: The names of the groups.
    groups: The group of each client.

  Returns:
    The task.

  Raises:
    UserError: If no client has enough sentences.
  """
  client_ids = tuple(
    client_id
    for client_id, text in corpus.texts.items()
    if len(text.ends) >= text_settings.min_sentences
  )
  if not client_ids:
    raise errors.UserError(
      f'No client of {name} has'
      f' task.min_sentences={text_settings.min_sentences} sentences. Set a'
      ' smaller number, or replace the data.'
    )

  if text_settings.hold_out == 'examples':
    vocabulary, held_out = _cross_silo(name, text_settings, corpus, client_ids)
  else:
    vocabulary, held_out = _cross_device(text_settings, corpus, client_ids)
  return task.Task(
    name=name,
    model=character_lstm.CharacterLstm.create(
      vocabulary,
      text_settings.word_length,
      sequence_length=text_settings.sentence_length,
      filters=text_settings.filters,
      lstm_size=text_settings.lstm_size,
      num_lstms=text_settings.num_lstms,
    ),
    metric='perplexity',
    higher_is_better=False,
    batch_size=8,
    padded=False,
    attributes={
      task.GROUP: task.Attribute(
        tuple(group_names), {c: groups[c] for c in client_ids}
      )
    },
    vocabulary=tuple(vocabulary),
    **held_out,
  )
