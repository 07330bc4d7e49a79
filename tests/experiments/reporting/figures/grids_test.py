"""Tests of the figures of grids."""

import math
import pathlib

import pytest

from experiments.reporting import sources
from experiments.reporting.figures import grids
from tests.experiments import made_up_folders
from tests.experiments.reporting.figures import described


def _points():
  return [
    made_up_folders.point(
      rate * momentum * size,
      **{'task.alpha': rate},
      momentum=momentum,
      size=size,
    )
    for rate in (0.1, 1.0, math.nan)
    for momentum in (0.5, 0.9)
    for size in (1, 2)
  ]


def _drawn_points():
  return [
    made_up_folders.point(
      0.01 * i,
      rate=0.001 * 1.4**i,
      momentum=0.05 * (7 * i % 20),
      size=(10, 20)[i % 2],
    )
    for i in range(20)
  ]


def _draw(points):
  return grids.draw_grid(sources.Grid(pathlib.Path('grid'), points, []))


@pytest.mark.parametrize(
  ('points', 'number', 'text'),
  [
    (_points(), 4, 'task.alpha'),
    ([made_up_folders.point(r, rate=r) for r in (1, 2)], 1, 'validation'),
    (_drawn_points(), 4, 'momentum'),
  ],
)
def test_every_pair_of_settings_and_all_together(points, number, text):
  drawn = _draw(points)
  assert len(drawn) == number
  assert text in described.texts(drawn[0])
  described.texts(drawn[-1])


def test_a_heat_map_has_the_best_of_what_else_differs():
  drawn = _draw(_points())[0]
  cells = {
    (row['task.alpha'], row['momentum']): row['validation']
    for row in drawn.data
  }
  assert cells['1', '0.9'] == 1.8
  assert cells['nan', '0.9'] is None


def test_settings_that_were_drawn_have_axes_of_numbers():
  drawn = _draw(_drawn_points())[0]
  encoding = drawn.spec['encoding']
  assert encoding['x']['field'] == 'rate'
  assert encoding['x']['scale'] == {'type': 'log'}
  assert encoding['y']['scale'] == {'zero': False}
  assert drawn.data[0]['rate'] == 0.001
