"""Tests of the program that generates text."""

import pytest

from tests.experiments import programs


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--client=NAME', '--prompt=We'], 'Name the output folder of a run'),
    (['FOLDER', '--prompt=We'], 'Name a client with --client, and a --prompt'),
    (
      ['FOLDER', '--client=NAME'],
      'Name a client with --client, and a --prompt',
    ),
    (['FOLDER', '--list', '--length=0'], '--length=0'),
  ],
)
def test_wrong_flags_are_answered_before_tensorflow(arguments, message):
  result = programs.run_without_tensorflow('generate', *arguments)
  assert result.returncode == 2
  assert message in result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
