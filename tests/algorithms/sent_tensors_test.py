"""Tests of which tensors leave a client, for every trainer."""

import collections
from collections.abc import Mapping
import dataclasses

import numpy as np
import pytest

from algorithms import registry
from algorithms.privacy import private_aggregation
from base import errors
from tests.algorithms import helpers

_VECTOR = helpers.VECTOR_MODEL
_ALL = set(helpers.MODEL.init([0, 0]))
_SHARED = {'vector', *_VECTOR.parts['encoder']}
_HEAD = {'vector', *_VECTOR.parts['head']}
# Of a linear model with an embedding, which has no encoder.
_OF_HEAD = (*helpers.MODEL.parts['head'], 'vector_kernel')
_HEADS = {f'phi_{name}' for name in _OF_HEAD}
_GLOBAL_HEAD = {f'nu_{name}' for name in _OF_HEAD}
_NETS = {
  f'{net}_{of}'
  for net in ('gamma', 'beta')
  for of in ('kernel', 'bias', 'scale', 'offset')
}
_LAYERS = {
  f'{layer}_{of}'
  for layer in ('hidden1', 'hidden2', 'hidden3', 'output')
  for of in ('kernel', 'bias')
}

# The weights of each part that a client sends under privacy. Beside them there
# are only its numbers in the sums of a round's metrics, which a private server
# is not given.
_SENT = {
  'apfl': {'model': _ALL},
  'dbe': {'model': _ALL, 'mean': {'mean'}},
  'ditto': {'model': _ALL},
  'ensemble': {'cluster_0': _ALL, 'cluster_1': _ALL},
  'fedadam': {'model': _ALL},
  'fedavg': {'model': _ALL},
  'fedavgm': {'model': _ALL},
  'fedbabu': {'model': _SHARED},
  # Of a model without normalization.
  'fedbn': {'model': _ALL},
  'fedem': {'model': _ALL},
  'fedembed_personal': {'model': _GLOBAL_HEAD},
  'fedembed_type': {'model': _HEADS | _GLOBAL_HEAD},
  # What it keeps as well, for the mean that new clients start at.
  'fedpc': {'model': set(_VECTOR.init([0, 0]))},
  'fedpc_generated': {'model': set(_VECTOR.init([0, 0])) - {'vector'}},
  'fedper': {'model': _SHARED},
  'fedprox': {'model': _ALL},
  'fedrep': {'model': _SHARED},
  'fedrod': {'model': _ALL},
  'gpfl': {'model': {*helpers.CLASS_MODEL.parts['encoder'], *_NETS, 'classes'}},
  'group': {'group_0': _ALL, 'group_1': _ALL},
  'global_plus': {'model': _HEADS},
  'hypcluster': {'cluster_0': _ALL, 'cluster_1': _ALL},
  'lg_fedavg': {'model': _HEAD},
  'mr_mtl': {'model': _ALL},
  'perfedavg': {'model': _ALL},
  'pfedhn': {'model': _LAYERS},
  'pfedme': {'model': _ALL},
  'scaffold': {'model': _ALL, 'control': _ALL},
  'self_fl': {'model': _ALL},
}
# What it sums beside them, with noise of its own.
_SUMS = {
  'ensemble': {'senders'},
  'group': {'senders'},
  'hypcluster': {'senders'},
  'self_fl': {'sums'},
}
# The settings without which it cannot be private.
_SETTINGS = {'self_fl': {'one_pass': True}}
# Those that cannot be private, and why.
_REFUSED = {
  'blup': 'the exact sums',
  'fedamp': 'each row',
  'fedembed_prototype': 'moving_prototypes=false',
  'fedembed_som': 'reveals its embedding',
  'fedpac': 'the heads of single clients',
  'fedproto': 'which classes its clients have',
  'mocha': 'each row',
  'pfedkm': 'exact updates',
  'self_fl_clusters': 'in the clear',
}


