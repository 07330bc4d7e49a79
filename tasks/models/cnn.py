"""Convolutional networks, for images and for spectrograms."""

import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from tasks.models import layered
from tasks.models import layers
from tasks.models import metrics
from tasks.models import models

# These shrink a spectrogram of 96 x 64 to 3 x 2.
MOST_SPECTROGRAM_LAYERS = 6
# The scores of a detector are counted in steps of an eighth of a logit.
_LARGEST_LOGIT = 16
_SCORES_OF_LOGIT = 8


def _convolve_and_pool(
  weights: models.Weights, x: tf.Tensor, padding: str
) -> tf.Tensor:
  """Applies two convolutions, each with 2x2 max-pooling."""
  for layer in ('conv1', 'conv2'):
    x = layers.convolution(weights, layer, x, padding)
    x = layers.relu_and_max_pool(x)
  return x


@dataclasses.dataclass(frozen=True)
class _ImageClassifier(layered.LayeredModel, models.Classifier):
  """A network that classifies images in the form of MNIST.

  Attributes:
    num_classes: The number of classes.
  """

  num_classes: int

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([28, 28, 1]), y=tf.TensorSpec([], tf.int32)
    )


@dataclasses.dataclass(frozen=True)
class EmnistCnn(_ImageClassifier):
  """TFF's `cnn_dropout` for EMNIST, without its dropout.

  Two 3x3 convolutions of 32 and 64 channels, 2x2 max-pooling, a dense layer of
  128 units and one of the classes: 1,206,590 weights for 62 classes. The loss
  of a `Model` is a pure function of weights and batch, hence no dropout.

  Its examples are {'x': [28, 28, 1] float32, 'y': [] int32}; it represents one
  by the dense layer before the last, of width 128.

  Attributes:
    num_classes: The number of classes; 10 for digits only.
  """

  num_classes: int = 62

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(3, 3, 1, 32),
      conv2=(3, 3, 32, 64),
      dense=(12 * 12 * 64, 128),
      output=(128, self.num_classes),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = tf.nn.relu(layers.convolution(weights, 'conv1', batch['x'], 'VALID'))
    x = layers.convolution(weights, 'conv2', x, 'VALID')
    x = layers.relu_and_max_pool(x)
    x = tf.reshape(x, [-1, self._kernel_shapes['dense'][0]])
    return tf.nn.relu(layers.dense(weights, 'dense', x))


@dataclasses.dataclass(frozen=True)
class AdniCnn(layered.LayeredModel, models.Regressor):
  """Motley's model for ADNI: one number from an image.

  Two 5x5 convolutions of 32 and 64 channels, each with 2x2 max-pooling, a dense
  layer of 512 units and one of a single unit. Loss and metric are the squared
  error.

  Its examples are {'x': [32, 32, 1] float32, 'y': [] float32}; it represents
  one by the dense layer before the last.
  """

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([32, 32, 1]), y=tf.TensorSpec([])
    )

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(5, 5, 1, 32),
      conv2=(5, 5, 32, 64),
      dense=(8 * 8 * 64, 512),
      output=(512, 1),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = _convolve_and_pool(weights, batch['x'], 'SAME')
    x = tf.reshape(x, [-1, self._kernel_shapes['dense'][0]])
    return tf.nn.relu(layers.dense(weights, 'dense', x))

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return super().decide(weights, features)[:, 0]


