"""Facts that hold for every method."""

import collections
from collections.abc import Sequence
import dataclasses
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import mocha
from algorithms import pfedkm
from algorithms import registry
from algorithms import rows
from algorithms import trainers
from tasks.models import metrics
from tests.algorithms import functions
from tests.algorithms import helpers
from tests.reference import cases

# Settings without which a method does not do all that it can.
_SETTINGS = {
  'fedala': dict(mixing_examples=0.6),
  'finetuning': dict(finetuning_layers=('all', 'last')),
  'knn_per': dict(neighbor_weights='1/d'),
}
_NAMES = (
  *registry.short_names(),
  'hypcluster+finetuning',
  'fedembed_type+embedding_finetuning',
)
# Numbers of examples of three clients, which is quicker than five.
_SIZES = helpers.SIZES[:3]

# The trainers that the tests of methods compare with their references.
_OWN_CASES = re.compile(r"cases\.Case\(\s*'(\w+)'")

# How many parameters a client is sent, and sends, in some rounds. The model has
# 4; hypcluster has 2 models, in one warm round.
_PARAMETERS = {
  'fedavg': {1: (4, 4)},
  'finetuning': {1: (4, 4)},
  'knn_per': {1: (4, 4)},
  'feddpa': {1: (4, 4)},
  'fedavgm': {1: (4, 4)},
  'fedadam': {1: (4, 4)},
  'ditto': {1: (4, 4)},
  'hypcluster': {1: (2 * 4, 2 * 4), 2: (2 * 4, 4)},
  'hypcluster+finetuning': {1: (2 * 4, 2 * 4), 2: (2 * 4, 4)},
  'ensemble': {1: (2 * 4, 2 * 4)},
  # Of its group alone.
  'group': {1: (4, 4)},
  # They have no rounds.
  'local': {},
  'constant': {},
  # Its own model, and what of the others' models pulls it, and how much.
  'mocha': {1: (4 + 4 + 1, 4)},
  # Two effects differ: beta, D, sigma^2 and Phi; the sums.
  'blup': {1: (4 + 4 + 1 + 16, 16 + 4 + 4 + 1 + 1)},
  'fedprox': {1: (4, 4)},
  # Its mixture, and its own model.
  'fedamp': {1: (4, 4)},
  # Two prototypes of four, and how many examples they are of.
  'fedproto': {1: (2 * 4 + 2, 2 * 4 + 2)},
  # Of five clients: vectors of two; layers of 15 and of 30; and the output.
  'pfedhn': {1: (15 + 30 + 24, 15 + 30 + 24)},
  # An encoder of 16, two networks of 28, and two embeddings of four.
  'gpfl': {1: (16 + 56 + 8, 16 + 56 + 8)},
  # An encoder of 16 and a head of 10; two prototypes of four, and how many
  # examples they are of; H is as large as the prototypes; V, and who it is.
  'fedpac': {1: (16 + 10 + 10, 16 + 10 + 10 + 8 + 2)},
  # Two models.
  'fedem': {1: (2 * 4, 2 * 4)},
  # First the mean of three, later the model.
  'dbe': {1: (4, 3), 2: (4 + 3, 4)},
  'apfl': {1: (4, 4)},
  'mr_mtl': {1: (4, 4)},
  'fedrod': {1: (4, 4)},
  # Of a model without normalization.
  'fedbn': {1: (4, 4)},
  # The model and the control.
  'scaffold': {1: (2 * 4, 2 * 4)},
  # Of 31 parameters, the head has 5 and the encoder 24.
  'fedper': {1: (26, 26)},
  'fedrep': {1: (26, 26)},
  'fedbabu': {1: (26, 26)},
  'lg_fedavg': {1: (7, 7)},
  # Without the vector of two, which is sent for the mean of new clients.
  'fedpc': {1: (29, 31)},
  'fedpc_generated': {1: (29, 29)},
  'pfedme': {1: (4, 4)},
  'perfedavg': {1: (4, 4)},
  # With an embedding, whose kernel of 28 each head has: two heads and the
  # global one. The embedding itself is sent to nobody.
  'fedembed_type': {1: (3 * 32, 3 * 32)},
  'fedembed_type+embedding_finetuning': {1: (3 * 32, 3 * 32)},
  'fedembed_personal': {1: (32, 32)},
  # Two prototypes as well, and whether a user is one of them.
  'fedembed_prototype': {1: (3 * 32 + 2 * 28, 3 * 32 + 2 * 28 + 2)},
  # Two maps of two nodes; what moves one of them.
  'fedembed_som': {1: (3 * 32 + 4 * 28, 3 * 32 + 2 * 28)},
  'global_plus': {1: (32, 32)},
  # Two heads and two centres; for each cluster, a head and all updates.
  'pfedkm': {1: (2 * 4 + 2 * 4, 2 * 4 + 2 * 4)},
  # Four numbers of the uncertainties, and the client's own.
  'self_fl': {1: (4 + 4, 4 + 1)},
  # The weights of two clusters; the model, weight, variance and whether it is
  # defined in the row of one of the two.
  'self_fl_clusters': {1: (4 + 4 + 2, 4 + 3)},
}


