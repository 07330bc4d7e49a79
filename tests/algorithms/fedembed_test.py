"""FedEmbed at its limits, and against other methods."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from algorithms import client_work
from algorithms import registry
from algorithms import vectors
from algorithms.privacy import private_aggregation
from base import errors
from base import settings
from tasks.models import linear
from tasks.models import models
from tests import toys
from tests.algorithms import helpers
from tests.algorithms import preferring

_HEADS = ('type', 'personal')
_RATE = 0.1


def _cross_entropy(scores, labels):
  log_p = scores - tf.reduce_logsumexp(scores, 1, keepdims=True)
  return -tf.reduce_mean(tf.gather(log_p, labels, batch_dims=1))


def _features(w, e, x):
  """The encoder of `preferring.MODEL`, written once more."""
  es = tf.tile(e[tf.newaxis], [len(x), 1])
  hidden = tf.concat([x, es], 1) @ w['hidden_kernel'] + w['hidden_bias']
  return tf.concat([tf.tanh(hidden), es], 1)


def _step_by_hand(w, e, j, batch, trained_by):
  """A step of SGD on all weights and e, each by its own gradient."""
  w = {name: tf.Variable(leaf) for name, leaf in w.items()}
  e = tf.Variable(e)
  x, y, m = batch['x'], batch['y'], batch['type']
  with tf.GradientTape(persistent=True) as tape:
    f = _features(w, e, x)
    a = _cross_entropy(f @ w['phi_kernel'][j] + w['phi_bias'][j], y)
    b = _cross_entropy(f @ w['gamma_kernel'] + w['gamma_bias'], m)
    c = _cross_entropy(f @ w['nu_kernel'] + w['nu_bias'], y)
    losses = {'hidden': a + b, 'phi': a, 'gamma': b, 'nu': c}
    of_e = {'all': a + b + c, 'global': c, 'own': a}[trained_by]
  after = {}
  for name, leaf in w.items():
    slope = tape.gradient(losses[name.split('_')[0]], leaf)
    after[name] = leaf - _RATE * tf.convert_to_tensor(slope)
  return after, e - _RATE * tape.gradient(of_e, e)


def _batches(user):
  """The examples of each of a user's batches."""
  return [
    {name: np.array(leaf)[indices] for name, leaf in user.data.examples.items()}
    for indices in np.array(user.data.indices)
  ]


def test_the_global_loss_changes_the_shared_weights_by_nothing():
  # With embeddings that are trained by their own head alone.
  ways = [
    preferring.build(
      'fedembed_type', embedding_loss='own', global_loss=global_loss
    )
    for global_loss in (True, False)
  ]
  server = preferring.start(ways[0])
  user = preferring.clients(ways[0])[0]
  alone = collections.OrderedDict(
    (n, leaf) for n, leaf in server.model.items() if not n.startswith('nu_')
  )
  sent = [
    preferring.update(method, user, server._replace(model=w))
    .updates['model']
    .value
    for method, w in zip(ways, (server.model, alone))
  ]
  assert np.any(sent[0]['nu_kernel'])
  for name, update in sent[0].items():
    if not name.startswith('nu_'):
      np.testing.assert_array_equal(update, sent[1][name])


def test_unused_heads_are_sent_as_zeros():
  for sgd in (True, False):
    method = preferring.build('fedembed_type', sgd=sgd)
    server = preferring.start(method)
    user = preferring.clients(method)[1]
    sent = preferring.update(method, user, server).updates['model'].value
    for name in ('phi_kernel', 'phi_bias'):
      assert np.any(sent[name][1])
      assert not np.any(np.delete(sent[name], 1, axis=0))


def test_what_a_user_sends_and_keeps():
  keeps = {'type': (), 'personal': ('phi_kernel', 'phi_bias')}
  for name in _HEADS:
    method = preferring.build(f'fedembed_{name}')
    server = preferring.start(method)
    result = preferring.update(method, preferring.clients(method)[0], server)
    sent = set(result.updates['model'].value)
    assert 'vector' not in sent
    assert set(result.state.head) == set(keeps[name])
    assert sent.isdisjoint(keeps[name])
    assert {'hidden_kernel', 'gamma_kernel', 'nu_kernel'} <= sent


