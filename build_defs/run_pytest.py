"""Runs pytest for a pfl_py_test, with the options that Bazel gives."""

import os
import sys

import pytest


def main() -> int:
  """Returns pytest's exit status."""
  # The test files, and what `--test_arg` adds to them.
  arguments = ['-p', 'no:cacheprovider', *sys.argv[1:]]
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
  if expression and status == pytest.ExitCode.NO_TESTS_COLLECTED:
    return 0  # It is meant for another folder.
  return int(status)


if __name__ == '__main__':
  sys.exit(main())
