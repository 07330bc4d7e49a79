"""kNN-Per against scikit-learn's neighbors, and at the limits of c."""

import collections

import numpy as np
import pytest
from sklearn import neighbors
import tensorflow as tf

from algorithms import knn_per
from tasks.models import linear
from tasks.models import lstm
from tasks.models import metrics
from tests.algorithms import helpers

_WEIGHTS = {
  '1/d': 'distance',
  'exp(-d)': lambda distances: np.exp(-distances),
  'exp(-d^2/n)': lambda distances: np.exp(-(distances**2) / 3),
}
_COEFFICIENTS = (0.0, 0.3, 1.0)


def _classes(data, num_classes=3):
  """The same examples, labelled by a class."""
  y = np.digitize(data.examples['y'], np.linspace(-1, 1, num_classes - 1))
  data.examples['y'] = y.astype(np.int32)
  return data


def _signs(data):
  y = np.where(data.examples['y'] < 0, -1, 1)
  data.examples['y'] = y.astype(np.float32)
  return data


# For each kind of model: how to label, scikit-learn's neighbors for it and
# what they predict, with the model's own prediction and the metric.
_MODELS = {
  'regression': (
    linear.LinearRegression(3, initial_stddev=1),
    lambda data: data,
    neighbors.KNeighborsRegressor,
    lambda knn, x: knn.predict(x),
    lambda prediction, y: 0.5 * (prediction - y) ** 2,
  ),
  'classification': (
    linear.LogisticRegression(3, 3, initial_stddev=1),
    _classes,
    neighbors.KNeighborsClassifier,
    lambda knn, x: _all_classes(knn, x),
    lambda prediction, y: prediction.argmax(axis=1) == y,
  ),
  'hinge': (
    linear.SupportVectorMachine(3, l2=0.1),
    _signs,
    neighbors.KNeighborsClassifier,
    lambda knn, x: 2 * _probability_of_1(knn, x) - 1,
    lambda prediction, y: np.sign(prediction) == y,
  ),
}


def _all_classes(knn, x):
  """Probabilities, of the classes too that the client has never seen."""
  probabilities = np.zeros((len(x), 3))
  probabilities[:, knn.classes_] = knn.predict_proba(x)
  return probabilities


def _probability_of_1(knn, x):
  return knn.predict_proba(x) @ (knn.classes_ == 1)


def _build(model, **values):
  return helpers.build(
    'knn_per', model=model, coefficients=_COEFFICIENTS, **values
  )


def _clients(method, label):
  sizes = (25, 4, 14)  # One with fewer than ten.
  clients = helpers.make_held_out(
    method,
    [
      helpers.padded(label(helpers.data(k, size)), 30, 5, 8)
      for k, size in enumerate(sizes)
    ],
  )
  for k, client in enumerate(clients):
    evaluation = label(helpers.data(k + 100, 40, batch_size=20))
    # Some of the very examples that the client has.
    for name in ('x', 'y'):
      feature = client.personalization.examples[name]
      evaluation.examples[name][:3] = feature[:3]
    client.evaluation['evaluation'] = evaluation
  return clients, sizes


@pytest.mark.parametrize('kind', _MODELS)
@pytest.mark.parametrize('weights', _WEIGHTS)
def test_is_scikit_learns(kind, weights):
  model, label, sklearn_knn, predict, metric = _MODELS[kind]
  method = _build(model, neighbor_weights=weights)
  state = method.initial_state([0, 1])
  clients, sizes = _clients(method, label)
  results = method.personalize(state, clients)
  for client, size, result in zip(clients, sizes, results):
    personalization = client.personalization.examples
    knn = sklearn_knn(min(10, size), weights=_WEIGHTS[weights])
    knn.fit(personalization['x'][:size], personalization['y'][:size])
    examples = client.evaluation['evaluation'].examples
    of_model = model.predict_softly(model.scores(state.server.model, examples))
    of_neighbors = predict(knn, examples['x'])
    expected = [
      metric(c * of_neighbors + (1 - c) * of_model.numpy(), examples['y'])
      for c in _COEFFICIENTS
    ]
    sums = dict(result['evaluation'])
    assert not np.any(sums.pop(metrics.DIVERGED))
    ((total, weight),) = sums.values()
    np.testing.assert_allclose(total, np.sum(expected, axis=1), rtol=1e-4)
    np.testing.assert_array_equal(weight, [40] * 3)


