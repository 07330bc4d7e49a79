"""Writes small files in the form of the public transcripts of TED talks."""

from collections.abc import Sequence
import pathlib

# Said by all talks, in the language of the column.
WORDS = {'ar': 'بحر', 'en': 'sea', 'es': 'océano'}
# What the talks of each file are called.
TALKS = {
  'all_talks_train.tsv': [f'train_{k}' for k in range(24)],
  'all_talks_dev.tsv': ['dev_0', 'dev_1'],
  'all_talks_test.tsv': ['test_0', 'test_1', 'test_2'],
}


def num_sentences(talk: str, language: str) -> int:
  """Counts the sentences of a talk: fewer than 20 in some."""
  number = int(talk.rpartition('_')[2])
  if talk.startswith('train'):
    # All but 'train_0' in English; 21 of the 24 in Spanish.
    return 21 + number if number % 8 or language == 'en' and number else 19
  return 20 + number


def sentence(talk: str, language: str, i: int) -> str:
  """Makes a sentence; all say the same except for the last word."""
  return f'The {WORDS[language]} , {talk}_{language}_{i} !'


def rows(talks: Sequence[str]) -> list[dict[str, str]]:
  """Makes the rows of talks; missing sentences are marked in both ways."""
  made = []
  for talk in talks:
    longest = max(num_sentences(talk, language) for language in WORDS)
    for i in range(longest + 2):
      row = {'talk_name': talk}
      for language in WORDS:
        # Two missing sentences come first.
        there = 2 <= i < num_sentences(talk, language) + 2
        missing = '__NULL__' if i % 2 else '_ _ NULL _ _ .'
        row[language] = sentence(talk, language, i) if there else missing
      made.append(row)
  return made


def write(folder: pathlib.Path) -> None:
  """Writes the three files."""
  folder.mkdir(exist_ok=True)
  for name, talks in TALKS.items():
    with (folder / name).open('w', encoding='utf-8') as file:
      columns = ['talk_name', *WORDS]
      print(*columns, sep='\t', file=file)
      for row in rows(talks):
        print(*(row[column] for column in columns), sep='\t', file=file)