# Of the module, so that all tests of a method follow each other and share its
# programs.
@pytest.fixture(name='name', params=_NAMES, scope='module')
def _name(request):
  return request.param


@pytest.fixture(name='method', scope='module')
def _method(name):
  return _build(name)


def _build(name):
  return helpers.build(
    name,
    helpers.model_for(name),
    num_clients=len(_SIZES) + 1,
    **helpers.small(name) | _SETTINGS.get(name, {}),
  )


def _data(shift=0):
  return helpers.all_data(np.roll(_SIZES, shift))


def _padded(shift=0):
  """Data of one shape for all clients, which are thus stacked."""
  return [helpers.padded(client_data) for client_data in _data(shift)]


def _clients(method, data_of_clients=None):
  return helpers.make_clients(method, data_of_clients or _data())


def _run_and_personalize(method, data_of_clients):
  """Two rounds, and the results after them."""
  clients = _clients(method, data_of_clients)
  after = helpers.run(method, 2, clients)
  held_out = helpers.hold_out(clients)
  return after, list(method.personalize(after.state, held_out))


@pytest.fixture(name='trained', scope='module')
def _trained(method):
  with helpers.use_runtime('cohort'):
    return _run_and_personalize(method, _data())


def _some_models(method):
  """A model for each place where a training can begin with one."""
  like = method.trainer.model.init([0, 0])
  return [
    collections.OrderedDict(
      (name, np.float32(rng.normal(size=weight.shape)))
      for name, weight in like.items()
    )
    for rng in map(np.random.default_rng, range(len(method.model_places)))
  ]


def _models(method, state):
  """The models in a state."""
  if isinstance(method.trainer, rows.RowTrainer):
    return {'models': state.server.models}  # None of them is everybody's.
  if isinstance(method.trainer, pfedkm.PFedKm):
    return {'theta': state.server.theta.weights, 'heads': state.server.heads}
  if not (method.trains and method.model_places):
    return {'model': state.server.model}
  leaves = dict(tree.flatten_with_path(state))
  return {
    path: leaf
    for path, leaf in leaves.items()
    if path[:-1] in method.model_places
  }


class _Done(NamedTuple):
  """The inputs and the results of a round and of an evaluation.

  Attributes:
    state: The server's state, before both.
    clients: The clients of the round, with their states before it.
    personalized: The results of the evaluation.
    after: The results of the round; None if there is no round.
  """

  state: Any
  clients: Sequence[trainers.Client]
  personalized: Any
  after: Any


@pytest.fixture(name='done', params=[0, 2], scope='module')
def _done(request, method):
  """The work of the functions after some rounds."""
  with helpers.use_runtime('cohort'):
    new = _clients(method, _padded())
    before = helpers.run(method, request.param, new)
  # The last client has forgotten the earlier rounds.
  clients = [*before.clients[:2], *new[2:]]
  with helpers.use_runtime('unstacked'):
    personalized = functions.personalize(
      method, before.state, helpers.hold_out(clients)
    )
    after = None
    if method.trains:
      after = functions.next(method, before.state, clients)
  return _Done(before.state, clients, personalized, after)


@pytest.mark.parametrize('runtime', ['native', 'cohort'])
def test_the_computations_do_what_the_functions_do(method, done, runtime):
  with helpers.use_runtime(runtime):
    found = method.personalize(done.state, helpers.hold_out(done.clients))
    helpers.assert_close(found, done.personalized)
    if method.trains:
      after = helpers.run(method, 1, done.clients, done.state)
      helpers.assert_close(
        (after.state.server, [client.state for client in after.clients]),
        done.after,
      )


def test_every_trainer_has_a_reference():
  own = {
    name
    for path in pathlib.Path(__file__).parent.glob('*_test.py')
    for name in _OWN_CASES.findall(path.read_text('utf-8'))
  }
  with_reference = {case.trainer for case in cases.CASES.values()} | own
  assert with_reference == {*registry.TRAINERS}


def test_all_personalizers_are_here():
  assert {registry.halves(name)[1] for name in _NAMES} == {
    *registry.PERSONALIZERS
  }


def test_each_candidate_has_a_name_of_its_own(name):
  candidates = _build(name).candidates
  assert len(set(map(str, candidates))) == len(candidates) > 0


def test_padding_and_stacking_change_nothing(method, trained):
  (plain, results), (padded, same) = (
    trained,
    _run_and_personalize(method, _padded()),
  )
  helpers.assert_close(
    (plain.state, plain.metrics, results), (padded.state, padded.metrics, same)
  )


@pytest.fixture(name='compiled')
def _compiled(capfd):
  """Returns a function that says how often XLA compiled each function.

  It names the functions that were compiled since it was last called, and counts
  their earlier compilations, too.
  """

  def count():
    told = re.findall(r'Compiled (\S+) (\d+) times', capfd.readouterr().err)
    return {name: int(times) for name, times in told}

  double = tf.function(lambda x: 2 * x, jit_compile=True, autograph=False)
  double(1.0)
  assert list(count().values()) == [1]  # Else XLA does not tell.
  return count


