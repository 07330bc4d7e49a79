"""Rounds of methods without any federated machinery, one client after another.

As `reference_loops.keras_loop` does for federated averaging, each takes the
steps of a round on a Keras model, all in one `tf.function`, with the default
settings of the method. To add a method, write a function that takes the model
and the data of all clients and returns a function that runs a round; and add
its line to `METHODS`.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses

import tensorflow as tf

from algorithms import registry
from experiments.benchmarks import bare_fedembed
from experiments.benchmarks import reference_loops
from tasks.data import batches
from tasks.models import models

# Weights in the shapes of the Keras model's variables.
_Weights = list[tf.Tensor]
# Takes the weights before a round, and returns those after it.
_Round = Callable[[_Weights], _Weights]


def _square(weights: _Weights) -> tf.Tensor:
  return tf.add_n([tf.reduce_sum(tf.square(w)) for w in weights])


def _client(data: batches.ClientData, k: tf.Tensor) -> batches.ClientData:
  return tf.nest.map_structure(lambda leaf: leaf[k], data)


def _pfedme(
  training: reference_loops.KerasTraining, data: batches.ClientData
) -> _Round:
  settings = registry.make_settings('pfedme', {}).trainer
  num_clients = data.mask.shape[0]

  def run(start: _Weights) -> _Weights:
    total = [tf.zeros_like(w) for w in start]
    for k in tf.range(num_clients):
      client = _client(data, k)
      w_i = list(start)
      training.assign(start)
      for step in tf.range(reference_loops.num_steps(client)):
        for _ in range(settings.proximal_steps):
          slopes = training.gradient(client, step)
          training.descend(
            [
              g + settings.proximal * (theta - w)
              for g, theta, w in zip(slopes, training.variables, w_i)
            ]
          )
        rate = settings.local_rate * settings.proximal
        w_i = [w - rate * (w - v) for w, v in zip(w_i, training.variables)]
      total = [t + w for t, w in zip(total, w_i)]
    return [t / num_clients for t in total]

  return run


def _self_fl(
  training: reference_loops.KerasTraining, data: batches.ClientData
) -> _Round:
  """Makes rounds of algorithm 1, in which all clients take part."""
  settings = registry.make_settings('self_fl', {}).trainer
  eta, num_clients = training.learning_rate, data.mask.shape[0]

  def make_variable(like: tf.Tensor) -> tf.Variable:
    return tf.Variable(tf.zeros([num_clients, *like.shape]))

  personal, mean, variance, sent = (
    [make_variable(v) for v in training.variables],
    [make_variable(v) for v in training.variables],
    make_variable(tf.zeros([])),
    make_variable(tf.zeros([])),
  )
  round_num, inter_variance = tf.Variable(0.0), tf.Variable(0.0)

  def run(start: _Weights) -> _Weights:
    weights = 1 / tf.maximum(inter_variance + sent, 1e-20)
    round_num.assign_add(1)
    for k in tf.range(num_clients):
      client = _client(data, k)
      num_batches = reference_loops.num_steps(client)
      steps, pushed = num_batches, tf.zeros([])
      if round_num > 2:
        others = tf.reduce_sum(weights) - weights[k]
        pushed = 1 / (inter_variance + variance[k]) / others
        wanted = tf.math.log1p(1 / (variance[k] * others))
        ratio = eta / tf.reduce_sum(client.mask) / variance[k]
        of_step = -tf.math.log(1 - tf.minimum(ratio, 1.0))
        steps = tf.clip_by_value(
          wanted / of_step, 1, float(settings.most_steps)
        )
        steps = tf.cast(tf.round(steps), tf.int32)
        sent.scatter_nd_update([[k]], [variance[k]])
      training.assign(
        [w - pushed * (p[k] - w) for w, p in zip(start, personal)]
      )
      for step in tf.range(steps):
        training.descend(training.gradient(client, step % num_batches))
      moved, away = tf.zeros([]), tf.zeros([])
      for theta, p, m in zip(training.variables, personal, mean):
        new = m[k] + (theta - m[k]) / round_num
        moved += tf.reduce_sum(tf.square(new - m[k]))
        away += tf.reduce_sum(tf.square(theta - new))
        m.scatter_nd_update([[k]], new[tf.newaxis])
        p.scatter_nd_update([[k]], theta[tf.newaxis])
      kept = (round_num - 1) / round_num * (variance[k] + moved)
      variance.scatter_nd_update([[k]], [kept + away / round_num])
    apart = [p - tf.reduce_mean(p, 0) for p in personal]
    inter_variance.assign(_square(apart) / num_clients)
    weights = 1 / tf.maximum(inter_variance + sent, 1e-20)
    share = weights / tf.reduce_sum(weights)
    return [tf.tensordot(share, p, 1) for p in personal]

  return run


def _adam(
  slope: tf.Tensor, m: tf.Tensor, v: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns Adam's step without the learning rate, and the new moments."""
  m = 0.9 * m + 0.1 * slope
  v = 0.999 * v + 0.001 * tf.square(slope)
  t = tf.cast(step + 1, tf.float32)
  m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
  return m_hat / (tf.sqrt(v_hat) + 1e-8), m, v


