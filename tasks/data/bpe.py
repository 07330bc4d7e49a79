"""The byte-pair encoding of GPT-2 (Radford et al. 2019, section 2.2).

A text is cut into pieces: a word, a number or marks, each with the space before
it, and white space. A piece starts as its UTF-8 bytes. Again and again, the two
neighbors whose pair comes first among the merges are joined. The result are the
tokens. Any text can be encoded, and is restored from its tokens.

A vocabulary of GPT-2 has two files: vocab.json with the number of each token,
and merges.txt with a line for each pair, in order. In these files, each byte is
written as a visible letter. Tokens are numbered from 0: first the 256 bytes,
then the pairs in the order of the merges, then special tokens, which no text
has. The first merges are thus a smaller vocabulary.

Other models have such an encoding with their own order of tokens, such as
SmolLM2, in which each digit is a piece, and some bytes have no token and are
left out. All is then in one file, tokenizer.json.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import functools
import heapq
import itertools
import json
import pathlib
import re
import sys
import unicodedata

from base import errors
from base import whole_files
from base.aliases import Json
from tasks.data import files

VOCABULARY, MERGES = 'vocab.json', 'merges.txt'
TOKENIZER = 'tokenizer.json'
NUM_BYTES = 256

_ADVICE = (
  'Save the two files of GPT-2 there, vocab.json and merges.txt; DistilGPT2 has'
  ' the same ones. Or save the tokenizer.json of another model.'
)
_VERSION = '#version'

# A pair of neighbors, which a merge joins to one token.
Pair = tuple[str, str]


@functools.cache
def letters_of_bytes() -> tuple[str, ...]:
  """Returns the letter as which GPT-2 writes each byte.

  Visible letters of Latin-1 stand for themselves, and other bytes for the
  letters from 256 on.
  """
  visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
  others = itertools.count(256)
  return tuple(
    chr(byte if byte in visible else next(others)) for byte in range(NUM_BYTES)
  )


def _bytes_in_order() -> list[str]:
  """Returns the letters of the bytes in the order of their numbers in GPT-2."""
  # Letters that stand for themselves come first.
  return sorted(letters_of_bytes())


# Unicode's White_Space, which has fewer characters than Python's \s.
_SPACE = r'\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'


@functools.cache
def _ranges() -> dict[str, str]:
  """Finds the letters and numbers, as Python's `re` has no Unicode classes."""
  ranges = {'L': '', 'N': ''}
  for category, group in itertools.groupby(
    map(chr, range(sys.maxunicode + 1)), lambda c: unicodedata.category(c)[0]
  ):
    if category in ranges:
      characters = list(group)
      ranges[category] += f'{characters[0]}-{characters[-1]}'
  return ranges


@functools.cache
def _pattern() -> re.Pattern[str]:
  """Makes the pattern of pieces."""
  letter, number = _ranges()['L'], _ranges()['N']
  return re.compile(
    r"'(?:[stmd]|re|ve|ll)"
    f'| ?[{letter}]+| ?[{number}]+| ?[^{_SPACE}{letter}{number}]+'
    f'|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+'
  )


@functools.cache
def _digit() -> re.Pattern[str]:
  """Makes the pattern of a numeric character, as a group."""
  return re.compile(f'([{_ranges()["N"]}])')


def split(text: str, separates_digits: bool = False) -> list[str]:
  """Cuts a text into pieces, in which each byte is written as a letter.

  Args:
    text: The text.
    separates_digits: Whether each numeric character is first cut out.
  """
  letters = letters_of_bytes()
  parts = _digit().split(text) if separates_digits else [text]
  return [
    ''.join(letters[byte] for byte in piece.encode())
    for part in parts
    for piece in _pattern().findall(part)
  ]


def _join(tokens: Sequence[str], pair: Pair) -> list[str]:
  """Joins the pair wherever it is in a piece, from the left."""
  joined: list[str] = []
  i = 0
  while i < len(tokens):
    size = 2 if tuple(tokens[i : i + 2]) == pair else 1
    joined.append(''.join(tokens[i : i + size]))
    i += size
  return joined


