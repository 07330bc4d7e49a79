"""Tests of what a grid's file says."""

import tomllib

from absl.testing import absltest
from absl.testing import parameterized

from base import errors
from experiments import reproduce
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


class GridFileTest(parameterized.TestCase):
  def test_all_combinations_of_all_methods(self):
    grid = _parse(_TEXT)
    self.assertLen(grid.points, 2 * 2 * 3 + 1)
    self.assertLen(set(map(str, grid.points)), 2 * 2 * 3 + 1)
    self.assertEqual(
      str(grid.points[1]),
      'fedavg total_rounds=7 client_learning_rate=0.01 server_learning_rate=3',
    )

  def test_a_point_has_the_presets_settings_but_for_its_own(self):
    grid = _parse(_TEXT)
    config = grid.config(grid.points[-2], 1100)
    self.assertEqual(config.task, 'school')
    self.assertEqual(config.options.batch_size, 32)
    self.assertEqual(config.options.total_rounds, 7)
    self.assertEqual(config.options.seed, 1100)
    self.assertEqual(list(config.hyperparameters), ['ditto'])
    self.assertEqual(config.hyperparameters['ditto'].server_learning_rate, 10)

  @parameterized.parameters(
    ('', 'has no [[grid]]'),
    ('repeat = [1]', "Unknown key 'repeat'. Did you mean 'repeats'?"),
    ('repeats = 3', 'repeats must be a list, not 3'),
    ('repeats = [1, 1]', 'a list of different seeds'),
    ('repeats = [-1]', 'a list of different seeds'),
    ('[[grid]]\nvalues = {}', 'grid 1 must name its algorithms'),
    (
      '[[grid]]\nalgorithms = ["fedavg"]\nvalues = {client_learning_rate = 1}',
      'client_learning_rate must be a list of the values to try, not 1',
    ),
    ('[[grid]]\nalgorithm = ["fedavg"]', "'algorithm'. Did you mean"),
  )
  def test_what_is_no_grid(self, text, message):
    with self.assertRaises(errors.UserError) as caught:
      _parse(text)
    self.assertIn(message, str(caught.exception))

  @parameterized.parameters(
    ('algorithms = ["fedavrg"]', "Did you mean 'fedavg'?"),
    (
      'algorithms = ["fedavg"]\nvalues = {client_learning_rat = [1]}',
      'g.toml: values',
    ),
    (
      'algorithms = ["fedavg"]\nsettings = {client_learning_rate = -1}',
      'at least 0',
    ),
  )
  def test_a_point_that_cannot_be(self, text, message):
    grid = _parse(f'[[grid]]\n{text}')
    with self.assertRaises(errors.UserError) as caught:
      grid.config(grid.points[0], 0)
    self.assertIn(message, str(caught.exception))


class TablesTest(parameterized.TestCase):
  @parameterized.parameters(*((name,) for name in reproduce.table_names()))
  def test_every_point_can_be(self, name):
    table = reproduce.read_table(name)
    for grid in (table.whole, table.best):
      keys = {grid.config(point, 1).digest() for point in grid.points}
      self.assertLen(keys, len(grid.points))
    methods = {point.algorithm for point in table.whole.points}
    self.assertEqual(methods, set(table.published))
    self.assertEqual(methods, {point.algorithm for point in table.best.points})

  @parameterized.parameters(*((name,) for name in reproduce.table_names()))
  def test_the_best_points_are_points_of_the_grids(self, name):
    table = reproduce.read_table(name)
    all_keys = {
      table.whole.config(point, 1).digest() for point in table.whole.points
    }
    for point in table.best.points:
      key = table.best.config(point, 1).digest()
      self.assertTrue(key in all_keys, point)  # Without showing all of them.

  def test_schools_grids_are_motleys(self):
    grid = reproduce.read_table('motley_school').whole
    sizes = {}
    for point in grid.points:
      sizes[point.algorithm] = sizes.get(point.algorithm, 0) + 1
    self.assertEqual(
      sizes,
      dict(
        local=5,
        fedavg=25,
        finetuning=25 * 10,
        hypcluster=25 * 3 * 2,
        ensemble=25 * 3,
        knn_per=25 * 7,
        ditto=25 * 5 * 7,
        mocha=5 * 7 * 3,
      ),
    )
    self.assertEqual(grid.repeats, (100, 1100, 2100, 3100, 4100))


if __name__ == '__main__':
  absltest.main()
