"""FedProx at its closed form."""

import numpy as np

from tests.algorithms import helpers

_RATE = 0.05
_W = np.array([1.0, -1.0, 0.5, 2.0])


def _build(**values):
  return helpers.build(
    'fedprox', **dict(client_learning_rate=_RATE, proximal=0.7) | values
  )


def _run(method, **how):
  """The model after rounds that begin with `_W`."""
  state = helpers.replace_server(
    method.initial_state([0, 1]), model=helpers.weights(_W)
  )
  after = helpers.run(method, state=state, **how)
  return helpers.vector(after.state.server.model)


def test_many_steps_of_a_client_reach_the_minimum_of_its_pulled_loss():
  data = helpers.data(0, 12, batch_size=12)
  data = data._replace(
    indices=np.tile(data.indices, [500, 1]), mask=np.tile(data.mask, [500, 1])
  )
  method = _build()
  clients = helpers.make_clients(method, [data])
  a, b = helpers.quadratic(data)
  expected = np.linalg.solve(a + 0.7 * np.eye(4), b + 0.7 * _W)
  np.testing.assert_allclose(
    _run(method, rounds=1, clients=clients), expected, rtol=1e-4
  )
