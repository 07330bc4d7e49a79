"""Tests of MNIST preferences, on small files and on the real ones."""

import collections
import functools

import numpy as np
import pytest

from base import errors
from tasks import registry
from tasks import task as tasks
from tests import data
from tests.tasks import mnist_source

# Of the 600 images, the first 400 of which are to train on.
_LABELS = (np.arange(600) % 10).astype(np.uint8)
_SETS = {
  'train': lambda task: task.train.sets['train'],
  'validation': lambda task: task.validation.sets['evaluation'],
  'test': lambda task: task.test.sets['evaluation'],
}


@pytest.fixture(name='load_task', scope='module')
def _load_task(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data') / 'mnist'
  folder.mkdir()
  images, _ = mnist_source.examples()
  for part, rows in (('train', slice(400)), ('t10k', slice(400, None))):
    for kind, values in (('images-idx3', images), ('labels-idx1', _LABELS)):
      path = folder / f'{part}-{kind}-ubyte.gz'
      mnist_source.write_idx(path, values[rows])
  return functools.partial(
    registry.load,
    'mnist_preference',
    data_dir=str(folder.parent),
    users=30,
    seed=1,
  )


def _numbers(x):
  """The number of each image, as the small files have it."""
  pixels = np.rint(x[..., 0] * 255).astype(int)
  return pixels[:, 1, 1] * 256 + pixels[:, 1, 2]


def _likes(task, client_id):
  return task.attributes[tasks.GROUP].values[client_id]


def test_a_user_has_as_many_images_of_the_digit_it_likes_as_of_others(
  load_task,
):
  task = load_task()
  for client_id in task.train.client_ids:
    for name, size in (('train', 20), ('validation', 10), ('test', 10)):
      examples = _SETS[name](task)(client_id)
      assert len(examples['y']) == size == 2 * examples['y'].sum()
      np.testing.assert_array_equal(
        examples['y'] == 1, examples['type'] == _likes(task, client_id)
      )


def test_types_are_those_of_the_images_and_parts_of_their_file(load_task):
  task = load_task()
  for client_id in task.train.client_ids:
    numbers = []
    for name, load in _SETS.items():
      examples = load(task)(client_id)
      numbers.append(_numbers(examples['x']))
      np.testing.assert_array_equal(examples['type'], _LABELS[numbers[-1]])
      # The test file has the images from 400 on.
      assert np.all((numbers[-1] >= 400) == (name == 'validation'))
    everything = np.concatenate(numbers)
    assert len(set(everything)) == len(everything)


def test_the_first_users_like_each_digit_and_the_shares_are_even(load_task):
  task = load_task()
  likes = [_likes(task, client_id) for client_id in task.train.client_ids]
  assert likes[:10] == list(range(10))
  assert set(collections.Counter(likes).values()) == {3}


def test_shares_of_the_unbalanced_population(load_task):
  task = load_task(balanced=False, users=60)
  likes = collections.Counter(
    _likes(task, client_id) for client_id in task.train.client_ids
  )
  assert [likes[k] for k in range(10)] == [15, 9, 6, 6, 6, 6, 3, 3, 3, 3]


def test_without_reuse_an_image_is_at_one_user(load_task):
  task = load_task(reuse=False, users=13)
  numbers = np.concatenate(
    [
      _numbers(_SETS[name](task)(client_id)['x'])
      for client_id in task.train.client_ids
      for name in ('train', 'test')
    ]
  )
  assert len(set(numbers)) == len(numbers) == 13 * 30


@pytest.mark.parametrize('users', [30, 14])
def test_too_many_users_without_reuse_are_refused(load_task, users):
  # 400 images are 13 users' 30.
  with pytest.raises(errors.UserError, match='Set fewer users'):
    load_task(reuse=False, users=users)


def test_fewer_users_than_digits_are_refused(load_task):
  with pytest.raises(errors.UserError, match='users is 9'):
    load_task(users=9)


def test_users_can_be_held_out(load_task):
  task = load_task(hold_out='clients', held_out_users=10)
  ids = [
    set(population.client_ids)
    for population in (task.train, task.validation, task.test)
  ]
  assert [len(client_ids) for client_ids in ids] == [30, 10, 10]
  assert len(set.union(*ids)) == 50
  assert not task.cross_silo
  for client_id in task.test.client_ids:
    adapt, judge = (
      task.test.sets[name](client_id)
      for name in ('personalization', 'evaluation')
    )
    assert (len(adapt['y']), len(judge['y'])) == (20, 10)
    numbers = [*_numbers(adapt['x']), *_numbers(judge['x'])]
    assert min(numbers) >= 400
    assert len(set(numbers)) == 30
    np.testing.assert_array_equal(
      adapt['y'] == 1, adapt['type'] == _likes(task, client_id)
    )


def test_a_seed_fixes_who_has_what(load_task):
  first, again, other = (
    load_task(**values).train.sets['train']('user_00012')['x']
    for values in ({}, dict(seed=2, split_seed=1), dict(seed=2))
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


def test_examples_fit_the_model(load_task):
  task = load_task()
  examples = task.train.sets['train'](task.train.client_ids[0])
  assert examples.keys() == task.model.example_spec.keys()
  for feature, spec in task.model.example_spec.items():
    assert examples[feature].dtype == spec.dtype
    assert examples[feature].shape[1:] == tuple(spec.shape)
  assert task.metric in task.model.metrics


def test_the_real_images_are_enough_for_900_users_without_reuse():
  folder = data.path('mnist').parent
  for values in (dict(), dict(balanced=False)):
    task = registry.load(
      'mnist_preference',
      data_dir=str(folder),
      users=900,
      reuse=False,
      **values,
    )
    assert len(task.train.client_ids) == 900
