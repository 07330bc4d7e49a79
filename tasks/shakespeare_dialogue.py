"""Shakespeare's characters: what they say next, under the play they are in.

The speeches are lines of JSON with the texts "play", "who" and "text", in a
file that may be compressed (.gz). A client is a character of a play, and its
context is the play. `tasks.dialogue` says what is learned and held out.
"""

import dataclasses
import json

from base import errors
from base import settings
from tasks import dialogue
from tasks import task
from tasks.data import texts

_FIELDS = 'play', 'who', 'text'
_ADVICE = (
  'Save the speeches there, a line of JSON with "play", "who" and "text" each,'
  ' or name their file as task.file.'
)


@dataclasses.dataclass(frozen=True)
class ShakespeareDialogueSettings(dialogue.DialogueSettings):
  """The settings of Shakespeare's characters."""

  file: str = settings.field(
    'shakespeare/speeches.jsonl', 'The file of speeches, in the data folder.'
  )
  num_plays: int | None = settings.field(
    None,
    'The number of plays, those of the most speeches; none for all.',
    minimum=1,
  )


def load(
  settings: ShakespeareDialogueSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the file in `data_dir`."""
  del seed  # All randomness is that of `split_seed`.
  path = texts.find(settings.file, data_dir, _ADVICE)
  speeches: dict[str, list[tuple[str, str]]] = {}
  with texts.open_lines(path) as lines:
    for number, line in enumerate(lines, 1):
      try:
        speech = json.loads(line)
        play, who, text = (speech[name] for name in _FIELDS)
        if not all(isinstance(part, str) for part in (play, who, text)):
          raise ValueError('a field is no text')
      except (ValueError, KeyError, TypeError) as error:
        raise errors.UserError(
          f'{path}, line {number}: this is no speech ({error!r}). {_ADVICE}'
        ) from error
      speeches.setdefault(play, []).append((who, text))
  plays = sorted(speeches, key=lambda play: -len(speeches[play]))
  plays = plays[: settings.num_plays]
  said: dict[str, dialogue.Utterances] = {}
  for context, play in enumerate(plays):
    for who, text in speeches[play]:
      user = said.setdefault(f'{play} {who}', dialogue.Utterances())
      user.add(text, context)
  return dialogue.make_task(
    'shakespeare_dialogue', settings, data_dir, said, plays
  )
