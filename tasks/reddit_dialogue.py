"""Reddit: the next word in users' posts, with subreddits as contexts.

The other half of FedPC's data, in the layout of ConvoKit (Chang et al. 2020): a
folder with a file utterances.jsonl, whose lines have a "speaker" (or "user"), a
"text" and, in "meta", a "subreddit". If the utterance's "meta" has none, that
of its conversation is used: conversations.json has it by the "conversation_id"
(or "root"). Both files may be compressed (.gz).

A client is a user, and its contexts are subreddits, of which it may have
several. As in appendix C, users with fewer than 50 utterances are left out, and
then subreddits with fewer than 150; posts whose author or text was deleted are
ignored. `tasks.dialogue` says what is learned and held out.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import NamedTuple

from base import aliases
from base import settings
from tasks import dialogue
from tasks import registry
from tasks import task
from tasks.data import downloads
from tasks.data import files
from tasks.data import texts

_UTTERANCES, _CONVERSATIONS = 'utterances.jsonl', 'conversations.json'
# Stand for a deleted author or text.
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
    50,
    'The smallest number of utterances of a user; other users are left out.',
    minimum=10,
  )
  min_context_utterances: int = settings.field(
    150,
    'The smallest number of utterances of a subreddit, by the remaining users;'
    ' other subreddits are left out.',
    minimum=1,
  )


class _Post(NamedTuple):
  """A post of a user in a subreddit."""

  user: str
  subreddit: str
  text: str


def _either(found: aliases.Json, name: str, old_name: str) -> aliases.Json:
  """Returns a field by its name, or by its name in older ConvoKit versions."""
  return found[name] if name in found else found[old_name]


def _parse(
  found: aliases.Json, conversations: Mapping[str, aliases.Json]
) -> _Post:
  """Makes a post from a line; may raise any error, see `read_json_lines`."""
  user = _either(found, 'speaker', 'user')
  text = '' if found['text'] is None else found['text']
  meta = found.get('meta') or {}
  if 'subreddit' not in meta:
    conversation = conversations[_either(found, 'conversation_id', 'root')]
    # Older versions have only the meta data.
    meta = conversation['meta'] if 'meta' in conversation else conversation
  post = _Post(user, meta['subreddit'], text)
  for name, field in post._asdict().items():
    if not isinstance(field, str):
      raise ValueError(f'"{name}" is not a text')
  return post


def _read_conversations(folder: pathlib.Path) -> Mapping[str, aliases.Json]:
  """Reads the conversations, if there is such a file."""
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
  del seed  # All randomness follows from `split_seed`.
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


registry.register_task('reddit_dialogue', RedditDialogueSettings)
