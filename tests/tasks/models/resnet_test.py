"""The ResNet: its numbers of weights, its parts, and its numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import resnet


@pytest.mark.parametrize(
  ('width', 'expected'), [(16, 701_466), (64, 11_173_962)]
)
def test_has_the_published_number_of_weights(width, expected):
  model = resnet.ResNet(width=width, norm='batch')
  shapes = tf.function(model.init).get_concrete_function([0, 1])
  sizes = {
    name: leaf.shape.num_elements()
    for name, leaf in shapes.structured_outputs.items()
  }
  statistics = model.parts['statistics']
  total = sum(sizes.values()) - sum(map(sizes.get, statistics))
  assert total == expected
  names = [name for part in model.parts.values() for name in part]
  assert sorted(names) == sorted(sizes)


def _keras(model):
  """The same of Keras's layers, and each convolution and its normalization."""
  layers = tf.keras.layers
  pairs = []

  def convolve(x, channels, size, stride=1):
    pair = (
      layers.Conv2D(channels, size, stride, use_bias=False),
      layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
    )
    pairs.append(pair)
    return pair[1](pair[0](layers.ZeroPadding2D(size // 2)(x)))

  inputs = layers.Input(model.shape)
  x = layers.ReLU()(convolve(inputs, model.width, 3))
  for stage in range(4):
    for block in range(2):
      channels = model.width * 2**stage
      stride = 2 if stage and not block else 1
      y = layers.ReLU()(convolve(x, channels, 3, stride))
      y = convolve(y, channels, 3)
      if stride == 2:
        x = convolve(x, channels, 1, stride)
      x = layers.ReLU()(layers.Add()([x, y]))
  x = layers.GlobalAveragePooling2D()(x)
  return tf.keras.Model(inputs, layers.Dense(model.num_classes)(x)), pairs


def test_is_that_of_keras_in_training_and_in_evaluation():
  model = resnet.ResNet(shape=(16, 16, 3), width=4, norm='batch')
  w = model.init([0, 1])
  keras, pairs = _keras(model)
  for layer, (convolution, norm) in zip(model.norm_channels, pairs):
    convolution.set_weights([w[f'{layer}_kernel']])
    names = 'scale', 'offset', 'mean', 'variance'
    norm.set_weights([w[f'{layer}_{name}'] for name in names])
  keras.layers[-1].set_weights([w['output_kernel'], w['output_bias']])
  rng = np.random.default_rng(0)
  photos = rng.integers(0, 256, (5, *model.shape), np.uint8)
  x = photos.astype(np.float32) / 127.5 - 1
  batch = {'x': photos, 'y': np.arange(5, dtype=np.int32)}
  loss, after = model.train_loss(w, batch, tf.ones([5]))
  scores = keras(x, training=True)
  expected = tf.keras.losses.sparse_categorical_crossentropy(
    batch['y'], scores, from_logits=True
  )
  np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-4)
  w.update(after)
  np.testing.assert_allclose(
    model.scores(w, batch), keras(x), rtol=1e-3, atol=1e-4
  )
