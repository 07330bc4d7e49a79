"""Tests of the program that runs methods."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.experiments import programs
from tests.experiments import small_runs


class TestRunProgram:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.root = tmp_path

  @pytest.mark.parametrize(
    ('argument', 'answer'),
    [
      ('--help', 'finetuning.client_learning_rate=0.1'),
      ('--tsk=school', "Unknown command line flag 'tsk'"),
      ('--task=scool', "Did you mean 'school'?"),
      ('--algorithm=lokal', "Did you mean 'local'?"),
      ('--preset=scool', "Did you mean 'school'?"),
      ('--runtime=remotely', 'should be one of'),
      ('--set=x', 'name=value'),
      ('--seeds=0,x', "with commas between them, as in 0,1,2, not '0,x'"),
      ('school', "The argument 'school' is not a flag"),
    ],
  )
  def test_is_answered_without_importing_tensorflow(self, argument, answer):
    done = programs.run_without_tensorflow('run', argument)
    assert answer in done.stdout + done.stderr
    assert 'Traceback' not in done.stderr
    assert bool(done.returncode) == (argument != '--help')

  def start(self, *arguments):
    command = [sys.executable, '-m', 'experiments.run', *arguments]
    for assignment in small_runs.SMALL:
      command += ['--set', assignment]
    return subprocess.Popen(
      command,
      # As `bazel run` has it, where the user is not where the program is.
      env=programs.environment(BUILD_WORKING_DIRECTORY=str(self.root)),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def test_shows_the_table_and_nothing_of_tensorflows(self):
    process = self.start('--algorithm=fedavg,local')
    shown, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert re.search(r'^accuracy of 4 test clients; higher is better', shown)
    (folder,) = (self.root / 'results').iterdir()
    assert folder.name.startswith('synthetic-')
    lines = said.splitlines()
    assert len(lines) == 5, said
    assert lines[0] == 'Settings start from preset synthetic.'
    assert lines[1].startswith('fedavg: training: 7 of 7 rounds, ')
    assert lines[2].startswith('fedavg: evaluation: 7 of 7 clients, ')
    assert lines[3].startswith('local: evaluation: 7 of 7 clients, ')
    assert lines[4] == f'Written to {folder}'

  def test_a_mistake_is_told_without_a_traceback(self):
    process = self.start('--set=batc_size=1')
    shown, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert not shown
    assert said.startswith("Error: --set: Unknown setting 'batc_size'.")
    assert len(said.splitlines()) == 1
    assert not os.listdir(self.root)

  def test_ctrl_c(self):
    process = self.start(
      '--algorithm=fedavg', '--total_rounds=1000000', '--output_dir=a'
    )
    checkpoints = self.root / 'a' / 'checkpoints' / 'fedavg'
    while process.poll() is None and not checkpoints.exists():
      time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert 'The same command goes on' in said
    assert 'Traceback' not in said
