"""Shared noise of releases, in made-up changes of models."""

import numpy as np
import pytest

from personalization.privacy import shared_noise


def _changes(learnt, noise, rng):
  """Makes the change of a release with this noise, and of its replays."""
  number = shared_noise.num_replays(len(learnt))
  replays = np.std(noise) * rng.normal(size=[number, len(learnt)])
  return learnt + np.array([noise, *replays])


@pytest.mark.parametrize('size', [30, 2000])
@pytest.mark.parametrize('scale', [1.0, 5.0, -0.2])
def test_noise_that_is_shared_is_seen_whatever_its_size(size, scale):
  rng = np.random.default_rng(0)
  noise, learnt = rng.normal(size=[2, size])
  found = shared_noise.compare(
    _changes(100 * learnt, noise, rng),
    _changes(50 * learnt + 1, scale * noise, rng),
  )
  assert found.is_shared
  assert abs(found.correlation) == pytest.approx(0.85, abs=0.1)
  assert np.sign(found.correlation) == np.sign(scale)


@pytest.mark.parametrize('size', [30, 2000])
def test_releases_that_learn_the_same_with_noise_of_their_own_pass(size):
  rng = np.random.default_rng(1)
  learnt = 100 * rng.normal(size=size)
  for _ in range(50):
    first, second = rng.normal(size=[2, size])
    found = shared_noise.compare(
      _changes(learnt, first, rng), _changes(learnt, second, rng)
    )
    assert not found.is_shared


def test_what_moves_few_weights_together_is_not_taken_for_shared():
  # The noise of each release is large in three directions only.
  rng = np.random.default_rng(2)
  directions = rng.normal(size=[3, 2000])
  for _ in range(30):
    first, second = (
      rng.normal(size=[9, 3]) @ directions + 1e-3 * rng.normal(size=[9, 2000])
      for _ in range(2)
    )
    assert not shared_noise.compare(first, second).is_shared


def test_a_training_without_noise_has_nothing_to_share():
  same = np.ones([5, 40])
  assert not shared_noise.compare(same, same).is_shared