@pytest.mark.parametrize('runtime', ['cohort', 'native'], indirect=True)
def test_each_word_of_a_sentence_has_neighbours(runtime):
  del runtime
  length, num_words, end = 6, 12, 11
  model = lstm.NextWordLstm(
    num_words - 4, sequence_length=length, embedding_size=5, lstm_size=7
  )
  method = _build(model)
  state = method.initial_state([0, 1])
  # Larger weights, for the model to be sure of something.
  rng = np.random.default_rng(1)
  for name, weight in state.server.model.items():
    noise = rng.normal(scale=0.7, size=weight.shape).astype(np.float32)
    state.server.model[name] = weight + noise

  def sentences(count):
    lengths = rng.integers(2, length + 2, count)
    words = rng.integers(1, num_words, (count, length + 1), np.int32)
    words[np.arange(length + 1) >= lengths[:, np.newaxis]] = 0
    return {'x': words[:, :-1], 'y': words[:, 1:]}

  def words(examples):
    """The state, the probabilities and the next word of each word."""
    y = examples['y'].ravel()
    weights = state.server.model
    parts = (
      model.encode(weights, examples).numpy(),
      model.predict_softly(model.scores(weights, examples)).numpy(),
      y,
    )
    return [part[y > 0] for part in parts]

  clients, expected, likelihoods = [], [], []
  for count in (9, 1, 14):  # One with fewer words than neighbors.
    old, new = sentences(count), sentences(30)
    old['x'][0, 2:] = old['y'][0, 1:] = 0
    client = helpers.make_held_out(method)[0]
    clients.append(
      client._replace(
        personalization=helpers.make_batches(old),
        evaluation=dict(evaluation=helpers.make_batches(new)),
      )
    )

    keys, _, targets = words(old)
    queries, of_model, y = words(new)
    knn = neighbors.KNeighborsClassifier(
      min(10, len(keys)), weights=_WEIGHTS['exp(-d)']
    ).fit(keys, targets)
    of_neighbors = np.zeros_like(of_model)
    of_neighbors[:, knn.classes_] = knn.predict_proba(queries)
    counts = (y != num_words - 3) & (y != end)
    mixed = [c * of_neighbors + (1 - c) * of_model for c in _COEFFICIENTS]
    predicted = [probabilities.argmax(axis=1) for probabilities in mixed]
    with np.errstate(divide='ignore'):  # Neighbours alone rule words out.
      likelihoods.append([np.log(p[np.arange(len(y)), y]).sum() for p in mixed])
    expected.append(
      [
        [np.sum(counts & (of_words == y)) for of_words in predicted],
        [counts.sum()] * 3,
      ]
    )
  results = [
    result['evaluation'] for result in method.personalize(state, clients)
  ]
  np.testing.assert_array_equal(
    [result['accuracy'] for result in results], expected
  )
  # Words that begin alike are as near as each other. Which of them are among
  # the nearest decides how likely a word is, but hardly which is the likeliest.
  np.testing.assert_allclose(
    [result['perplexity'][0] for result in results],
    -np.array(likelihoods),
    rtol=1e-2,
  )


def test_likelihoods_are_those_of_the_mixture():
  rng = np.random.default_rng(0)
  of_model = rng.dirichlet(np.ones(5), 20).astype(np.float32)
  targets = rng.integers(0, 5, (20, 3), np.int32)
  weights = rng.dirichlet(np.ones(3), 20).astype(np.float32)
  true = rng.integers(0, 5, 20, np.int32)
  results = knn_per.mix_likelihoods(
    *map(tf.constant, (of_model, targets, weights, true)), _COEFFICIENTS
  )
  of_neighbors = np.zeros([20, 5])
  np.add.at(of_neighbors, (np.arange(20)[:, np.newaxis], targets), weights)
  for c, result in zip(_COEFFICIENTS, results):
    mixed = c * of_neighbors + (1 - c) * of_model
    np.testing.assert_allclose(
      np.exp(result), mixed[np.arange(20), true], rtol=1e-5
    )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_embedding_batch_by_batch_changes_nothing(jit_compile):
  model = lstm.NextWordLstm(8, sequence_length=6, embedding_size=5, lstm_size=7)
  weights = model.init(tf.constant([0, 1]))
  rng = np.random.default_rng(0)
  words = rng.integers(0, 12, (9, 7), np.int32)
  data = helpers.padded(
    helpers.make_batches({'x': words[:, :-1], 'y': words[:, 1:]}),
    rows=11,
    places=5,
    steps=4,
  )
  places = data.indices.ravel()
  all_at_once = collections.OrderedDict(
    (name, feature[places]) for name, feature in data.examples.items()
  )
  is_word = model.entry_mask(all_at_once) * data.mask.reshape([-1, 1])

  @tf.function(jit_compile=jit_compile)
  def store(data):
    return vars(knn_per.store(model, weights, data, 7))

  expected = dict(
    keys=model.encode(weights, all_at_once),
    targets=model.target(all_at_once),
    mask=np.ravel(is_word),
  )
  for name, entries in store(tf.nest.map_structure(tf.constant, data)).items():
    # At the end there is room for seven neighbors.
    room = np.zeros_like(entries[-7:])
    np.testing.assert_allclose(
      entries, np.concatenate([expected[name], room]), atol=1e-6
    )


