"""Tests of the texts about settings."""

import pytest

from algorithms import registry as algorithm_registry
from experiments.listings import overviews
from experiments.listings import setting_texts
from personalization.privacy import ways
from tasks import registry as task_registry


def test_a_setting_has_its_default_help_and_range():
  lines = '\n'.join(setting_texts.method_lines('finetuning'))
  assert (
    '  client_learning_rate = 0.1\n'
    "      The learning rate of the clients' steps.\n"
    '      (a number, at least 0)\n'
  ) in lines


def test_a_method_has_defaults_of_its_own():
  lines = list(setting_texts.method_lines('hypcluster+head_finetuning'))
  assert '\n  num_clusters = 2' in lines
  assert '\n  finetuning_layers = last' in lines


def _all_lines():
  yield from overviews.everything()
  yield from setting_texts.run_lines()
  for method in algorithm_registry.short_names():
    yield from setting_texts.method_lines(method)
  for task in task_registry.task_names():
    yield from setting_texts.task_lines(task)
  for way in ways.ways():
    yield from setting_texts.privacy_lines(way)


def test_every_line_fits_a_narrow_terminal():
  for line in '\n'.join(_all_lines()).splitlines():
    assert len(line) <= 80, line


@pytest.mark.parametrize('name', ['total_rounds', 'choose', 'ood_examples'])
def test_all_settings_of_a_run_are_listed(name):
  assert any(
    line.startswith(f'\n  {name} =') for line in setting_texts.run_lines()
  )
