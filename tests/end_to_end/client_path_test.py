"""The path of a client that the architecture describes is the one it takes."""

import os
import pathlib
import re
import subprocess
import sys

from tests import data

_ROOT = pathlib.Path(__file__).absolute().parents[2]


def test_the_architecture_names_the_modules_that_touch_a_clients_data():
  data.path('school/school.mat')
  page = (_ROOT / 'docs/architecture.md').read_text(encoding='utf-8')
  # In a process of its own, where nothing is traced or compiled before.
  listed = subprocess.run(
    [sys.executable, '-m', 'tests.end_to_end.client_path'],
    cwd=_ROOT,
    env={**os.environ, 'PYTHONPATH': ':'.join([str(_ROOT), *sys.path])},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  ).stdout
  found = [line.split()[0] for line in listed.splitlines()]
  assert sorted(re.findall(r'^\| \d+ \| `(.*?)` \|', page, re.M)) == sorted(
    found
  )
