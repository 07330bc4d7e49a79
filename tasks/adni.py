"""ADNI: amyloid from PET scans; each maker of scanners is a client (Motley).

The Alzheimer's Disease Neuroimaging Initiative: 9 makers of scanners, slices of
scans with AV45 as gray images of 32x32. A convolutional network predicts the
standardized uptake value ratio of the scan.

The data require registration. Motley's preprocessing turns them into two JSON
files, data/train/mytrain.json and data/test/mytest.json,

  {'users': [...], 'user_data': {user: {'x': [n, 32, 32], 'y': [n]}}, …}

which share no scan. Half of a client's test images, drawn at random, are for
validation.
"""

import dataclasses
import json
import pathlib

import numpy as np

from base import errors
from tasks import registry
from tasks import task
from tasks.data import arrays
from tasks.data import downloads
from tasks.data import files
from tasks.data import populations
from tasks.data import silos
from tasks.models import cnn

_ADVICE = (
  'The data require a registration with ADNI,'
  ' https://adni.loni.usc.edu/data-samples/access-data/: download the PET'
  ' scans with AV45 ("Coreg, Avg, Std Img and Vox Siz, Uniform Resolution")'
  ' and the labels of UC Berkeley (AV45 analysis), and run preprocess.sh of'
  ' https://github.com/litian96/p13n_benchmark_cross_silo (adni/data/adni).'
)
_SIZE = 32


@dataclasses.dataclass(frozen=True)
class AdniSettings(silos.SplitSettings):
  """The settings of ADNI."""


def _read(path: pathlib.Path) -> dict[str, populations.Examples]:
  """Reads the examples of each client in a file."""
  clients: dict[str, populations.Examples] = {}
  advice = f'Make it again. {_ADVICE}'
  with files.reading(path, 'the images of clients', advice):
    user_data = json.loads(path.read_text(encoding='utf-8'))['user_data']
    for user, data in user_data.items():
      y = arrays.convert(data['y'], np.float32, f'y of {user}')
      x = arrays.convert(data['x'], np.float32, f'x of {user}')
      # Reshaped, as without images the shape would be unknown.
      clients[user] = {'x': x.reshape(len(y), _SIZE, _SIZE, 1), 'y': y}
  return clients


def _split(
  train: populations.Examples, test: populations.Examples, seed: int
) -> silos.Split:
  """Takes half of the test examples, one less if odd, for the validation."""
  order = np.random.default_rng(seed).permutation(len(test['y']))
  half = len(order) // 2

  return dict(
    train=train,
    validation=populations.take(test, order[:half]),
    test=populations.take(test, order[half:]),
  )


def load(settings: AdniSettings, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  paths = [
    downloads.find(f'adni/{part}/my{part}.json', data_dir, _ADVICE)
    for part in ('train', 'test')
  ]
  train, test = map(_read, paths)
  if train.keys() != test.keys():
    raise errors.UserError(
      f'{paths[0]} and {paths[1]} are of different clients. {_ADVICE}'
    )
  return task.Task(
    name='adni',
    model=cnn.AdniCnn(),
    metric='squared_error',
    higher_is_better=False,
    batch_size=64,
    padded=False,
    **silos.make_populations(
      {
        user: _split(train[user], test[user], settings.seed(seed))
        for user in sorted(train)
      }
    ),
  )


registry.register_task('adni', AdniSettings)
