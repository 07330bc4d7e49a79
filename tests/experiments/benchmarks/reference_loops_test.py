"""All loops compute the same round."""

import dataclasses

import numpy as np
import tensorflow as tf

from algorithms import client_work
from algorithms import optimizers
from experiments.benchmarks import reference_loops


def _plain_round(workload, weights):
  """A round of the model itself, client by client."""
  sgd = optimizers.Optimizer('sgd', workload.learning_rate)

  @tf.function(autograph=False)
  def train(data):
    learner, _ = client_work.train(
      workload.model, sgd.start(weights), data, sgd
    )
    return learner.weights

  trained = [train(data) for data in workload.clients]
  counts = [data.mask.sum() for data in workload.clients]
  return {
    name: np.average([of_client[name] for of_client in trained], 0, counts)
    for name in weights
  }


def _weights(workload):
  weights = workload.model.init(tf.constant([1, 2]))
  return tf.nest.map_structure(lambda weight: weight + 0.01, weights)


def _assert_same_step(new, expected, old):
  """What a round changes is the same, to what rounding leaves of it."""
  for name, weight in expected.items():
    change = weight - old[name].numpy()
    np.testing.assert_allclose(
      new[name] - old[name],
      change,
      atol=1e-3 * np.abs(change).max(),
      rtol=0,
      err_msg=name,
    )
    assert new[name].shape == old[name].shape


class TestReferenceLoops:
  def check(self, workload, round_of):
    weights = _weights(workload)
    expected = _plain_round(workload, weights)
    run = round_of(workload)
    _assert_same_step(run(weights), expected, weights)
    # It starts anew from what it is given.
    _assert_same_step(run(weights), expected, weights)

  def test_keras_cnn(self):
    workload = reference_loops.cnn_workload(2, num_examples=7, batch_size=3)
    self.check(workload, reference_loops.keras_loop)

  def test_keras_photo_cnn(self):
    workload = reference_loops.photo_workload(2, num_examples=7, batch_size=3)
    self.check(workload, reference_loops.keras_loop)

  def test_keras_resnet(self):
    workload = reference_loops.batch_norm_workload(
      2, num_examples=6, batch_size=4, size=16
    )
    # Of larger steps rounding leaves more.
    workload = dataclasses.replace(workload, learning_rate=0.5)
    self.check(workload, reference_loops.keras_loop)

  def test_keras_linear(self):
    workload = reference_loops.linear_workload(3)
    self.check(workload, reference_loops.keras_loop)

  def test_keras_lstm(self):
    workload = reference_loops.lstm_workload(
      2,
      num_examples=5,
      batch_size=2,
      vocabulary_size=30,
      sequence_length=4,
      embedding_size=5,
      lstm_size=6,
    )
    self.check(workload, reference_loops.keras_loop)

  def test_clients_may_have_different_shapes(self):
    workloads = [
      reference_loops.cnn_workload(1, num_examples=n, batch_size=3, seed=n)
      for n in (2, 7)
    ]
    clients = [workload.clients[0] for workload in workloads]
    workload = dataclasses.replace(workloads[0], clients=clients)
    self.check(workload, reference_loops.keras_loop)

  def test_keras_finetuning(self):
    workload = reference_loops.cnn_workload(2, num_examples=5, batch_size=3)
    evaluation = reference_loops.cnn_workload(2, 4, 3, seed=1).clients
    weights = _weights(workload)
    model = workload.model
    sgd = optimizers.Optimizer('sgd', workload.learning_rate)

    @tf.function(autograph=False)
    def by_hand(client, held_out):
      return client_work.evaluate_epochs(
        lambda learner: client_work.evaluate(model, learner.weights, held_out),
        sgd.start(weights),
        lambda _, learner: client_work.train(model, learner, client, sgd)[0],
        2,
      )

    finetune = reference_loops.keras_finetuning(workload, evaluation, 2)
    results = finetune(weights)
    for k, (client, held_out) in enumerate(zip(workload.clients, evaluation)):
      expected = by_hand(client, held_out)
      for name, of_clients in zip(('accuracy', 'loss'), results):
        np.testing.assert_allclose(
          of_clients[k], expected[name][0] / expected[name][1], rtol=1e-3
        )

  def test_vectorized_linear(self):
    workload = reference_loops.linear_workload(3)
    self.check(workload, reference_loops.vectorized_round)

  def test_last_batch_is_padded(self):
    data = reference_loops.linear_workload(1).clients[0]
    assert data.indices.shape == (3, 32)
    np.testing.assert_array_equal(data.mask.sum(axis=1), [32, 32, 16])

  def test_seed_decides_the_data(self):
    def words(seed):
      workload = reference_loops.lstm_workload(1, 4, seed=seed)
      return workload.clients[0].examples['x']

    np.testing.assert_array_equal(words(1), words(1))
    assert not np.array_equal(words(1), words(2))
