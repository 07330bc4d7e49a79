"""Characters of Friends and of Game of Thrones: the next word they say.

Half of FedPC's data. Friends has the layout of character-mining (Chen and Choi
2016): files friends_season_01.json, …, of "episodes" of "scenes" of
"utterances", which may be compressed (.gz). The "transcript" of each utterance
with exactly one of the "speakers" is used. Game of Thrones (Koirala 2019) is a
text of lines "NAME (note): speech". A client is a character, and its context is
the show; the characters with the most utterances are used, by default as many
as in the paper. `tasks.dialogue` says what is learned and held out.
"""

import collections
from collections.abc import Iterator
import dataclasses
import pathlib
import re

from base import errors
from base import settings
from tasks import dialogue
from tasks import registry
from tasks import task
from tasks.data import downloads
from tasks.data import files
from tasks.data import texts

SHOWS = ('friends', 'game_of_thrones')
_SEASON = re.compile(r'friends_season_\d+\.json(\.gz)?')
_LINE = re.compile(r'\s*([^:()\[\]]+?)\s*(?:[(\[][^)\]]*[)\]]\s*)?:\s*(\S.*)')
# Camera directions, which are written like names.
_NOBODY = frozenset({'CUT TO', 'EXT', 'INT'})
# Season 1 writes some names in full.
_SAME = {'JORAH MORMONT': 'JORAH'}
_ADVICE_ON_FRIENDS = (
  'Save the files json/friends_season_01.json, … of the repository'
  ' emorynlp/character-mining there, or name their folder as task.friends.'
)
_ADVICE_ON_THRONES = (
  'Save Data/final_data.txt of the repository shekharkoirala/Game_of_Thrones'
  ' there, name it as task.game_of_thrones, or set task.shows=friends.'
)


@dataclasses.dataclass(frozen=True)
class TvDialogueSettings(dialogue.DialogueSettings):
  """The settings of the characters of two shows."""

  shows: tuple[str, ...] = settings.field(
    SHOWS, 'The shows whose characters are the clients.', choices=SHOWS
  )
  friends: str = settings.field(
    'tv/json', 'The folder of the seasons of Friends, in the data folder.'
  )
  game_of_thrones: str = settings.field(
    'tv/final_data.txt', 'The file of Game of Thrones, in the data folder.'
  )
  friends_characters: int = settings.field(
    6, 'The number of characters of Friends.', minimum=1
  )
  game_of_thrones_characters: int = settings.field(
    13, 'The number of characters of Game of Thrones.', minimum=1
  )


def _read_season(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Reads the speakers and utterances of a season; may raise any error."""
  for episode in texts.load_json(path)['episodes']:
    for scene in episode['scenes']:
      for utterance in scene['utterances']:
        speakers, text = utterance['speakers'], utterance['transcript']
        if len(speakers) == 1 and isinstance(speakers[0] + text, str):
          yield speakers[0], text


def _read_friends(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Reads the speakers and utterances of all seasons."""
  with files.reading(folder, 'a folder of seasons', _ADVICE_ON_FRIENDS):
    seasons = sorted(
      path for path in folder.iterdir() if _SEASON.fullmatch(path.name)
    )
  for path in seasons:
    with files.reading(path, 'a season of Friends', _ADVICE_ON_FRIENDS):
      yield from _read_season(path)


def _read_thrones(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Reads speakers and utterances; lines of another form are directions."""
  with texts.open_lines(path) as lines:
    for line in lines:
      matched = _LINE.fullmatch(line.rstrip())
      if matched:
        name = matched[1].upper()
        if name not in _NOBODY:
          yield _SAME.get(name, name), matched[2]


def load(
  settings: TvDialogueSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task from the files in `data_dir`."""
  del seed  # All randomness follows from `split_seed`.
  clients: dict[str, dialogue.Utterances] = {}
  for context, show in enumerate(settings.shows):
    if show == 'friends':
      number, advice = settings.friends_characters, _ADVICE_ON_FRIENDS
      path = downloads.find(settings.friends, data_dir, advice)
      lines = _read_friends(path)
    else:
      number, advice = settings.game_of_thrones_characters, _ADVICE_ON_THRONES
      path = texts.find(settings.game_of_thrones, data_dir, advice)
      lines = _read_thrones(path)
    said: dict[str, dialogue.Utterances] = collections.defaultdict(
      dialogue.Utterances
    )
    for name, text in lines:
      said[name].add(text, context)
    if not said:
      raise errors.UserError(f'{path} has no utterances. {advice}')
    for name in dialogue.choose_longest(said, number):
      clients[f'{show} {name}'] = said[name]
  return dialogue.make_task(
    'tv_dialogue', settings, data_dir, clients, settings.shows
  )


registry.register_task('tv_dialogue', TvDialogueSettings)
