"""Vehicle: the kind of vehicle that passes a sensor (Motley, cross-silo).

Duarte and Hu 2004, in the form of Smith et al. 2017: 23 sensors, each a client,
43,695 passages, 50 acoustic and 50 seismic features. A linear support vector
machine predicts which of two kinds a vehicle is.
"""

import dataclasses

import numpy as np

from base import errors
from tasks import registry
from tasks import task
from tasks.data import downloads
from tasks.data import silos
from tasks.models import linear

_ADVICE = (
  'Make it from the data that Motley (appendix B) names,'
  ' https://web.archive.org/web/20200128092656/http://www.ecs.umass.edu:80/'
  '~mduarte/Software.html: a MATLAB file of two cell arrays with a cell for'
  ' each sensor: X has its features, n x 100, and Y its labels, -1 or 1.'
)
_NUM_FEATURES = 100
_L2 = 1e-4


@dataclasses.dataclass(frozen=True)
class VehicleSettings(silos.SplitSettings):
  """The settings of Vehicle."""


def load(
  settings: VehicleSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the split."""
  path = downloads.find('vehicle/vehicle.mat', data_dir, _ADVICE)
  sensors = silos.read_mat(path, _NUM_FEATURES, f'the right one. {_ADVICE}')
  for number, (_, labels) in enumerate(sensors):
    others = labels[np.abs(labels) != 1]
    if len(others):
      raise errors.UserError(
        f'{path}: Y of client {number} has the label {others[0]:g}, but labels'
        f' must be -1 or 1. {_ADVICE}'
      )
  return task.Task(
    name='vehicle',
    model=linear.SupportVectorMachine(_NUM_FEATURES, _L2),
    metric='accuracy',
    higher_is_better=True,
    batch_size=64,
    padded=True,
    **silos.make_populations(
      silos.numbered(
        'sensor',
        [
          silos.split(features, labels, settings.seed(seed))
          for features, labels in sensors
        ],
      )
    ),
  )


registry.register_task('vehicle', VehicleSettings)
