"""Wake word: whether a clip has a certain word; clients are types of devices.

As in Self-FL, section 4.3, whose data are not public: each type of device is a
client, or several clients share the clips of a type evenly (appendix G.4); the
model is a convolutional network on spectrograms. The data are a folder with WAV
files, one channel of 16 bits at 16 kHz, and a table clips.csv of the columns
file, device and label: 1 for a clip with the word, 0 for a clip without.

The metric is the share of clips without the word that are accepted, at the
threshold that rejects at most `false_rejects` of the clips with the word. The
paper's relative false accepts at relative false rejects of one are this metric,
divided by that of the model with which it is compared.

A tenth of each client's clips of each label are validation examples and a tenth
test examples (cross-silo).
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks.data import audio
from tasks.data import clip_tables
from tasks.data import downloads
from tasks.data import partitions
from tasks.data import populations
from tasks.data import silos
from tasks.models import cnn

_TABLE = 'clips.csv'
_ADVICE = (
  'Make a folder wakeword in the data_dir, with WAV files and a table'
  f' {_TABLE} of the columns file, device and label (1 with the word, 0'
  ' without).'
)


@dataclasses.dataclass(frozen=True)
class WakewordSettings(silos.SplitSettings):
  """The settings of a wake word."""

  clients_per_device: int = settings.field(
    1,
    "The number of clients of each type of device, which share the type's clips"
    ' evenly.',
    minimum=1,
  )
  partition_seed: int = partitions.seed_field(0)
  channels: tuple[int, ...] = settings.field(
    (8, 16, 32, 32),
    'The channels of each convolution of the network.',
    minimum=1,
  )
  false_rejects: float = settings.field(
    0.05,
    'The share of clips with the word that may be rejected.',
    minimum=0,
    maximum=1,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not 1 <= len(self.channels) <= cnn.MOST_SPECTROGRAM_LAYERS:
      raise settings.SettingError(
        f'channels must be 1 to {cnn.MOST_SPECTROGRAM_LAYERS} numbers, not'
        f' {len(self.channels)}.',
        'channels',
      )


def _parse(
  rows: Sequence[clip_tables.Row],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the labels and the devices of the clips."""
  labels = np.array([{'0': 0, '1': 1}[row['label']] for row in rows], np.int32)
  devices = [row['device'] for row in rows]
  if len(set(labels)) < 2:
    raise ValueError('it has no clips with the word, or none without')
  if not all(devices):
    raise ValueError('a clip has no device')
  return labels, np.array(devices)


def make_task(
  name: str,
  settings: WakewordSettings,
  x: np.ndarray,
  labels: np.ndarray,
  devices: np.ndarray,
  seed: int,
) -> task.Task:
  """Makes the task of detecting a word in clips.

  Args:
    name: The name of the task.
    settings: The settings.
    x: The spectrograms of the clips.
    labels: The label of each clip: 1 with the word, 0 without.
    devices: The type of device of each clip.
    seed: The seed of the run.

  Returns:
    The task; the group of a client is the type of its device.
  """
  clients: dict[str, np.ndarray] = {}
  of_device: dict[str, int] = {}
  by_device = partitions.group_by_column(devices)
  for k, (device, rows) in enumerate(by_device.items()):
    rng = seeds.generator('devices', settings.partition_seed, device)
    parts = np.array_split(rng.permutation(rows), settings.clients_per_device)
    for i, part in enumerate(parts):
      client_id = device if len(parts) == 1 else f'{device}_{i}'
      clients[client_id], of_device[client_id] = np.sort(part), k

  def take(rows: np.ndarray) -> populations.Examples:
    return {'x': x[rows], 'y': labels[rows]}

  return task.Task(
    name=name,
    model=cnn.WakewordCnn(
      audio.FRAMES, audio.BANDS, settings.channels, settings.false_rejects
    ),
    metric='false_accepts',
    higher_is_better=False,
    batch_size=20,
    padded=False,
    attributes={task.GROUP: task.Attribute(tuple(by_device), of_device)},
    **silos.make_populations_of_rows(
      clients, take, settings.seed(seed), strata=labels
    ),
  )


def load(
  settings: WakewordSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  table = downloads.find(f'wakeword/{_TABLE}', data_dir, _ADVICE)
  x, known = clip_tables.read(table, _parse, audio.spectrogram, _ADVICE)
  return make_task('wakeword', settings, x, *known, seed)


registry.register_task('wakeword', WakewordSettings)
