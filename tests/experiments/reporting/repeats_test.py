"""Tests of methods with several seeds."""

import math

import pytest

from algorithms import candidates
from experiments.reporting import repeats
from tests.experiments import made_up_folders


def _series(*results, **attributes):
  made = [
    repeats.Repeat(
      seed,
      {'metric': 'loss', 'higher_is_better': False, **result},
      [{'client': 'a', 'metric': '1', 'before': ''}, {'metric': 'nan'}],
    )
    for seed, result in enumerate(results)
  ]
  return repeats.Series('finetuning', 'school', made, **attributes)


def test_numbers_of_repeats():
  series = _series(
    {'test': {'mean': 0.25, 'hurt': None}}, {'test': {'mean': 1}}
  )
  assert (series.metric, series.higher_is_better) == ('loss', False)
  assert series.values('test', 'mean') == [0.25, 1]
  assert all(map(math.isnan, series.values('test', 'hurt')))
  assert all(map(math.isnan, series.values('no', 'such')))
  assert series.names('test') == ['mean', 'hurt']
  assert series.names('no', 'such') == []


def test_numbers_of_clients_are_those_of_all_repeats():
  series = made_up_folders.series(values=(0.5, math.nan))
  assert series.client_values('metric')[0] == 0.5
  assert math.isnan(series.repeats[0].mean)
  assert all(map(math.isnan, _series({}).client_values('before')))
  assert len(_series({}, {}).client_values('metric')) == 4


def test_candidates_carry_their_numbers():
  found = {
    'global': {'value': None, 'unit': '', 'label': '', 'test': 0.5},
    '3 epochs, rate 0.1': {'value': 3, 'unit': 'epochs', 'label': 'rate 0.1'},
  }
  assert _series({'candidates': found}).candidates == [
    candidates.Candidate(text='global'),
    candidates.Candidate(3, 'epochs', 'rate 0.1', '3 epochs, rate 0.1'),
  ]


@pytest.mark.parametrize(
  ('attributes', 'name', 'key'),
  [
    ({}, 'FedAvg + fine-tuning', 'finetuning'),
    ({'row': 'FL, flat'}, 'FL, flat', 'FL, flat'),
    ({'label': 'x=1'}, 'FedAvg + fine-tuning (x=1)', 'finetuning (x=1)'),
  ],
)
def test_names(attributes, name, key):
  series = _series({}, **attributes)
  assert (series.name, series.key) == (name, key)


def test_statistics_over_repeats():
  summary = repeats.summarize(
    [_series({'test': {'mean': 1.0}}, {'test': {'mean': 3.0}})]
  )
  found = summary['methods']['finetuning']
  assert found['mean'] == {
    'mean': 2,
    'deviation': pytest.approx(2**0.5),
    'values': [1, 3],
  }
  assert found['hurt'] == {
    'mean': None,
    'deviation': None,
    'values': [None, None],
  }
