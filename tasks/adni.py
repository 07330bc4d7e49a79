"""ADNI: amyloid from PET scans, a client for each maker of scanners (Motley).

The Alzheimer's Disease Neuroimaging Initiative: 9 makers of scanners, slices of
scans with AV45 as grey images of 32x32, and the standardized uptake value ratio
of the scan, which a convolutional network is to predict.

Who may see the data has to register. Then Motley's preprocessing makes two JSON
files of it, data/train/mytrain.json and data/test/mytest.json,

  {'users': [...], 'user_data': {user: {'x': [n, 32, 32], 'y': [n]}}, …}

where no scan is in both. Half of a client's test images, at random, are for the
validation.
"""

import json
import pathlib

import numpy as np

from base import errors
from tasks import task
from tasks.data import client_data
from tasks.data import downloads
from tasks.data import silos
from tasks.models import cnn

_ADVICE = (
  'The data is for those who register with ADNI,'
  ' https://adni.loni.usc.edu/data-samples/access-data/: download the PET'
  ' scans with AV45 ("Coreg, Avg, Std Img and Vox Siz, Uniform Resolution")'
  ' and the labels of UC Berkeley (AV45 analysis), and run preprocess.sh of'
  ' https://github.com/litian96/p13n_benchmark_cross_silo (adni/data/adni).'
)
_SIZE = 32

Parameters = silos.Parameters


def _read(path: pathlib.Path) -> dict[str, client_data.Examples]:
  """The examples of each client in a file."""
  try:
    user_data = json.loads(path.read_text())['user_data']
    clients = {
      user: {
        # The shape of no images would not be known.
        'x': np.reshape(
          np.asarray(own['x'], np.float32),
          (len(own['y']), _SIZE, _SIZE, 1),
        ),
        'y': np.asarray(own['y'], np.float32),
      }
      for user, own in user_data.items()
    }
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise errors.UserError(
      f'{path} cannot be read as the images of clients ({error}). Make it'
      f' again. {_ADVICE}'
    ) from error
  return clients


def _split(
  train: client_data.Examples, test: client_data.Examples, seed: int
) -> silos.Split:
  """Takes half of the test examples, one less if odd, for the validation."""
  order = np.random.default_rng(seed).permutation(len(test['y']))
  half = len(order) // 2

  def part(rows: np.ndarray) -> client_data.Examples:
    return {name: values[rows] for name, values in test.items()}

  return dict(
    train=train, validation=part(order[:half]), test=part(order[half:])
  )


def load(parameters: Parameters, data_dir: str | None, seed: int) -> task.Task:
  """Loads the task; without `split_seed`, `seed` decides the split."""
  paths = [
    downloads.find(f'adni/{part}/my{part}.json', data_dir, _ADVICE)
    for part in ('train', 'test')
  ]
  train, test = map(_read, paths)
  if train.keys() != test.keys():
    raise errors.UserError(
      f'{paths[0]} and {paths[1]} are not of the same clients. {_ADVICE}'
    )
  return silos.make_task(
    {
      user: _split(train[user], test[user], parameters.seed(seed))
      for user in sorted(train)
    },
    name='adni',
    model=cnn.AdniCnn(),
    metric='squared_error',
    higher_is_better=False,
    batch_size=64,
    padded=False,
  )
