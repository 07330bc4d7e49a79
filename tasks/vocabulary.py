"""The numbers of words, as `tasks.models.next_word` has them."""

from collections.abc import Iterable, Sequence

import numpy as np


class Vocabulary:
  """Words and their numbers, with one for all unknown words."""

  def __init__(self, words: Sequence[str]):
    self._ids = {word.encode(): i for i, word in enumerate(words, 1)}
    self._unknown = len(words) + 1
    self._begin = len(words) + 2
    self._end = len(words) + 3

  def __len__(self) -> int:
    return len(self._ids)

  def to_examples(
    self, sentences: Iterable[Sequence[bytes]], length: int
  ) -> dict[str, np.ndarray]:
    """Numbers the words of sentences.

    Args:
      sentences: The words of each sentence.
      length: How many words of a sentence to take.

    Returns:
      For each sentence `length` numbers, int32: 'x', the beginning, the words
      but for the last, and 'y', the words that follow each of those. If they
      are fewer, the end follows, and padding.
    """
    sentences = list(sentences)
    ids = np.zeros((len(sentences), 1 + length), np.int32)
    for row, words in zip(ids, sentences):
      numbers = [self._ids.get(word, self._unknown) for word in words[:length]]
      numbers = [self._begin, *numbers, self._end][: len(row)]
      row[: len(numbers)] = numbers
    return {'x': ids[:, :-1], 'y': ids[:, 1:]}
