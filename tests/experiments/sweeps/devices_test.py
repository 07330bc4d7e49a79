"""Tests of the cores and GPUs that processes get."""

import os

import pytest

from experiments.sweeps import devices


@pytest.fixture(autouse=True)
def _first_program(monkeypatch):
  monkeypatch.setattr(os, 'getpid', lambda: 0)


def _gpus_of_three_processes():
  return [devices.assign(number).gpu for number in range(3)]


@pytest.mark.parametrize(
  ('visible', 'gpus'),
  [
    ('3,5', ['3', '5', '3']),
    ('GPU-8f2a, GPU-91bc', ['GPU-8f2a', 'GPU-91bc', 'GPU-8f2a']),
    ('1,-1,2', ['1', '1', '1']),
    ('', [None, None, None]),
    ('-1', [None, None, None]),
  ],
)
def test_gpus_that_the_user_allows_are_given_in_turn(
  monkeypatch, visible, gpus
):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  assert _gpus_of_three_processes() == gpus


def test_without_a_choice_all_gpus_of_the_driver_are_given(
  monkeypatch, tmp_path
):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  monkeypatch.setattr(devices, '_DRIVER', tmp_path / 'none')
  assert _gpus_of_three_processes() == [None, None, None]
  monkeypatch.setattr(devices, '_DRIVER', tmp_path)
  for name in ('0000:3b:00.0', '0000:af:00.0'):
    (tmp_path / name).mkdir()
  assert _gpus_of_three_processes() == ['0', '1', '0']


@pytest.mark.parametrize(
  ('of_others', 'expected'),
  [({2, 4}, [2, 4, 2]), ({4}, [2, 4, 2]), ({2}, [4, 2, 4])],
)
def test_cores_that_others_keep_to_are_given_last(
  monkeypatch, of_others, expected
):
  monkeypatch.setattr(
    os, 'sched_getaffinity', lambda pid: of_others if pid else {4, 2}
  )
  devices._cores.cache_clear()
  cores = [devices.assign(number).core for number in range(3)]
  devices._cores.cache_clear()
  assert cores == expected
