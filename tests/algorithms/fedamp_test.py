"""FedAMP: its rounds, and whom it draws together."""

import numpy as np
import pytest

from algorithms import fedamp
from base import errors
from tests.algorithms import helpers
from tests.reference import cases
from tests.reference import problem


def _fedamp(p):
  """Huang et al. 2021, equations (5) and (7)."""
  alpha, sigma = p.s.attraction, p.s.attraction_width
  w = [p.w] * p.num_trained
  for cohort in p.cohorts:
    after = list(w)
    for i in cohort:
      xi = [alpha / sigma * np.exp(-np.sum((w[i] - v) ** 2) / sigma) for v in w]
      xi[i] = 0
      u_i = (1 - sum(xi)) * w[i] + sum(x * v for x, v in zip(xi, w))
      steps, v = problem.client_steps(p.s), u_i
      if p.s.steps_from == 'own':
        v = w[i]
      for batch in p.clients[i].batches:
        pull = p.s.regularization / alpha * (v - u_i)
        v = steps(v, p.gradient(v, batch) + pull)
      after[i] = v
    w = after
  return problem.Trained(lambda i: w[i])


@pytest.mark.parametrize(
  'values',
  [
    dict(attraction=0.3, attraction_width=2.0, regularization=0.2),
    dict(
      attraction=0.5,
      attraction_width=5.0,
      regularization=0.3,
      steps_from='own',
      client_optimizer='momentum',
    ),
  ],
)
def test_rounds_are_those_of_the_paper(values):
  cases.check(cases.Case('fedamp', _fedamp, values))


def test_models_that_are_near_are_mixed_and_others_are_not():
  w = np.float32([[0, 0], [0, 0.1], [9, 9], [9, 9.1]])
  u = fedamp.mix(w, 0.5, 1.0).numpy()
  near = 0.5 * np.exp(-(0.1**2))
  expected = w.copy()
  expected[:, 1] += near * np.float32([0.1, -0.1, 0.1, -0.1])
  np.testing.assert_allclose(u, expected, atol=1e-6)


def test_models_that_are_equal_stay_equal():
  w = np.tile(np.float32([[1e3, -1e-3, 0.3]]), [5, 1])
  np.testing.assert_allclose(fedamp.mix(w, 1e4, 1e6), w, rtol=1e-6)


def test_needs_the_number_of_clients():
  with pytest.raises(errors.UserError, match='fedamp needs the number'):
    helpers.build('fedamp', num_clients=0)