def test_losses_that_are_left_out_have_no_heads():
  method = preferring.build('fedembed_type', type_loss=False, global_loss=False)
  assert set(preferring.start(method).model) == {
    'hidden_kernel',
    'hidden_bias',
    'phi_kernel',
    'phi_bias',
  }
  assert list(map(str, method.candidates)) == ['own head']
  assert method.baseline is None


def test_the_global_head_cannot_train_embeddings_without_its_loss():
  with pytest.raises(settings.SettingError, match='all or own'):
    preferring.build(
      'fedembed_type', embedding_loss='global', global_loss=False
    )


def test_slots_of_embeddings_are_kept_and_others_are_new():
  # Two rounds of one step and one round of two differ but for e.
  values = dict(client_optimizer='adam', client_learning_rate=0.0, sgd=False)
  method = preferring.build(
    'fedembed_type', **values, embedding_learning_rate=0.1
  )
  data = preferring.data(0, 0)
  first, second = (
    data._replace(indices=data.indices[i:j], mask=data.mask[i:j])
    for i, j in ((0, 1), (1, 2))
  )
  at_once = preferring.run(method, 1, preferring.clients(method, [data]))
  (user,) = preferring.run(
    method, 1, preferring.clients(method, [first])
  ).clients
  (user,) = preferring.run(method, 1, [user._replace(data=second)]).clients
  helpers.assert_close(
    user.state.e['vector'], at_once.clients[0].state.e['vector']
  )
  assert user.state.slots['step'] == 2


def _remove_embedding(method, users):
  return preferring.set_embeddings(users, np.zeros([len(users), 2]))


def _narrow(w, prefix=''):
  """Returns the weights of a model without e, of one that has it."""
  return collections.OrderedDict(
    hidden_kernel=w['hidden_kernel'][:3],
    hidden_bias=w['hidden_bias'],
    kernel=w[f'{prefix}kernel'][..., :4, :],
    bias=w[f'{prefix}bias'],
  )


@pytest.mark.parametrize('sgd', [True, False])
def test_with_embeddings_of_zero_global_plus_is_fedavg(sgd):
  values = {} if sgd else registry.make_settings('global_plus', {}).to_dict()
  fedavg = preferring.build(
    'fedavg',
    sgd=sgd,
    client_weighting='uniform',
    **{
      name: values[name]
      for name in values
      if name in registry.settings_names('fedavg')
      and name != 'client_weighting'
    },
  )
  plus = preferring.build('global_plus', sgd=sgd, embedding_learning_rate=0.0)
  users = _remove_embedding(plus, preferring.clients(plus))
  after = preferring.run(plus, 0, users)
  first = after.state.model
  heads = {n: first[f'phi_{n}'][0] for n in ('kernel', 'bias')}
  narrow = _narrow({**first, **heads})
  others = preferring.run(fedavg, 0, preferring.clients(fedavg), model=narrow)
  for _ in range(3):
    after = preferring.run(plus, 1, after.clients, state=after.state)
    others = preferring.run(fedavg, 1, others.clients, state=others.state)
    w = after.state.model
    heads = {n: w[f'phi_{n}'][0] for n in ('kernel', 'bias')}
    # The same weights predict the same.
    helpers.assert_close(_narrow({**w, **heads}), others.state.model, atol=1e-5)


def test_without_shared_heads_and_embedding_personal_is_fedper():
  fedper = preferring.build('fedper', client_weighting='uniform')
  personal = preferring.build(
    'fedembed_personal',
    type_loss=False,
    global_loss=False,
    embedding_learning_rate=0.0,
  )
  users = _remove_embedding(personal, preferring.clients(personal))
  start = preferring.run(personal, 0, users)
  # FedPer's users begin with one head.
  head = users[0].state.head
  users = [u._replace(state=u.state._replace(head=head)) for u in users]
  w = start.state.model
  heads = {n: head[f'phi_{n}'][0] for n in ('kernel', 'bias')}
  narrow = _narrow({**w, **heads})
  after = preferring.run(personal, 3, users)
  others = preferring.run(fedper, 3, preferring.clients(fedper), model=narrow)
  for user, other in zip(after.clients, others.clients):
    heads = {n: user.state.head[f'phi_{n}'][0] for n in ('kernel', 'bias')}
    narrowed = _narrow({**after.state.model, **heads})
    for name in ('kernel', 'bias'):
      helpers.assert_close(
        narrowed[name], other.state.personal[name], rtol=1e-3
      )
    for name in ('hidden_kernel', 'hidden_bias'):
      helpers.assert_close(narrowed[name], others.state.model[name], rtol=1e-3)


