"""Tests of the program that measures rounds."""

import pytest

from tests.experiments import programs


@pytest.mark.parametrize(
  ('arguments', 'answer'),
  [
    (['--help'], 'Measures rounds of federated averaging'),
    (['--workloads=W9'], "There is no workload 'W9'"),
    (['--methods=mocha'], "There is no bare loop of 'mocha'"),
    (['--workloads=T1'], 'T1 to T3 need the --data_dir'),
    (['W1'], "The argument 'W1' is not a flag"),
  ],
)
def test_is_answered_without_importing_tensorflow(arguments, answer):
  done = programs.run_without_tensorflow('benchmark', *arguments)
  assert answer in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  assert bool(done.returncode) == (arguments != ['--help'])
