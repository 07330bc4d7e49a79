"""The accounting of silos, beside the numbers of Liu et al. 2022's code."""

import numpy as np
import pytest
from scipy import stats

from algorithms import example_uses
from base import errors
from personalization.privacy import accounting
from personalization.privacy import silo_accounting
from tasks.models import linear
from tests import toys
from tests.algorithms import helpers

_DELTA = 1e-3


def _silo(
  size, passes=201, choices=0, is_poisson=True, batch_size=32, **values
):
  settings = dict(drop_partial=True, choice_epsilon=0.18) | values
  return silo_accounting.silo(
    size,
    batch_size,
    uses=example_uses.Uses((example_uses.Walk(passes),), choices),
    is_poisson=is_poisson,
    **settings,
  )


@pytest.mark.parametrize(
  'passes, epsilon, noise', [(201, 6, 5.19), (402, 6, 7.29), (201, 1, 22.85)]
)
def test_finds_the_published_noise_of_a_school(passes, epsilon, noise):
  silo = _silo(100, passes, places=0)
  found = silo_accounting.noise(silo, epsilon, _DELTA)
  assert found == pytest.approx(noise, abs=0.01)
  assert silo_accounting.epsilon(silo, found, _DELTA)[1] == 'RDP'


@pytest.mark.parametrize('size, epsilon', [(17, 5.4), (100, 11.5), (200, 18.4)])
def test_what_was_run_as_epsilon_six_is_counted(size, epsilon):
  noise = silo_accounting.noise(_silo(size, places=0), 6, _DELTA)
  found, _ = silo_accounting.epsilon(
    _silo(size, is_poisson=False), noise, _DELTA
  )
  assert found == pytest.approx(epsilon, abs=0.06)


@pytest.mark.parametrize('is_poisson', [True, False])
@pytest.mark.parametrize('choices', [0, 202])
@pytest.mark.parametrize('size', [17, 40, 200])
@pytest.mark.parametrize('target', [0.1, 0.5, 6])
def test_noise_and_epsilon_are_inverse(target, size, choices, is_poisson):
  silo = _silo(
    size,
    choices=choices,
    is_poisson=is_poisson,
    choice_epsilon=0.03 * target,
  )
  noise = silo_accounting.noise(silo, target, _DELTA)
  found, _ = silo_accounting.epsilon(silo, noise, _DELTA)
  assert 0.998 * target < found <= target * (1 + 1e-5)


@pytest.mark.parametrize('size', [40, 100, 200])
@pytest.mark.parametrize('target', [0.5, 6])
def test_pld_needs_less_noise_than_rdp_for_poisson_batches(target, size):
  by_pld, by_rdp = (
    silo_accounting.noise(_silo(size, places=places), target, _DELTA)
    for places in (1, 0)
  )
  found, accountant = silo_accounting.epsilon(_silo(size), by_rdp, _DELTA)
  assert accountant == 'PLD'
  assert 0.85 * target < found < 0.9 * target
  assert by_pld < 0.93 * by_rdp
  # As exact as with PLD's usual interval, from above.
  fine = accounting.epsilon_by_pld(_silo(size).event(by_rdp), _DELTA)
  assert fine < found < 1.0003 * fine


def test_a_delta_that_is_too_small_for_pld_is_left_to_rdp():
  silo = _silo(100)
  noise = silo_accounting.noise(silo, 6, 1e-30)
  found, accountant = silo_accounting.epsilon(silo, noise, 1e-30)
  assert accountant == 'RDP'
  assert 5.98 < found <= 6


def test_a_lot_of_noise_in_a_silo_leaves_nearly_nothing():
  assert 0 <= silo_accounting.epsilon(_silo(100), 1e6, _DELTA)[0] < 1e-3


def test_choices_are_paid_for():
  without, paid = (
    silo_accounting.noise(_silo(100, choices=choices), 6, _DELTA)
    for choices in (0, 202)
  )
  assert paid > 1.02 * without


def test_choices_that_take_all_of_epsilon_are_refused():
  silo = _silo(100, choices=202, choice_epsilon=2.0)
  with pytest.raises(errors.UserError, match='choice_epsilon'):
    silo_accounting.noise(silo, 1, _DELTA)


