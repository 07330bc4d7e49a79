"""Runs pytest for a pfl_py_test, with the options that Bazel gives."""

import os
import pathlib
import sys

import pytest


def _own_share(arguments: list[str]) -> list[str]:
  """Leaves out the test files that other shards of the folder run."""
  shards = int(os.environ.get('TEST_TOTAL_SHARDS', 1))
  if status_file := os.environ.get('TEST_SHARD_STATUS_FILE'):
    pathlib.Path(status_file).touch()  # Tells Bazel that it is done.
  files = [argument for argument in arguments if argument.endswith('_test.py')]
  own = files[int(os.environ.get('TEST_SHARD_INDEX', 0)) :: shards]
  return [a for a in arguments if a in own or a not in files]


def main() -> int:
  """Returns pytest's exit status."""
  # The test files, and what `--test_arg` adds to them.
  arguments = ['-p', 'no:cacheprovider', *_own_share(sys.argv[1:])]
  if report := os.environ.get('XML_OUTPUT_FILE'):
    arguments.append(f'--junitxml={report}')
  if folder := os.environ.get('TEST_TMPDIR'):
    arguments.append(f'--basetemp={folder}/pytest')
    # Bazel sets none, and the user's cannot be written to.
    os.environ.setdefault('HOME', folder)
  # `--test_filter=EXPRESSION` is pytest's -k.
  expression = os.environ.get('TESTBRIDGE_TEST_ONLY')
  if expression:
    arguments += ['-k', expression]
  status = pytest.main(arguments)
  if status == pytest.ExitCode.NO_TESTS_COLLECTED and (
    expression or 'TEST_TOTAL_SHARDS' in os.environ
  ):
    return 0  # It is meant for another folder, or another shard.
  return int(status)


if __name__ == '__main__':
  sys.exit(main())
