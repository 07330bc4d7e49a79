"""Stack Exchange: the next word in posts, in contexts of sites and types.

The posts are lines of JSON with the texts "site", "type", "user" and "text", in
a file that may be compressed (.gz). A client is a user, and the contexts are
the sites' questions and answers, of which a user may have several.
`tasks.dialogue` says what is learned and held out.
"""

import dataclasses

from base import settings
from tasks import dialogue
from tasks import registry
from tasks import task
from tasks.data import texts

_FIELDS = 'site', 'type', 'user', 'text'
_ADVICE = (
  'Save the posts there, a line of JSON with "site", "type", "user" and "text"'
  ' each, or name their file as task.file.'
)


@dataclasses.dataclass(frozen=True)
class StackExchangeDialogueSettings(dialogue.DialogueSettings):
  """The settings of Stack Exchange as a dialogue."""

  file: str = settings.field(
    'stackexchange/posts.jsonl', 'The file of posts, in the data folder.'
  )


def load(
  settings: StackExchangeDialogueSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the file in `data_dir`."""
  del seed  # All randomness follows from `split_seed`.
  path = texts.find(settings.file, data_dir, _ADVICE)
  posts = texts.read_json_lines(
    path, lambda found: texts.text_fields(found, _FIELDS), 'a post', _ADVICE
  )
  said, contexts = dialogue.collect(
    ((user, f'{site} {kind}', text) for site, kind, user, text in posts),
    written=True,
  )
  return dialogue.make_task(
    'stackexchange_dialogue', settings, data_dir, said, contexts
  )


registry.register_task('stackexchange_dialogue', StackExchangeDialogueSettings)
