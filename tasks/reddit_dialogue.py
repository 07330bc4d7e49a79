"""Reddit: what users write, under the subreddit they are in.

The other half of FedPC's data, in the layout of ConvoKit (Chang et al. 2020): a
folder with a file utterances.jsonl, whose lines have a "speaker" (or "user"), a
"text" and, among their "meta", a "subreddit". Where the meta data of utterances
do not tell it, those of their conversation do: conversations.json has them by
the "conversation_id" (or "root"). Both files may be compressed (.gz).

A client is a user, and its contexts are subreddits, of which it may have
several. As in appendix C, users with fewer than 50 utterances are left out, and
then subreddits with fewer than 150; posts whose author or text was deleted are
nobody's. `tasks.dialogue` says what is learned and held out.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any, NamedTuple

from base import settings
from tasks import dialogue
from tasks import task
from tasks.data import downloads
from tasks.data import files
from tasks.data import texts

_UTTERANCES, _CONVERSATIONS = 'utterances.jsonl', 'conversations.json'
# What stands for an author, or a text, that is no more.
_DELETED = frozenset({'[deleted]', '[removed]'})
_ADVICE = (
  'Save the unpacked reddit-corpus-small of ConvoKit there, a folder with'
  f' {_UTTERANCES} and {_CONVERSATIONS}, or name its folder as task.folder.'
)


@dataclasses.dataclass(frozen=True)
class RedditDialogueSettings(dialogue.DialogueSettings):
  """The settings of Reddit."""

  folder: str = settings.field(
    'reddit-corpus-small', 'The folder of the corpus, in the data folder.'
  )
  min_utterances: int = settings.field(
    50, 'The fewest utterances of a user; others are left out.', minimum=10
  )
  min_context_utterances: int = settings.field(
    150,
    'The fewest utterances of a subreddit, by the users that are left; others'
    ' are left out.',
    minimum=1,
  )


class _Post(NamedTuple):
  """A post: who wrote what in which subreddit."""

  user: str
  subreddit: str
  text: str


def _either(found: Any, name: str, old_name: str) -> Any:
  """Returns a field by its name, or by that of older versions of ConvoKit."""
  return found[name] if name in found else found[old_name]


def _parse(found: Any, conversations: Mapping[str, Any]) -> _Post:
  """Makes a post of a line; raises an error for `read_json_lines`."""
  user = _either(found, 'speaker', 'user')
  text = '' if found['text'] is None else found['text']
  meta = found.get('meta') or {}
  if 'subreddit' not in meta:
    own = conversations[_either(found, 'conversation_id', 'root')]
    # Older versions have nothing but the meta data.
    meta = own['meta'] if 'meta' in own else own
  post = _Post(user, meta['subreddit'], text)
  for name, field in post._asdict().items():
    if not isinstance(field, str):
      raise ValueError(f'"{name}" is no text')
  return post


def _read_conversations(folder: pathlib.Path) -> Mapping[str, Any]:
  """Reads the conversations; there need be none."""
  path = texts.look_for(_CONVERSATIONS, str(folder))
  if path is None:
    return {}
  with files.reading(path, "a corpus's conversations", _ADVICE):
    found = texts.load_json(path)
    if not isinstance(found, dict):
      raise ValueError('no object')
  return found


def load(
  settings: RedditDialogueSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the folder in `data_dir`."""
  del seed  # All randomness is that of `split_seed`.
  folder = downloads.find(settings.folder, data_dir, _ADVICE)
  path = texts.find(_UTTERANCES, str(folder), _ADVICE)
  conversations = _read_conversations(folder)
  posts = texts.read_json_lines(
    path, lambda found: _parse(found, conversations), 'an utterance', _ADVICE
  )
  said, subreddits = dialogue.collect(
    (
      post
      for post in posts
      if post.user not in _DELETED and post.text.strip() not in _DELETED
    ),
    written=True,
  )
  return dialogue.make_task(
    'reddit_dialogue',
    settings,
    data_dir,
    said,
    subreddits,
    settings.min_context_utterances,
  )
