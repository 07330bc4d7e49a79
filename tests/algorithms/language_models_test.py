"""Methods on a language model that has frozen constants and two LSTMs."""

import numpy as np
import tensorflow as tf

from tasks.data import texts
from tasks.models import character_lstm
from tests.algorithms import helpers

_WORDS = ('a', 'the', 'sea', 'seas')
_RATE = 0.5


def _model():
  return character_lstm.CharacterLstm.create(
    _WORDS, sequence_length=4, filters=(2, 1), lstm_size=3
  )


def _data(seed, num_sentences):
  rng = np.random.default_rng(seed)
  sentences = [
    rng.integers(1, len(_WORDS) + 2, rng.integers(1, 4))
    for _ in range(num_sentences)
  ]
  return helpers.make_batches(
    texts.cut(sentences, len(_WORDS), 4), batch_size=2
  )


def _step(model, weights, examples):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = model.mean_loss(weights, examples, tf.ones([len(examples['x'])]))
  gradient = tape.gradient(loss, weights)
  return tf.nest.map_structure(lambda w, g: w - _RATE * g, weights, gradient)


def _train(model, weights, data):
  for indices, mask in zip(data.indices, data.mask):
    used = indices[mask > 0]
    examples = {name: leaf[used] for name, leaf in data.examples.items()}
    weights = _step(model, weights, examples)
  return weights


def test_fedavg_and_finetuning_are_those_of_plain_steps():
  model = _model()
  method = helpers.build(
    'finetuning',
    model=model,
    client_learning_rate=_RATE,
    finetuning_learning_rates=(_RATE,),
    finetuning_epochs=1,
  )
  data = [_data(0, 3), _data(1, 4)]
  clients = helpers.make_clients(method, data)
  after = helpers.run(method, 1, clients)
  start = model.init(tf.constant([0, 1]))
  first, second = (_train(model, start, client_data) for client_data in data)
  trained = tf.nest.map_structure(
    lambda a, b: (3 * a + 4 * b) / 7, first, second
  )
  helpers.assert_close(after.state.server.model, trained, rtol=1e-3)

  new = _data(2, 5)
  held_out = [
    client._replace(evaluation={'evaluation': new})
    for client in helpers.make_held_out(method, data)
  ]
  results = list(method.personalize(after.state, held_out))
  for client_data, result in zip(data, results):
    perplexities = [
      [
        sum(statistic.numpy())
        for statistic in model.statistics(weights, new.examples)['perplexity']
      ]
      for weights in (trained, _train(model, trained, client_data))
    ]
    np.testing.assert_allclose(
      np.transpose(result['evaluation']['perplexity']), perplexities, rtol=1e-4
    )
