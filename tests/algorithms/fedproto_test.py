"""FedProto: its rounds, its prototypes, both predictions, what it refuses."""

import numpy as np
import pytest

from base import errors
from tests import toys
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem
from tests.reference import split_models

_MODEL = helpers.CLASS_MODEL


def _fedproto(p):
  """Tan et al. 2022: Cbar^(j) = sum_i |D_ij| / N_j C_i^(j)."""
  s, own, cbar = p.s, {}, {}

  def encode(w, batch):
    return split_models.encode(p.model.unpack(w), batch)

  def distance(w, batch):
    away = [
      np.mean((z - cbar[y]) ** 2)
      for z, y in zip(encode(w, batch), batch['y'])
      if y in cbar
    ]
    return s.prototype_pull * sum(away) / len(batch['y'])

  for cohort in p.cohorts:
    sent = {}
    for k in cohort:
      steps, w = problem.client_steps(s), own.get(k, p.w)
      for batch in p.clients[k].batches:
        of_pull = problem.gradient(lambda v: distance(v, batch), w)  # noqa: B023
        w = steps(w, p.gradient(w, batch) + of_pull)
      own[k], examples = w, p.clients[k].examples
      z, y = encode(w, examples), examples['y']
      for j in set(y):
        n = 1 if s.prototype_weighting == 'uniform' else np.sum(y == j)
        sent.setdefault(j, []).append((n, z[y == j].mean(axis=0)))
    cbar |= {
      j: sum(n * c for n, c in of_j) / sum(n for n, _ in of_j)
      for j, of_j in sent.items()
    }
  return problem.Trained(lambda k: own.get(k, p.w))


@pytest.mark.parametrize(
  'values',
  [
    {},
    dict(prototype_pull=5.0, prototype_weighting='uniform'),
    dict(client_optimizer='momentum', client_momentum=0.5),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  model = toys.TypedModel(types=3)
  cases.check(cases.Case('fedproto', _fedproto, values, model))


def _class_means(w, examples):
  z, y = _MODEL.encode(w, examples).numpy(), _MODEL.target(examples).numpy()
  return np.stack([z[y == j].mean(axis=0) for j in range(2)])


def test_the_prototypes_of_one_client_are_its_class_means():
  method = helpers.build('fedproto', _MODEL, num_clients=1)
  data = helpers.data(0, 9)
  after = helpers.run(method, 2, helpers.make_clients(method, [data]))
  (client,) = after.clients
  expected = _class_means(client.state.personal, data.examples)
  known = after.state.server.prototypes
  helpers.assert_close(known.means, expected)
  assert sum(known.counts) == 9


def test_a_class_that_nobody_has_keeps_its_prototype():
  method = helpers.build('fedproto', _MODEL)
  data = helpers.data(0, 9)
  first = helpers.run(method, 1, helpers.make_clients(method, [data]))
  of_one = data._replace(
    examples=dict(data.examples, y=np.abs(data.examples['y']))
  )
  clients = helpers.make_clients(method, [of_one])
  later = helpers.run(method, 1, clients, first.state)
  before, after = (
    state.state.server.prototypes.means for state in (first, later)
  )
  helpers.assert_equal(after[0], before[0])
  assert np.abs(after[1] - before[1]).max() > 1e-3


def test_predicts_by_the_head_and_by_the_nearest_prototype():
  method = helpers.build('fedproto', _MODEL, client_learning_rate=0.5)
  after = helpers.run(method, 3)
  evaluated = helpers.hold_out(after.clients)
  prototypes = after.state.server.prototypes.means
  for client, result in zip(
    evaluated, method.personalize(after.state, evaluated)
  ):
    examples = client.evaluation['evaluation'].examples
    w, y = client.state.personal, _MODEL.target(examples).numpy()
    z = _MODEL.encode(w, examples).numpy()
    by_head = np.argmax(z @ w['kernel'] + w['bias'], axis=1)
    away = np.linalg.norm(z[:, np.newaxis] - prototypes, axis=2)
    expected = [np.sum(by_head == y), np.sum(np.argmin(away, axis=1) == y)]
    np.testing.assert_array_equal(result['evaluation']['accuracy'][0], expected)


def test_without_a_prototype_a_class_is_never_predicted():
  method = helpers.build('fedproto', _MODEL)
  data = helpers.data(0, 9)
  of_one = data._replace(
    examples=dict(data.examples, y=np.abs(data.examples['y']))
  )
  after = helpers.run(method, 1, helpers.make_clients(method, [of_one]))
  assert list(after.state.server.prototypes.counts) == [0, 9]
  evaluated = helpers.hold_out(after.clients)
  (result,) = method.personalize(after.state, evaluated)
  y = _MODEL.target(evaluated[0].evaluation['evaluation'].examples)
  assert result['evaluation']['accuracy'][0][1] == np.sum(y)


def test_refuses_what_has_no_classes_or_no_representation():
  for model in helpers.MODEL, helpers.VECTOR_MODEL:
    with pytest.raises(errors.UserError, match='fedproto needs a classifier'):
      helpers.build('fedproto', model)
  with pytest.raises(errors.UserError, match='only what fedproto trained'):
    helpers.build('fedavg+fedproto')
