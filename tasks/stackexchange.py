"""Stack Exchange: the next word in posts of users, grouped by their sites.

Each user is a client, and its site is its group. The posts are lines of JSON
with the texts "site", "user" and "text", and optionally "title", which may be
null, in the order of their dates; the file may be compressed (.gz). As in the
video captions of group-personalized FL (Liu et al.), most clients have few
sentences. `tasks.text_clients` says what is held out.

Words are in lower case, and punctuation marks are words.
"""

import dataclasses
import pathlib
import re

from base import aliases
from base import settings
from tasks import registry
from tasks import task
from tasks import text_clients
from tasks.data import texts

_ADVICE = (
  'Save the posts there, a line of JSON with "site", "user" and "text" each, or'
  ' name their file as task.file.'
)
_SENTENCE_ENDS = re.compile(r'(?<=[.!?])\s+|\n+')
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class StackExchangeSettings(text_clients.TextSettings):
  """The settings of Stack Exchange."""

  file: str = settings.field(
    'stackexchange/posts.jsonl', 'The file of posts, in the data folder.'
  )


def split_sentences(text: str) -> list[list[str]]:
  """Splits a text into sentences, and these into words."""
  found = (_WORD.findall(part.lower()) for part in _SENTENCE_ENDS.split(text))
  return [words for words in found if words]


def _parse(found: aliases.Json) -> tuple[str, str, str]:
  """Returns the site, the user and all text of a post."""
  site, user, text = texts.text_fields(found, ('site', 'user', 'text'))
  if not found.get('title'):
    return site, user, text
  (title,) = texts.text_fields(found, ('title',))
  return site, user, f'{title}\n{text}'


def _read(
  path: pathlib.Path,
) -> tuple[dict[str, list[list[str]]], dict[str, str]]:
  """Reads the sentences and the site of each user."""
  sentences: dict[str, list[list[str]]] = {}
  sites: dict[str, str] = {}

  def parse(found: aliases.Json) -> tuple[str, str]:
    site, user, text = _parse(found)
    if sites.setdefault(user, site) != site:
      raise ValueError(f'user {user} is of {site} and {sites[user]}')
    return user, text

  for user, text in texts.read_json_lines(path, parse, 'a post', _ADVICE):
    sentences.setdefault(user, []).extend(split_sentences(text))
  return sentences, sites


def load(
  settings: StackExchangeSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the file in `data_dir`."""
  del seed  # All randomness follows from `split_seed`.
  path = texts.find(settings.file, data_dir, _ADVICE)
  sentences, sites = _read(path)
  corpus = texts.Corpus()
  for user, of_user in sentences.items():
    corpus.add(user, of_user)
  names = sorted(set(sites.values()))
  groups = {user: names.index(site) for user, site in sites.items()}
  return text_clients.make_task(
    'stackexchange', settings, corpus, names, groups
  )


registry.register_task('stackexchange', StackExchangeSettings)
