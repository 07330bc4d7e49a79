"""Tests of the constant predictor."""

import numpy as np

from tasks.models import linear
from tests.algorithms import helpers
from tests.algorithms import prompting


def _judge(model, clients):
  """The statistics of clients, each of its data and of others to judge it."""
  method = helpers.build('constant', model)
  state = method.initial_state([0, 1])
  made = helpers.make_clients(method, [own for own, _ in clients])
  held_out = helpers.hold_out(made)
  for client, (_, judged) in zip(held_out, clients):
    client.evaluation['evaluation'] = judged
  return [
    {name: np.array(leaf) for name, leaf in result['evaluation'].items()}
    for result in method.personalize(state, held_out)
  ]


def _data(y, dtype):
  x = np.float32(np.random.default_rng(0).normal(size=[len(y), 3]))
  data = helpers.make_batches(dict(x=x, y=np.array(y, dtype)))
  return helpers.padded(data, 12, 4, 4)


def test_numbers_are_predicted_by_their_mean():
  own, judged = [1, 2, 6], [0, 3, 4, 5, 9]
  (found,) = _judge(
    helpers.MODEL, [(_data(own, np.float32), _data(judged, np.float32))]
  )
  total, number = found['half_squared_error'][:, 0]
  assert (total, number) == (0.5 * sum((y - 3) ** 2 for y in judged), 5)


def test_classes_are_predicted_by_the_most_frequent_one_first_on_a_tie():
  model = linear.LogisticRegression(3, num_classes=4)
  judged = _data([0, 1, 1, 2, 3], np.int32)
  of_most, of_tie, of_none = _judge(
    model,
    [
      (_data([2, 1, 2], np.int32), judged),
      (_data([3, 1, 1, 3], np.int32), judged),
      (_data([], np.int32), judged),
    ],
  )
  assert of_most['accuracy'][:, 0].tolist() == [1, 5]
  assert of_tie['accuracy'][:, 0].tolist() == [2, 5]
  assert of_none['accuracy'][:, 0].tolist() == [1, 5]


def test_words_have_the_probabilities_of_laplace():
  own, judged = prompting.data(0, 5, (0,)), prompting.data(1, 4, (0,))
  (found,) = _judge(prompting.MODEL, [(own, judged)])
  words, counts = own.examples['y'], np.ones(19)
  for word in words[words > 0]:
    counts[word - 1] += 1
  target = judged.examples['y'][:, 2:]
  scores = np.log(counts / counts.sum())[target[target > 0] - 1]
  total, number = found['perplexity'][:, 0]
  np.testing.assert_allclose(total, -scores.sum(), rtol=1e-5)
  assert number == scores.size
