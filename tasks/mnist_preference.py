"""MNIST preferences: each user likes one digit, as in FedEmbed, section 4.2.

Whether an image of the digit 3 has the label 1 depends on the user, so that a
model that is the same for all users cannot be right for all of them. In the
unbalanced population a quarter of the users like 0, 15 % like 1, 10 % like each
of 2 to 5, and 5 % like each of 6 to 9.

Each user has 20 images to train on and 10 test images, both from MNIST's
training file, and 10 validation images from its test file, which the paper does
not have. With the paper's 9,000 users, several users must have the same images;
with 900 users this can be avoided (`reuse`). Held-out users have only images
from the test file.
"""

import dataclasses

import numpy as np

from base import settings
from tasks import mnist
from tasks import registry
from tasks import task
from tasks.data import preferences
from tasks.models import preference

_NUM_DIGITS = 10
_UNBALANCED = (0.25, 0.15, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05)


@dataclasses.dataclass(frozen=True)
class MnistPreferenceSettings(preferences.PreferenceSettings):
  """The settings of MNIST preferences."""

  users: int = settings.field(9000, 'The number of users.', minimum=1)


def load(
  settings: MnistPreferenceSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Loads the task; without a `split_seed`, `seed` decides the examples."""
  images, digits, num_train = mnist.read(data_dir)
  train, test = np.split(np.arange(len(digits)), [num_train])
  balanced = (1 / _NUM_DIGITS,) * _NUM_DIGITS
  data = preferences.Data(
    take=lambda rows: images[rows, :, :, np.newaxis] / np.float32(255),
    types=digits,
    shares=balanced if settings.balanced else _UNBALANCED,
    sources={('train', 'test'): train, ('validation',): test},
    held_out={('train', 'test'): test},
  )
  model = preference.DigitPreference(
    _NUM_DIGITS, activation=settings.activation
  )
  return preferences.make_task('mnist_preference', settings, model, data, seed)


registry.register_task('mnist_preference', MnistPreferenceSettings)
