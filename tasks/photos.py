"""Settings, splits and models that all tasks of photos in classes share.

Photos are bytes, `[n, size, size, channels]`, in the order of their files,
those for training first. They are divided among clients, and each client's
photos are split (cross-silo):

  tenths             a tenth is for validation, and a tenth for the test
  pfllib             the quarter that PFLlib tests on (Zhang et al. 2025); as it
                     has no validation examples, its tests choose, too
  pfllib_validation  the same test, and a fifth of the others for validation
"""

import dataclasses

import numpy as np

from base import seeds
from base import settings
from tasks import task
from tasks.data import partitions
from tasks.data import populations
from tasks.data import silos
from tasks.models import cnn
from tasks.models import models
from tasks.models import normalization
from tasks.models import resnet

_TENTHS, _PFLLIB, _VALIDATION = 'tenths', 'pfllib', 'pfllib_validation'
_CNN, _RESNET, _TUTORIAL = 'cnn', 'resnet', 'tutorial'


def model_field(default: str = _CNN, *others: str) -> str:
  """Defines the setting `model` of a task of photos.

  Args:
    default: The default.
    *others: The names of networks that other tasks do not have.

  Returns:
    The field of its settings.
  """
  tutorial = "that of PyTorch's tutorial (tutorial), "
  return settings.field(
    default,
    f"The network: {tutorial if _TUTORIAL in others else ''}that of PFLlib's"
    ' benchmark (cnn), or ResNet-18 with 16 channels at first (resnet).',
    choices=(_CNN, _RESNET, *others),
  )


@dataclasses.dataclass(frozen=True)
class PhotoSettings(partitions.PartitionSettings):
  """The settings of a task of photos."""

  split: str = settings.field(
    _TENTHS,
    "How each client's examples are split: a tenth for validation and a tenth"
    ' for the test (tenths); the quarter that PFLlib tests on, by which choices'
    ' are made as well (pfllib); or the same test, and a fifth of the others'
    ' for validation (pfllib_validation).',
    choices=(_TENTHS, _PFLLIB, _VALIDATION),
  )
  model: str = model_field()
  norm: str = settings.field(
    normalization.GROUP,
    'What a resnet normalizes: 8 groups of the channels of a photo (group), or'
    ' the channels of a batch of photos (batch).',
    choices=(normalization.GROUP, normalization.BATCH),
  )
  statistics: str = settings.field(
    normalization.AVERAGED,
    'What is kept of the batches: running means and variances (averaged);'
    ' running means and mean squares, whose averages are those of all clients'
    ' together (pooled); or nothing (recomputed), so that each client computes'
    ' them from its personalization set. For norm=batch.',
    choices=(
      normalization.AVERAGED,
      normalization.POOLED,
      normalization.RECOMPUTED,
    ),
  )


@dataclasses.dataclass(frozen=True)
class PfllibSettings(PhotoSettings):
  """The settings of a task whose clients are PFLlib's."""

  partition: str = partitions.field('pfllib_dirichlet')
  num_clients: int = partitions.num_clients_field(20)
  alpha: float = settings.redefine(partitions.PartitionSettings, 'alpha', 0.1)
  partition_seed: int = partitions.seed_field(1)


def _make_populations(
  photo_settings: PhotoSettings,
  photos: np.ndarray,
  labels: np.ndarray,
  data_dir: str | None,
  seed: int,
) -> populations.Populations:
  def take(rows: np.ndarray) -> populations.Examples:
    x = photos[rows]
    if photo_settings.model == _TUTORIAL:
      # From -1 to 1; the other models do so themselves.
      x = x.astype(np.float32) / 127.5 - 1
    return {'x': x, 'y': labels[rows]}

  clients = partitions.make(photo_settings, labels, data_dir)
  if photo_settings.split == _TENTHS:
    return silos.make_populations_of_rows(clients, take, seed)
  if photo_settings.partition not in partitions.PFLLIB:
    raise settings.SettingError(
      f'split={photo_settings.split} is only for a task.partition of PFLlib:'
      f' {", ".join(partitions.PFLLIB)}.',
      'split',
    )
  splits = {}
  tests = partitions.draw_tests(photo_settings, labels)
  for (client_id, rows), test in zip(clients.items(), tests, strict=True):
    train, validation = rows[~np.isin(rows, test)], test
    if photo_settings.split == _VALIDATION:
      order = seeds.generator('split', seed, client_id).permutation(train)
      size = len(order) // 5
      train, validation = order[size:], order[:size]
    splits[client_id] = dict(train=train, validation=validation, test=test)
  return silos.make_populations_of_splits(splits, take)


def _make_model(
  photo_settings: PhotoSettings, shape: tuple[int, int, int], num_classes: int
) -> models.Model:
  if photo_settings.model == _TUTORIAL:
    return cnn.Cifar10Cnn()
  if photo_settings.model == _RESNET:
    return resnet.ResNet(
      num_classes,
      shape,
      norm=photo_settings.norm,
      running=photo_settings.statistics,
    )
  return cnn.PflLibCnn(num_classes, shape)


def make_task(
  name: str,
  photo_settings: PhotoSettings,
  photos: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  data_dir: str | None,
  seed: int,
) -> task.Task:
  """Makes a task of photos; without a `split_seed`, `seed` decides the split.

  Args:
    name: The name of the task.
    photo_settings: Its settings.
    photos: The photos.
    labels: Their classes, `[n]`.
    num_classes: The number of classes.
    data_dir: The folder of the user's data.
    seed: The seed of the run.
  """
  _, size, _, channels = photos.shape
  return task.Task(
    name=name,
    model=_make_model(photo_settings, (size, size, channels), num_classes),
    metric='accuracy',
    higher_is_better=True,
    batch_size=10,
    padded=False,
    **_make_populations(
      photo_settings, photos, labels, data_dir, photo_settings.seed(seed)
    ),
  )
