"""School: exam scores of London pupils; each school is a client (Motley).

139 schools, 15,362 pupils, 28 features of pupil and school. A linear model
predicts the score (cross-silo).
"""

import dataclasses

from base import settings
from tasks import registry
from tasks import task
from tasks.data import downloads
from tasks.data import silos
from tasks.models import linear

# Motley's cross-silo code names MALSAR's copy.
_URL = 'https://github.com/jiayuzhou/MALSAR/raw/master/data/school.mat'
_SHA256 = '57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068'

_NUM_FEATURES = 28
# Among all schools.
_LOWEST_SCORE, _HIGHEST_SCORE = 1, 70
# The share of the test examples in Liu et al. 2022 (MR-MTL).
_TEST_OF_MR_MTL = 0.2


@dataclasses.dataclass(frozen=True)
class SchoolSettings(silos.SplitSettings):
  """The settings of School."""

  protocol: str = settings.field(
    'motley',
    'How models are evaluated: as in Motley, by half the squared error on a'
    ' split of 70/15/15; or as in MR-MTL, by the squared error on a split of'
    ' 80/20, where the test examples are also the validation examples.',
    choices=('motley', 'mr_mtl'),
  )


def load(
  school_settings: SchoolSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  is_motley = school_settings.protocol == 'motley'
  path = downloads.fetch('school/school.mat', _URL, _SHA256, data_dir)
  schools = [
    silos.split(
      features,
      (scores - _LOWEST_SCORE) / (_HIGHEST_SCORE - _LOWEST_SCORE),
      school_settings.seed(seed),
      None if is_motley else _TEST_OF_MR_MTL,
    )
    for features, scores in silos.read_mat(path, _NUM_FEATURES, _URL)
  ]
  return task.Task(
    name='school',
    model=linear.LinearRegression(_NUM_FEATURES, whole_error=not is_motley),
    metric='half_squared_error' if is_motley else 'squared_error',
    higher_is_better=False,
    batch_size=32,
    padded=True,
    **silos.make_populations(silos.numbered('school', schools)),
  )


registry.register_task('school', SchoolSettings)
