"""Makes the database of TedMulti from the public transcripts of TED talks.

Qi et al. 2018 split the talks into three files, which Motley's code uses as
they are: all_talks_train.tsv for the clients to train on, all_talks_dev.tsv for
validation, all_talks_test.tsv for the test. A row is a sentence; one column has
the name of the talk, and each other column has the sentence in a language. A
client is a talk in a language, with its sentences in their order.

As in Motley's code, a sentence is converted to lower case and loses its
punctuation. Both affect only ASCII: letters with accents stay as they are.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import io
import pathlib
import sqlite3
import string
import tempfile

import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks.data import files

FILES = {
  'train': 'all_talks_train.tsv',
  'validation': 'all_talks_dev.tsv',
  'test': 'all_talks_test.tsv',
}
LANGUAGES = ('en', 'es')
MIN_SENTENCES = 20
MIN_CLIENTS = 20

# The database's path below the folder of the data, and its only feature: the
# words of a sentence, separated by spaces.
DATABASE = 'ted_multi/ted_multi_en_es.sqlite'
FEATURE = 'tokens'

_ARCHIVE = 'http://phontron.com/data/ted_talks.tar.gz'
_TALK = 'talk_name'
_MISSING = ('__NULL__', '_ _ NULL _ _')
_PUNCTUATION = string.punctuation.encode()

# Called with the progress: the number of bytes read, or of clients written.
ShowProgress = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Talks:
  """Talks as clients.

  Attributes:
    sentences: Each client's sentences, words separated by a space.
    splits: The population of each client: 'train', 'validation' or 'test'.
    vocabulary: The words that at least `MIN_CLIENTS` of the clients to train on
      have, each with the number of these clients; the most common first.
  """

  sentences: Mapping[str, Sequence[bytes]]
  splits: Mapping[str, str]
  vocabulary: Sequence[tuple[str, int]]


def language(client_id: str) -> str:
  """Returns the language of a client, given its id."""
  return client_id.partition('-')[0]


def size(source: pathlib.Path) -> int:
  """Adds up the sizes of the files, in bytes.

  Args:
    source: The folder of the files.

  Returns:
    The size.

  Raises:
    UserError: If one of them does not exist.
  """
  for name in FILES.values():
    if not (source / name).is_file():
      raise errors.UserError(
        f'There is no {source / name}. Unpack {_ARCHIVE} and name its folder as'
        ' the source.'
      )
  return sum((source / name).stat().st_size for name in FILES.values())


def _words(sentence: str) -> bytes:
  """Puts a sentence into lower case, without punctuation."""
  text = sentence.encode().lower().translate(None, _PUNCTUATION)
  return b' '.join(text.split())


def _read_file(
  path: pathlib.Path, show: ShowProgress
) -> Iterator[tuple[str, bytes]]:
  """Reads the client and the words of each sentence."""
  advice = f'Replace it with the file in {_ARCHIVE}'
  with (
    files.reading(path, 'a table of sentences', advice),
    path.open('rb') as file,
  ):
    text = io.TextIOWrapper(file, encoding='utf-8')
    rows = csv.DictReader(text, delimiter='\t', quoting=csv.QUOTE_NONE)
    missing = {_TALK, *LANGUAGES} - set(rows.fieldnames or ())
    if missing:
      raise ValueError(f'it has no column {min(missing)!r}')
    row: dict[str, str] = {}
    for row in rows:
      show(file.tell())
      for code in LANGUAGES:
        sentence = row[code]
        if sentence and not any(mark in sentence for mark in _MISSING):
          yield f'{code}-{row[_TALK]}', _words(sentence)
    if not row:
      raise ValueError('it has no sentences')


def read(source: pathlib.Path, show: ShowProgress = lambda done: None) -> Talks:
  """Reads the talks.

  Args:
    source: The folder of the files.
    show: Called with the number of bytes that were read.

  Returns:
    The clients that have enough sentences.

  Raises:
    UserError: If a file does not exist or has another form.
  """
  size(source)  # Raises if a file does not exist.
  all_sentences = collections.defaultdict(list)
  splits: dict[str, str] = {}
  before = 0
  for split, name in FILES.items():
    path = source / name
    for client_id, words in _read_file(path, lambda n: show(before + n)):  # noqa: B023
      all_sentences[client_id].append(words)
      # A talk that is in several files belongs to the first of them.
      splits.setdefault(client_id, split)
    before += path.stat().st_size

  sentences = {
    client_id: talk
    for client_id, talk in sorted(all_sentences.items())
    if len(talk) >= MIN_SENTENCES
  }
  counts: collections.Counter[bytes] = collections.Counter()
  for client_id, talk in sentences.items():
    if splits[client_id] == 'train':
      counts.update(set(b' '.join(talk).split()))
  vocabulary = [
    (word.decode(), count)
    for word, count in counts.items()
    if count >= MIN_CLIENTS
  ]
  if not vocabulary:
    raise errors.UserError(
      f'{source} is too small: no word is in {MIN_CLIENTS} talks of'
      f' {MIN_SENTENCES} sentences. Use the files in {_ARCHIVE}'
    )
  return Talks(
    sentences,
    {client_id: splits[client_id] for client_id in sentences},
    sorted(vocabulary, key=lambda item: (-item[1], item[0])),
  )


def write(
  talks: Talks,
  path: pathlib.Path,
  show: ShowProgress = lambda done: None,
) -> None:
  """Writes the database, a `tff.simulation.datasets.SqlClientData`.

  It also has the vocabulary, as a separate table.

  Args:
    talks: The talks.
    path: Its path. The file appears there when it is complete.
    show: Called with the number of clients that were written.

  Raises:
    UserError: If it cannot be written there.
  """
  client_ids = list(talks.sentences)
  place = {client_id: i for i, client_id in enumerate(client_ids)}

  def dataset(client_id: str) -> tf.data.Dataset:
    show(place[client_id])
    return tf.data.Dataset.from_tensor_slices(
      {FEATURE: talks.sentences[client_id]}
    )

  try:
    with errors.writing(path):
      path.parent.mkdir(parents=True, exist_ok=True)
    with (
      errors.writing(path),
      tempfile.TemporaryDirectory(dir=path.parent) as folder,
    ):
      temporary = pathlib.Path(folder) / path.name
      tff.simulation.datasets.save_to_sql_client_data(
        client_ids,
        dataset,
        str(temporary),
        split_names_by_client_id=talks.splits,
      )
      with contextlib.closing(sqlite3.connect(temporary)) as database:
        # Without an index, reading a client would search all sentences.
        database.execute('CREATE INDEX by_client ON examples (client_id)')
        database.execute(
          'CREATE TABLE vocabulary (word TEXT NOT NULL, num_clients INTEGER)'
        )
        database.executemany(
          'INSERT INTO vocabulary VALUES (?, ?)', talks.vocabulary
        )
        database.commit()
      temporary.chmod(0o644)  # TFF makes it readable by its owner only.
      temporary.replace(path)
  except (sqlite3.Error, tf.errors.OpError) as error:
    raise errors.UserError(f'{path} cannot be written ({error}).') from error
  show(len(client_ids))
