"""Settings with which a trainer is another one to the last bit."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import pytest

from tasks.models import models
from tests.algorithms import helpers

_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Limit:
  """A trainer, and another one that it is with some settings.

  Attributes:
    trainer: The trainer.
    settings: The settings.
    other: The other trainer.
    model: The model.
    first_rounds: The rounds that it has beside those of the other.
  """

  trainer: str
  settings: Mapping[str, Any]
  other: str = 'fedavg'
  model: models.Model = helpers.MODEL
  first_rounds: int = 0


_LIMITS = {
  'fedala, no rate': Limit('fedala', dict(mixing_rate=0.0)),
  'moon, no contrast': Limit(
    'moon', dict(contrast=0.0), model=helpers.VECTOR_MODEL
  ),
  'dbe, no pull and no vector': Limit(
    'dbe',
    dict(mean_regularization=0.0, shift_rate=0.0),
    model=helpers.VECTOR_MODEL,
    first_rounds=1,
  ),
}
# Of both trainers, so that all that can differ does.
_SHARED = dict(
  client_optimizer='momentum', server_optimizer='adam', client_weighting='size'
)


@pytest.fixture(autouse=True)
def _runtime():
  # XLA fuses what two trainers compute alike in different ways.
  with helpers.use_runtime('unstacked'):
    yield


def _train(trainer, limit, rounds, **values):
  """Returns the server's model, and the losses of the trained clients."""
  method = helpers.build(
    f'{trainer}+as_trained', limit.model, **_SHARED, **values
  )
  # Of one shape, so that clients are stacked.
  data = [helpers.padded(d, places=16) for d in helpers.all_data()]
  clients = helpers.make_clients(method, data)
  after = helpers.run(method, rounds, clients)
  evaluated = method.personalize(after.state, helpers.hold_out(after.clients))
  return after.state.server.model, [
    dict(result['evaluation'])['loss'][0] for result in evaluated
  ]


@pytest.mark.parametrize('limit', _LIMITS.values(), ids=_LIMITS)
def test_is_the_other_trainer_to_the_last_bit(limit):
  found, losses = _train(
    limit.trainer, limit, _ROUNDS + limit.first_rounds, **limit.settings
  )
  expected, of_other = _train(limit.other, limit, _ROUNDS)
  for name, weight in expected.items():
    np.testing.assert_array_equal(found[name], weight)
  # Candidates are the global model, if there is one, and that of the client.
  for of_candidates, of_model in zip(losses, of_other):
    np.testing.assert_array_equal(
      of_candidates, np.broadcast_to(of_model, of_candidates.shape)
    )
