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
  assert _distinct(registry.short_names(), 'color', 'shape', 'line')
  # Also where there are no lines, or no marks.
  assert _distinct(looks.listed_methods(), 'color', 'shape')
  assert _distinct(looks.listed_methods(), 'color', 'line')


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
      looks.listed_methods(), ('finetuning', 'knn_per')
    )
  ]
  assert _distinct([*looks.listed_methods(), *pairs], 'color', 'shape', 'line')


def test_a_pair_looks_like_its_halves():
  pair = looks.look('hypcluster+finetuning')
  assert pair.color == looks.look('hypcluster').color
  assert pair.shape == looks.look('finetuning').shape


@pytest.mark.parametrize('name', ['mine', 'fedsomething', 'a_b'])
def test_another_method_has_a_look_that_no_listed_one_has(name):
  assert looks.look(name) == looks.look(name)
  assert _distinct([*looks.listed_methods(), name], 'color', 'shape', 'line')


def test_other_methods_differ_from_each_other():
  names = [f'method_{k}' for k in range(12)]
  assert _distinct(names, 'color', 'shape', 'line', 'hollow')


def test_looks_do_not_run_out():
  """Methods that are yet to be written have looks as well."""
  found = {looks.look(f'method_{k}') for k in range(1000)}
  assert len(found) > 400


def test_hollow_marks_are_lighter_inside():
  assert looks.look('fedavg').fill == looks.look('fedavg').color
  assert looks.look('scaffold').fill == '#ffffff'
  pair = looks.look('scaffold+finetuning')
  assert pair.fill not in ('#ffffff', pair.color)


def test_ordered_values_have_no_color_of_a_method():
  shades = looks.shades(5)
  assert len(set(shades)) == 5
  assert set(shades).isdisjoint(looks.COLORS)


def test_text_on_a_color_can_be_read():
  inks = {'black': 0.0, 'white': 1.0}
  for color in looks.CATEGORIES:
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    luminance = sum(
      weight * part**2.2
      for weight, part in zip((0.2126, 0.7152, 0.0722), parts)
    )
    ends = sorted((luminance, inks[looks.choose_ink(color)]))
    # The contrast of WCAG 2, which asks for 4.5 or, of large text, 3.
    assert (ends[1] + 0.05) / (ends[0] + 0.05) > 4.5