def test_gradients_of_one_draw_are_one_mechanism_of_less_noise():
  # One step, of which the exact ε is an integral over one direction.
  noise, gradients, rate, epsilon = 1.0, 4, 0.8, 6.0
  x, dx = np.linspace(-20, 30, 200_001, retstep=True)
  deviation = noise / gradients**0.5
  without, with_it = (stats.norm.pdf(x, mean, deviation) for mean in (0, 1))
  mixture = (1 - rate) * without + rate * with_it
  delta = dx * max(
    np.maximum(p - np.exp(epsilon) * q, 0).sum()
    for p, q in ((mixture, without), (without, mixture))
  )
  walk = example_uses.Walk(1, gradients=gradients)
  silo = _silo(40)._replace(uses=example_uses.Uses((walk,)))
  assert (silo.steps, silo.rate) == (1, rate)
  found, _ = accounting.epsilon(silo.event(noise), delta)
  assert found == pytest.approx(epsilon, rel=0.01)
  # As if each gradient were of a draw of its own, it would be less.
  apart, _ = accounting.epsilon(silo._replace(places=0).event(noise), delta)
  assert apart < 0.95 * epsilon


def test_a_choice_by_poisson_batches_tells_who_is_in_them():
  # Losses of one example in 3 places; each place moves them by a third of what
  # the choice's ε, 1.2, is for.
  silo = _silo(128, choices=1, choice_epsilon=1.2, places=3)
  shift = np.exp(np.linspace(0, -1.2 / 2 / 3, 2))
  # By Bayes: who was drawn (q = 1/4) makes the other choice that much likelier.
  drawn, not_drawn = 0.25 * shift[0], 0.75 * shift[1]
  assert silo.rate == pytest.approx(drawn / (drawn + not_drawn))
  assert _silo(128, places=3).rate == 0.25


@pytest.mark.parametrize(
  'walk, passes',
  [
    (example_uses.Walk(5, epochs=2, gradients=3), 30),
    # Three batches in a pass: 7 steps are of three passes at most.
    (example_uses.Walk(5, most_steps=7), 15),
    (example_uses.Walk(5, epochs=4, most_steps=7), 20),
  ],
)
def test_passes_are_those_that_an_example_can_be_in(walk, passes):
  silo = _silo(100)._replace(uses=example_uses.Uses((walk,)))
  assert silo.gradients == passes


@pytest.mark.parametrize(
  'name, values, in_training, beside',
  [
    ('fedavg', {}, 1, 0),
    ('scaffold', {}, 1, 0),
    ('mr_mtl', {}, 1, 0),
    ('mocha', {}, 1, 0),
    ('fedper', {}, 1, 0),
    ('lg_fedavg', {}, 1, 0),
    ('ditto', {}, 2, 0),
    ('apfl', {}, 2, 0),
    ('fedrod', {}, 2, 0),
    ('ensemble', dict(num_clusters=3), 3, 0),
    ('finetuning', dict(finetuning_epochs=4), 1, 4),
    ('fedbabu', dict(finetuning_epochs=4), 1, 4),
    ('fedrep', dict(head_epochs=3, finetuning_epochs=4), 3 + 1, 4),
    ('perfedavg', {}, 2, 1),
    ('pfedme', dict(proximal_steps=5), 5, 5),
    ('self_fl', dict(adaptive_steps=False), 1, 0),
    ('local', dict(finetuning_epochs=4), 0, 4),
  ],
)
def test_what_a_method_pays_is_a_multiple_of_what_fedavg_does(
  name, values, in_training, beside
):
  method = helpers.build(name, toys.VectorModel(), **values)
  rounds = 10 if method.trains else 0
  uses = silo_accounting.uses(method, rounds, client_epochs=2)
  paid = _silo(100)._replace(uses=uses).gradients
  assert paid == 10 * 2 * in_training + beside


@pytest.mark.parametrize(
  'name, values, model, reason',
  [
    ('perfedavg', dict(form='hessian_vector'), toys.VectorModel(), 'Hessian'),
    ('fedrod', {}, linear.LogisticRegression(3, 2), 'balance=0'),
    ('group', {}, toys.VectorModel(), 'trains a global model'),
    ('knn_per', {}, toys.VectorModel(), 'with the examples themselves'),
    ('fedavg', {}, toys.NormalizedModel(), 'one example changes'),
  ],
)
def test_what_has_no_bound_is_refused_by_name(name, values, model, reason):
  method = helpers.build(name, model, **values)
  with pytest.raises(errors.UserError, match=reason):
    silo_accounting.uses(method, 10, client_epochs=1)


def test_without_noise_there_is_no_guarantee():
  assert silo_accounting.epsilon(_silo(100), 0.0, _DELTA)[0] == float('inf')
  silo = _silo(100, is_poisson=False)
  assert silo_accounting.epsilon(silo, 0.0, _DELTA)[0] == float('inf')