@pytest.mark.parametrize('server', ['sgd', 'adam'])
def test_with_theta_fixed_a_head_is_fedavg_of_its_own_users(server):
  # A linear model has no theta. With SGD a head moves at n_k / U of the rate
  # of FedAvg of its users, which Adam makes good.
  model = linear.LinearRegression(3, initial_stddev=1)
  values = dict(
    server_optimizer=server, server_epsilon=1e-12, server_beta_2=0.999
  )
  method = preferring.build(
    'fedembed_type', model, embedding_learning_rate=0.0, **values
  )
  groups = [{'group': k} for k in (0, 1, 1, 2, 1)]
  users = preferring.clients(method, helpers.all_data([8] * 5), groups)
  users = preferring.set_embeddings(users, np.zeros([5, 28]))
  start = preferring.start(method).model
  after = preferring.run(method, 3, users).state.model
  share = 3 / 5 if server == 'sgd' else 1.0
  fedavg = preferring.build(
    'fedavg',
    model,
    client_weighting='uniform',
    server_learning_rate=share,
    **values,
  )
  first = {name: start[f'phi_{name}'][1] for name in ('kernel', 'bias')}
  data = [helpers.all_data([8] * 5)[u] for u in (1, 2, 4)]
  alone = preferring.run(
    fedavg, 3, preferring.clients(fedavg, data), model=first
  ).state.model
  for name in alone:
    helpers.assert_close(after[f'phi_{name}'][1], alone[name], rtol=1e-3)


def test_renumbering_types_permutes_the_heads():
  method = preferring.build('fedembed_type')
  order = np.array([2, 0, 1])  # The new number of each type.
  place = np.argsort(order)

  def renumber(w):
    w = {name: np.array(leaf) for name, leaf in w.items()}
    for name in ('phi_kernel', 'phi_bias', 'gamma_bias'):
      w[name] = w[name][place]
    w['gamma_kernel'] = w['gamma_kernel'][:, place]
    return w

  users = preferring.clients(method)
  first = preferring.start(method).model
  others = [
    user._replace(
      data=user.data._replace(
        examples=collections.OrderedDict(
          user.data.examples,
          type=order[user.data.examples['type']].astype(np.int32),
        )
      )
    )
    for user in users
  ]
  after = preferring.run(method, 2, users, model=first)
  renumbered = preferring.run(method, 2, others, model=renumber(first))
  helpers.assert_close(
    renumber(after.state.model), dict(renumbered.state.model)
  )
  helpers.assert_close(
    [user.state.e for user in after.clients],
    [user.state.e for user in renumbered.clients],
  )


def test_with_one_type_all_variants_are_global_plus():
  model = toys.TypedModel(types=1)
  results = {}
  for name in (
    'global_plus',
    'fedembed_type',
    'fedembed_prototype',
    'fedembed_som',
  ):
    method = preferring.build(name, model, embedding_loss='own')
    users = preferring.clients(
      method, preferring.all_data([0] * 4, num_types=1)
    )
    state = preferring.start(method)
    if name == 'global_plus':
      first = state.model
    state = preferring.start(method, {**state.model, **first})
    if name == 'fedembed_prototype':
      # The first user, which is prototypical, starts at the prototype.
      e = users[0].state.e['vector']
      state = state._replace(clusters=e[np.newaxis])
    after = preferring.run(method, 3, users, state=state)
    w = after.state.model
    results[name] = (
      {shared: w[shared] for shared in first},
      [user.state.e for user in after.clients],
    )
    if 'gamma_kernel' in w:
      # The only type is no news.
      helpers.assert_equal(w['gamma_kernel'], state.model['gamma_kernel'])
  for other in results.values():
    helpers.assert_close(other, results['global_plus'])


