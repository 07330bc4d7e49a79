"""Tests of what a grid's file says."""

import tomllib

import pytest

from base import errors
from experiments.configuration import configs
from experiments.sweeps import grid_file

_TEXT = """
preset = "school"
repeats = [100, 1100]

[[grid]]
algorithms = ["fedavg", "ditto"]
settings = {total_rounds = 7}
[grid.values]
client_learning_rate = [0.01, 0.1]
server_learning_rate = [1, 3, 10]

[[grid]]
algorithms = ["local"]
"""


def _parse(text):
  return grid_file.parse(tomllib.loads(text), 'g.toml')


def _config(grid, point, seed):
  return configs.resolve(grid.request(point, seed))


class TestGridFile:
  def test_all_combinations_of_all_methods(self):
    grid = _parse(_TEXT)
    assert len(grid.points) == 2 * 2 * 3 + 1
    assert len(set(map(str, grid.points))) == 2 * 2 * 3 + 1
    assert str(grid.points[1]) == (
      'fedavg total_rounds=7 client_learning_rate=0.01 server_learning_rate=3'
    )

  def test_a_point_has_the_presets_settings_but_for_its_own(self):
    grid = _parse(_TEXT)
    config = _config(grid, grid.points[-2], 1100)
    assert config.task == 'school'
    assert config.training.batch_size == 32
    assert config.training.total_rounds == 7
    assert config.training.seed == 1100
    assert list(config.method_settings) == ['ditto']
    assert (
      config.method_settings['ditto'].to_dict()['server_learning_rate'] == 10
    )

  def test_a_changed_grid_has_fewer_repeats_and_other_settings(self):
    grid = _parse(_TEXT).changed(1, {'task.split_seed': 3})
    assert grid.repeats == (100,)
    config = _config(grid, grid.points[0], 100)
    assert config.task_settings.split_seed == 3
    assert config.training.total_rounds == 7
    assert _parse(_TEXT).changed(None, {}) == _parse(_TEXT)

  def test_rows_are_one_method_with_different_settings(self):
    grid = _parse("""
      [rows]
      equal = {algorithm = "fedavg", settings = {client_weighting = "uniform"}}
      [[grid]]
      algorithms = ["equal", "fedavg"]
      settings = {total_rounds = 7}
    """)
    equal, fedavg = grid.points
    assert [point.name for point in grid.points] == ['equal', 'fedavg']
    assert equal.algorithm == fedavg.algorithm == 'fedavg'
    assert equal.settings == fedavg.settings | {'client_weighting': 'uniform'}

  @pytest.mark.parametrize(
    ('text', 'message'),
    [
      ('rows = {a = {}}', 'row a must name its algorithm'),
      ('rows = {"" = {algorithm = "fedavg"}}', 'a name has 1 to 100 char'),
      ('rows = {config = {algorithm = "fedavg"}}', 'config.toml is the file'),
      ('rows = {"a/b" = {algorithm = "fedavg"}}', 'a name of a file has no /'),
      ('rows = {".." = {algorithm = "fedavg"}}', 'no point at its beginning'),
      ('', 'has no [[grid]]'),
      ('repeat = [1]', "Unknown key 'repeat'. Did you mean 'repeats'?"),
      ('repeats = 3', 'repeats must be a list, not 3'),
      ('repeats = [1, 1]', 'a list of different seeds'),
      ('repeats = [-1]', 'a list of different seeds'),
      ('[[grid]]\nvalues = {}', 'grid 1 must name its algorithms'),
      (
        '[[grid]]\nalgorithms = ["fedavg"]\n'
        'values = {client_learning_rate = 1}',
        'client_learning_rate must be a list of the values to try, not 1',
      ),
      ('[[grid]]\nalgorithms = ["a", "a"]', "grid 1 names 'a' twice"),
      (
        '[[grid]]\nalgorithms = ["a"]\nvalues = {x = [1, 1.0]}',
        'grid 1: x names 1.0 twice',
      ),
      (
        '[[grid]]\nalgorithms = ["a"]\nvalues = {seed = [1, 2]}',
        'grid 1: seed cannot be set here; name repeats',
      ),
      (
        '[[grid]]\nalgorithms = ["a"]\nsettings = {algorithms = ["b"]}',
        'algorithms cannot be set here; name the algorithms of a grid',
      ),
      ('[[grid]]\nalgorithm = ["fedavg"]', "'algorithm'. Did you mean"),
      (
        '[[grid]]\nalgorithms = ["a"]\nuniform = {x = [0, 1]}',
        'Say how many points to draw, as samples = 30',
      ),
      ('[[grid]]\nalgorithms = ["a"]\nsamples = 0', 'must be at least 1'),
      (
        '[[grid]]\nalgorithms = ["a"]\nsamples = 2\nlog_uniform = {x = [0, 1]}',
        'log_uniform: x must be a list of two numbers above 0, the smaller',
      ),
      (
        '[[grid]]\nalgorithms = ["a"]\nsamples = 2\nwhole = {x = [1, 2.5]}',
        'whole: x must be a list of two whole numbers',
      ),
      (
        '[[grid]]\nalgorithms = ["a"]\nsamples = 2\nuniform = {x = [0, 1]}'
        '\nvalues = {x = [1]}',
        "grid 1 names 'x' twice",
      ),
      ('[[grid]]\nalgorithms = ["a"]\nsamples = 2', 'no values or bounds'),
      (
        'halving = {factor = 3}\n[[grid]]\nalgorithms = ["a"]',
        'halving must name its first_rounds',
      ),
      (
        'halving = {first_rounds = 0}\n[[grid]]\nalgorithms = ["a"]',
        'g.toml: halving: first_rounds must be at least 1',
      ),
    ],
  )
  def test_what_is_no_grid(self, text, message):
    with pytest.raises(errors.UserError) as caught:
      _parse(text)
    assert message in str(caught.value)

  def test_values_can_be_in_tables(self):
    (point,) = _parse("""
      [[grid]]
      algorithms = ["fedavg"]
      [grid.values.task]
      alpha = [0.5]
    """).points
    assert point.values == {'task.alpha': 0.5}

  def test_all_methods_have_the_same_samples_and_more_begin_alike(self):
    text = """
      [[grid]]
      algorithms = ["fedavg", "ditto"]
      samples = {}
      [grid.values]
      batch_size = [5, 10]
      [grid.log_uniform]
      client_learning_rate = [0.001, 1]
    """
    points = _parse(text.format(4)).points
    values = [point.values for point in points]
    assert len(points) == 8
    assert values[:4] == values[4:]
    more = _parse(text.format(6)).points
    assert [point.values for point in more[:4]] == values[:4]

  def test_a_large_grid_says_that_it_is_meant(self):
    values = ', '.join(f'{name} = {list(range(101))}' for name in 'xyz')
    grid = f'[[grid]]\nalgorithms = ["a"]\nvalues = {{{values}}}'
    with pytest.raises(errors.UserError, match='by most_runs = 1030301'):
      _parse(grid)
    pair = grid.replace('z =', '# z =').replace(', #', '} #')
    with pytest.raises(errors.UserError, match='has 20402 runs'):
      _parse('repeats = [1, 2]\n' + pair)
    few = _parse('most_runs = 20402\nrepeats = [1, 2]\n' + pair)
    assert len(few.points) == 10201

  @pytest.mark.parametrize(
    ('text', 'message'),
    [
      ('algorithms = ["fedavrg"]', "Did you mean 'fedavg'?"),
      (
        'algorithms = ["fedavg"]\nvalues = {client_learning_rat = [1]}',
        'g.toml: values',
      ),
      (
        'algorithms = ["fedavg"]\nsettings = {client_learning_rate = -1}',
        'at least 0',
      ),
    ],
  )
  def test_a_point_that_cannot_be(self, text, message):
    grid = _parse(f'[[grid]]\n{text}')
    with pytest.raises(errors.UserError) as caught:
      _config(grid, grid.points[0], 0)
    assert message in str(caught.value)
