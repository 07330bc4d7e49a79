"""WikiText: the next word of an article; each is a client (Liu et al.).

WikiText-2 and WikiText-103 of Merity et al. 2017, as they are distributed: the
files wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, each of which
may be compressed (.gz). All of their articles are clients. An article's group
is the topic that its title names: battle, film, video game, music, disease or,
if it names none, other. `tasks.text_clients` says what is held out.

A sentence ends after a full stop, a question mark or an exclamation mark, and
after a closing quotation mark or bracket that follows. Headings are left out.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import re

from base import errors
from base import settings
from tasks import registry
from tasks import task
from tasks import text_clients
from tasks.data import texts

TOPICS = ('battle', 'film', 'video game', 'music', 'disease')
OTHER = 'other'
# The kinds of lines, see `read_lines`.
TITLE, HEADING, PARAGRAPH = 'title', 'heading', 'paragraph'

_ADVICE = (
  'Unpack WikiText-2 or WikiText-103 in the data folder, and name the folder'
  ' of its files as task.source.'
)
# One = on each side; the headings within an article have two or more.
_TITLE = re.compile(r' ?= (?!= )(.*\S) =\s*$')
_HEADING = re.compile(r' ?(= ){2,}.*( =){2,}\s*$')
_TOPIC = re.compile(rf'\b({"|".join(TOPICS)})s?\b', re.IGNORECASE)
_ENDS = frozenset('.?!')


@dataclasses.dataclass(frozen=True)
class WikitextSettings(text_clients.TextSettings):
  """The settings of WikiText."""

  source: str = settings.field(
    'wikitext-2', 'The folder, in the data folder, that has the files.'
  )
  splits: tuple[str, ...] = settings.field(
    ('train', 'valid', 'test'),
    'The files whose articles are the clients.',
    choices=('train', 'valid', 'test'),
  )


def topic(title: str) -> str:
  """Returns the topic that a title names, the last if it names several.

  The kind of an article is in brackets after its name: 'The Battle of Algiers
  ( film )' is a film.

  Args:
    title: The title.

  Returns:
    One of `TOPICS`, or `OTHER`.
  """
  named = _TOPIC.findall(title)
  return named[-1].lower() if named else OTHER


def split_sentences(words: Sequence[str]) -> list[list[str]]:
  """Splits a paragraph into sentences."""
  sentences: list[list[str]] = [[]]
  ended = False
  for word in words:
    sentence = sentences[-1]
    closes = word == ')' or (word == '"' and sentence.count('"') % 2)
    if ended and not (closes or word in _ENDS):
      sentences.append([])
      ended = False
    sentences[-1].append(word)
    ended = ended or word in _ENDS
  return sentences


def read_lines(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
  """Reads the lines of a file that are not blank.

  A title has a blank line, or nothing, before and after it, unlike lines of
  formulas that look similar.

  Args:
    lines: The lines.

  Yields:
    `TITLE` and what it says, `HEADING` and the line, or `PARAGRAPH` and the
    line.
  """
  before, line = '', next(lines, None)
  while line is not None:
    behind = next(lines, None)
    alone = not before.strip() and not (behind or '').strip()
    matched = _TITLE.match(line) if alone else None
    if matched:
      yield TITLE, matched[1]
    elif line.strip():
      yield HEADING if _HEADING.match(line) else PARAGRAPH, line
    before, line = line, behind


def read_articles(
  lines: Iterator[str],
) -> Iterator[tuple[str, list[list[str]]]]:
  """Yields the title and the sentences of each article in a file's lines."""
  title: str | None = None
  sentences: list[list[str]] = []
  for kind, text in read_lines(lines):
    if kind == TITLE:
      if title is not None:
        yield title, sentences
      title, sentences = text, []
    elif kind == PARAGRAPH:
      sentences += split_sentences(text.split())
  if title is not None:
    yield title, sentences


def load(
  settings: WikitextSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the files in `data_dir`."""
  del seed  # All randomness follows from `split_seed`.
  corpus = texts.Corpus()
  names = (*TOPICS, OTHER)
  groups: dict[str, int] = {}
  for split in settings.splits:
    path = texts.find(
      f'{settings.source}/wiki.{split}.tokens', data_dir, _ADVICE
    )
    size = len(groups)
    with texts.open_lines(path) as lines:
      for title, sentences in read_articles(lines):
        # Some titles occur several times, such as ' = <unk> = '.
        client_id = f'{len(groups):05d} {title}'
        corpus.add(client_id, sentences)
        groups[client_id] = names.index(topic(title))
    if len(groups) == size:
      raise errors.UserError(
        f'{path} has no article: no line like " = Title = ". {_ADVICE}'
      )
  return text_clients.make_task('wikitext', settings, corpus, names, groups)


registry.register_task('wikitext', WikitextSettings)