@pytest.mark.parametrize('c', [0.0, 0.2, 0.5, 1.0])
def test_only_the_neighbours_classes_and_the_models_can_be_likeliest(c):
  rng = np.random.default_rng(0)
  of_model = rng.dirichlet(np.ones(20), 500).astype(np.float32)
  targets = rng.integers(20, size=(500, 4), dtype=np.int32)
  weights = rng.dirichlet(np.ones(4), 500).astype(np.float32)
  of_neighbors = np.zeros_like(of_model)
  np.add.at(of_neighbors, (np.arange(500)[:, np.newaxis], targets), weights)
  (classes,) = knn_per.mix(of_model, tf.constant(targets), weights, [c])
  np.testing.assert_array_equal(
    classes, np.argmax(c * of_neighbors + (1 - c) * of_model, axis=1)
  )


def test_of_classes_that_tie_the_first_is_taken():
  (classes,) = knn_per.mix(
    tf.constant([[0.1, 0.2, 0.2, 0.5]]),
    tf.constant([[2, 1]]),
    tf.constant([[0.5, 0.5]]),
    [0.9],
  )
  np.testing.assert_array_equal(classes, [1])


def test_training_is_that_of_fedavg():
  method, plain = _build(helpers.MODEL), helpers.build('fedavg')
  assert method.training_key == plain.training_key
  helpers.assert_equal(helpers.run(method).state, helpers.run(plain).state)


def test_coefficient_0_is_the_baseline_and_fedavg():
  method, plain = _build(helpers.MODEL), helpers.build('fedavg')
  assert str(method.candidates[method.baseline]) == 'coefficient 0'
  results = []
  for each in (method, plain):
    state = helpers.run(each).state
    personalized = each.personalize(state, helpers.make_held_out(each))
    results.append(
      [
        result['evaluation']['half_squared_error'][0][0]
        for result in personalized
      ]
    )
  np.testing.assert_allclose(*results, rtol=1e-5)


def test_without_coefficient_0_there_is_no_baseline():
  method = helpers.build('knn_per', coefficients=(0.5, 1.0))
  assert method.baseline is None


def test_neighbours_are_found_in_the_embedding():
  class FirstFeature(linear.LinearRegression):
    def encode(self, weights, batch):
      return batch['x'][:, :1]

    def decide(self, weights, features):
      return features[:, 0] * weights['kernel'][0] + weights['bias']

  method = _build(FirstFeature(3), num_neighbors=1)
  clients = helpers.make_held_out(method)
  results = method.personalize(method.initial_state([0, 1]), clients)
  for client, result in zip(clients, results):
    personalization = client.personalization.examples
    examples = client.evaluation['evaluation'].examples
    knn = neighbors.KNeighborsRegressor(1).fit(
      personalization['x'][:, :1], personalization['y']
    )
    errors_ = knn.predict(examples['x'][:, :1]) - examples['y']
    np.testing.assert_allclose(
      result['evaluation']['half_squared_error'][0][-1],
      0.5 * np.sum(errors_**2),
      rtol=1e-4,
    )


@pytest.mark.parametrize('temperature', [1.0, 4.0])
def test_neighbours_that_are_far_do_not_vanish(temperature):
  datastore = knn_per.Datastore(
    keys=tf.constant([[1000.0], [1001.0], [0.0]]),
    targets=tf.constant([1.0, 2.0, 9.0]),
    mask=tf.constant([1.0, 1.0, 0.0]),
  )
  targets, weights = knn_per.neighbors(
    datastore, tf.constant([[0.0]]), 2, 'exp(-d)', temperature
  )
  np.testing.assert_array_equal(targets, [[1, 2]])
  share = 1 / (1 + np.exp(-1 / temperature))
  np.testing.assert_allclose(weights, [[share, 1 - share]], rtol=1e-5)