class Encoding:
  """A vocabulary of byte pairs."""

  def __init__(
    self,
    merges: Sequence[Pair],
    specials: Sequence[str] = (),
    tokens: Sequence[str] | None = None,
    separates_digits: bool = False,
  ):
    """Makes the vocabulary.

    Args:
      merges: The pairs to join, the first one first.
      specials: The special tokens.
      tokens: All tokens in the order of their numbers; None for GPT-2's order.
      separates_digits: As in `split`.
    """
    self.merges = tuple(merges)
    of_gpt2 = (*_bytes_in_order(), *map(''.join, merges), *specials)
    self.tokens = of_gpt2 if tokens is None else tuple(tokens)
    self.specials = frozenset(specials)
    self._separates_digits = separates_digits
    self._ranks = {pair: rank for rank, pair in enumerate(merges)}
    self._numbers = {token: number for number, token in enumerate(self.tokens)}
    self._byte = {
      letter: byte for byte, letter in enumerate(letters_of_bytes())
    }
    self._of_pieces: dict[str, list[int]] = {}

  def __len__(self) -> int:
    """The number of tokens."""
    return len(self.tokens)

  def _encode_piece(self, piece: str) -> list[int]:
    tokens = [letter for letter in piece if letter in self._numbers]
    while len(tokens) > 1:
      pair = min(
        zip(tokens, tokens[1:]),
        key=lambda pair: self._ranks.get(pair, len(self._ranks)),
      )
      if pair not in self._ranks:
        break
      tokens = _join(tokens, pair)
    return [self._numbers[token] for token in tokens]

  def encode(self, text: str) -> list[int]:
    """Returns the numbers of the tokens of a text."""
    numbers: list[int] = []
    for piece in split(text, self._separates_digits):
      if piece not in self._of_pieces:
        self._of_pieces[piece] = self._encode_piece(piece)
      numbers += self._of_pieces[piece]
    return numbers

  def decode(self, numbers: Iterable[int]) -> str:
    """Returns the text of tokens; half a letter becomes a replacement mark."""
    letters = ''.join(self.tokens[number] for number in numbers)
    return bytes(self._byte[letter] for letter in letters).decode(
      errors='replace'
    )

  def first(self, size: int) -> 'Encoding':
    """Returns the vocabulary of the first `size` tokens."""
    return Encoding(self.merges[: size - NUM_BYTES])

  def save(self, folder: pathlib.Path) -> None:
    """Saves the two files."""
    numbers = {token: number for number, token in enumerate(self.tokens)}
    lines = [f'{_VERSION}: 0.2', *map(' '.join, self.merges)]
    for name, text in (
      (VOCABULARY, json.dumps(numbers, ensure_ascii=False)),
      (MERGES, '\n'.join(lines) + '\n'),
    ):
      with whole_files.writing(folder / name) as temporary:
        temporary.write_text(text, encoding='utf-8')


def _read_merges(path: pathlib.Path) -> list[Pair]:
  """Reads the pairs; raises a ValueError."""
  known = set(letters_of_bytes())
  merges: list[Pair] = []
  # Not `splitlines`: some of the letters would be ends of lines.
  lines = path.read_text(encoding='utf-8').split('\n')
  for number, line in enumerate(lines, 1):
    if not line or (number == 1 and line.startswith(_VERSION)):
      continue
    pair = tuple(line.split(' '))
    if len(pair) != 2 or not known.issuperset(pair):
      raise ValueError(
        f'line {number} of {path.name} is not a pair of earlier tokens'
      )
    known.add(''.join(pair))
    merges.append(pair)
  return merges


def _require(holds: bool, message: str) -> None:
  if not holds:
    raise ValueError(message)


def _check_kind(tokenizer: Mapping[str, Json]) -> bool:
  """Tells whether digits are separated; raises a ValueError for other kinds."""
  kind = tokenizer['model'].get('type')
  _require(kind == 'BPE', f'its model is of the type {kind}')
  normalizer = tokenizer.get('normalizer')
  _require(normalizer is None, 'it has a normalizer')
  steps = tokenizer['pre_tokenizer']
  steps = steps.get('pretokenizers', [steps])
  kinds = [step['type'] for step in steps]
  _require(
    kinds in (['ByteLevel'], ['Digits', 'ByteLevel']),
    f'its pre_tokenizer is {" and ".join(kinds)}',
  )
  of_bytes = steps[-1]
  _require(
    not of_bytes.get('add_prefix_space') and of_bytes.get('use_regex', True),
    'its ByteLevel adds a space, or does not cut as GPT-2 does',
  )
  if len(steps) == 1:
    return False
  _require(steps[0].get('individual_digits') is True, 'it joins digits')
  return True


