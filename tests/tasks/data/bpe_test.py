"""Tests of the byte-pair encoding."""

import json
import re

import pytest

from base import errors
from tasks.data import bpe
from tests import data

# Tokens of GPT-2, by Hugging Face's tokenizer.
_OF_GPT2 = {
  'Hello world': [15496, 995],
  "I'll  go, don't we?": [40, 1183, 220, 467, 11, 836, 470, 356, 30],
}
_ODD = (
  "naïve ½ Ⅷ ١٢ 日本語🙂\u200d e\u0301 a\x1cb\u3000 c\u2028d \n\n\t 'tis I'M  "
)


def _learned():
  return bpe.learn(['low low low lower lower newest newest widest'], 265)


def _write(folder, numbers, merges):
  text = numbers if isinstance(numbers, str) else json.dumps(numbers)
  (folder / bpe.VOCABULARY).write_text(text, encoding='utf-8')
  (folder / bpe.MERGES).write_text(merges, encoding='utf-8')


def _numbers(encoding):
  return {token: number for number, token in enumerate(encoding.tokens)}


def test_a_piece_is_a_word_a_number_or_marks_with_the_space_before():
  assert bpe.split("It's 3 o'clock!? ") == [
    *('It', "'s", 'Ġ3', 'Ġo', "'", 'clock', '!?', 'Ġ')
  ]
  # White space leaves its last to what follows.
  assert bpe.split('a   b\n\nc') == ['a', 'ĠĠ', 'Ġb', 'Ċ', 'Ċ', 'c']


def test_bytes_are_numbered_as_in_gpt2():
  tokens = bpe.Encoding([]).tokens
  assert tokens[:3] == ('!', '"', '#')
  assert tokens[188:190] == ('Ā', 'ā')
  assert len(set(tokens)) == 256
  assert bpe.letters_of_bytes()[ord(' ')] == 'Ġ' == tokens[220]


def test_merges_are_applied_in_their_order_not_from_the_left():
  encoding = bpe.Encoding([('b', 'c'), ('a', 'b'), ('bc', 'd')])
  tokens = [encoding.tokens[number] for number in encoding.encode('abcdab')]
  assert tokens == ['a', 'bcd', 'ab']


def test_the_pair_that_is_most_frequent_is_learned_first():
  # Of lo and ow, as frequent in low and lower, the first of the alphabet.
  assert _learned().merges[:4] == (
    ('l', 'o'),
    ('lo', 'w'),
    ('Ġ', 'low'),
    ('e', 's'),
  )
  assert len(_learned()) == 265


def test_learning_ends_where_there_are_no_pairs():
  assert bpe.learn(['aa aa'], 1_000).tokens[256:] == ('aa', 'Ġaa')


def test_learning_counts_pairs_anew_after_each_merge():
  """Against counts that are made from scratch before each merge."""
  texts = ['a banana and a bandana', 'ban and bananas, nana']
  pieces = [list(piece) for text in texts for piece in bpe.split(text)]
  merges = []
  while len(merges) < 12:
    pairs = [pair for piece in pieces for pair in zip(piece, piece[1:])]
    merges.append(min(pairs, key=lambda pair: (-pairs.count(pair), pair)))
    for piece in pieces:
      i = 0
      while i + 1 < len(piece):
        if (piece[i], piece[i + 1]) == merges[-1]:
          piece[i : i + 2] = [''.join(merges[-1])]
        i += 1
  assert bpe.learn(texts, 268).merges == tuple(merges)


@pytest.mark.parametrize('text', ['', 'low lower', _ODD])
def test_tokens_have_the_text(text):
  assert _learned().decode(_learned().encode(text)) == text


def test_half_a_letter_is_the_replacement_mark():
  encoding = bpe.Encoding([])
  assert encoding.decode(encoding.encode('ab½')[:-1]) == 'ab\ufffd'


def test_reads_what_it_saves(tmp_path):
  encoding = _learned()
  encoding.save(tmp_path)
  again = bpe.read(tmp_path)
  assert (again.tokens, again.merges) == (encoding.tokens, encoding.merges)


def test_the_first_tokens_are_a_vocabulary(tmp_path):
  _learned().save(tmp_path)
  first = bpe.read(tmp_path, 257)
  assert first.tokens == _learned().tokens[:257]
  assert first.encode('low') == [256, first.tokens.index('w')]


def test_has_gpt2s_own_vocabulary():
  encoding = bpe.read(data.path('gpt2_bpe'))
  assert len(encoding) == 50_257
  assert encoding.tokens[-1] == '<|endoftext|>'
  for text, numbers in _OF_GPT2.items():
    assert encoding.encode(text) == numbers
  assert encoding.decode(encoding.encode(_ODD)) == _ODD


def test_the_first_of_gpt2s_merges_are_a_vocabulary():
  small = bpe.read(data.path('gpt2_bpe'), 8_192)
  tokens = [small.tokens[number] for number in small.encode('Hello world')]
  # The number of ello is 11109.
  assert tokens == ['H', 'ell', 'o', 'Ġworld']


