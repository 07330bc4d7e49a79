"""Rounds of unmodified `tff.learning` code, and the same in a Keras loop.

Nothing of this project is in them but the runtime: they show how fast it runs
the code of anyone who uses TFF.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import task_workloads
from tff_runtimes import cohort
from tff_runtimes import native

_LEARNING_RATE = 0.1
_BATCH_SIZE = 20
_NUM_WORDS = 100


@dataclasses.dataclass(frozen=True)
class _Work:
  """A model and its clients.

  Attributes:
    model: Makes the model.
    sizes: The numbers of examples of the clients.
    shape: The shape of an example.
    num_classes: The number of labels.
    has_words: Whether examples are numbers of words.
    algorithm: The algorithm of `tff.learning`.
    makes_data: Whether each round makes the data sets of its clients.
  """

  model: Callable[[], tf.keras.Model]
  sizes: Sequence[int]
  shape: Sequence[int]
  num_classes: int
  has_words: bool = False
  algorithm: str = 'fedavg'
  makes_data: bool = False


def _dense() -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      tf.keras.layers.Input([20]),
      tf.keras.layers.Dense(16, activation='relu'),
      tf.keras.layers.Dense(5),
    ]
  )


def _cnn() -> tf.keras.Model:
  """Makes the CNN of TFF's EMNIST task."""
  return tf.keras.Sequential(
    [
      tf.keras.layers.Input([28, 28, 1]),
      tf.keras.layers.Conv2D(32, 3, activation='relu'),
      tf.keras.layers.Conv2D(64, 3, activation='relu'),
      tf.keras.layers.MaxPool2D(),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(128, activation='relu'),
      tf.keras.layers.Dense(62),
    ]
  )


def _lstm() -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      tf.keras.layers.Input([20]),
      tf.keras.layers.Embedding(_NUM_WORDS, 32),
      tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(32)),
      tf.keras.layers.Dense(5),
    ]
  )


# As many last batches are of different sizes as among writers of EMNIST.
_RAGGED = [41 + 7 * k % 60 for k in range(30)]
_WORK = {
  'F1': _Work(_dense, [60] * 30, [20], 5),
  'F2': _Work(_cnn, [40] * 10, [28, 28, 1], 62),
  'F3': _Work(_lstm, [60] * 3, [20], 5, has_words=True),
  'F4': _Work(_dense, [60] * 30, [20], 5, algorithm='mime'),
  'F5': _Work(_dense, _RAGGED, [20], 5),
  'F6': _Work(_dense, [60] * 30, [20], 5, makes_data=True),
}


def _client(work: _Work, seed: int) -> tf.data.Dataset:
  rng = np.random.default_rng(seed)
  shape = [work.sizes[seed], *work.shape]
  x = rng.normal(size=shape).astype(np.float32)
  if work.has_words:
    x = rng.integers(_NUM_WORDS, size=shape).astype(np.float32)
  y = rng.integers(work.num_classes, size=shape[:1], dtype=np.int32)
  data = tf.data.Dataset.from_tensor_slices((x, y))
  return data.batch(_BATCH_SIZE)


def _clients(work: _Work) -> list[tf.data.Dataset]:
  return [_client(work, k) for k in range(len(work.sizes))]


def _loss() -> tf.keras.losses.Loss:
  return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _initial_weights(work: _Work) -> list[np.ndarray]:
  tf.keras.utils.set_random_seed(0)
  return work.model().get_weights()


def _named(weights: Sequence[np.ndarray]) -> Mapping[str, np.ndarray]:
  return {str(i): np.asarray(weight) for i, weight in enumerate(weights)}


def _process(
  work: _Work, spec: tuple[tf.TensorSpec, ...]
) -> tff.learning.templates.LearningProcess:
  def model() -> tff.learning.models.VariableModel:
    return tff.learning.models.from_keras_model(
      work.model(), loss=_loss(), input_spec=spec
    )

  server = tff.learning.optimizers.build_sgdm(1.0)
  if work.algorithm == 'mime':
    return tff.learning.algorithms.build_weighted_mime_lite(
      model, tff.learning.optimizers.build_sgdm(_LEARNING_RATE, 0.9), server
    )
  return tff.learning.algorithms.build_weighted_fed_avg(
    model, tff.learning.optimizers.build_sgdm(_LEARNING_RATE), server
  )


def _federated(work: _Work, system: str) -> task_workloads.Run:
  context = (
    native.create_native_context()
    if system == 'native'
    else cohort.create_cohort_context()
  )
  tff.framework.set_default_context(context)
  clients = _clients(work)
  process = _process(work, clients[0].element_spec)
  weights = tff.learning.models.ModelWeights(_initial_weights(work), [])
  state = process.set_model_weights(process.initialize(), weights)

  def run(num_rounds: int) -> Mapping[str, np.ndarray]:
    nonlocal state
    for _ in range(num_rounds):
      data = _clients(work) if work.makes_data else clients
      state = process.next(state, data).state
    return _named(process.get_model_weights(state).trainable)

  return run


def _bare(work: _Work) -> task_workloads.Run:
  clients = _clients(work)
  model, loss = work.model(), _loss()
  variables = model.trainable_variables

  @tf.function
  def step(x: tf.Tensor, y: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      value = loss(y, model(x, training=True))
    for variable, gradient in zip(variables, tape.gradient(value, variables)):
      variable.assign_sub(_LEARNING_RATE * tf.convert_to_tensor(gradient))

  weights = _initial_weights(work)

  def run(num_rounds: int) -> Mapping[str, np.ndarray]:
    nonlocal weights
    for _ in range(num_rounds):
      sums = [np.zeros_like(weight) for weight in weights]
      data = _clients(work) if work.makes_data else clients
      for size, client in zip(work.sizes, data):
        model.set_weights(weights)
        for x, y in client:
          step(x, y)
        for total, variable in zip(sums, variables):
          total += size * variable.numpy()
      weights = [total / sum(work.sizes) for total in sums]
    return _named(weights)

  return run


def make(name: str, system: str) -> task_workloads.Run:
  """Makes the rounds of a workload on a system."""
  work = _WORK[name]
  return _bare(work) if system == 'bare' else _federated(work, system)