def prompt_loop(workload: reference_loops.Work) -> reference_loops.Round:
  """Makes rounds of FedPC, in which clients keep their psi.

  A round is one `tf.function` that has the frozen weights as constants.

  Args:
    workload: The workload, of a model with prompts.
  """
  settings = registry.make_settings('fedpc', {}).trainer
  model = dataclasses.replace(
    workload.model,
    frozen=tf.nest.map_structure(tf.constant, workload.model.frozen),
  )
  data = reference_loops.stack(workload.clients)
  num_clients = data.mask.shape[0]
  kept = tf.Variable(
    [model.init(tf.constant([0, k]))['psi'] for k in range(num_clients)]
  )

  @tf.function
  def run(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    total = tf.zeros_like(start)
    for k in tf.range(num_clients):
      client = _client(data, k)
      psi, phi = kept[k], start
      m_psi, v_psi = tf.zeros_like(psi), tf.zeros_like(psi)
      m_phi, v_phi = tf.zeros_like(phi), tf.zeros_like(phi)
      for step in tf.range(reference_loops.num_steps(client)):
        batch = {
          name: tf.gather(feature, client.indices[step])
          for name, feature in client.examples.items()
        }
        with tf.GradientTape() as tape:
          tape.watch([psi, phi])
          w = collections.OrderedDict(psi=psi, phi=phi)
          loss = model.mean_loss(w, batch, client.mask[step])
          loss += settings.proximal / 2 * tf.reduce_sum(tf.square(phi - start))
        slope_psi, slope_phi = tape.gradient(loss, [psi, phi])
        move_psi, m_psi, v_psi = _adam(slope_psi, m_psi, v_psi, step)
        move_phi, m_phi, v_phi = _adam(slope_phi, m_phi, v_phi, step)
        psi -= workload.learning_rate * move_psi
        phi -= workload.learning_rate * move_phi
      kept.scatter_nd_update([[k]], psi[tf.newaxis])
      total += phi
    return tf.reduce_mean(kept, 0), total / num_clients

  def run_round(weights: models.Weights) -> models.Weights:
    psi, phi = run(weights['phi'])
    return collections.OrderedDict(psi=psi, phi=phi)

  return run_round


METHODS: Mapping[
  str,
  Callable[[reference_loops.KerasTraining, batches.ClientData], _Round],
] = {'pfedme': _pfedme, 'self_fl': _self_fl}


def bare_round(
  workload: reference_loops.Work, method: str
) -> reference_loops.Round:
  """Makes rounds of a method on a workload, in which all clients take part.

  Args:
    workload: The workload.
    method: 'fedavg', 'fedembed_type', 'fedpc', or one of `METHODS`.

  Returns:
    The function that runs a round. It keeps the clients' states from round to
    round.
  """
  if method == 'fedpc':
    return prompt_loop(workload)
  assert isinstance(workload, reference_loops.Workload)
  if method == 'fedavg':
    return reference_loops.keras_loop(workload)
  if method == 'fedembed_type':
    return bare_fedembed.fedembed_round(workload)
  training = reference_loops.KerasTraining(workload)
  data = reference_loops.stack(workload.clients)
  run_round = tf.function(METHODS[method](training, data))

  def run(weights: models.Weights) -> models.Weights:
    after = run_round(training.start(weights))
    return collections.OrderedDict(
      (name, tf.reshape(w, weight.shape))
      for (name, weight), w in zip(weights.items(), after)
    )

  return run
