"""Tests of reading runs that are repeats of each other."""

import json
import math

import pytest

from algorithms import candidates
from base import errors
from experiments.reporting import repeats
from tests.experiments import run_folders


def test_numbers_of_repeats(tmp_path):
  (three,) = repeats.read(
    [
      run_folders.write(tmp_path / 'a', {'fedavg': 0.25, 'local': 1.0}, seed=1),
      run_folders.write(
        tmp_path / 'b', {'local': None, 'fedavg': 0.75}, seed=2
      ),
      run_folders.write(
        tmp_path / 'c', {'fedavg': 0.5, 'local': 1, 'ditto': 1}, seed=3
      ),
    ]
  )
  # Those that all have finished.
  assert three.methods == ('fedavg', 'local')
  assert (three.metric, three.higher_is_better) == ('loss', False)
  assert three.values('fedavg', 'test', 'mean') == [0.25, 0.75, 0.5]
  assert math.isnan(three.values('local', 'test', 'mean')[1])
  assert all(map(math.isnan, three.values('local', 'no', 'such')))
  assert three.names('fedavg', 'test') == ['mean', 'deviation', 'hurt']
  assert three.names('fedavg', 'no', 'such') == []
  assert three.client_values('fedavg', 'metric') == [1, 2] * 3
  assert all(map(math.isnan, three.client_values('fedavg', 'before')))


def test_numbers_of_rounds(tmp_path):
  folders = [
    run_folders.write(
      tmp_path / f'{k}', {'fedavg': k}, total_rounds=rounds, seed=k
    )
    for k, rounds in enumerate([20, 5, 10, 20])
  ]
  means = [
    of_rounds.values('fedavg', 'test', 'mean')
    for of_rounds in repeats.read(folders)
  ]
  assert means == [[1], [2], [0, 3]]


def test_a_run_does_not_count_twice(tmp_path):
  folders = [
    run_folders.write(tmp_path / name, {'fedavg': 0.5}, seed=1) for name in 'ab'
  ]
  with pytest.raises(errors.UserError, match='a and .*b have the same run'):
    repeats.read(folders)


def test_candidates_carry_their_numbers(tmp_path):
  folder = run_folders.write(tmp_path, {'finetuning': 0.25})
  contents = json.loads((folder / 'results.json').read_text())
  contents['methods']['finetuning']['candidates'] = {
    'global': {'value': None, 'unit': '', 'label': '', 'test': 0.5},
    '3 epochs, rate 0.1': {'value': 3, 'unit': 'epochs', 'label': 'rate 0.1'},
  }
  (folder / 'results.json').write_text(json.dumps(contents))
  (one,) = repeats.read([run_folders.sealed(folder)])
  assert one.list_candidates('finetuning') == [
    candidates.Candidate(text='global'),
    candidates.Candidate(3, 'epochs', 'rate 0.1', '3 epochs, rate 0.1'),
  ]


def test_runs_that_are_no_repeats(tmp_path):
  folders = [
    run_folders.write(
      tmp_path / name, {'fedavg': 1}, batch_size=size, choose=choose
    )
    for name, size, choose in (('a', 1, 'all'), ('b', 2, 'each'))
  ]
  with pytest.raises(
    errors.UserError, match='differ in batch_size, choose. Name folders'
  ):
    repeats.read(folders)


def test_nothing_that_all_have_finished(tmp_path):
  folders = [
    run_folders.write(tmp_path / name, {name: 1}, seed=seed)
    for seed, name in enumerate(('fedavg', 'local'))
  ]
  with pytest.raises(errors.UserError, match='no method that has been'):
    repeats.read(folders)
