"""Settings with which a trainer is another one, most to the last bit."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import models
from tests.algorithms import helpers

_ROUNDS = 4


# Of both trainers, so that all that can differ does.
_CLIENTS = dict(client_optimizer='momentum')
_SHARED = dict(_CLIENTS, server_optimizer='adam', client_weighting='size')


@dataclasses.dataclass(frozen=True)
class Limit:
  """A trainer, and another method that it is with some settings.

  Attributes:
    trainer: The trainer.
    settings: The settings.
    model: The model.
    other: The other method.
    shared: The settings of both.
    of_other: The settings of the other.
    first_rounds: The rounds that it has beside those of the other.
    from_zeros: Whether clients keep zeros at first, and the other begins with
      what this makes of them.
    rounding: How near it is, if rounding makes a difference.
    same: What is the same: the models of the server, or of the clients.
  """

  trainer: str
  settings: Mapping[str, Any]
  model: models.Model = helpers.MODEL
  other: str = 'fedavg+as_trained'
  shared: Mapping[str, Any] = dataclasses.field(default_factory=_SHARED.copy)
  of_other: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  first_rounds: int = 0
  from_zeros: bool = False
  rounding: float = 0.0
  same: Sequence[str] = ('server', 'clients')


# With all models of equal weight in the mixture of each of five clients.
_MEAN = dict(attraction=2e9, attraction_width=1e10, regularization=2e9)
_LIMITS = {
  'fedala, no rate': Limit(
    'fedala', dict(mixing_rate=0.0), shared=dict(_SHARED, client_slots='kept')
  ),
  'moon, no contrast': Limit(
    'moon',
    dict(contrast=0.0),
    helpers.VECTOR_MODEL,
    shared=dict(_SHARED, client_slots='kept'),
  ),
  'dbe, no pull and no vector': Limit(
    'dbe',
    dict(mean_regularization=0.0, shift_rate=0.0),
    helpers.VECTOR_MODEL,
    first_rounds=1,
  ),
  'fedem, one model': Limit('fedem', dict(num_models=1)),
  'fedproto, no pull': Limit(
    'fedproto',
    dict(prototype_pull=0.0),
    helpers.CLASS_MODEL,
    other='local+finetuning',
    shared={},
    of_other=dict(finetuning_epochs=_ROUNDS),
  ),
  'fedpac, its own heads': Limit(
    'fedpac',
    dict(prototype_pull=0.0, combine_heads=False, encoder_epochs=1),
    helpers.CLASS_MODEL,
    other='fedrep+as_trained',
    shared=dict(_SHARED, client_learning_rate=0.1),
    of_other=dict(head_epochs=1),
  ),
  'gpfl, its first term': Limit(
    'gpfl',
    dict(conditional=False, angle=0.0, magnitude=0.0, decay=0.0),
    helpers.CLASS_MODEL,
    other='fedper+as_trained',
  ),
  # Without layers, and of vectors of zeros, a hypernetwork makes its bias.
  'pfedhn, no network': Limit(
    'pfedhn',
    dict(hidden_layers=0, vector_rate=0.0, generator_decay=0.0),
    shared=dict(_SHARED, client_learning_rate=0.1, server_learning_rate=1.0),
    from_zeros=True,
    same=['clients'],
  ),
  # The server's model is what it makes of those of clients.
  'fedamp, the mean of all': Limit(
    'fedamp',
    _MEAN,
    other='fedprox+as_trained',
    shared=_CLIENTS,
    of_other=dict(proximal=1.0, client_weighting='uniform'),
    rounding=1e-6,
    same=['server'],
  ),
  'fedamp, the mean of all, from its own': Limit(
    'fedamp',
    dict(_MEAN, steps_from='own'),
    other='mr_mtl+as_trained',
    shared=_CLIENTS,
    of_other=dict(regularization=1.0),
    rounding=1e-6,
  ),
}


@pytest.fixture(autouse=True)
def _runtime():
  # XLA fuses what two trainers compute alike in different ways.
  with helpers.use_runtime('unstacked'):
    yield


def _clients(method):
  # Of one shape, so that functions are traced once.
  data = [helpers.padded(d, places=16) for d in helpers.all_data()]
  return helpers.make_clients(method, data)


def _forget(client):
  """Returns a client that keeps zeros."""
  zeros = tf.nest.map_structure(np.zeros_like, client.state)
  return client._replace(state=zeros)


def _begin(method, trainer):
  """Returns a method that begins with the model of a new client of another."""
  (client,) = map(_forget, _clients(trainer)[:1])
  server = trainer.initial_state([0, 1]).server
  first = trainer.trainer.start(trainer.trainer.message(server), client)
  return dataclasses.replace(method, first_models=(first.weights,))


def _train(method, clients, rounds):
  """Returns the server's model, and the losses of the trained clients."""
  after = helpers.run(method, rounds if method.trains else 0, clients)
  evaluated = method.personalize(after.state, helpers.hold_out(after.clients))
  server = after.state.server
  if hasattr(server, 'model'):
    model = server.model
  else:  # A model for each client, of which the server has the mean.
    model = method.trainer.weights(server.models.mean(axis=0))
  losses = [dict(result['evaluation'])['loss'][0] for result in evaluated]
  return model, losses


@pytest.mark.parametrize('limit', _LIMITS.values(), ids=_LIMITS)
def test_is_the_other_method(limit):
  method = helpers.build(
    f'{limit.trainer}+as_trained',
    limit.model,
    **limit.shared,
    **limit.settings,
  )
  other = helpers.build(
    limit.other, limit.model, **limit.shared, **limit.of_other
  )
  clients = _clients(method)
  if limit.from_zeros:
    clients, other = list(map(_forget, clients)), _begin(other, method)
  found, losses = _train(method, clients, _ROUNDS + limit.first_rounds)
  expected, of_other = _train(other, _clients(other), _ROUNDS)

  def check(value, wanted):
    np.testing.assert_allclose(
      value, wanted, rtol=limit.rounding, atol=limit.rounding
    )

  if 'server' in limit.same:
    for name, weight in expected.items():
      # One of one model is stacked.
      check(np.squeeze(found[name]), weight)
  if 'clients' in limit.same:
    # Candidates are the global model, if there is one, and that of the client.
    for of_candidates, of_epochs in zip(losses, of_other):
      check(of_candidates, np.broadcast_to(of_epochs[-1], of_candidates.shape))
