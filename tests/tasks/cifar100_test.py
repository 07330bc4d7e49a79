"""Tests of CIFAR-100, on small files of the form of the real ones."""

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks import registry
from tests.tasks import silo_examples


@pytest.fixture(name='folder')
def _folder(tmp_path):
  folder = tmp_path / 'cifar100' / 'cifar-100-binary'
  folder.mkdir(parents=True)
  records = np.random.default_rng(0).integers(0, 256, (600, 2 + 3 * 1024))
  records[:, 0], records[:, 1] = np.arange(600) % 20, np.arange(600) % 100
  records = records.astype(np.uint8)
  (folder / 'train.bin').write_bytes(records[:500].tobytes())
  (folder / 'test.bin').write_bytes(records[500:].tobytes())
  return folder


def test_photos_have_the_finer_of_their_labels(folder):
  task = registry.load(
    'cifar100', data_dir=str(folder.parents[1]), num_clients=2, alpha=10
  )
  labels = np.concatenate(
    [silo_examples.of_client(task, c)['y'] for c in task.train.client_ids]
  )
  np.testing.assert_array_equal(np.bincount(labels), [6] * 100)
  weights = task.model.init(tf.constant([0, 1]))
  # PFLlib's has as many.
  assert sum(np.size(weight) for weight in weights.values()) == 924_708


def test_a_label_of_no_class_is_refused(folder):
  path = folder / 'test.bin'
  path.write_bytes(b'\0\x64' + path.read_bytes()[2:])
  with pytest.raises(errors.UserError, match='from 0 to 99'):
    registry.load('cifar100', data_dir=str(folder.parents[1]))
