"""MOON: its rounds, when it is FedAvg, and what it refuses."""

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem
from tests.reference import split_models

_MODEL = helpers.VECTOR_MODEL


def _moon(p):
  """Li et al. 2021b: z is drawn to z_glob, and not to z_prev."""
  s, w, server, own = p.s, p.w, problem.server_steps(p.s), {}

  def cosine(z, other):
    product = np.sqrt(np.sum(z**2, 1) * np.sum(other**2, 1))
    return np.sum(z * other, 1) / product

  def contrast(v, w_t, last, batch):
    z, z_glob, z_prev = (
      split_models.encode(p.model.unpack(of), batch) for of in (v, w_t, last)
    )
    e_glob, e_prev = (
      np.exp(cosine(z, other) / s.temperature) for other in (z_glob, z_prev)
    )
    return np.mean(-np.log(e_glob / (e_glob + e_prev)))

  def descend(k):
    steps, w_k, last = problem.client_steps(s), w, own.get(k, w)
    for batch in p.clients[k].batches:
      slope = p.gradient(w_k, batch) + s.contrast * problem.gradient(
        lambda v: contrast(v, w, last, batch),  # noqa: B023
        w_k,
      )
      w_k = steps(w_k, slope)
    own[k] = w_k
    return w_k

  for cohort in p.cohorts:
    w = server(w, p.mean({k: w - descend(k) for k in cohort}))
  return problem.Trained(lambda k: w)


@pytest.mark.parametrize(
  'values',
  [
    dict(contrast=5.0),
    dict(contrast=1.0, temperature=0.1, client_learning_rate=0.1),
    dict(contrast=2.0, server_optimizer='momentum', client_weighting='uniform'),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  cases.check(cases.Case('moon', _moon, values, _MODEL))


def _run(name, rounds, **values):
  method = helpers.build(name, _MODEL, **values)
  clients = helpers.make_clients(
    method, [helpers.padded(data, places=16) for data in helpers.all_data()]
  )
  return helpers.run(method, rounds, clients)


def test_the_first_round_of_a_client_is_that_of_fedavg():
  first, fedavg = _run('moon', 1, contrast=5.0), _run('fedavg', 1)
  helpers.assert_close(first.state.server, fedavg.state.server)
  # Its losses are those of FedAvg, too: the contrast is not among them.
  helpers.assert_close(first.metrics['loss'], fedavg.metrics['loss'])
  later = _run('moon', 2, contrast=5.0)
  other = _run('fedavg', 2)
  for name, weight in later.state.server.model.items():
    if name.startswith('hidden'):
      assert np.abs(weight - other.state.server.model[name]).max() > 1e-4


@pytest.mark.parametrize('scale', [0.2, 3.0])
def test_the_contrast_is_of_directions(scale):
  trainer = helpers.build('moon', _MODEL, contrast=2.0).trainer
  w_t, last, w = (trainer.model.init([0, k]) for k in range(3))
  examples = helpers.data(0, 4).examples
  contrast, z = trainer._contrast_to(w_t, last), _MODEL.encode(w, examples)
  found, expected = contrast(w, examples, scale * z), contrast(w, examples, z)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # Two models that are alike tell nothing.
  alike = trainer._contrast_to(w_t, w_t)(w, examples, z)
  np.testing.assert_allclose(alike, 2 * np.log(2), rtol=1e-6)


def test_a_representation_of_zeros_has_a_gradient():
  trainer = helpers.build('moon', _MODEL).trainer
  w = {n: tf.zeros_like(v) for n, v in trainer.model.init([0, 0]).items()}
  contrast = trainer._contrast_to(w, trainer.model.init([0, 1]))
  with tf.GradientTape() as tape:
    tape.watch(w)
    examples = helpers.data(0, 4).examples
    z = trainer.model.encode(w, examples)
    value = tf.reduce_sum(contrast(w, examples, z))
  slopes = tape.gradient(value, w, unconnected_gradients='zero')
  assert all(np.all(np.isfinite(slope)) for slope in slopes.values())


def test_refuses_a_model_that_represents_nothing():
  with pytest.raises(errors.UserError, match='moon needs a model that learns'):
    helpers.build('moon', helpers.MODEL)
