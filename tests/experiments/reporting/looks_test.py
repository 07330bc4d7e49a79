"""Tests of how methods look."""

import itertools

import pytest

from algorithms import registry
from experiments.reporting import looks


def _distinct(names, *attributes):
  found = [
    tuple(getattr(looks.look(name), a) for a in attributes) for name in names
  ]
  return len(set(found)) == len(found)


def test_every_method_has_a_look_of_its_own():
  assert _distinct(registry.short_names(), 'color', 'marker', 'line')
  # Also where there are no lines, or no markers.
  assert _distinct(looks.known_methods(), 'color', 'marker')
  assert _distinct(looks.known_methods(), 'color', 'line')


def test_the_first_methods_can_be_told_apart_by_the_color_blind():
  first = (
    *('fedavg', 'finetuning', 'knn_per', 'hypcluster', 'ditto', 'local'),
    *('mocha', 'ensemble'),
  )
  assert [looks.look(name).color for name in first] == list(looks.COLORS[:8])


def test_pairs_have_looks_of_their_own():
  pairs = [
    f'{trainer}+{personalizer}'
    for trainer, personalizer in itertools.product(
      looks.known_methods(), ('finetuning', 'knn_per')
    )
  ]
  assert _distinct([*looks.known_methods(), *pairs], 'color', 'marker', 'line')


def test_a_pair_looks_like_its_halves():
  pair = looks.look('hypcluster+finetuning')
  assert pair.color == looks.look('hypcluster').color
  assert pair.marker == looks.look('finetuning').marker


@pytest.mark.parametrize('name', ['mine', 'fedsomething', 'a_b'])
def test_another_method_has_a_look_that_no_known_one_has(name):
  assert looks.look(name) == looks.look(name)
  assert _distinct([*looks.known_methods(), name], 'color', 'marker', 'line')


def test_other_methods_differ_from_each_other():
  names = [f'method_{k}' for k in range(12)]
  assert _distinct(names, 'color', 'marker', 'line', 'hollow')
