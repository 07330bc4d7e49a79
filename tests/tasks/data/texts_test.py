"""Tests of texts of clients."""

import gzip

import numpy as np
import pytest

from base import errors
from tasks.data import texts

_BOS, _EOS = 6, 7  # Of a vocabulary of four.


def _corpus():
  corpus = texts.Corpus()
  corpus.add('ann', [['a', 'b', 'a'], [], ['c']])
  corpus.add('bob', [['<unk>', 'b', 'd', '<unk>', '<unk>']])
  return corpus


def test_sentences_are_those_that_were_added():
  corpus, unknown = _corpus(), 4
  numbering = corpus.numbering(['d', 'b', 'c'])
  ann, bob = (text.renumber(numbering) for text in corpus.texts.values())
  first, second = ann.sentences()
  assert first.tolist() == [unknown, 2, unknown]
  assert second.tolist() == [3]
  (bob,) = bob.sentences()
  assert bob.tolist() == [unknown, 2, 1, unknown, unknown]


def test_corpus_and_other_sentences_are_numbered_alike():
  sentences, vocabulary = [['a', 'b', 'a'], ['c']], ['c', 'b']
  corpus = _corpus()
  ann = corpus.texts['ann'].renumber(corpus.numbering(vocabulary))
  for one, other in zip(
    ann.sentences(), texts.number_words(sentences, vocabulary), strict=True
  ):
    np.testing.assert_array_equal(one, other)


def test_vocabulary_is_the_most_frequent_words_of_the_given_texts():
  corpus = _corpus()
  ann, bob = corpus.texts.values()
  assert corpus.most_frequent([ann, bob], 10) == ['a', 'b', 'c', 'd']
  assert corpus.most_frequent([ann, bob], 2) == ['a', 'b']
  assert corpus.most_frequent([bob], 10) == ['b', 'd']


def test_each_word_and_end_is_predicted_once():
  sentences = [[1, 2, 3, 4], [2], [3, 1, 4, 4, 2, 1]]
  examples = texts.cut(map(np.array, sentences), 4, 3)
  np.testing.assert_array_equal(
    examples['x'],
    [
      [_BOS, 1, 2],
      [3, 4, 0],
      [_BOS, 2, 0],
      [_BOS, 3, 1],
      [4, 4, 2],
      [1, 0, 0],
    ],
  )
  np.testing.assert_array_equal(
    examples['y'],
    [
      [1, 2, 3],
      [4, _EOS, 0],
      [2, _EOS, 0],
      [3, 1, 4],
      [4, 2, 1],
      [_EOS, 0, 0],
    ],
  )
  np.testing.assert_array_equal(
    texts.count_pieces(np.array([4, 1, 6]), 3), [2, 1, 3]
  )


def test_parts_have_each_sentence_once_in_its_order():
  corpus = texts.Corpus()
  corpus.add('ann', [[f'w{i}'] * (1 + i % 3) for i in range(21)])
  fractions = {'train': 0.75, 'validation': 0.125, 'test': 0.125}
  parts = texts.split(corpus.texts['ann'], fractions, np.random.default_rng(0))
  numbers = {
    name: [sentence[0] for sentence in part.sentences()]
    for name, part in parts.items()
  }
  assert [len(in_part) for in_part in numbers.values()] == [15, 2, 4]
  assert sorted(sum(numbers.values(), [])) == list(range(21))
  for name, in_part in numbers.items():
    assert in_part == sorted(in_part)
    sizes = [1 + i % 3 for i in in_part]
    np.testing.assert_array_equal(parts[name].lengths, sizes)


def test_splits_are_at_random():
  corpus = texts.Corpus()
  corpus.add('ann', [[f'w{i}'] for i in range(20)])
  firsts = {
    tuple(
      texts.split(
        corpus.texts['ann'],
        {'first': 0.5, 'second': 0.5},
        np.random.default_rng(seed),
      )['first'].words
    )
    for seed in range(5)
  }
  assert len(firsts) == 5


def test_compressed_files_are_found_and_read(tmp_path):
  (tmp_path / 'set').mkdir()
  path = tmp_path / 'set' / 'words.txt.gz'
  path.write_bytes(gzip.compress('océan\nsea\n'.encode()))
  found = texts.find('set/words.txt', str(tmp_path), 'Get it.')
  assert found == path
  with texts.open_lines(found) as lines:
    assert list(lines) == ['océan\n', 'sea\n']


@pytest.mark.parametrize(
  'name, contents',
  [('cut.gz', gzip.compress(b'words' * 99)[:20]), ('latin', b'oc\xe9an')],
)
def test_a_file_that_is_no_text_is_named(name, contents, tmp_path):
  (tmp_path / name).write_bytes(contents)
  with pytest.raises(errors.UserError, match=f'{name} cannot be read'):
    with texts.open_lines(tmp_path / name) as lines:
      list(lines)
