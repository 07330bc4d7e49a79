"""Federated averaging and fine-tuning without any federated machinery.

These loops are the limits with which `benchmark` compares the runtimes. In a
round, each client takes one local epoch of SGD from the same weights; the new
weights are the mean of the clients' weights, weighted by their numbers of
examples. All loops use the same batches and thus compute the same result. The
clients' data are in memory.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import operator

import numpy as np
import tensorflow as tf

from base import seeds
from base import settings
from tasks.data import batches
from tasks.data import populations
from tasks.models import cnn
from tasks.models import frozen_models
from tasks.models import gpt2
from tasks.models import linear
from tasks.models import lstm
from tasks.models import models
from tasks.models import normalization
from tasks.models import preference
from tasks.models import prompted
from tasks.models import resnet

# Some settings, by name.
_Settings = Mapping[str, settings.Value]
# Takes the weights before a round, and returns those after it.
Round = Callable[[models.Weights], models.Weights]
# Takes labels, outputs and the mask of a batch, and returns its mean loss.
KerasLoss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a round.

  Attributes:
    name: The name.
    model: The model.
    clients: The data of each client, see `tasks.data.batches`, as arrays.
    learning_rate: The learning rate of the clients.
    settings: Further settings of the method.
  """

  name: str
  model: models.Model
  clients: Sequence[batches.ClientData]
  learning_rate: float
  settings: _Settings = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(Work):
  """The work of a round of a model that can also be made with Keras.

  Attributes:
    keras_model: Makes the same model with Keras.
    keras_loss: The loss of the Keras model.
    keras_variables: Lists its variables: they are the weights of `model`, in
      the same order, except for axes of size 1.
  """

  keras_model: Callable[[], tf.keras.Model]
  keras_loss: KerasLoss
  keras_variables: Callable[[tf.keras.Model], list[tf.Variable]] = (
    operator.attrgetter('trainable_variables')
  )


def _client(
  examples: populations.Examples, batch_size: int
) -> batches.ClientData:
  indices, weights = batches.index_batches(
    populations.num_examples(examples), batch_size
  )
  return batches.ClientData(
    examples=collections.OrderedDict(examples),
    indices=indices,
    mask=weights,
  )


def keras_cnn() -> tf.keras.Model:
  """Makes EMNIST's CNN."""
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Conv2D(32, 3, activation='relu', input_shape=(28, 28, 1)),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dense(62),
    ]
  )


def keras_lstm(
  num_words: int, embedding_size: int, lstm_size: int
) -> tf.keras.Model:
  """Makes StackOverflow's LSTM."""
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Embedding(num_words, embedding_size, mask_zero=True),
      layers.LSTM(lstm_size, return_sequences=True),
      layers.Dense(embedding_size),
      layers.Dense(num_words),
    ]
  )


def keras_preference_encoder() -> tf.keras.Model:
  """Makes FedEmbed's encoder for MNIST images with e in a second channel."""
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.ZeroPadding2D(1, input_shape=(28, 28, 2)),
      layers.Conv2D(16, 3, 2),
      layers.LayerNormalization([1, 2, 3], epsilon=1e-5),
      layers.ZeroPadding2D(1),
      layers.Conv2D(32, 3, 2),
      layers.LayerNormalization([1, 2, 3], epsilon=1e-5),
      layers.Conv2D(64, 7),
      layers.LayerNormalization([1, 2, 3], epsilon=1e-5),
      layers.Flatten(),
    ]
  )


