"""Two planted groups of clients, one of which has its images upside down."""

from collections.abc import Sequence

import numpy as np

from base import settings
from tasks import task

UPRIGHT, ROTATED = 'upright', 'rotated'


def field() -> bool:
  """Defines the setting `rotate_half` of a task."""
  return settings.field(
    False,
    'Whether to turn the images of every other client upside down, which makes'
    ' two groups of clients.',
  )


def groups(client_ids: Sequence[str]) -> task.Attribute:
  """Makes the groups of `rotate_half`, in which every other client is rotated.

  Args:
    client_ids: All clients. If they are split into populations in this order,
      half of each population is rotated.

  Returns:
    Each client's group, `UPRIGHT` or `ROTATED`.
  """
  return task.Attribute(
    (UPRIGHT, ROTATED),
    {client_id: i % 2 for i, client_id in enumerate(client_ids)},
  )


def turn(images: np.ndarray) -> np.ndarray:
  """Turns images upside down, `[images, height, width, …]`."""
  return np.rot90(images, 2, axes=(1, 2))
