"""Tests of the names of methods."""

import itertools

import pytest

from algorithms import registry


def test_every_method_has_a_name_of_its_own():
  methods = registry.short_names()
  written = {registry.title(method) for method in methods}
  assert len(written) == len(methods)
  assert written.isdisjoint(methods)


def test_pairs_have_names_of_their_own():
  pairs = {
    registry.canonical_name(f'{trainer}+{personalizer}')
    for trainer, personalizer in itertools.product(
      registry.TRAINERS, ('finetuning', 'head_finetuning', 'knn_per')
    )
  }
  assert len({registry.title(pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
  ('method', 'written'),
  [
    ('finetuning', 'FedAvg + fine-tuning'),
    ('hypcluster+finetuning', 'HypCluster + fine-tuning'),
    ('knn_per', 'kNN-Per'),
    ('a row of a grid', 'a row of a grid'),
  ],
)
def test_names_are_those_of_papers(method, written):
  assert registry.title(method) == written
