"""School: exam scores of London pupils, a school a client (Motley, cross-silo).

139 schools, 15,362 pupils, 28 features of pupil and school; the score is to be
predicted by a linear model.
"""

import dataclasses
import pathlib
from typing import Optional

import numpy as np
import scipy.io
from sklearn import model_selection

from tasks import client_data
from tasks import downloads
from tasks import errors
from tasks import parameters as parameters_lib
from tasks import task
from tasks.models import linear

# MALSAR's copy is the one that Motley's cross-silo code names.
_URL = 'https://github.com/jiayuzhou/MALSAR/raw/master/data/school.mat'
_SHA256 = '57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068'

_NUM_FEATURES = 28
_HELD_OUT = 0.15
# Over all schools.
_LOWEST_SCORE, _HIGHEST_SCORE = 1, 70


@dataclasses.dataclass(frozen=True)
class Parameters(parameters_lib.Parameters):
  """The settings of the task."""

  split_seed: Optional[int] = parameters_lib.field(
      None,
      'The seed of the split into train, validation and test; none for the'
      ' seed of the run, as in Motley, whose repeats differ in the split too.',
      minimum=0,
      maximum=2**32 - 1,
  )


def _read(path: pathlib.Path) -> list[tuple[np.ndarray, np.ndarray]]:
  """Reads the features and the scores of each school."""
  try:
    contents = scipy.io.loadmat(path)
    schools = [
        (features.astype(np.float32), scores.astype(np.float32).ravel())
        for features, scores in zip(
            contents['X'][0], contents['Y'][0], strict=True
        )
    ]
    for features, scores in schools:
      if features.shape != (len(scores), _NUM_FEATURES):
        raise ValueError(f'a school has features of shape {features.shape}')
  except Exception as error:  # SciPy raises a dozen kinds for a damaged file.
    raise errors.UserError(
        f'{path} cannot be read as the School data ({error}). Replace it with'
        f' {_URL}'
    ) from error
  return schools


def _split(
    features: np.ndarray, scores: np.ndarray, seed: int
) -> dict[str, client_data.Examples]:
  """Splits the pupils of a school and scales their features and scores."""
  rest, test = model_selection.train_test_split(
      np.arange(len(scores)), test_size=_HELD_OUT, random_state=seed
  )
  train, validation = model_selection.train_test_split(
      rest, test_size=_HELD_OUT / (1 - _HELD_OUT), random_state=seed
  )
  # In float64, where a constant column has no rounding error for a deviation.
  mean = features[train].mean(axis=0, dtype=np.float64)
  deviation = features[train].std(axis=0, dtype=np.float64)
  x = np.divide(
      features - mean,
      deviation,
      out=np.zeros(features.shape),
      where=deviation > 0,
  ).astype(np.float32)
  y = (scores - _LOWEST_SCORE) / (_HIGHEST_SCORE - _LOWEST_SCORE)
  return {
      name: {'x': x[rows], 'y': y[rows]}
      for name, rows in (
          ('train', train),
          ('validation', validation),
          ('test', test),
      )
  }


def load(
    parameters: Parameters, data_dir: Optional[str], seed: int
) -> task.Task:
  """Loads the task; without `split_seed`, `seed` decides the split."""
  path = downloads.fetch('school/school.mat', _URL, _SHA256, data_dir)
  if parameters.split_seed is not None:
    seed = parameters.split_seed
  schools = {
      f'school_{i:03d}': _split(features, scores, seed)
      for i, (features, scores) in enumerate(_read(path))
  }

  def population(**sets: str) -> client_data.Population:
    """The schools, with each set being the given part of their pupils."""

    def loader(part: str) -> client_data.Load:
      return lambda client_id: schools[client_id][part]

    return client_data.Population(
        tuple(schools), {name: loader(part) for name, part in sets.items()}
    )

  return task.Task(
      name='school',
      model=linear.linear_regression(_NUM_FEATURES),
      metric='half_squared_error',
      higher_is_better=False,
      train=population(train='train'),
      validation=population(personalization='train', evaluation='validation'),
      test=population(personalization='train', evaluation='test'),
      cross_silo=True,
      batch_size=32,
      padded=True,
  )
