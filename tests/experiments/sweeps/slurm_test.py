"""Tests of Slurm jobs that work on a grid."""

import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest
import submitit

from base import errors
from experiments.command_line import launch
from experiments.reporting import grid_records
from experiments.sweeps import grid_file
from experiments.sweeps import grids
from experiments.sweeps import launchers
from experiments.sweeps import launching
from experiments.sweeps import slurm
from experiments.sweeps import workers
from tests.experiments import small_grids
from tests.experiments.sweeps import slurm_work


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ('tim=60', "Unknown option 'tim'. Did you mean 'time'?"),
    ('partition', "'partition' has no value"),
    ('time=1:00:00', 'not one in minutes'),
    ('cpus_per_task=all', 'not a whole number of cores'),
    ('time=60', 'there is no Slurm here'),
  ],
)
def test_wrong_options(options, message, monkeypatch):
  monkeypatch.setattr(shutil, 'which', lambda name: None)
  with pytest.raises(errors.UserError, match=message.replace('?', r'\?')):
    launchers.make(1, 2, options, None)


def test_options_without_jobs():
  with pytest.raises(errors.UserError, match='number of jobs by --slurm_jobs'):
    launchers.make(1, None, 'time=60', None)


class _Queue:
  is_over = False


@pytest.fixture(name='submit')
def _submit(tmp_path, monkeypatch):
  """Submits jobs that are processes of this machine, as submitit can."""
  submitted = []

  class Executor(submitit.LocalExecutor):
    def submit(self, function):
      submitted.append(super().submit(function))
      return submitted[-1]

  def submit():
    log = tmp_path / 'logs/worker'
    log.parent.mkdir()
    everything = launch.LateCall(slurm_work.__name__, 'work', (tmp_path,))
    work = launching.Work(None, everything, log)
    events = slurm.SlurmJobs(1, {}).start(work).run(_Queue())
    next(events)
    return submitted, events

  monkeypatch.setattr(submitit, 'SlurmExecutor', Executor)
  monkeypatch.setattr(Executor, '_valid_parameters', lambda: slurm._DEFAULTS)
  monkeypatch.setenv('SLURM_CPUS_ON_NODE', '1')
  yield submit
  for job in submitted:
    job.cancel()


def test_a_job_whose_time_is_over_stops_and_is_started_again(submit, tmp_path):
  (job,), events = submit()
  while not slurm_work.started(tmp_path):
    next(events)
  controller = pathlib.Path(f'/proc/{job.job_id}/task/{job.job_id}/children')
  os.kill(int(controller.read_text()), signal.SIGUSR2)
  assert not any(events)
  assert slurm_work.started(tmp_path) == ['1 workers'] * 2
  assert job.result() == 0
  said = job.paths.stderr.read_text()
  assert 'Stopped. The same command starts from the beginning.' in said


def _is_here():
  is_installed = shutil.which('sinfo') is not None
  return (
    is_installed
    and not subprocess.run(['sinfo'], capture_output=True).returncode
  )


@pytest.mark.skipif(
  not _is_here(), reason='There is no Slurm whose sinfo answers.'
)
def test_jobs_of_a_real_slurm_of_which_one_is_preempted(tmp_path):
  grid = grid_file.read(small_grids.write(tmp_path))
  interrupted = []

  def interrupt():
    while not grid_records.GridRecords(tmp_path / 'out').by_key:
      time.sleep(0.05)
    (job, *_) = (tmp_path / 'out/logs/slurm').glob('*_submission.sh')
    interrupted.append(job.name.split('_')[0])
    subprocess.run(['scancel', '--signal=USR2', interrupted[0]])

  thread = threading.Thread(target=interrupt, daemon=True)
  thread.start()
  launcher = launchers.make(1, 2, 'time=5', None)
  assert grids.main(grid, tmp_path / 'out', None, launcher, False) == 0
  thread.join()
  subprocess.run(['scancel', *interrupted])
  on_slurm = grid_records.GridRecords(tmp_path / 'out').by_key
  launcher = workers.OnThisMachine(1)
  assert grids.main(grid, tmp_path / 'alone', None, launcher, False) == 0
  assert grid_records.GridRecords(tmp_path / 'alone').by_key == on_slurm
