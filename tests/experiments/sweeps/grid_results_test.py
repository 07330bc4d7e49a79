"""Tests of the results of a grid, and of the best of them."""

import numpy as np
import pytest

from experiments.sweeps import grid_file
from experiments.sweeps import grid_results


def _record(point, seed, validation, **fields):
  return dict(
    algorithm=point.algorithm,
    seed=seed,
    validation=validation,
    metric='accuracy',
    chosen_by='accuracy',
    higher_is_better=True,
    test=[0.5, 0.7],
    **fields,
  )


class TestResults:
  @pytest.fixture(autouse=True)
  def _set_up(self):
    self.points = [
      grid_file.Point('fedavg', {'rate': rate}, {}) for rate in (1, 2, 3)
    ]

  def best(self, *validation, **fields):
    results = [
      grid_results.summarize(
        point, [_record(point, s, v, **fields) for s, v in enumerate(repeats)]
      )
      for point, repeats in zip(self.points, validation)
    ]
    return grid_results.best(results)

  @pytest.mark.parametrize(
    ('validation', 'rate'),
    [
      ([(0.2, 0.3), (0.1, 0.5), (0.2, 0.3)], 2),
      ([(0.2, 0.3), (0.2, 0.3), (0.3, 0.2)], 1),
      ([(0.2, 0.3), (0.9, None), (0.1, 0.3)], 1),
    ],
  )
  def test_the_best_is_chosen_by_validation(self, validation, rate):
    assert self.best(*validation)['fedavg'].point.values['rate'] == rate

  def test_a_missing_repeat_is_no_winner(self):
    record = _record(self.points[0], 0, 0.9)
    result = grid_results.summarize(self.points[0], [record, None])
    assert not grid_results.best([result])

  def test_a_row_diverged_if_all_of_its_points_did(self):
    diverged, missing = (
      grid_results.summarize(point, records)
      for point, records in (
        (self.points[0], [_record(self.points[0], 0, None)]),
        (self.points[1], [None]),
      )
    )
    assert grid_results.diverged([diverged]) == {'fedavg'}
    assert not grid_results.diverged([diverged, missing])

  def test_a_point_that_diverged_on_a_test_client_is_no_winner(self):
    records = [_record(point, 0, 0.9) for point in self.points[:2]]
    records[0]['test'] = [0.5, None]
    results = [
      grid_results.summarize(point, [record])
      for point, record in zip(self.points, records)
    ]
    assert [result.validation for result in results] == [None, 0.9]
    assert grid_results.best(results)['fedavg'].point is self.points[1]

  def test_results_are_written_after_all_other_files(self):
    contents = grid_file.GridFile('grid', None, (0,), None, ())
    point = grid_file.Point('fedavg', {'batch_size': 5}, {})
    result = grid_results.summarize(point, [_record(point, 0, 0.9)])
    made = grid_results.files(contents, [result], {'fedavg': result})
    assert list(made) == ['points.csv', 'fedavg.toml', 'results.json']

  def test_over_repeats(self):
    records = [
      _record(self.points[0], 0, 0.9, hurt=0.1) | dict(test=[0.1, 0.3]),
      _record(self.points[0], 1, 0.9, hurt=0.3) | dict(test=[0.4, 0.8]),
    ]
    result = grid_results.summarize(self.points[0], records)
    np.testing.assert_allclose(result.statistic('mean'), (0.4, 0.2))
    np.testing.assert_allclose(result.statistic('deviation'), (0.15, 0.05))
    np.testing.assert_allclose(result.statistic('hurt'), (0.2, 0.1))
    assert result.statistic('largest_cluster') is None
