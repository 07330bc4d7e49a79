"""Tests of the program that audits the privacy of runs."""

from tests.experiments import programs


def test_a_run_is_named_before_tensorflow():
  result = programs.run_without_tensorflow('audit', '--canaries=100')
  assert result.returncode == 2
  assert 'Name the output folder of a run' in result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
