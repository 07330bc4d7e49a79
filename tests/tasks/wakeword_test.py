"""Tests of wake words, on a small folder of clips."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from base import settings
from tasks import registry
from tasks import wakeword
from tests.tasks import wakeword_source


@pytest.fixture(name='folder', scope='module')
def _made_folder(tmp_path_factory):
  """Writes clips in which the word is a high tone."""
  folder = tmp_path_factory.mktemp('data') / 'wakeword'
  wakeword_source.write(folder)
  return folder


@pytest.fixture(name='load_task', scope='module')
def _load_task(folder):
  return functools.partial(
    registry.load, 'wakeword', data_dir=str(folder.parent), channels=(4, 8)
  )


def _parts(task, client_id):
  return [
    task.train.sets['train'](client_id),
    task.validation.sets['evaluation'](client_id),
    task.test.sets['evaluation'](client_id),
  ]


def test_a_client_is_a_type_of_device(load_task):
  task = load_task()
  assert task.cross_silo
  assert task.train.client_ids == tuple(wakeword_source.DEVICES)
  # A tenth of each label, rounded up.
  for device, expected in (('phone', [30, 5, 5]), ('speaker', [80, 10, 10])):
    assert [len(part['y']) for part in _parts(task, device)] == expected
    assert task.attributes['group'].name(device) == device


def test_each_part_has_clips_with_the_word(load_task):
  task = load_task()
  assert [part['y'].sum() for part in _parts(task, 'phone')] == [6, 1, 1]


def test_types_can_be_shared_by_clients(load_task, folder):
  whole, task = load_task(), load_task(clients_per_device=4)
  assert len(task.train.client_ids) == 8
  for device, size in wakeword_source.DEVICES.items():
    clients = [f'{device}_{i}' for i in range(4)]
    assert {task.attributes['group'].name(c) for c in clients} == {device}

    def all_clips(task, names):
      parts = [part['x'] for name in names for part in _parts(task, name)]
      return sorted(x.tobytes() for x in np.concatenate(parts))

    assert all_clips(task, clients) == all_clips(whole, [device])
    sizes = [sum(len(p['y']) for p in _parts(task, c)) for c in clients]
    assert sizes == [size / 4] * 4


def test_the_model_is_that_of_keras(load_task):
  layers = tf.keras.layers
  keras = tf.keras.Sequential(
    [
      layers.Conv2D(
        4, 3, padding='same', activation='relu', input_shape=(96, 64, 1)
      ),
      layers.MaxPool2D(2),
      layers.Conv2D(8, 3, padding='same', activation='relu'),
      layers.Flatten(),
      layers.Dense(2, activation='softmax'),
    ]
  )
  task = load_task()
  weights = task.model.init(tf.constant([0, 1]))
  keras.set_weights(list(weights.values()))
  batch = task.train.sets['train']('phone')
  scores = task.model.scores(weights, batch)
  probabilities = keras(batch['x']).numpy()
  np.testing.assert_allclose(
    task.model.predict(scores), probabilities[:, 1], atol=1e-5
  )
  np.testing.assert_allclose(
    task.model.loss(weights, batch),
    -np.log(probabilities[np.arange(len(batch['y'])), batch['y']]),
    atol=1e-4,
  )


def test_the_papers_size_is_three_million_weights(load_task):
  model = load_task(channels=(32, 64, 128, 256, 512, 320)).model
  weights = model.init(tf.constant([0, 1]))
  assert sum(np.size(w) for w in weights.values()) == 3_046_722


def test_a_detector_is_judged_by_what_it_accepts(load_task):
  model = load_task(false_rejects=0.25).model
  labels = tf.constant([0, 0, 0, 0, 1, 1, 1, 1])
  # The first with the word may be rejected, so that the threshold is .5.
  predicted = tf.constant([0.0, 0.3, 0.6, 1.0, 0.2, 0.5, 0.9, 1.0])
  statistics = model.prediction_statistics(predicted, {'y': labels})
  counts = tf.reduce_sum(statistics['false_accepts'], axis=0).numpy()
  assert model.metrics['false_accepts'].value(counts) == 0.5
  total, number = (tf.reduce_sum(s).numpy() for s in statistics['accuracy'])
  assert total / number == 4 / 8


def test_what_a_detector_that_diverged_was_judged_by_is_counted(load_task):
  task = load_task()
  examples = task.train.sets['train'](task.train.client_ids[0])
  nothing = tf.fill([len(examples['y'])], np.float32(np.nan))
  counts = task.model.prediction_statistics(nothing, examples)['false_accepts']
  assert tf.reduce_sum(counts) == len(examples['y'])


def test_tones_are_told_apart(load_task):
  task = load_task()
  batch = task.train.sets['train']('speaker')
  weights = task.model.init(tf.constant([0, 1]))
  names = list(weights)
  mask = tf.ones(len(batch['y']))
  for _ in range(30):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = task.model.mean_loss(weights, batch, mask)
    for name, slope in zip(names, tape.gradient(loss, list(weights.values()))):
      weights[name] -= 0.1 * slope
  examples = task.test.sets['evaluation']('speaker')
  counts = (
    task.model.statistics(weights, examples)['false_accepts'].numpy().sum(0)
  )
  assert task.model.metrics['false_accepts'].value(counts) == 0


def test_there_is_at_least_one_layer_and_not_too_many():
  for channels, message in (((), 'not be empty'), ((1,) * 7, 'be 1 to 6')):
    with pytest.raises(settings.SettingError, match=f'channels must {message}'):
      wakeword.WakewordSettings(channels=channels)


@pytest.mark.parametrize(
  'rows',
  [
    [['file', 'device']],
    [['file', 'device', 'label']],
    [['file', 'device', 'label'], ['phone_0.wav', 'phone', '2']],
    [['file', 'device', 'label'], ['phone_0.wav', 'phone', '1']],
    [
      ['file', 'device', 'label'],
      ['phone_0.wav', 'phone', '1'],
      ['phone_1.wav', '', '0'],
    ],
    [
      ['file', 'device', 'label'],
      ['phone_0.wav', 'phone', '1', 'speaker'],
      ['phone_1.wav', 'phone', '0'],
    ],
  ],
  ids=['no_label', 'empty', 'other_label', 'one_label', 'no_device', 'long'],
)
def test_a_wrong_table_is_named(rows, tmp_path):
  (tmp_path / 'wakeword').mkdir()
  wakeword_source.write_table(tmp_path / 'wakeword', rows)
  with pytest.raises(errors.UserError, match='clips.csv cannot be read'):
    registry.load('wakeword', data_dir=str(tmp_path))


@pytest.mark.parametrize(
  'damage',
  [
    lambda path: None,
    lambda path: path.write_bytes(b''),
    lambda path: path.write_bytes(b'RIFF' + bytes(99)),
    lambda path: wakeword_source.write_wav(path, np.zeros(9), rate=8000),
    lambda path: wakeword_source.write_wav(path, np.zeros(0)),
    lambda path: (
      wakeword_source.write_wav(path, np.zeros(9)),
      path.write_bytes(path.read_bytes()[:-8]),
    ),
  ],
  ids=['missing', 'empty', 'other', 'other_rate', 'no_samples', 'cut_off'],
)
def test_a_wrong_clip_is_named(damage, tmp_path):
  folder = tmp_path / 'wakeword'
  folder.mkdir()
  rows = [[f'{label}.wav', 'phone', label] for label in '01']
  wakeword_source.write_table(folder, [['file', 'device', 'label'], *rows])
  wakeword_source.write_wav(folder / '0.wav', np.zeros(9))
  damage(folder / '1.wav')
  with pytest.raises(errors.UserError, match='1.wav cannot be read'):
    registry.load('wakeword', data_dir=str(tmp_path))


def test_says_what_the_data_are(tmp_path):
  with pytest.raises(errors.UserError, match='Make a folder wakeword'):
    registry.load('wakeword', data_dir=str(tmp_path))
