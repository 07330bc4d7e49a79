"""Sent140: whether a tweet is happy or sad; each user is a client (Self-FL).

The 1,600,000 tweets of Sentiment140 (Go et al. 2009). As in FedProx (Li et al.
2020) and Self-FL, clients are 772 users, drawn from those with more than 30
tweets. A tweet is its first 25 words and marks, as embeddings of GloVe that are
not trained; words that GloVe does not have, and padding, which comes last, are
zero. FedProx looks words up as they are written; here they are converted to
lower case, as in GloVe. A tenth of each client's tweets are validation examples
and a tenth test examples (cross-silo).
"""

import collections
from collections.abc import Iterator, Set
import csv
import dataclasses
import pathlib
import re

import numpy as np

from base import errors
from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks.data import arrays
from tasks.data import downloads
from tasks.data import files
from tasks.data import populations
from tasks.data import silos
from tasks.models import lstm

_FILE = 'training.1600000.processed.noemoticon.csv'
_ADVICE = (
  'Unpack http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip in the'
  ' folder sent140 of the data_dir.'
)
_ADVICE_ON_GLOVE = (
  'Unpack https://nlp.stanford.edu/data/glove.6B.zip in the folder glove of the'
  ' data_dir, or name another file as task.embeddings: lines of a word and its'
  ' numbers, or a NumPy file (.npz) of words and vectors.'
)
_POSITIVE = {'0': 0, '4': 1}
_ROW = 'a label, 0 or 4, an id, a date, a query, a user and a text'
_SEQUENCE_LENGTH = 25
_WORDS = re.compile(r"[\w']+|[.,!?;]")


@dataclasses.dataclass(frozen=True)
class Sent140Settings(silos.SplitSettings):
  """The settings of Sent140."""

  num_clients: int = settings.field(772, 'The number of users.', minimum=1)
  min_tweets: int = settings.field(
    31, 'The smallest number of tweets of a user.', minimum=1
  )
  users_seed: int = settings.field(
    0,
    'The seed of the choice of users, which does not depend on the seed of the'
    ' run.',
    minimum=0,
    maximum=2**32 - 1,
  )
  embeddings: str = settings.field(
    'glove.6B.300d.txt', 'The file of the embeddings in the folder glove.'
  )
  lstm_size: int = settings.field(
    256, 'The number of units of each of the two LSTM layers.', minimum=1
  )


def _read_tweets(
  path: pathlib.Path,
) -> dict[str, list[tuple[int, str]]]:
  """Reads the label and the text of each user's tweets."""
  tweets = collections.defaultdict(list)
  with (
    files.reading(path, 'tweets', _ADVICE),
    path.open(encoding='latin-1', newline='') as file,
  ):
    rows = csv.reader(file)
    for row in rows:
      with files.reading(f'{path}, line {rows.line_num},', _ROW, _ADVICE):
        label, _, _, _, user, text = row
        tweets[user].append((_POSITIVE[label], text))
  return tweets


def _read_vectors(
  path: pathlib.Path, wanted: Set[str]
) -> Iterator[tuple[str, np.ndarray]]:
  """Reads the embeddings of some words."""
  if path.suffix == '.npz':
    with np.load(path, allow_pickle=False) as file:
      for word, vector in zip(file['words'], file['vectors'], strict=True):
        if word in wanted:
          yield str(word), arrays.convert(vector, np.float32, f'{word}')
    return
  with path.open(encoding='utf-8') as lines:
    for line in lines:
      word, *numbers = line.rstrip().split(' ')
      if word in wanted:
        yield word, arrays.convert(np.array(numbers, float), np.float32, word)


def read_embeddings(
  path: pathlib.Path, wanted: Set[str]
) -> tuple[dict[str, int], np.ndarray]:
  """Reads the embeddings of some words, as far as the file has them.

  Args:
    path: The file.
    wanted: The words.

  Returns:
    The row of each word, from 1 on; and the embeddings, in which row 0 is zero.

  Raises:
    UserError: If they cannot be read.
  """
  with files.reading(path, 'embeddings', _ADVICE_ON_GLOVE):
    vectors = dict(_read_vectors(path, wanted))
    if not vectors:
      raise ValueError('it has no word of the texts')
    table = np.stack(list(vectors.values()))
    if table.ndim != 2 or not table.size:
      raise ValueError('a word has no numbers')
  rows = {word: row for row, word in enumerate(vectors, 1)}
  return rows, np.concatenate([np.zeros_like(table[:1]), table])


def split_words(text: str) -> list[str]:
  """Returns the first words and marks of a text, in lower case."""
  return _WORDS.findall(text.lower())[:_SEQUENCE_LENGTH]


def _choose_users(
  settings: Sent140Settings, tweets: dict[str, list[tuple[int, str]]]
) -> list[str]:
  """Draws the users that are the clients."""
  enough = sorted(
    u for u, of_user in tweets.items() if len(of_user) >= settings.min_tweets
  )
  if len(enough) < settings.num_clients:
    raise errors.UserError(
      f'{len(enough)} users have {settings.min_tweets} tweets, but'
      f' task.num_clients is {settings.num_clients}. Set a smaller number of'
      ' clients, or of task.min_tweets.'
    )
  rng = seeds.generator('sent140', settings.users_seed)
  return sorted(
    rng.choice(enough, settings.num_clients, replace=False).tolist()
  )


def load(
  settings: Sent140Settings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  tweets = _read_tweets(downloads.find(f'sent140/{_FILE}', data_dir, _ADVICE))
  clients: dict[str, np.ndarray] = {}
  labels: list[int] = []
  texts: list[list[str]] = []
  for user in _choose_users(settings, tweets):
    clients[user] = len(labels) + np.arange(len(tweets[user]))
    for label, text in tweets[user]:
      labels.append(label)
      texts.append(split_words(text))
  rows, embedding = read_embeddings(
    downloads.find(f'glove/{settings.embeddings}', data_dir, _ADVICE_ON_GLOVE),
    set().union(*texts),
  )
  x = np.zeros((len(texts), _SEQUENCE_LENGTH), np.int32)
  for row, words in zip(x, texts):
    row[: len(words)] = [rows.get(word, 0) for word in words]
  y = np.array(labels, np.int32)

  def take(rows: np.ndarray) -> populations.Examples:
    return {'x': x[rows], 'y': y[rows]}

  return task.Task(
    name='sent140',
    model=lstm.TextLstm(
      embedding.shape[1],
      lstm_size=settings.lstm_size,
      frozen=collections.OrderedDict(embedding=embedding),
    ),
    metric='accuracy',
    higher_is_better=True,
    batch_size=10,
    padded=False,
    **silos.make_populations_of_rows(clients, take, settings.seed(seed)),
  )


registry.register_task('sent140', Sent140Settings)