def test_a_user_likes_what_is_most_frequent_among_what_it_likes():
  method = preferring.build('fedembed_type')
  data = preferring.data(0, 1)
  for liked, types, expected in (
    ([1, 0, 0, 0, 1, 0, 0, 1], [2, 0, 0, 0, 1, 0, 0, 2], 2),
    ([0] * 8, [2, 1, 0, 1, 1, 0, 0, 1], 1),
  ):
    user = preferring.clients(
      method,
      [
        data._replace(
          examples=collections.OrderedDict(
            data.examples, y=np.int32(liked), type=np.int32(types)
          )
        )
      ],
    )[0]
    assert method.trainer.type_of(user) == expected


def test_other_tasks_have_the_embedding_beside_what_heads_see():
  model = linear.LinearRegression(3).add_vector(2)
  assert model.parts[models.CLIENT] == ('vector',)
  w = model.init(tf.constant([0, 1]))
  w['kernel'], w['vector_kernel'] = tf.ones([3]), tf.constant([2.0, 3.0])
  w['vector'] = tf.constant([10.0, 100.0])
  batch = {'x': tf.constant([[1.0, 2, 3]]), 'y': tf.constant([0.0])}
  np.testing.assert_allclose(model.scores(w, batch), [6 + 20 + 300])


def test_a_wrong_number_of_heads_is_refused():
  with pytest.raises(errors.UserError, match='3 types'):
    helpers.build_anew('fedembed_type', preferring.MODEL, num_groups=2)


@pytest.mark.parametrize('name', ['fedembed_som', 'pfedkm'])
def test_a_number_of_heads_must_be_known(name):
  with pytest.raises(settings.SettingError, match='num_groups'):
    helpers.build_anew(name, known_groups=0)


def test_held_out_users_train_their_embedding_alone():
  method = helpers.build_anew(
    'fedembed_type+embedding_finetuning',
    preferring.MODEL,
    known_groups=3,
    embedding_epochs=2,
    embedding_learning_rate=0.1,
    client_optimizer='sgd',
  )
  assert list(map(str, method.candidates)) == [
    'global head',
    'own head, 0 epochs',
    'own head, 1 epoch',
    'own head, 2 epochs',
  ]
  server, user = preferring.start(method), preferring.clients(method)[1]
  trainer = method.trainer
  user = tf.nest.map_structure(tf.constant, user)
  start = trainer.start(trainer.message(server), user)
  personalize = tf.function(method.personalizer.personalize, autograph=False)
  found = personalize(start, user, {'evaluation': user.data})
  w, e = server.model, user.state.e['vector']
  losses = []
  for _ in range(3):
    f = _features(w, e, user.data.examples['x'])
    scores = f @ w['phi_kernel'][1] + w['phi_bias'][1]
    losses.append(8 * _cross_entropy(scores, user.data.examples['y']))
    for batch in _batches(user):
      _, e = _step_by_hand(w, e, 1, batch, 'all')
  np.testing.assert_allclose(
    found['evaluation']['loss'][0][1:], losses, rtol=1e-4
  )
  assert start.measured['cluster'] == 1


def test_under_noise_unused_heads_get_its_deviation():
  # Of clients that add noise of deviation sigma S each, the mean of U.
  sigma, clip, users = 0.5, 2.0, 5
  method = helpers.build_anew(
    'fedembed_type',
    toys.TypedModel(types=40),
    private_aggregation.Local(sigma, clip, float(users)),
    known_groups=40,
    server_optimizer='sgd',
    type_loss=False,
  )
  data = preferring.all_data([0] * users, num_types=40)
  with helpers.use_runtime('unstacked'):
    clients = helpers.make_clients(method, data, [{}] * users)
    before = method.initial_state([0, 1])
    after, _, _ = method.next(before, clients)
  moved = np.concatenate(
    [
      np.ravel(after.server.model[name][1:] - before.server.model[name][1:])
      for name in ('phi_kernel', 'phi_bias')
    ]
  )
  assert moved.std() == pytest.approx(sigma * clip / users**0.5, rel=0.1)


def test_noise_on_own_heads_is_of_the_change_as_it_is_clipped():
  def change(method, user):
    server = preferring.start(method)
    after = preferring.update(method, user, server).state.head
    head = client_work.difference(after, user.state.head)
    return vectors.join(head.values())

  preferring.check_noise(
    functools.partial(
      preferring.build, 'fedembed_personal', embedding_loss='own'
    ),
    change,
  )
