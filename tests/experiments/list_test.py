"""Tests of the program that lists what there is."""

import pytest

from tests.experiments import programs


@pytest.mark.parametrize(
  ('arguments', 'status', 'answer'),
  [
    (['--help'], 0, 'list task school'),
    ([], 0, '\n  hypcluster          Trains a model for each cluster;'),
    (['tasks'], 0, '\n  school                  School: exam scores'),
    (['preset', 'school'], 0, '\nfinetuning_epochs = 100'),
    (['task', 'scool'], 1, "Did you mean 'school'?"),
    (['method', 'ditto+dito'], 1, "Did you mean 'ditto'?"),
    (['method'], 1, 'Name one, as in list method apfl.'),
    (['privacy', 'none'], 1, "Unknown privacy 'none'"),
    (['tables', 'x'], 1, "list tables takes no name: 'x'"),
    (['taks'], 1, "Did you mean 'tasks'?"),
    (['task', 'school', 'mnist'], 2, 'Name one thing'),
  ],
)
def test_is_answered_without_importing_tensorflow(arguments, status, answer):
  done = programs.run_without_tensorflow('list', *arguments)
  assert answer in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  assert done.returncode == status
