"""FedPC on users with planted habits: psi finds their own, phi the shared.

After a word that tells nothing, each word of a user is either the user's own or
that of the context, one as likely as the other. The frozen GPT-2 predicts the
words that its prefix is made of.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import frozen_models
from tasks.models import gpt2
from tasks.models import prompted
from tests.algorithms import helpers

_USERS, _CONTEXTS, _LENGTH = 4, 2, 5
# A word for each user and each context, and two that tell nothing.
_WORDS = _USERS + _CONTEXTS + 2


def _model():
  """Makes a GPT-2 in which each number of the prefix speaks for one word."""
  sizes = gpt2.Gpt2(_WORDS, _LENGTH + 1, _WORDS, 1, 1)
  weights = collections.OrderedDict(
    (name, np.full(shape, name.endswith('_scale'), np.float32))
    for name, shape in sizes.shapes.items()
  )
  identity = np.eye(_WORDS, dtype=np.float32)
  weights['wte'] = 1.5 * identity
  # All words attend to the prefix, and to all words before, alike.
  weights['h0_attn_c_attn_kernel'][:, 2 * _WORDS :] = 6 * identity
  weights['h0_attn_c_proj_kernel'] = identity
  return prompted.PromptedModel(
    sizes, _CONTEXTS, sequence_length=_LENGTH, frozen=weights
  )


def _own_word(user):
  return 1 + user


def _shared_word(context):
  return 1 + _USERS + context


def _data(user, seed):
  rng = np.random.default_rng([seed, user])
  context = np.resize(np.arange(_CONTEXTS, dtype=np.int32), 20)
  words = np.where(
    rng.random((20, _LENGTH + 1)) < 0.5,
    _own_word(user),
    _shared_word(context)[:, np.newaxis],
  ).astype(np.int32)
  words[:, 0] = rng.integers(_WORDS - 1, _WORDS + 1, 20)
  return helpers.make_batches(
    frozen_models.make_examples(words, context), batch_size=10
  )


@pytest.fixture(name='trained', scope='module')
def _trained():
  """The model, each user's psi, and phi."""
  model = _model()
  with helpers.use_runtime('cohort'):
    method = helpers.build(
      'fedpc', model, client_learning_rate=0.1, proximal=0.0
    )
    clients = helpers.make_clients(
      method, [_data(user, seed=0) for user in range(_USERS)]
    )
    after = helpers.run(method, 30, clients)
  psi = [client.state.personal['psi'] for client in after.clients]
  return model, psi, after.state.server.model['phi']


def _log_likelihood(model, psi, phi, examples, word):
  """The mean of log p of a word where it is the next one."""
  batch = {name: tf.constant(feature) for name, feature in examples.items()}
  scores = model.scores({'psi': psi, 'phi': phi}, batch)
  found = scores.log_likelihood(model.target(batch)).numpy()
  return found[examples['y'].reshape(-1) == word].mean()


def test_psi_finds_the_habits_of_its_user(trained):
  model, psi, phi = trained
  for user in range(_USERS):
    examples = _data(user, seed=1).examples
    found = [
      _log_likelihood(model, psi_k, phi, examples, _own_word(user))
      for psi_k in psi
    ]
    others = np.delete(found, user)
    assert found[user] > others.max() + 0.5


def test_phi_finds_the_habits_that_users_share(trained):
  model, psi, phi = trained
  for user in range(_USERS):
    examples = _data(user, seed=1).examples
    for context in range(_CONTEXTS):
      under = {
        name: feature[examples['context'] == context]
        for name, feature in examples.items()
      }
      # Under the vector of each context in the place of this one's.
      found = [
        _log_likelihood(
          model,
          psi[user],
          np.tile(phi_c, [_CONTEXTS, 1]),
          under,
          _shared_word(context),
        )
        for phi_c in phi
      ]
      others = np.delete(found, context)
      assert found[context] > others.max() + 0.5
