"""Texts of clients: sentences as numbers of words, and as examples.

Words are numbered as in `tasks.models.next_word`: 0 is padding, the vocabulary
starts at 1, then follow unknown words, the beginning and the end of a sentence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import gzip
import json
import pathlib
from typing import TypeVar

import numpy as np

from base import aliases
from tasks.data import downloads
from tasks.data import files
from tasks.data import populations

_T = TypeVar('_T')
# Stands for an unknown word in a text.
UNKNOWN = '<unk>'


@dataclasses.dataclass(frozen=True)
class Text:
  """The sentences of a client.

  Attributes:
    words: The numbers of all words, one sentence after the other.
    ends: The end of each sentence among the words.
  """

  words: np.ndarray
  ends: np.ndarray

  @property
  def lengths(self) -> np.ndarray:
    """The number of words of each sentence."""
    return np.diff(self.ends, prepend=0)

  def sentences(self) -> list[np.ndarray]:
    """Returns the sentences, one by one."""
    return np.split(self.words, self.ends[:-1]) if len(self.ends) else []

  def renumber(self, numbering: np.ndarray) -> 'Text':
    """Renumbers the words, see `Corpus.numbering`."""
    return dataclasses.replace(self, words=numbering[self.words])

  def take(self, chosen: np.ndarray) -> 'Text':
    """Returns the sentences in a mask."""
    return Text(
      self.words[np.repeat(chosen, self.lengths)],
      np.cumsum(self.lengths[chosen]),
    )


class Corpus:
  """The texts of many clients, whose words are numbered as they occur."""

  def __init__(self) -> None:
    self._numbers: dict[str, int] = {}
    self.texts: dict[str, Text] = {}

  def add(self, client_id: str, sentences: Iterable[Sequence[str]]) -> None:
    """Adds a client by its sentences; those without words are left out."""
    numbers = self._numbers
    rows = [
      [numbers.setdefault(word, len(numbers)) for word in sentence]
      for sentence in sentences
      if sentence
    ]
    words = np.array([word for row in rows for word in row], np.int32)
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    self.texts[client_id] = Text(words, ends)

  def most_frequent(self, texts: Iterable[Text], size: int) -> list[str]:
    """Finds the words that are most frequent in some texts.

    Args:
      texts: The texts.
      size: The largest number of words to find.

    Returns:
      The words, the most frequent first, and equally frequent ones in
      alphabetical order. `UNKNOWN` is not among them.
    """
    counts = np.bincount(
      np.concatenate([text.words for text in texts]),
      minlength=len(self._numbers),
    )
    found = [
      (-counts[number], word)
      for word, number in self._numbers.items()
      if counts[number] and word != UNKNOWN
    ]
    return [word for _, word in sorted(found)[:size]]

  def numbering(self, vocabulary: Sequence[str]) -> np.ndarray:
    """Returns the number in a vocabulary of each word of the corpus."""
    final = np.full(len(self._numbers), len(vocabulary) + 1, np.int32)
    for number, word in enumerate(vocabulary, 1):
      final[self._numbers[word]] = number
    return final


def number_words(
  sentences: Iterable[Sequence[str]], vocabulary: Sequence[str]
) -> list[np.ndarray]:
  """Numbers the words of sentences by a vocabulary."""
  numbers = {word: number for number, word in enumerate(vocabulary, 1)}
  unknown = len(vocabulary) + 1
  return [
    np.array([numbers.get(word, unknown) for word in sentence], np.int32)
    for sentence in sentences
  ]


def count_pieces(lengths: np.ndarray, piece_length: int) -> np.ndarray:
  """Counts the examples from sentences of these lengths, see `cut`."""
  return -(-(lengths + 1) // piece_length)


def cut(
  sentences: Iterable[np.ndarray], vocabulary_size: int, piece_length: int
) -> populations.Examples:
  """Makes examples in which each word, and each end, is predicted once.

  A sentence with more words than an example has continues in the next example,
  whose first prediction knows only the word before.

  Args:
    sentences: The numbers of the words of each sentence.
    vocabulary_size: The number of words in the vocabulary.
    piece_length: The number of words in an example.

  Returns:
    The words, 'x', and the word after each, 'y', `[examples, piece_length]`.
  """
  begin, end = vocabulary_size + 2, vocabulary_size + 3
  sentences = list(sentences)
  pieces = count_pieces(
    np.array([len(s) for s in sentences], int), piece_length
  )
  x, y = np.zeros([2, pieces.sum(), piece_length], np.int32)
  for sentence, number, last in zip(sentences, pieces, np.cumsum(pieces)):
    first, size = last - number, len(sentence) + 1
    x[first:last].reshape(-1)[:size] = [begin, *sentence]
    y[first:last].reshape(-1)[:size] = [*sentence, end]
  return {'x': x, 'y': y}


def split(
  text: Text, fractions: Mapping[str, float], rng: np.random.Generator
) -> dict[str, Text]:
  """Splits the sentences of a client at random.

  Args:
    text: The client's sentences.
    fractions: The fraction of the sentences in each part, rounded down; the
      last part has all that are left.
    rng: Draws the parts.

  Returns:
    The parts; in each, the sentences are in the order of the text.
  """
  size = len(text.ends)
  *sizes, _ = (int(size * fraction) for fraction in fractions.values())
  part = np.repeat(np.arange(len(fractions)), [*sizes, size - sum(sizes)])
  part = part[rng.permutation(size)]
  return {name: text.take(part == i) for i, name in enumerate(fractions)}


def look_for(name: str, data_dir: str | None) -> pathlib.Path | None:
  """Finds a file, which may end in .gz; None if it is in none of the places."""
  for candidate in (f'{name}.gz', name):
    for path in downloads.places(candidate, data_dir):
      if path.exists():
        return path
  return None


def find(name: str, data_dir: str | None, advice: str) -> pathlib.Path:
  """Finds a file as `look_for`, or raises a `UserError`."""
  return look_for(name, data_dir) or downloads.find(name, data_dir, advice)


@contextlib.contextmanager
def open_lines(path: pathlib.Path) -> Iterator[Iterator[str]]:
  """Opens a text file, which may be compressed.

  Args:
    path: The file.

  Yields:
    Its lines.

  Raises:
    UserError: If it cannot be read as text.
  """
  with (
    files.reading(path, 'text', 'Replace it.'),
    gzip.open(path, 'rt', encoding='utf-8')
    if path.suffix == '.gz'
    else path.open(encoding='utf-8') as file,
  ):
    yield iter(file)


def load_json(path: pathlib.Path) -> aliases.Json:
  """Loads a file of JSON, which may be compressed; see `files.reading`."""
  packed = path.read_bytes()
  if path.suffix == '.gz':
    packed = gzip.decompress(packed)
  return json.loads(packed)


def read_json_lines(
  path: pathlib.Path,
  parse: Callable[[aliases.Json], _T],
  what: str,
  advice: str,
) -> Iterator[_T]:
  """Reads a file of lines of JSON, which may be compressed.

  Args:
    path: The file.
    parse: Parses the JSON of a line. It may raise any error if that is invalid.
    what: The kind of line, such as 'a post', for the errors.
    advice: How the user can correct the file.

  Yields:
    The parsed lines.

  Raises:
    UserError: If the file cannot be read, or a line is invalid.
  """
  with open_lines(path) as lines:
    for number, line in enumerate(lines, 1):
      with files.reading(f'{path}, line {number},', what, advice):
        parsed = parse(json.loads(line))
      yield parsed


def text_fields(found: aliases.Json, names: Sequence[str]) -> list[str]:
  """Returns the texts with these names, or raises a `ValueError`."""
  if not isinstance(found, Mapping):
    raise ValueError('no object')
  for name in names:
    if not isinstance(found.get(name), str):
      raise ValueError(f'no text "{name}"')
  return [found[name] for name in names]
