"""Tests of Sent140, on a small table and small embeddings."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks import registry
from tasks import sent140
from tests import data
from tests.tasks import sent140_source
from tests.tasks import silo_examples


@pytest.fixture(name='folder')
def _folder(tmp_path):
  """Writes files in the form of the real ones."""
  sent140_source.write(tmp_path)
  return tmp_path


@pytest.fixture(name='load_task')
def _load_task(folder):
  return functools.partial(
    registry.load, 'sent140', data_dir=str(folder), num_clients=3, lstm_size=4
  )


def test_clients_are_users_of_enough_tweets(load_task):
  task = load_task()
  assert task.cross_silo
  assert task.train.client_ids == ('bob', 'cäs', 'dan')
  for client_id in task.train.client_ids:
    examples = silo_examples.of_client(task, client_id)
    assert len(examples['y']) == sent140_source.USERS[client_id]
    assert examples['y'].sum() == sent140_source.USERS[client_id] // 2


def test_users_are_drawn_by_a_seed_of_their_own(load_task):
  draws = [
    load_task(num_clients=2, min_tweets=1, seed=seed, users_seed=k)
    for seed, k in [(1, 0), (2, 0), (0, 1), (0, 2), (0, 3)]
  ]
  clients = [task.train.client_ids for task in draws]
  assert clients[0] == clients[1]
  assert len(set(clients)) > 1


def test_words_are_rows_of_embeddings_and_unknown_ones_are_zero(load_task):
  task = load_task()
  embedding = task.model.frozen['embedding']
  # 'so', 'bob', ',', 'x', '!': three of them are unknown.
  words = embedding[silo_examples.of_client(task, 'bob')['x'][0]]
  expected = np.zeros((25, 3))
  expected[0], expected[4] = (
    sent140_source.VECTORS['so'],
    sent140_source.VECTORS['!'],
  )
  np.testing.assert_array_equal(words, expected)
  # 'glad' is in no tweet.
  assert len(embedding) == 3


def test_a_text_is_its_first_words_and_marks():
  assert sent140.split_words("@ann  It's SO good,really...:) é1") == [
    *('ann', "it's", 'so', 'good', ',', 'really', '.', '.', '.', 'é1')
  ]
  assert sent140.split_words('a ' * 30) == ['a'] * 25


def test_embeddings_of_the_stand_in():
  path = data.path('glove/glove100d_top20000.npz')
  rows, table = sent140.read_embeddings(path, {'the', 'happy', 'zzzzqq'})
  assert set(rows) == {'the', 'happy'}
  assert table.shape == (3, 100)
  assert table.dtype == np.float32
  with np.load(path) as file:
    vectors = dict(zip(file['words'], file['vectors']))
  np.testing.assert_array_equal(table[rows['happy']], vectors['happy'])


def test_the_model_is_that_of_keras(load_task):
  layers = tf.keras.layers
  task = load_task()
  keras = tf.keras.Sequential(
    [
      layers.LSTM(4, return_sequences=True, input_shape=(25, 3)),
      layers.LSTM(4),
      layers.Dense(2),
    ]
  )
  rng = np.random.default_rng(0)
  weights = task.model.init(tf.constant([0, 1]))
  assert sum(task.model.parts.values(), ()) == tuple(weights)
  for name, weight in weights.items():
    noise = rng.normal(scale=0.5, size=weight.shape)
    weights[name] = weight + tf.constant(noise, tf.float32)
  keras.set_weights(list(weights.values()))
  batch = task.train.sets['train']('bob')
  batch['x'] = rng.integers(3, size=(8, 25)).astype(np.int32)
  batch['y'] = rng.integers(2, size=8).astype(np.int32)
  x = task.model.frozen['embedding'][batch['x']]
  np.testing.assert_allclose(
    task.model.scores(weights, batch), keras(x), atol=1e-5
  )
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tf.reduce_sum(task.model.loss(weights, batch))
  ours = tape.gradient(loss, list(weights.values()))
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(
      tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], keras(x))
    )
  theirs = tape.gradient(loss, keras.trainable_variables)
  for slope, expected in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(slope, expected, atol=1e-4)


def test_too_few_users_are_refused(load_task):
  with pytest.raises(errors.UserError, match='3 users have 31 tweets'):
    load_task(num_clients=4)


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_text('0,1,2\n'),
    lambda path: path.write_text('2,1,2,3,ann,text\n'),
  ],
  ids=['missing', 'other_columns', 'other_labels'],
)
def test_a_wrong_table_is_named(damage, load_task, folder):
  damage(folder / sent140_source.FILE)
  with pytest.raises(errors.UserError, match='noemoticon.csv'):
    load_task()


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b'\xff\xfe so 1'),
    lambda path: path.write_text('so 1 2\n! 1 2 3\n'),
    lambda path: path.write_text('so a b\n'),
    lambda path: path.write_text('so\n'),
    lambda path: path.write_text('nothing 1 2\n'),
  ],
  ids=['missing', 'bytes', 'widths', 'no_number', 'no_numbers', 'no_words'],
)
def test_wrong_embeddings_are_named(damage, load_task, folder):
  path = folder / sent140_source.GLOVE
  damage(path)
  with pytest.raises(errors.UserError, match=path.name):
    load_task()


def test_wrong_embeddings_of_numpy_are_named(load_task, folder):
  path = folder / 'glove' / 'other.npz'
  for save in (lambda: path.write_bytes(b'x'), lambda: np.savez(path, a=1)):
    save()
    with pytest.raises(errors.UserError, match='other.npz'):
      load_task(embeddings='other.npz')