@dataclasses.dataclass(frozen=True)
class _Watching(private_aggregation.Gaussian):
  """Remembers the names of the tensors that clients send."""

  seen: object = None

  def send(self, query, params, record, seed):
    self.seen.append(
      {
        # A part that is one tensor has its own name.
        part: set(tensors) if isinstance(tensors, Mapping) else {part}
        for part, tensors in record.items()
      }
    )
    return super().send(query, params, record, seed)


class _Seen(list):
  """A list that can be a key, as aggregators are."""

  __hash__ = object.__hash__
  __eq__ = object.__eq__


def _build(trainer, aggregator=helpers.MEAN, **values):
  weighted = 'client_weighting' in registry.settings_names(trainer)
  return helpers.build_anew(
    f'{trainer}+as_trained',
    helpers.model_for(trainer),
    aggregator,
    **({'client_weighting': 'uniform'} if weighted else {}) | values,
  )


def _gaussian(**values):
  return private_aggregation.Gaussian(1.0, 1.0, 5.0, sums_noise=5.0, **values)


@pytest.mark.parametrize('trainer', sorted({*registry.TRAINERS} - {*_SENT}))
def test_every_other_trainer_is_private_or_says_why_not(trainer):
  method = _build(trainer, _gaussian())
  if method.trainer.why_not_private is None:
    # This would fail if the server used sums that are not private.
    _ = method.next
  else:
    with pytest.raises(errors.UserError, match='It cannot be private'):
      _ = method.next


@pytest.mark.parametrize('trainer', _SENT)
def test_clients_send_these_tensors_and_no_others(trainer):
  seen = _Seen()
  aggregator = _Watching(1.0, 1.0, 5.0, 5.0, seen)
  method = _build(trainer, aggregator, **_SETTINGS.get(trainer, {}))
  assert method.trainer.why_not_private is None
  method.next.type_signature  # noqa: B018
  assert seen == [_SENT[trainer]]
  summed = {n for n, f in method.trainer.parts.items() if f is not None}
  assert summed == _SUMS.get(trainer, set())


@pytest.mark.parametrize('trainer', _REFUSED)
def test_trainers_that_cannot_be_private_say_why(trainer):
  assert _REFUSED[trainer] in _build(trainer).trainer.why_not_private


def test_without_sums_of_what_privacy_asks_for_self_fl_is_refused():
  with pytest.raises(errors.UserError, match='set one_pass=true'):
    _ = _build('self_fl', _gaussian()).next


def test_a_server_that_uses_exact_sums_is_refused():
  method = _build('scaffold', _gaussian(), client_weighting='examples')
  with pytest.raises(errors.UserError, match='exact measured'):
    _ = method.next


@pytest.mark.parametrize('trainer', ['fedavg', 'ditto'])
def test_without_one_client_a_sum_changes_by_no_more_than_the_clip(trainer):
  clip = 0.01
  aggregator = private_aggregation.Gaussian(0.0, clip, 1.0)
  method = _build(trainer, aggregator)
  with helpers.use_runtime('cohort'):
    clients = helpers.make_clients(method)
    state = method.initial_state([0, 1])
    moved = [
      helpers.vector(method.next(state, taking_part)[0].server.model)
      for taking_part in (clients, clients[1:])
    ]
  assert 0 < np.linalg.norm(moved[0] - moved[1]) <= clip * (1 + 1e-4)


def test_personal_models_are_in_no_message():
  method = _build('ditto', _gaussian())
  with helpers.use_runtime('cohort'):
    clients = helpers.make_clients(method)
    state = method.initial_state([0, 1])
    others = [
      client._replace(
        state=client.state._replace(
          rounds=1,
          personal=collections.OrderedDict(
            (name, np.float32(leaf + 1))
            for name, leaf in client.state.personal.items()
          ),
        )
      )
      for client in clients
    ]
    first, _, _ = method.next(state, clients)
    second, _, _ = method.next(state, others)
  helpers.assert_equal(first, second)
