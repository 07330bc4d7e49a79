"""Tests of the program that trains a small GPT-2."""

import pytest

from tests.experiments import programs


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--leave_out=anna', "takes FIELD=NAME or FIELD=@FILE, not 'anna'"),
    ('--leave_out=user=', "takes FIELD=NAME or FIELD=@FILE, not 'user='"),
    ('--leave_out=user=@none.txt', 'none.txt cannot be read'),
  ],
)
def test_wrong_names_are_answered_before_tensorflow(argument, message):
  done = programs.run_without_tensorflow(
    'pretrain', argument, '--output_dir=never'
  )
  assert done.returncode == 1
  assert message in done.stderr
  assert 'Traceback' not in done.stderr
