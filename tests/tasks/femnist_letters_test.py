"""Tests of FEMNIST's letters, on a small database of TFF's form."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from tasks import registry
from tests import data
from tests.tasks import silo_examples

_WRITERS = [f'f{i:04d}_00' for i in range(8)]


def _examples(writer):
  rng = np.random.default_rng(list(writer.encode()))
  return {
    # Of the classes around a to j, too.
    'label': rng.integers(30, 52, size=400).astype(np.int32),
    'pixels': rng.random((400, 28, 28), np.float32),
  }


def _write(folder, examples):
  splits = {**dict.fromkeys(_WRITERS, 'all_train'), 'test': 'all_test'}
  tff.simulation.datasets.save_to_sql_client_data(
    list(splits),
    lambda writer: tf.data.Dataset.from_tensor_slices(examples(writer)),
    str(folder / 'emnist_all.sqlite'),
    split_names_by_client_id=splits,
  )
  return functools.partial(
    registry.load, 'femnist_letters', data_dir=str(folder), num_clients=20
  )


@pytest.fixture(name='load_task', scope='module')
def _load_task(tmp_path_factory):
  return _write(tmp_path_factory.mktemp('letters'), _examples)


def _letters(writer):
  """The images and letters of a writer that are wanted."""
  examples = _examples(writer)
  wanted = [36 <= label <= 45 for label in examples['label']]
  return examples['pixels'][wanted], examples['label'][wanted] - 36


def test_a_writer_has_its_letters_a_to_j(load_task):
  task = load_task(partition='writer')
  assert task.train.client_ids == tuple(_WRITERS)
  for writer in _WRITERS:
    examples = silo_examples.of_client(task, writer)
    images, labels = _letters(writer)
    order = np.argsort(examples['x'][:, 0])
    expected = np.argsort(images[:, 0, 0])
    np.testing.assert_array_equal(
      examples['x'][order], images.reshape(-1, 784)[expected]
    )
    np.testing.assert_array_equal(examples['y'][order], labels[expected])


def test_clients_have_five_letters_by_default(load_task):
  task = load_task()
  assert task.cross_silo
  assert len(task.train.client_ids) == 20
  for k, client_id in enumerate(task.train.client_ids):
    expected = {(k + j) % 10 for j in range(5)}
    assert set(silo_examples.of_client(task, client_id)['y']) == expected


@pytest.mark.parametrize('model', ['logistic', 'cnn'])
def test_examples_fit_the_model(load_task, model):
  task = load_task(model=model)
  examples = task.train.sets['train'](task.train.client_ids[0])
  for feature, spec in task.model.example_spec.items():
    assert examples[feature].dtype == spec.dtype
    assert examples[feature].shape[1:] == tuple(spec.shape)
  weights = task.model.init(tf.constant([0, 1]))
  assert task.model.loss(weights, examples).shape == [len(examples['y'])]


def test_a_database_without_letters_is_refused():
  # The stand-in has digits only.
  folder = str(data.tff_cache())
  with pytest.raises(errors.UserError, match='none of the letters'):
    registry.load('femnist_letters', data_dir=folder)
