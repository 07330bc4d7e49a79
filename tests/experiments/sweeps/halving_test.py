"""Tests of successive halving."""

import tomllib

import pytest

from base import errors
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from experiments.sweeps import halving

_TEXT = """
preset = "synthetic"
halving = {first_rounds = 10, factor = 3}
[[grid]]
algorithms = ["fedavg", "ditto"]
settings = {total_rounds = 100}
[grid.values]
client_learning_rate = [1, 2, 3, 4, 5, 6, 7, 8, 9]
"""


def _climb(text, validation):
  """Returns the rates and rounds of the points of each rung.

  Args:
    text: The grid.
    validation: From a method and a rate to an accuracy.
  """
  yielded = []

  def last_results():
    return [
      grid_results.PointResult(
        point,
        ({'higher_is_better': True, 'chosen_by': 'a', 'metric': 'a'},),
        validation(point.algorithm, point.values['client_learning_rate']),
      )
      for point in yielded[-1].points
    ]

  grid = grid_file.parse(tomllib.loads(text), 'g.toml')
  climbed = []
  for rung in halving.rungs(grid, last_results):
    yielded.append(rung)
    rows = {}
    for point in rung.points:
      values = point.values
      key = point.algorithm, values['total_rounds']
      rows.setdefault(key, []).append(values['client_learning_rate'])
    climbed.append(rows)
  return climbed


def test_the_best_third_of_each_method_goes_on_with_three_times_the_rounds():
  signs = {'fedavg': 1, 'ditto': -1}
  climbed = _climb(_TEXT, lambda method, rate: signs[method] * rate)
  all_rates = list(range(1, 10))
  assert climbed == [
    {('fedavg', 11): all_rates, ('ditto', 11): all_rates},
    {('fedavg', 33): [7, 8, 9], ('ditto', 33): [1, 2, 3]},
    {('fedavg', 100): [9], ('ditto', 100): [1]},
  ]


def test_what_diverged_goes_no_further():
  climbed = _climb(
    _TEXT, lambda method, rate: rate if method == 'ditto' else None
  )
  assert list(climbed[1]) == [('ditto', 33)]
  assert len(_climb(_TEXT, lambda *_: None)) == 1


def test_there_is_one_rung_where_there_are_few_rounds():
  text = _TEXT.replace('total_rounds = 100', 'total_rounds = 5')
  (only,) = _climb(text, lambda *_: 0)
  assert sorted(only) == [('ditto', 5), ('fedavg', 5)]


def test_epochs_are_refused():
  text = _TEXT.replace('total_rounds = 100', 'total_epochs = 100')
  with pytest.raises(errors.UserError, match='needs total_rounds'):
    _climb(text, lambda *_: 0)