@pytest.mark.parametrize(
  'numbers, merges, message',
  [
    ('{', 'l o', 'Expecting'),
    ([1], 'l o', 'not a JSON object'),
    ({'a': 1}, 'l o', 'are not 0, 1, 2'),
    ({'a': 0}, 'l o', 'does not have the bytes and then the merges'),
    ({'a': 'b'}, 'l o', 'are not 0, 1, 2'),
    ({'a': 0, 'b': 'c'}, 'l o', 'not supported between'),
    (_numbers(bpe.Encoding([('l', 'o')])), 'l o\nlo', 'line 2 of merges.txt'),
    (_numbers(bpe.Encoding([('l', 'o')])), 'lo w', 'line 1 of merges.txt'),
    (_numbers(bpe.Encoding([('l', 'o')])), '', 'merges.txt has no pair for lo'),
    (_numbers(bpe.Encoding([('l', 'o')])), 'o l', 'bytes and then the merges'),
  ],
)
def test_refuses_other_files(tmp_path, numbers, merges, message):
  _write(tmp_path, numbers, merges)
  expected = (
    f'^{re.escape(str(tmp_path))} cannot be read as a byte-pair.*{message}'
  )
  with pytest.raises(errors.UserError, match=expected):
    bpe.read(tmp_path)


def test_refuses_a_folder_without_the_files(tmp_path):
  with pytest.raises(errors.UserError, match='Save the two files of GPT-2'):
    bpe.read(tmp_path)


@pytest.mark.parametrize('size', [100, 270])
def test_refuses_a_size_that_it_does_not_have(tmp_path, size):
  _learned().save(tmp_path)
  with pytest.raises(errors.UserError, match=f'the first {size} cannot'):
    bpe.read(tmp_path, size)


# Tokens of SmolLM2, by Hugging Face's tokenizer.
_OF_SMOLLM2 = {
  'Hello world': [19556, 905],
  ' 12 3': [216, 33, 34, 216, 35],
  'a  1': [81, 256, 33],
  '1st': [33, 302],
  '½ a': [16738, 253],
  "it's  ok\n\nNow": [269, 506, 216, 10907, 198, 198, 2696],
  'naïve — “yes”': [3546, 46494, 1841, 619, 10407, 573],
  'x²3': [104, 19133, 35],
  '\t12': [197, 33, 34],
  'don’t': [12420, 417, 100],
  '<|im_start|>': [44, 108, 306, 79, 3738, 108, 46],
}


def _tokenizer(**changes):
  tokens = ['<|end|>', *'Ġ123ab', 'Ġa', 'ĠĠ']
  of_bytes = {'type': 'ByteLevel', 'add_prefix_space': False}
  digits = {'type': 'Digits', 'individual_digits': True}
  steps = changes.pop('steps', [digits, of_bytes])
  return {
    'normalizer': None,
    'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': steps},
    'added_tokens': [{'id': 0, 'content': '<|end|>'}],
    'model': {
      'type': 'BPE',
      'vocab': {token: i for i, token in enumerate(tokens)},
      'merges': ['Ġ a', ['Ġ', 'Ġ']],
    },
  } | changes


def _write_tokenizer(folder, tokenizer):
  path = folder / bpe.TOKENIZER
  path.write_text(json.dumps(tokenizer), encoding='utf-8')


def test_reads_a_tokenizer_of_another_order(tmp_path):
  _write_tokenizer(tmp_path, _tokenizer())
  encoding = bpe.read(tmp_path, 9)
  found = [encoding.tokens[number] for number in encoding.encode('b a  12')]
  # A digit is a piece, and thus both spaces before it are one.
  assert found == ['b', 'Ġa', 'ĠĠ', '1', '2']
  assert encoding.specials == {'<|end|>'}
  # There is no token for c.
  assert encoding.decode(encoding.encode('bca')) == 'ba'


def test_digits_are_separate_only_where_the_tokenizer_says_so(tmp_path):
  of_bytes = {'type': 'ByteLevel', 'add_prefix_space': False}
  _write_tokenizer(tmp_path, _tokenizer(steps=[of_bytes]))
  encoding = bpe.read(tmp_path)
  found = [encoding.tokens[number] for number in encoding.encode('a  1')]
  assert found == ['a', 'Ġ', 'Ġ', '1']


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'model': {'type': 'Unigram'}}, 'its model is of the type Unigram'),
    ({'normalizer': {'type': 'NFC'}}, 'it has a normalizer'),
    ({'steps': [{'type': 'Metaspace'}]}, 'its pre_tokenizer is Metaspace'),
    (
      {'steps': [{'type': 'ByteLevel', 'add_prefix_space': True}]},
      'its ByteLevel adds a space',
    ),
    (
      {'added_tokens': [{'id': 11, 'content': '<|end|>'}]},
      'are not 0, 1, 2, …',
    ),
    (
      {'model': {'type': 'BPE', 'vocab': {'a': 1}, 'merges': ['a b']}},
      'a b joins or makes no token',
    ),
  ],
)
def test_refuses_other_tokenizers(tmp_path, changes, message):
  _write_tokenizer(tmp_path, _tokenizer(**changes))
  with pytest.raises(errors.UserError, match=f'byte-pair encoding .*{message}'):
    bpe.read(tmp_path)


def test_has_smollm2s_own_vocabulary():
  encoding = bpe.read(data.path('smollm2'))
  assert len(encoding) == 49_152
  for text, numbers in _OF_SMOLLM2.items():
    assert encoding.encode(text) == numbers
