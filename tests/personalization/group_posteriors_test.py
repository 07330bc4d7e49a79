"""Section 4 of Liu et al. 2022, by simulation."""

import numpy as np
import pytest

from tests.personalization import group_posteriors

_GROUP_VARIANCE = 0.5
# Three groups of clients.
_VARIANCES = ((1.0, 2.0, 0.5), (0.3, 0.8, 0.8, 1.5), (2.0, 1.0))
_SINGLE = ((1.0, 2.0, 0.5), (0.3,), (2.0,), (0.7,))
_DRAWS = 200_000


def _errors(variances, posterior):
  """The errors of posterior means, in many draws of theta_m and x_mn.

  With a flat prior they are distributed as the posterior is, whatever theta_0.
  """
  rng = np.random.default_rng(0)
  theta = rng.normal(3.0, _GROUP_VARIANCE**0.5, [len(variances), _DRAWS])
  x = [
    [rng.normal(theta_m, variance**0.5) for variance in of_group]
    for theta_m, of_group in zip(theta, variances)
  ]
  # A posterior mean is linear in x, whose coefficients are those at units.
  error = -theta[0]
  for m, of_group in enumerate(variances):
    for n in range(len(of_group)):
      unit = [
        [float((m, n) == (i, j)) for j in range(len(group))]
        for i, group in enumerate(variances)
      ]
      error = error + posterior(unit).mean * x[m][n]
  return error


_POSTERIORS = {
  'none': lambda x, v: group_posteriors.own_posterior(x, v),
  'group': lambda x, v: group_posteriors.group_posterior(x, v),
  'global': lambda x, v: group_posteriors.global_posterior(
    x, v, _GROUP_VARIANCE
  ),
  'printed': lambda x, v: group_posteriors.global_posterior(
    x, v, _GROUP_VARIANCE, as_printed=True
  ),
}


def _simulate(name, variances):
  """The variance of the posterior, and that of its mean's error."""
  posterior = _POSTERIORS[name]
  errors = _errors(variances, lambda x: posterior(x, variances))
  assert abs(errors.mean()) < 0.01
  return posterior(variances, variances).variance, errors.var()


@pytest.mark.parametrize(
  'name, variances',
  [
    ('none', _VARIANCES),
    ('group', _VARIANCES),
    ('global', _VARIANCES),
    ('global', _SINGLE),
    ('printed', _SINGLE),
  ],
)
def test_a_posterior_is_as_certain_as_its_mean_is_near(name, variances):
  claimed, simulated = _simulate(name, variances)
  assert simulated == pytest.approx(claimed, rel=0.02)


def test_the_printed_posterior_is_too_certain_of_groups_of_several_clients():
  claimed, simulated = _simulate('printed', _VARIANCES)
  assert claimed < 0.97 * simulated


def test_no_other_linear_mean_is_nearer():
  # The error is unrelated to all differences of observations.
  _, exact = _simulate('global', _VARIANCES)
  _, printed = _simulate('printed', _VARIANCES)
  _, group = _simulate('group', _VARIANCES)
  assert exact < printed < group


def test_both_forms_agree_on_groups_of_one_client():
  x = ((1.0, -2.0, 0.5), (0.3,), (4.0,), (0.1,))
  exact, printed = (
    group_posteriors.global_posterior(
      x, _SINGLE, _GROUP_VARIANCE, as_printed=form
    )
    for form in (False, True)
  )
  np.testing.assert_allclose(exact, printed, rtol=1e-12)


def test_the_ratios_are_the_papers():
  first, *others = _VARIANCES[0]
  assert group_posteriors.group_ratio(_VARIANCES) == pytest.approx(
    1 / (1 + sum(first / other for other in others))
  )
  # The paper's last formula, written out.
  precision = sum(1 / v for v in _VARIANCES[0])
  others = [v for group in _VARIANCES[1:] for v in group]
  rest = 1 / sum(1 / (_GROUP_VARIANCE + v) for v in others)
  expected = 1 / (1 + 1 / (_GROUP_VARIANCE + rest) / precision)
  ratio = group_posteriors.global_ratio(
    _VARIANCES, _GROUP_VARIANCE, as_printed=True
  )
  assert ratio == pytest.approx(expected)


def test_more_sharing_leaves_less_in_doubt():
  assert group_posteriors.group_ratio(_VARIANCES) < 1
  assert group_posteriors.global_ratio(_VARIANCES, _GROUP_VARIANCE) < 1


def test_the_group_ratio_is_that_of_the_variances():
  x = ((0.0,) * 3, (0.0,) * 4, (0.0,) * 2)
  alone = group_posteriors.own_posterior(x, _VARIANCES).variance
  group = group_posteriors.group_posterior(x, _VARIANCES).variance
  assert group_posteriors.group_ratio(_VARIANCES) == pytest.approx(
    group / alone
  )
