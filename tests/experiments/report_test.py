"""Tests of the program that writes reports."""

import pytest

from tests.experiments import made_up_folders
from tests.experiments import programs


def test_writes_a_page_where_the_user_is(tmp_path):
  made_up_folders.write_run(tmp_path / 'one')
  done = programs.run(
    'report', 'one', '--output=new/page.html', BUILD_WORKING_DIRECTORY=tmp_path
  )
  assert done.returncode == 0, done.stderr
  assert 'finetuning' in (tmp_path / 'new/page.html').read_text()


@pytest.mark.parametrize(
  ('arguments', 'answer', 'status'),
  [
    (['--help'], 'report FOLDER --output=report.html', 0),
    ([], 'Name the output folder of a run or of a grid', 2),
    (['one', '--watched'], "Unknown command line flag 'watched'", 2),
    (['nowhere'], 'nowhere is not the output folder of a run or a grid', 1),
  ],
)
def test_is_answered_without_a_traceback(arguments, answer, status):
  done = programs.run('report', *arguments)
  assert answer in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  assert done.returncode == status
