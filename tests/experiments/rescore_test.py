"""Tests of the program that rescores."""

import pytest

from tests.experiments import programs


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--nbest=FILE'], 'Name the output folder of at least one run'),
    (['FOLDER'], 'Name the file of the hypotheses with --nbest'),
    (['FOLDER', '--nbest=FILE', '--weight=2'], '--weight=2'),
  ],
)
def test_wrong_flags_are_answered_before_tensorflow(arguments, message):
  result = programs.run_without_tensorflow('rescore', *arguments)
  assert result.returncode == 2
  assert message in result.stdout + result.stderr
  assert 'Traceback' not in result.stderr


def test_missing_files_are_named(tmp_path):
  nbest = tmp_path / 'nbest.jsonl'
  result = programs.run('rescore', tmp_path, f'--nbest={nbest}')
  assert result.returncode == 1
  assert 'nbest.jsonl cannot be read' in result.stderr
  assert 'Traceback' not in result.stderr
