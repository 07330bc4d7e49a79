"""The accounting of silos, beside the numbers of Liu et al. 2022's code."""

import pytest

from base import errors
from personalization import silo_accounting

_DELTA = 1e-3


def _silo(
  size, passes=201, choices=0, is_poisson=True, batch_size=32, **values
):
  own = dict(drop_partial=True, choice_epsilon=0.18) | values
  return silo_accounting.silo(
    size,
    batch_size,
    uses=silo_accounting.Uses(passes, choices),
    is_poisson=is_poisson,
    **own,
  )


@pytest.mark.parametrize(
  'passes, epsilon, noise', [(201, 6, 5.19), (402, 6, 7.29), (201, 1, 22.85)]
)
def test_finds_the_published_noise_of_a_school(passes, epsilon, noise):
  found = silo_accounting.noise(_silo(100, passes), epsilon, _DELTA)
  assert found == pytest.approx(noise, abs=0.01)


@pytest.mark.parametrize('size, epsilon', [(17, 5.4), (100, 11.5), (200, 18.4)])
def test_what_was_run_as_epsilon_six_is_counted(size, epsilon):
  noise = silo_accounting.noise(_silo(size), 6, _DELTA)
  found, _ = silo_accounting.epsilon(
    _silo(size, is_poisson=False), noise, _DELTA
  )
  assert found == pytest.approx(epsilon, abs=0.06)


@pytest.mark.parametrize('is_poisson', [True, False])
@pytest.mark.parametrize('choices', [0, 202])
@pytest.mark.parametrize('size', [17, 40, 200])
@pytest.mark.parametrize('target', [0.5, 6])
def test_noise_and_epsilon_are_inverse(target, size, choices, is_poisson):
  silo = _silo(
    size,
    choices=choices,
    is_poisson=is_poisson,
    choice_epsilon=0.03 * target,
  )
  noise = silo_accounting.noise(silo, target, _DELTA)
  found, _ = silo_accounting.epsilon(silo, noise, _DELTA)
  assert 0.999 * target < found <= target * (1 + 1e-5)


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


def test_without_noise_there_is_no_guarantee():
  assert silo_accounting.epsilon(_silo(100), 0.0, _DELTA)[0] == float('inf')
  silo = _silo(100, is_poisson=False)
  assert silo_accounting.epsilon(silo, 0.0, _DELTA)[0] == float('inf')