def _read_tokenizer(path: pathlib.Path) -> Encoding:
  """Reads a vocabulary from tokenizer.json; may raise any error."""
  tokenizer = json.loads(path.read_text(encoding='utf-8'))
  separates_digits = _check_kind(tokenizer)
  numbers: dict[str, int] = dict(tokenizer['model']['vocab'])
  for added in tokenizer.get('added_tokens', ()):
    numbers[added['content']] = added['id']
  tokens = sorted(numbers, key=numbers.__getitem__)
  _require(
    [numbers[token] for token in tokens] == list(range(len(tokens))),
    f'the numbers in {TOKENIZER} are not 0, 1, 2, …',
  )
  merges: list[Pair] = []
  for merge in tokenizer['model']['merges']:
    first, second = merge.split(' ') if isinstance(merge, str) else merge
    for token in (first, second, first + second):
      _require(token in numbers, f'{merge} joins or makes no token')
    merges.append((first, second))
  in_texts = {*letters_of_bytes(), *map(''.join, merges)}
  specials = [token for token in tokens if token not in in_texts]
  return Encoding(merges, specials, tokens, separates_digits)


def read(folder: pathlib.Path, size: int | None = None) -> Encoding:
  """Reads a vocabulary from its files.

  Args:
    folder: The folder of tokenizer.json, or else of vocab.json and merges.txt.
    size: The number of tokens to take, from the first on; None for all.

  Returns:
    The vocabulary.

  Raises:
    UserError: If it cannot be read, or has fewer tokens.
  """
  with files.reading(folder, 'a byte-pair encoding', _ADVICE):
    path = folder / TOKENIZER
    encoding = _read_tokenizer(path) if path.exists() else _read_two(folder)
  if size is None or size == len(encoding):
    return encoding
  tokens = encoding.tokens
  if not NUM_BYTES <= size <= NUM_BYTES + len(encoding.merges) or (
    tokens[:NUM_BYTES] != tuple(_bytes_in_order())
  ):
    raise errors.UserError(
      f'The byte-pair encoding in {folder} has {len(encoding)} tokens, of which'
      f' the first {size} cannot be taken. Name the folder of another one.'
    )
  return encoding.first(size)


def _read_two(folder: pathlib.Path) -> Encoding:
  """Reads a vocabulary from vocab.json and merges.txt; may raise any error."""
  numbers = json.loads((folder / VOCABULARY).read_text(encoding='utf-8'))
  merges = _read_merges(folder / MERGES)
  if not isinstance(numbers, Mapping):
    raise ValueError(f'{VOCABULARY} is not a JSON object')
  tokens = Encoding(merges).tokens
  found = sorted(numbers, key=numbers.__getitem__)
  if [numbers[token] for token in found] != list(range(len(found))):
    raise ValueError(f'the numbers in {VOCABULARY} are not 0, 1, 2, …')
  if tuple(found[: len(tokens)]) != tokens:
    raise ValueError(
      f'{VOCABULARY} does not have the bytes and then the merges in order'
    )
  # A special token is not a pair of others.
  for token in found[len(tokens) :]:
    ends = range(1, len(token))
    if any(token[:i] in numbers and token[i:] in numbers for i in ends):
      raise ValueError(f'{MERGES} has no pair for {token} of {VOCABULARY}')
  return Encoding(merges, found[len(tokens) :])


def learn(texts: Iterable[str], size: int) -> Encoding:
  """Learns a vocabulary from texts.

  The most frequent pair within the pieces is joined, again and again; among
  equally frequent pairs, the first in alphabetical order.

  Args:
    texts: The texts.
    size: The number of tokens, if there are as many pairs.

  Returns:
    The vocabulary.
  """
  counts = collections.Counter(piece for text in texts for piece in split(text))
  pieces = [list(piece) for piece in counts]
  numbers = list(counts.values())
  frequencies: collections.Counter[Pair] = collections.Counter()
  # The pieces that have a pair now or had it before.
  places: dict[Pair, set[int]] = collections.defaultdict(set)

  def count(place: int, sign: int) -> set[Pair]:
    pairs = list(zip(pieces[place], pieces[place][1:]))
    for pair in pairs:
      frequencies[pair] += sign * numbers[place]
      places[pair].add(place)
    return set(pairs)

  for place in range(len(pieces)):
    count(place, 1)
  # The most frequent pair first; may also have outdated frequencies.
  queue = [(-number, pair) for pair, number in frequencies.items()]
  heapq.heapify(queue)
  merges: list[Pair] = []
  while len(merges) < size - NUM_BYTES and queue:
    negative, pair = heapq.heappop(queue)
    if not negative or -negative != frequencies[pair]:
      continue
    merges.append(pair)
    changed: set[Pair] = set()
    for place in places.pop(pair):
      changed |= count(place, -1)
      pieces[place] = _join(pieces[place], pair)
      changed |= count(place, 1)
    for other in changed:
      heapq.heappush(queue, (-frequencies[other], other))
  return Encoding(merges)
