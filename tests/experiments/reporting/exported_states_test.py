"""Tests of the export of what clients keep."""

import csv
import errno
import json
import os

import numpy as np
import pytest

from base import errors
from experiments.reporting import exported_states
from tests.experiments import small_runs


@pytest.fixture(scope='module', name='folder')
def _folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run') / 'run'
  small_runs.run(small_runs.config(algorithms='ditto,fedavg'), folder)
  return folder


def test_personal_models_of_all_clients_are_exported(folder):
  written = exported_states.export(folder)
  assert written == folder / 'states' / 'ditto'
  with (written / 'clients.csv').open() as file:
    clients = [row['client'] for row in csv.DictReader(file)]
  assert clients == [f'train_{k:06d}' for k in range(len(clients))]
  kernels = np.load(written / 'personal.kernel.npy', mmap_mode='r')
  assert kernels.shape == (len(clients), 60, 10)
  # Each has learned from examples of its own.
  assert len({kernel.tobytes() for kernel in kernels}) == len(clients)
  rounds = np.load(written / 'rounds.npy')
  results = json.loads((folder / 'results.json').read_text())
  assert max(rounds) <= results['methods']['ditto']['rounds']
  assert min(rounds) >= 1


def test_a_disk_that_is_full_is_an_error_and_kills_nobody(
  folder, tmp_path, monkeypatch
):
  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'posix_fallocate', full)
  with pytest.raises(errors.ResourceError, match='npy cannot be written: No'):
    exported_states.export(folder, output_dir=tmp_path)


def test_a_training_without_states_is_named(folder):
  with pytest.raises(errors.UserError, match='Unknown training .fedavg'):
    exported_states.export(folder, 'fedavg')


def test_a_run_whose_methods_keep_nothing_is_told(tmp_path):
  folder = tmp_path / 'run'
  small_runs.run(small_runs.config(algorithms='fedavg'), folder)
  with pytest.raises(errors.UserError, match='none of its methods keeps any'):
    exported_states.export(folder)


def test_a_folder_of_no_run_is_told(tmp_path):
  with pytest.raises(errors.UserError, match='not an output folder of a run'):
    exported_states.export(tmp_path)
