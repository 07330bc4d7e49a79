"""Tests of the example that runs plain TFF on both runtimes."""

import re

from absl import app
from absl.testing import flagsaver
import pytest

from examples import tff_runtime


@pytest.fixture(name='output')
def _output(capsys) -> str:
  """Runs the program for a few rounds and returns what it prints."""
  with flagsaver.as_parsed(num_rounds='3', num_clients='4'):
    tff_runtime.main(['tff_runtime'])
  return capsys.readouterr().out


def test_it_prints_what_a_round_takes_and_that_both_agree(output):
  native, cohort, agreement = output.splitlines()
  assert re.fullmatch(r'native: loss \d+\.\d{4}, [\d.]+ ms a round', native)
  assert re.fullmatch(r'cohort: loss \d+\.\d{4}, [\d.]+ ms a round', cohort)
  assert agreement.startswith('The weights agree')


def test_both_runtimes_print_the_same_loss(output):
  losses = re.findall(r'loss ([\d.]+)', output)
  assert len(losses) == 2
  assert len(set(losses)) == 1


def test_an_argument_that_is_no_flag_is_an_error():
  with pytest.raises(app.UsageError, match='unexpected'):
    tff_runtime.main(['tff_runtime', 'unexpected'])