@dataclasses.dataclass(frozen=True)
class Cifar10Cnn(layered.LayeredModel, models.Classifier):
  """The network of PyTorch's tutorial on CIFAR-10: 62,006 weights.

  Two 5x5 convolutions of 6 and 16 channels, each with 2x2 max-pooling, and
  dense layers of 120, 84 and the ten classes.

  Its examples are {'x': [32, 32, 3] float32, 'y': [] int32}; it represents one
  by the dense layer before the last.
  """

  num_classes: int = dataclasses.field(default=10, init=False)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([32, 32, 3]), y=tf.TensorSpec([], tf.int32)
    )

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    return collections.OrderedDict(
      conv1=(5, 5, 3, 6),
      conv2=(5, 5, 6, 16),
      dense1=(5 * 5 * 16, 120),
      dense2=(120, 84),
      output=(84, 10),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = _convolve_and_pool(weights, batch['x'], 'VALID')
    x = tf.reshape(x, [-1, self._kernel_shapes['dense1'][0]])
    for layer in ('dense1', 'dense2'):
      x = tf.nn.relu(layers.dense(weights, layer, x))
    return x


@dataclasses.dataclass(frozen=True)
class PflLibCnn(_ImageClassifier):
  """The network of PFLlib's benchmark (Zhang et al. 2025).

  Two 5x5 convolutions of 32 and 64 channels, each with 2x2 max-pooling, a dense
  layer of 512 units and one of the classes, which start as PyTorch's: 582,026
  weights for ten classes of images of 28x28, 878,538 for photos of 32x32.

  Its examples are {'x': [size, size, channels] uint8, 'y': [] int32}; it
  represents one by the dense layer before the last.

  Attributes:
    num_classes: The number of classes.
    shape: The shape of an image, which is square; pooling needs its size to be
      a multiple of 4.
  """

  num_classes: int = 10
  shape: tuple[int, int, int] = (28, 28, 1)

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec(self.shape, tf.uint8), y=tf.TensorSpec([], tf.int32)
    )

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    size, _, channels = self.shape
    return collections.OrderedDict(
      conv1=(5, 5, channels, 32),
      conv2=(5, 5, 32, 64),
      dense=((size // 4 - 3) ** 2 * 64, 512),
      output=(512, self.num_classes),
    )

  def init(self, seed: tf.Tensor) -> models.Weights:
    shapes = self._kernel_shapes
    seeds = tf.random.experimental.stateless_split(seed, 2 * len(shapes))
    return layers.fan_in_layers(seeds, shapes)

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = layers.scale_bytes(batch['x'])
    x = _convolve_and_pool(weights, x, 'VALID')
    x = tf.reshape(x, [-1, self._kernel_shapes['dense'][0]])
    return tf.nn.relu(layers.dense(weights, 'dense', x))


@dataclasses.dataclass(frozen=True)
class WakewordCnn(layered.LayeredModel):
  """A detector of a word in spectrograms, as in Self-FL, section 4.1.

  A stack of 3x3 convolutions with 2x2 max-pooling between them, and a dense
  layer. Six convolutions are the paper's eleven layers, and have its 3 million
  weights with 32, 64, 128, 256, 512 and 320 channels.

  Its examples are {'x': [frames, bands, 1] float32, 'y': [] int32, 1 with the
  word}; it represents one by the last convolution's output. A prediction is the
  probability of the word.

  Attributes:
    frames: The number of frames of a spectrogram.
    bands: The number of its bands.
    channels: The channels of each convolution.
    false_rejects: The share of the clips with the word that may be rejected.
  """

  frames: int
  bands: int
  channels: tuple[int, ...]
  false_rejects: float

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(
      x=tf.TensorSpec([self.frames, self.bands, 1]),
      y=tf.TensorSpec([], tf.int32),
    )

  @property
  def num_values(self) -> Mapping[str, int]:
    return {'y': 2}

  @property
  def _kernel_shapes(self) -> Mapping[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = collections.OrderedDict()
    for k, channels in enumerate(self.channels):
      inputs = self.channels[k - 1] if k else 1
      shapes[f'conv{k + 1}'] = (3, 3, inputs, channels)
    shrunk = 2 ** (len(self.channels) - 1)
    places = (self.frames // shrunk) * (self.bands // shrunk)
    shapes['output'] = (places * self.channels[-1], 2)
    return shapes

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    x = batch['x']
    for k in range(len(self.channels)):
      if k:
        x = layers.relu_and_max_pool(x)
      x = layers.convolution(weights, f'conv{k + 1}', x, 'SAME')
    return tf.reshape(tf.nn.relu(x), [-1, self._kernel_shapes['output'][0]])

  def score_loss(self, scores: tf.Tensor, batch: models.Batch) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'], scores)

  def predict(self, scores: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(scores)[:, 1]

  def predict_softly(self, scores: tf.Tensor) -> tf.Tensor:
    return self.predict(scores)

  def target(self, batch: models.Batch) -> tf.Tensor:
    return tf.cast(batch['y'], tf.float32)

  def prediction_statistics(
    self, predicted: tf.Tensor, batch: models.Batch
  ) -> models.Statistics:
    is_word = self.target(batch)
    correct = tf.equal(tf.cast(predicted > 0.5, tf.float32), is_word)
    # NaN is counted as well, as the counts also say how many were judged.
    share = tf.where(tf.math.is_nan(predicted), 0.5, predicted)
    # A probability of 0 or 1 has an infinite logit.
    logit = tf.clip_by_value(
      tf.math.log(share) - tf.math.log1p(-share),
      -_LARGEST_LOGIT,
      _LARGEST_LOGIT,
    )
    steps = 2 * _LARGEST_LOGIT * _SCORES_OF_LOGIT
    score = tf.round((logit + _LARGEST_LOGIT) * _SCORES_OF_LOGIT)
    counts = tf.one_hot(tf.cast(score, tf.int32), steps + 1)
    return collections.OrderedDict(
      accuracy=models.mean_statistics(tf.cast(correct, tf.float32)),
      false_accepts=tf.one_hot(batch['y'], 2)[:, :, tf.newaxis]
      * counts[:, tf.newaxis],
    )

  @property
  def metrics(self) -> Mapping[str, metrics.Metric]:
    return {
      'accuracy': metrics.SHARE,
      'false_accepts': metrics.false_accepts(self.false_rejects),
    }
