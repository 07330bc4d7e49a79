"""Rounds of FedEmbed without any federated machinery, one client after another.

Like `bare_methods`, but for a model with several heads: it takes the steps of
`fedembed_type` with Keras layers, all in one `tf.function`.
"""

import collections
from collections.abc import Sequence

import tensorflow as tf

from algorithms import fedembed
from algorithms import registry
from experiments.benchmarks import reference_loops
from tasks.models import models

_SIZE = 28  # The size of embeddings.
_WIDTH = 64 + _SIZE  # The size of the heads' inputs.


def _zeros(*shapes: Sequence[int]) -> list[tf.Variable]:
  return [tf.Variable(tf.zeros(shape)) for shape in shapes]


def _adam(
  variables: Sequence[tf.Variable], rate: float
) -> tf.keras.optimizers.Optimizer:
  optimizer = tf.keras.optimizers.Adam(rate, epsilon=1e-8)
  optimizer.build(variables)
  return optimizer


def _slots(optimizer: tf.keras.optimizers.Optimizer) -> list[tf.Variable]:
  """Returns the variables that each step changes, the number of steps first."""
  return [v for v in optimizer.variables if 'learning_rate' not in v.name]


def fedembed_round(
  workload: reference_loops.Workload,
) -> reference_loops.Round:
  """Makes rounds of `fedembed_type` with a server that takes the mean.

  Args:
    workload: The workload, whose clients take part in all rounds. The first
      example of each client is of the type that it likes, and batches are not
      padded.

  Returns:
    The function that runs a round. It keeps the clients' states from round to
    round.
  """
  data = reference_loops.stack(workload.clients)
  num_clients, num_steps, _ = data.mask.shape
  num_types = workload.model.num_types
  encoder = workload.keras_model()
  # In the order of our model, with the weights of the convolutions first.
  theta = sorted(
    encoder.trainable_variables, key=lambda v: 'conv' not in v.name
  )
  phi = _zeros([num_types, _WIDTH, 2], [num_types, 2])
  gamma, nu = _zeros([_WIDTH, num_types], [num_types]), _zeros([_WIDTH, 2], [2])
  shared, e = [*theta, *phi, *gamma, *nu], tf.Variable(tf.zeros([_SIZE]))
  rate = workload.learning_rate
  of_shared, of_e = _adam(shared, rate), _adam([e], rate)
  personal = [e, *_slots(of_e)]
  kept = [
    tf.Variable(tf.repeat(v[tf.newaxis], num_clients, axis=0)) for v in personal
  ]
  method = registry.make_settings('fedembed_type', workload.settings)
  trainer = fedembed.TypeFedEmbed(workload.model, method.trainer)
  for k in range(num_clients):
    state = trainer.initialize_client(tf.constant([0, k]))
    kept[0].scatter_nd_update([[k]], [state.e[trainer.network.e_name]])

  def step(
    x: tf.Tensor, y: tf.Tensor, types: tf.Tensor, mask: tf.Tensor, j: tf.Tensor
  ) -> None:
    with tf.GradientTape(persistent=True) as tape:
      phi_j = [tf.gather(weight, j) for weight in phi]
      diagonal = tf.linalg.diag(e)[tf.newaxis, :, :, tf.newaxis]
      second = tf.repeat(diagonal, len(x), axis=0)
      features = encoder(tf.concat([x, second], axis=-1), training=True)
      vectors = tf.repeat(e[tf.newaxis], len(x), axis=0)
      features = tf.concat([features, vectors], axis=1)
      a, b, c = (
        workload.keras_loss(labels, features @ kernel + bias, mask)
        for labels, (kernel, bias) in ((y, phi_j), (types, gamma), (y, nu))
      )
    slopes = [
      *tape.gradient([a, b], theta),
      *map(tf.convert_to_tensor, tape.gradient(a, phi)),
      *tape.gradient(b, gamma),
      *tape.gradient(c, nu),
    ]
    of_vector = tape.gradient([a, b, c], e)
    of_shared.apply_gradients(zip(slopes, shared))
    of_e.apply_gradients([(of_vector, e)])

  @tf.function
  def mean_update(start: list[tf.Tensor]) -> list[tf.Tensor]:
    total = [tf.zeros_like(weight) for weight in start]
    for client in tf.range(num_clients):
      for variable, weight in zip(shared, start):
        variable.assign(weight)
      for variable in _slots(of_shared):
        variable.assign(tf.zeros_like(variable))
      for variable, of_all in zip(personal, kept):
        variable.assign(of_all[client])
      examples = {
        name: of_all[client] for name, of_all in data.examples.items()
      }
      j = examples['type'][0]
      for i in tf.range(num_steps):
        rows = data.indices[client, i]
        x, y, types = (
          tf.gather(examples[name], rows) for name in ('x', 'y', 'type')
        )
        step(x, y, types, data.mask[client, i], j)
      for variable, of_all in zip(personal, kept):
        of_all.scatter_nd_update([[client]], variable[tf.newaxis])
      total = [t + v - s for t, v, s in zip(total, shared, start)]
    return [t / num_clients for t in total]

  def run(weights: models.Weights) -> models.Weights:
    start = [
      tf.reshape(weight, variable.shape)
      for weight, variable in zip(weights.values(), shared, strict=True)
    ]
    updates = mean_update(start)
    return collections.OrderedDict(
      (name, weight + tf.reshape(update, weight.shape))
      for (name, weight), update in zip(weights.items(), updates)
    )

  return run