def test_other_data_compile_nothing_anew(method, compiled):
  for shift in range(2):
    _run_and_personalize(method, _padded(shift))
  assert set(compiled().values()) <= {1}


def test_the_order_of_clients_changes_nothing(method, trained):
  forwards, _ = trained
  backwards = helpers.run(method, 2, _clients(method)[::-1])
  helpers.assert_close(
    (forwards.state, forwards.metrics), (backwards.state, backwards.metrics)
  )


def test_a_seed_fixes_every_bit(method, trained):
  helpers.assert_equal(trained, _run_and_personalize(method, _data()))


def test_a_client_that_is_not_finite_is_dropped(method):
  bad = helpers.corrupt(helpers.data(9, 6), np.inf)
  clients = _clients(method, [*_data(), bad])
  after = helpers.run(method, rounds=1, clients=clients)
  without = helpers.run(method, rounds=1, clients=clients[:-1])
  if method.trains:
    assert after.metrics['dropped_clients'] == 1
    assert after.metrics['num_clients'] == len(_SIZES)
    # The client has forgotten the round.
    helpers.assert_equal(after.clients[-1].state, clients[-1].state)
  helpers.assert_close(after.state, without.state)


def test_begins_with_given_models_and_nothing_else_is_changed(method):
  first_models = _some_models(method)
  random = dict(tree.flatten_with_path(method.initial_state([0, 1])))
  begun = dataclasses.replace(method, first_models=first_models)
  given = {
    (*place, name): weight
    for place, weights in zip(method.model_places, first_models)
    for name, weight in weights.items()
  }
  assert given.keys() <= random.keys()
  helpers.assert_equal(
    dict(tree.flatten_with_path(begun.initial_state([0, 1]))), random | given
  )


def _floats(state):
  """The floats of a state, without the numbers of its rounds and steps."""
  return {
    path: leaf
    for path, leaf in tree.flatten_with_path(state)
    if np.issubdtype(np.asarray(leaf).dtype, np.floating)
  }


def test_a_round_of_which_nobody_is_left_changes_nothing(method):
  # From models that are not zero, as a linear model is at the start.
  begun = dataclasses.replace(method, first_models=_some_models(method))
  before = begun.initial_state([0, 1])
  if isinstance(method.trainer, rows.RowTrainer):
    drawn = np.random.default_rng(0).normal(size=before.server.models.shape)
    before = helpers.replace_server(before, models=np.float32(drawn))
  bad = [helpers.corrupt(data, np.nan) for data in _data()]
  clients = _clients(method, bad)
  after = helpers.run(method, rounds=1, clients=clients, state=before)
  assert _models(method, before)
  helpers.assert_equal(_models(method, after.state), _models(method, before))
  if not isinstance(method.trainer, mocha.Mocha):  # Relates its models anew.
    helpers.assert_equal(_floats(after.state), _floats(before))
  for client, left in zip(clients, after.clients):
    helpers.assert_equal(left.state, client.state)
  if method.trains:
    assert after.metrics['dropped_clients'] == len(bad)
    assert after.metrics['num_clients'] == 0
    assert after.metrics['num_examples'] == 0
    assert after.metrics['loss'] == 0


def test_is_an_iterative_process_of_tff(method, trained):
  clients, (expected, _) = _clients(method), trained
  iterative = method.iterative_process([0, 1])
  assert isinstance(iterative, tff.templates.IterativeProcess)
  state = iterative.initialize()
  helpers.assert_equal(state, method.initial_state([0, 1]))
  for _ in range(2):
    state, client_states, metrics = iterative.next(state, clients)
    clients = [
      client._replace(state=client_state)
      for client, client_state in zip(clients, client_states)
    ]
  helpers.assert_equal(
    (state, [client.state for client in clients], metrics),
    (
      expected.state,
      [client.state for client in expected.clients],
      expected.metrics,
    ),
  )


def test_there_is_a_metric_for_each_candidate(method):
  results = method.personalize(
    method.initial_state([0, 1]), helpers.hold_out(_clients(method))
  )
  assert len(results) == len(_SIZES)
  for result in results:
    sums = dict(result['evaluation'])
    assert sums.pop(metrics.DIVERGED).shape == (len(method.candidates),)
    for total, weight in sums.values():
      assert total.shape == (len(method.candidates),)
      np.testing.assert_array_equal(weight, [6] * len(method.candidates))


@pytest.mark.parametrize('name', _PARAMETERS)
def test_what_a_client_is_sent_and_sends(name):
  method = _build(name)
  for rounds, (down, up) in _PARAMETERS[name].items():
    metrics = _metrics(method, rounds)
    received = method.parameters_down * metrics.get('share_received', 1)
    sent = method.parameters_up * metrics.get('share_sent', 1)
    assert received == pytest.approx(down, abs=1e-4)
    assert sent == pytest.approx(up, abs=1e-4)


def _metrics(method, rounds):
  """The metrics after some rounds, if they have shares of what is sent."""
  *_, names = method.next.type_signature.result
  if not {'share_received', 'share_sent'} & {*dir(names.member)}:
    return {}
  return helpers.run(method, rounds, _clients(method)).metrics