def _mean(losses: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def _half_squared_error(
  y: tf.Tensor, prediction: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
  return _mean(0.5 * tf.square(prediction[:, 0] - y), mask)


def cross_entropy(
  y: tf.Tensor, logits: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
  """Computes the mean over examples, or words."""
  losses = tf.keras.losses.sparse_categorical_crossentropy(
    y, logits, from_logits=True
  )
  return _mean(losses, mask)


def word_cross_entropy(
  y: tf.Tensor, logits: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
  """Computes the mean over words that are not padding."""
  is_word = tf.cast(tf.not_equal(y, 0), tf.float32)
  return cross_entropy(y, logits, mask[:, tf.newaxis] * is_word)


def _photo_clients(
  num_clients: int, num_examples: int, batch_size: int, seed: int, size: int
) -> list[batches.ClientData]:
  rng = seeds.generator('photo workload', seed)

  def client() -> batches.ClientData:
    x = rng.integers(0, 256, (num_examples, size, size, 3), np.uint8)
    y = rng.integers(0, 10, num_examples, np.int32)
    return _client({'x': x, 'y': y}, batch_size)

  return [client() for _ in range(num_clients)]


def photo_workload(
  num_clients: int = 20,
  num_examples: int = 100,
  batch_size: int = 10,
  seed: int = 0,
) -> Workload:
  """Makes a workload of PFLlib's CNN on random photos as those of CIFAR-10."""
  return Workload(
    name='photo',
    model=cnn.PflLibCnn(10, (32, 32, 3)),
    keras_model=keras_photo_cnn,
    keras_loss=cross_entropy,
    clients=_photo_clients(num_clients, num_examples, batch_size, seed, 32),
    learning_rate=0.005,
  )


def resnet_workload(
  num_clients: int = 20,
  num_examples: int = 50,
  batch_size: int = 10,
  seed: int = 0,
  *,
  norm: str = normalization.GROUP,
  size: int = 32,
) -> Workload:
  """Makes a workload of a small ResNet on random photos."""
  model = resnet.ResNet(10, (size, size, 3), norm=norm)
  return Workload(
    name='resnet',
    model=model,
    keras_model=lambda: keras_resnet(model),
    keras_loss=cross_entropy,
    keras_variables=lambda keras: _resnet_variables(model, keras),
    clients=_photo_clients(num_clients, num_examples, batch_size, seed, size),
    learning_rate=0.005,
  )


# The same with batch normalization.
batch_norm_workload = functools.partial(
  resnet_workload, norm=normalization.BATCH
)


def cnn_workload(
  num_clients: int = 20,
  num_examples: int = 200,
  batch_size: int = 20,
  seed: int = 0,
) -> Workload:
  """Makes a workload of EMNIST's CNN on random images."""
  rng = seeds.generator('cnn workload', seed)

  def client() -> batches.ClientData:
    x = rng.random((num_examples, 28, 28, 1), np.float32)
    y = rng.integers(0, 62, num_examples, np.int32)
    return _client({'x': x, 'y': y}, batch_size)

  return Workload(
    name='cnn',
    model=cnn.EmnistCnn(),
    keras_model=keras_cnn,
    keras_loss=cross_entropy,
    clients=[client() for _ in range(num_clients)],
    learning_rate=0.05,
  )


def keras_photo_cnn() -> tf.keras.Model:
  """Makes PFLlib's CNN for photos of 32x32."""
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Rescaling(1 / 127.5, -1, input_shape=(32, 32, 3)),
      layers.Conv2D(32, 5, activation='relu'),
      layers.MaxPool2D(2),
      layers.Conv2D(64, 5, activation='relu'),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(512, activation='relu'),
      layers.Dense(10),
    ]
  )


def keras_resnet(model: resnet.ResNet) -> tf.keras.Model:
  """Makes a small ResNet, whose layers are named as the weights of ours."""
  layers = tf.keras.layers

  def convolve(
    x: tf.Tensor, name: str, channels: int, size: int = 3, stride: int = 1
  ) -> tf.Tensor:
    if stride == 2 and size == 3:
      x = layers.ZeroPadding2D(((1, 0), (1, 0)))(x)
    padding = 'same' if stride == 1 else 'valid'
    convolution = layers.Conv2D(
      channels, size, stride, padding, use_bias=False, name=name
    )
    norm = layers.BatchNormalization(
      momentum=0.9, epsilon=1e-5, name=f'{name}_norm'
    )
    if model.norm == normalization.GROUP:
      norm = layers.GroupNormalization(
        model.num_groups, epsilon=1e-5, name=f'{name}_norm'
      )
    return norm(convolution(x))

  inputs = layers.Input(model.shape)
  x = layers.Rescaling(1 / 127.5, -1)(inputs)
  x = layers.ReLU()(convolve(x, 'stem', model.width))
  for stage in range(4):
    for block in range(2):
      name, channels = f'block{stage + 1}_{block + 1}', model.width * 2**stage
      stride = 2 if stage and not block else 1
      y = convolve(x, f'{name}_first', channels, 3, stride)
      y = convolve(layers.ReLU()(y), f'{name}_second', channels)
      if stride == 2:
        x = convolve(x, f'{name}_around', channels, 1, stride)
      x = layers.ReLU()(layers.Add()([x, y]))
  x = layers.GlobalAveragePooling2D()(x)
  output = layers.Dense(model.num_classes, name='output')(x)
  return tf.keras.Model(inputs, output)


def _resnet_variables(
  model: resnet.ResNet, keras: tf.keras.Model
) -> list[tf.Variable]:
  """Lists the variables in the order of our weights."""
  names = {
    'scale': 'gamma',
    'offset': 'beta',
    'mean': 'moving_mean',
    'variance': 'moving_variance',
  }
  variables = []
  for weight in model.init(tf.constant([0, 0])):
    layer, _, kind = weight.rpartition('_')
    place = f'{layer}_norm' if kind in names else layer
    variables.append(getattr(keras.get_layer(place), names.get(kind, kind)))
  return variables


def linear_workload(
  num_clients: int = 139,
  num_examples: int = 80,
  batch_size: int = 32,
  seed: int = 0,
) -> Workload:
  """Makes a workload of linear regression on random data as large as School."""
  num_features = 28
  rng = seeds.generator('linear workload', seed)

  def client() -> batches.ClientData:
    x = rng.standard_normal((num_examples, num_features), np.float32)
    y = x @ rng.standard_normal(num_features, np.float32)
    return _client({'x': x, 'y': y}, batch_size)

  return Workload(
    name='linear',
    model=linear.LinearRegression(num_features),
    keras_model=lambda: tf.keras.Sequential(
      [tf.keras.layers.Dense(1, input_shape=(num_features,))]
    ),
    keras_loss=_half_squared_error,
    clients=[client() for _ in range(num_clients)],
    learning_rate=0.01,
  )


def lstm_workload(
  num_clients: int = 20,
  num_examples: int = 64,
  batch_size: int = 16,
  seed: int = 0,
  *,
  vocabulary_size: int = 10_000,
  sequence_length: int = 20,
  embedding_size: int = 96,
  lstm_size: int = 670,
) -> Workload:
  """Makes a workload of StackOverflow's LSTM on random words, not padded."""
  rng = seeds.generator('lstm workload', seed)

  def client() -> batches.ClientData:
    shape = (num_examples, sequence_length + 1)
    words = rng.integers(1, vocabulary_size + 1, shape, np.int32)
    return _client({'x': words[:, :-1], 'y': words[:, 1:]}, batch_size)

  return Workload(
    name='lstm',
    model=lstm.NextWordLstm(
      vocabulary_size,
      sequence_length=sequence_length,
      embedding_size=embedding_size,
      lstm_size=lstm_size,
    ),
    keras_model=lambda: keras_lstm(
      vocabulary_size + 4, embedding_size, lstm_size
    ),
    keras_loss=word_cross_entropy,
    clients=[client() for _ in range(num_clients)],
    learning_rate=0.5,
  )


def preference_workload(num_clients: int = 100, seed: int = 0) -> Workload:
  """Makes a workload of FedEmbed on random images.

  Each client takes ten steps of the model for MNIST on 20 images.
  """
  num_types, size, steps = 10, 20, 10
  rng = seeds.generator('preference workload', seed)

  def client(k: int) -> batches.ClientData:
    is_liked = np.arange(size) < size // 2
    types = np.where(is_liked, k % num_types, rng.integers(0, num_types, size))
    examples = collections.OrderedDict(
      x=rng.random((size, 28, 28, 1), np.float32),
      y=is_liked.astype(np.int32),
      type=types.astype(np.int32),
    )
    indices, mask = batches.index_batches(size, size)
    return batches.ClientData(
      examples, np.tile(indices, (steps, 1)), np.tile(mask, (steps, 1))
    )

  return Workload(
    name='preference',
    model=preference.DigitPreference(num_types),
    keras_model=keras_preference_encoder,
    keras_loss=cross_entropy,
    clients=[client(k) for k in range(num_clients)],
    learning_rate=0.001,
    settings={'num_groups': num_types, 'server_optimizer': 'sgd'},
  )


def prompt_workload(
  num_clients: int = 20,
  num_steps: int = 10,
  batch_size: int = 15,
  seed: int = 0,
  *,
  sizes: gpt2.Gpt2 = gpt2.SMALL,
  sequence_length: int = 31,
) -> Work:
  """Makes a workload of FedPC with a random GPT-2.

  The utterances have all lengths.
  """
  rng = seeds.generator('prompt workload', seed)
  num_contexts = 6

  def client() -> batches.ClientData:
    number = num_steps * batch_size
    shape = (number, sequence_length + 1)
    words = rng.integers(1, sizes.vocabulary_size + 1, shape, np.int32)
    lengths = rng.integers(3, sequence_length + 2, number)
    words *= np.arange(sequence_length + 1) < lengths[:, np.newaxis]
    contexts = rng.integers(num_contexts, size=number, dtype=np.int32)
    return _client(frozen_models.make_examples(words, contexts), batch_size)

  frozen = tf.nest.map_structure(
    lambda weight: weight.numpy(), sizes.init(tf.constant([1, 0]))
  )
  return Work(
    name='prompts',
    model=prompted.PromptedModel(
      sizes, num_contexts, sequence_length=sequence_length, frozen=frozen
    ),
    clients=[client() for _ in range(num_clients)],
    learning_rate=0.001,
  )


def stack(clients: Sequence[batches.ClientData]) -> batches.ClientData:
  """Stacks the data of all clients, padded, along a first axis."""

  def stack(*leaves: np.ndarray) -> tf.Tensor:
    shape = np.max([leaf.shape for leaf in leaves], axis=0)
    stacked = np.zeros([len(leaves), *shape], leaves[0].dtype)
    for row, leaf in zip(stacked, leaves):
      row[tuple(map(slice, leaf.shape))] = leaf
    return tf.constant(stacked)

  return tf.nest.map_structure(stack, *clients)


def num_steps(client: batches.ClientData) -> tf.Tensor:
  """Counts a client's steps that are not padding."""
  return tf.math.count_nonzero(client.mask[:, 0], dtype=tf.int32)


def _batch(
  client: batches.ClientData, step: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Returns the features, labels and mask of a batch, without padding."""
  size = tf.math.count_nonzero(client.mask[step], dtype=tf.int32)
  rows = client.indices[step, :size]
  x, y = (tf.gather(client.examples[name], rows) for name in ('x', 'y'))
  return x, y, client.mask[step, :size]


class KerasTraining:
  """A Keras model that trains on clients' data, inside of a `tf.function`.

  Attributes:
    model: The model.
    variables: Its weights, which the clients use one after another.
    learning_rate: The learning rate of its steps.
  """

  def __init__(self, workload: Workload):
    self.model = workload.keras_model()
    # This creates the variables.
    self.model(workload.clients[0].examples['x'][:1])
    self.variables = workload.keras_variables(self.model)
    # Keras itself assigns to the others, the statistics of batches.
    self._trained = [v for v in self.variables if v.trainable]
    self.learning_rate = workload.learning_rate
    self._optimizer = tf.keras.optimizers.SGD(workload.learning_rate)
    self._optimizer.build(self._trained)
    self._loss = workload.keras_loss

  def start(self, weights: models.Weights) -> list[tf.Tensor]:
    """Returns the weights in the shapes of the variables."""
    return [
      tf.reshape(weight, variable.shape)
      for weight, variable in zip(weights.values(), self.variables, strict=True)
    ]

  def assign(self, start: Sequence[tf.Tensor]) -> None:
    for variable, weight in zip(self.variables, start):
      variable.assign(weight)

  def gradient(
    self, client: batches.ClientData, step: tf.Tensor
  ) -> list[tf.Tensor]:
    """Differentiates the loss of one of a client's batches."""
    x, y, mask = _batch(client, step)
    with tf.GradientTape() as tape:
      loss = self._loss(y, self.model(x, training=True), mask)
    return tape.gradient(loss, self._trained)

  def descend(self, gradient: Sequence[tf.Tensor]) -> None:
    """Takes a step down a gradient."""
    self._optimizer.apply_gradients(zip(gradient, self._trained))

  def train(self, client: batches.ClientData) -> None:
    """Takes a step for each of a client's batches."""
    for step in tf.range(num_steps(client)):
      self.descend(self.gradient(client, step))


def keras_loop(workload: Workload) -> Round:
  """Makes a training loop over Keras layers, one client after another.

  This is the fastest such loop that was found: the whole round is in one
  `tf.function`. With a function call for each client, or each batch, a round of
  `cnn` takes 13 or 22 % longer, and one of `linear` 6 or 13 times as long.
  """
  training = KerasTraining(workload)
  data = stack(workload.clients)

  @tf.function
  def mean_update(start: list[tf.Tensor]) -> list[tf.Tensor]:
    count = 0.0
    updates = [tf.zeros_like(weight) for weight in start]
    for k in tf.range(len(workload.clients)):
      client = tf.nest.map_structure(lambda leaf: leaf[k], data)  # noqa: B023
      training.assign(start)
      training.train(client)
      num_examples = tf.reduce_sum(client.mask)
      count += num_examples
      updates = [
        update + num_examples * (variable - weight)
        for update, variable, weight in zip(updates, training.variables, start)
      ]
    return [update / count for update in updates]

  def run(weights: models.Weights) -> models.Weights:
    updates = mean_update(training.start(weights))
    return collections.OrderedDict(
      (name, weight + tf.reshape(update, weight.shape))
      for (name, weight), update in zip(weights.items(), updates)
    )

  return run


def keras_finetuning(
  workload: Workload,
  evaluation: Sequence[batches.ClientData],
  num_epochs: int,
) -> Callable[[models.Weights], tuple[tf.Tensor, tf.Tensor]]:
  """Makes a loop that fine-tunes a Keras classifier for one client at a time.

  Args:
    workload: The workload, which has the data that clients train on.
    evaluation: The data that each client is evaluated on.
    num_epochs: How often each client trains on all of its data.

  Returns:
    A function that takes weights, and returns the accuracy and the mean loss of
    each client after 0, 1, …, `num_epochs` epochs, `[clients, num_epochs + 1]`.
  """
  training = KerasTraining(workload)
  data = stack(workload.clients), stack(evaluation)

  def measure(client: batches.ClientData) -> tf.Tensor:
    sums = tf.zeros([2])
    for step in tf.range(num_steps(client)):
      x, y, mask = _batch(client, step)
      logits = training.model(x)
      correct = tf.equal(tf.argmax(logits, 1, y.dtype), y)
      loss = workload.keras_loss(y, logits, mask) * tf.reduce_sum(mask)
      sums += [tf.reduce_sum(tf.cast(correct, tf.float32)), loss]
    return sums / tf.reduce_sum(client.mask)

  @tf.function
  def finetune(start: list[tf.Tensor]) -> tf.Tensor:
    num_clients = len(evaluation)
    measured = tf.TensorArray(tf.float32, num_clients * (num_epochs + 1))
    for k in tf.range(num_clients):
      client, held_out = tf.nest.map_structure(lambda leaf: leaf[k], data)  # noqa: B023
      training.assign(start)
      for epoch in tf.range(num_epochs + 1):
        if epoch > 0:
          training.train(client)
        measured = measured.write(
          k * (num_epochs + 1) + epoch, measure(held_out)
        )
    return tf.reshape(measured.stack(), [num_clients, num_epochs + 1, 2])

  return lambda weights: tf.unstack(finetune(training.start(weights)), axis=2)


def vectorized_round(workload: Work) -> Round:
  """Makes a round of linear regression, all clients in one XLA program."""
  data = stack(workload.clients)
  masks = data.mask  # [clients, steps, batch]
  num_examples = tf.reduce_sum(masks, axis=[1, 2])

  @tf.function(jit_compile=True)
  def run(weights: models.Weights) -> models.Weights:
    x, y = (
      tf.gather(data.examples[name], data.indices, batch_dims=1)
      for name in ('x', 'y')
    )
    num_clients, steps, _ = masks.shape
    kernel = tf.repeat(weights['kernel'][tf.newaxis], num_clients, axis=0)
    bias = tf.repeat(weights['bias'], num_clients)
    for step in range(steps):
      mask = masks[:, step]
      error = tf.einsum('cbd,cd->cb', x[:, step], kernel) + bias[:, tf.newaxis]
      error = (error - y[:, step]) * mask
      error /= tf.reduce_sum(mask, axis=1, keepdims=True)
      gradient = tf.einsum('cb,cbd->cd', error, x[:, step])
      kernel -= workload.learning_rate * gradient
      bias -= workload.learning_rate * tf.reduce_sum(error, axis=1)
    share = num_examples / tf.reduce_sum(num_examples)
    return collections.OrderedDict(
      kernel=tf.linalg.matvec(kernel, share, transpose_a=True),
      bias=tf.tensordot(bias, share, axes=1),
    )

  return run
