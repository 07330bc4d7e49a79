"""Tests of the program that exports models."""

import pytest

from tests.experiments import programs


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--output_dir=OUT'], 'Name the output folder of a run'),
    (['FOLDER'], 'Name a new folder with --output_dir'),
  ],
)
def test_wrong_flags_are_answered_before_tensorflow(arguments, message):
  result = programs.run_without_tensorflow('export_model', *arguments)
  assert result.returncode == 2
  assert message in result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
