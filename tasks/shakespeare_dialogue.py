"""Shakespeare's characters: the next word in their speeches.

The speeches are lines of JSON with the texts "play", "who" and "text", in a
file that may be compressed (.gz). A client is a character in a play, and its
context is the play. `tasks.dialogue` says what is learned and held out.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses

from base import settings
from tasks import dialogue
from tasks import registry
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
    'The number of plays, those with the most speeches; none for all.',
    minimum=1,
  )


def load(
  settings: ShakespeareDialogueSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the file in `data_dir`."""
  del seed  # All randomness follows from `split_seed`.
  path = texts.find(settings.file, data_dir, _ADVICE)
  speeches: Iterable[Sequence[str]] = texts.read_json_lines(
    path, lambda found: texts.text_fields(found, _FIELDS), 'a speech', _ADVICE
  )
  if settings.num_plays is not None:
    speeches = list(speeches)
    counted = collections.Counter(play for play, *_ in speeches)
    order = [play for play, _ in counted.most_common(settings.num_plays)]
    speeches = sorted(
      (speech for speech in speeches if speech[0] in order),
      key=lambda speech: order.index(speech[0]),
    )
  said, plays = dialogue.collect(
    (f'{play} {who}', play, text) for play, who, text in speeches
  )
  return dialogue.make_task(
    'shakespeare_dialogue', settings, data_dir, said, plays
  )


registry.register_task('shakespeare_dialogue', ShakespeareDialogueSettings)
