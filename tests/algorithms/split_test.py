"""The split family on new clients, and FedRoD's balanced risk."""

import collections

import numpy as np
import pytest

from base import errors
from tasks.models import linear
from tests import toys
from tests.algorithms import helpers

_MODEL = toys.VectorModel()
_RATE = 0.05
_HEAD = _MODEL.parts['head']
_ENCODER = _MODEL.parts['encoder']
_ALL = ('vector', *_ENCODER, *_HEAD)


def _build(name, model=_MODEL, **values):
  if name == 'fedrep':
    values = dict(head_epochs=2) | values
  return helpers.build(name, model, **dict(client_learning_rate=_RATE) | values)


def _gradient(w, x, y):
  """Differentiates the mean loss of `_MODEL`, and returns its scores too."""
  inputs = np.concatenate([x, np.tile(w['vector'], [len(x), 1])], axis=1)
  z = np.tanh(inputs @ w['hidden_kernel'] + w['hidden_bias'])
  scores = z @ w['kernel'] + w['bias']
  of_scores = (scores - y) / len(x)
  of_hidden = np.outer(of_scores, w['kernel']) * (1 - z**2)
  return dict(
    vector=(of_hidden @ w['hidden_kernel'][3:].T).sum(0),
    hidden_kernel=inputs.T @ of_hidden,
    hidden_bias=of_hidden.sum(0),
    kernel=z.T @ of_scores,
    bias=of_scores.sum(),
  ), scores


def _epoch(w, data, names, rate=_RATE):
  """Steps on the weights of these names, once for each batch."""
  for indices, mask in zip(data.indices, data.mask):
    used = indices[mask > 0]
    slopes, _ = _gradient(w, data.examples['x'][used], data.examples['y'][used])
    w = w | {name: w[name] - rate * slopes[name] for name in names}
  return w


def _error(w, data):
  _, scores = _gradient(w, data.examples['x'], data.examples['y'])
  return 0.5 * np.sum((scores - data.examples['y']) ** 2)


def _errors(method, state, clients):
  """The sums of errors of each client at each candidate."""
  results = method.personalize(state, helpers.hold_out(clients))
  return [result['evaluation']['half_squared_error'][0] for result in results]


def test_fedrep_trains_the_head_of_a_new_client_on_the_fixed_encoder():
  method = _build('fedrep', finetuning_epochs=3)
  state = helpers.run(method).state
  clients = helpers.make_clients(method)
  for k, found in enumerate(_errors(method, state, clients)):
    w, expected = dict(state.server.model), []
    for _ in range(4):
      expected.append(_error(w, helpers.data(k + 100, 6)))
      w = _epoch(w, helpers.all_data()[k], _HEAD, rate=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_fedbabu_fine_tunes_all_weights():
  method = _build('fedbabu', finetuning_epochs=1)
  state = helpers.run(method).state
  for k, found in enumerate(
    _errors(method, state, helpers.make_clients(method))
  ):
    w = _epoch(dict(state.server.model), helpers.all_data()[k], _ALL, rate=0.1)
    expected = _error(w, helpers.data(k + 100, 6))
    np.testing.assert_allclose(found[1], expected, rtol=1e-4)


def test_the_servers_momentum_is_of_the_shared_parts():
  method = _build('fedper', server_optimizer='momentum')
  state = helpers.run(method).state
  assert set(state.server.optimizer['accumulator']) == {'vector', *_ENCODER}


@pytest.mark.parametrize(
  'name, model, values, message',
  [
    ('fedper', helpers.MODEL, {}, 'has weights only in: head'),
    ('lg_fedavg', helpers.MODEL, {}, 'has weights only in: head'),
    ('fedper', _MODEL, dict(personal_parts=('haed',)), "Did you mean 'head'?"),
    ('fedper', _MODEL, dict(client_slots='kept'), 'client_slots must be new'),
    ('fedrod', _MODEL, dict(client_slots='kept'), 'client_slots must be new'),
  ],
)
def test_refuses(name, model, values, message):
  with pytest.raises(errors.UserError) as error:
    _build(name, model, **values)
  assert message in str(error.value)


def test_a_new_client_of_fedrod_has_the_generic_head_and_trains_another():
  method = _build('fedrod+head_finetuning', finetuning_epochs=1)
  state = helpers.run(method).state
  clients = helpers.make_clients(method)
  for k, found in enumerate(_errors(method, state, clients)):
    w = dict(state.server.model)
    after = _epoch(w, helpers.all_data()[k], _HEAD, rate=0.1)
    expected = [
      _error(weights, helpers.data(k + 100, 6)) for weights in (w, after)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


_CLASSIFIER = linear.LogisticRegression(3, 3)


def _labelled(classes):
  """A client's examples of these classes, with padding in its last batch."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[len(classes), 3]).astype(np.float32)
  return helpers.make_batches({'x': x, 'y': np.array(classes, np.int32)})


def _softmax_step(w, data, used, prior):
  x, y = data.examples['x'][used], data.examples['y'][used]
  scores = np.exp(x @ w['kernel'] + w['bias'] + prior)
  of_scores = scores / scores.sum(1, keepdims=True) - np.eye(3)[y]
  of_scores /= len(x)
  return collections.OrderedDict(
    kernel=w['kernel'] - _RATE * x.T @ of_scores,
    bias=w['bias'] - _RATE * of_scores.sum(0),
  )


@pytest.mark.parametrize('balance', [0, 0.5, 1])
def test_the_generic_head_of_fedrod_goes_down_the_balanced_risk(balance):
  # A class that is padded with, 0, of which there are no examples.
  data = _labelled([1, 2, 2, 2, 1, 2])
  method = _build('fedrod', _CLASSIFIER, balance=balance)
  clients = helpers.make_clients(method, [data])
  w = collections.OrderedDict(kernel=np.zeros([3, 3]), bias=np.zeros(3))
  prior = balance * np.log([1e-6, 2, 4])
  for indices, mask in zip(data.indices, data.mask):
    w = _softmax_step(w, data, indices[mask > 0], prior)
  state = helpers.run(method, 1, clients).state
  helpers.assert_close(dict(state.server.model), dict(w))
