"""Tests of figures of lines."""

import math
import time

import numpy as np
import pytest
import vl_convert

from experiments.reporting import looks
from experiments.reporting.figures import lines
from experiments.reporting.figures import scales
from tests.experiments.reporting.figures import described

_X = scales.number('x', 'round')


def _curve(method, *values):
  points = [
    ([k], value if isinstance(value, list) else [value])
    for k, value in enumerate(values, 1)
  ]
  return lines.Curve(method, looks.look(method), points)


def _draw(*panels, **options):
  return lines.draw('name', 'Title', panels, _X, **options)


def _marks(view):
  kinds = [layer['mark'] for layer in view['layer']]
  return [kind if isinstance(kind, str) else kind['type'] for kind in kinds]


def test_a_panel_for_each_measure_and_a_line_for_each_method():
  drawn = _draw(
    lines.Panel(['loss'], [_curve('ditto', 2, 1), _curve('fedavg', 3)]),
    lines.Panel(['dropped'], [_curve('fedavg', 0.25)], is_share=True),
  )
  assert described.lines(drawn, 'loss') == {
    'ditto': [[1, 2], [2, 1]],
    'fedavg': [[1, 3]],
  }
  assert described.lines(drawn, 'dropped') == {'fedavg': [[1, 0.25]]}
  text = described.texts(drawn)
  for part in ('loss', 'dropped', '25%', 'round', 'ditto', 'fedavg'):
    assert part in text


@pytest.mark.parametrize('has_marks', [True, False])
def test_each_method_is_once_in_the_legend_in_its_look(has_marks):
  panel = lines.Panel(['loss'], [_curve('ditto', 2, 1), _curve('fedavg', 9, 4)])
  drawn = _draw(panel, panel, has_marks=has_marks)
  assert described.texts(drawn).count('ditto') == 1
  svg = drawn.files()['svg'].decode()
  assert f'stroke="{looks.look("ditto").color}"' in svg


def test_repeats_are_their_mean_and_deviation():
  drawn = _draw(lines.Panel(['loss'], [_curve('ditto', [1.0, 3.0])]))
  (row,) = drawn.data
  assert row['value'] == 2
  assert (row['value from'], row['value to']) == pytest.approx(
    (2 - 2**0.5, 2 + 2**0.5), rel=1e-5
  )
  assert _marks(drawn.spec)[0] == 'errorbar'


def test_a_deviation_of_shares_does_not_leave_the_axis():
  drawn = _draw(lines.Panel(['hurt'], [_curve('a', [0.0, 0.5])], is_share=True))
  assert drawn.data[0]['value from'] == 0
  assert drawn.spec['encoding']['y']['scale']['domain'][0] == 0


def test_panels_have_the_same_rounds():
  panels = [
    lines.Panel([name], [_curve('a', *range(number))])
    for name, number in (('loss', 3), ('hurt', 9))
  ]
  vega = vl_convert.vegalite_to_vega(_draw(*panels).to_spec())
  # A scale of the whole figure, and not of each panel.
  assert 'x' in [scale['name'] for scale in vega['scales']]


def test_long_lines_have_marks_on_some_points():
  drawn = _draw(lines.Panel(['loss'], [_curve('a', *range(100))]))
  assert [row['place'] for row in drawn.data if row.get('size') != 0] == [
    *range(0, 100, 4)
  ]


def test_long_lines_have_a_band():
  values = [[1.0 + k, 2.0 + k] for k in range(30)]
  drawn = _draw(lines.Panel(['loss'], [_curve('a', *values)]), has_marks=False)
  assert _marks(drawn.spec) == ['area', 'line']


def test_a_line_that_another_hides_is_wider():
  panel = lines.Panel(
    ['loss'], [_curve('a', 3, 2), _curve('b', 3, 2), _curve('c', 9, 9)]
  )
  drawn = _draw(panel, has_marks=False)
  assert [row.get('hidden', 0) for row in drawn.data] == [1, 1, 0, 0, 0, 0]
  svg = drawn.files()['svg'].decode()
  color = looks.look('a').color
  assert f'stroke="{color}" stroke-width="4.4"' in svg


def test_many_rounds_of_many_methods_are_drawn_at_once():
  values = np.sin(np.arange(300.0)).tolist()
  start = time.monotonic()
  _draw(lines.Panel(['loss'], [_curve(f'm{k}', *values) for k in range(20)]))
  assert time.monotonic() - start < 20


def test_a_point_that_another_hides_has_a_ring():
  panel = lines.Panel(
    ['loss'], [_curve('a', 3), _curve('b', 3), _curve('c', 9)]
  )
  assert _marks(_draw(panel).spec) == ['line', 'point', 'point']
  (one,) = [row['method'] for row in _draw(panel).data if row.get('hidden')]
  assert one == 'a'


def test_what_diverged_does_not_spoil_the_axis():
  drawn = _draw(
    lines.Panel(
      ['loss'],
      [
        _curve('a', *np.linspace(2, 1, 30)),
        _curve('b', 2, 1e12, 1e30, math.inf, math.nan),
        _curve('c', math.nan, math.nan),
      ],
    )
  )
  assert drawn.spec['encoding']['y']['scale']['domain'][1] < 10
  assert drawn.omitted == 'not shown: up to 1e+30'
  text = described.texts(drawn)
  assert 'c (diverged)' in text
  assert 'not shown: up to 1e+30' in text


def test_configurations_of_a_method_differ_in_color():
  names = {f'FedAvg (x={k})': 'fedavg' for k in range(11)}
  found = lines.distinguish_looks(names)
  assert len({look.color for look in found.values()}) == 11
  assert {look.line for look in found.values()} == {looks.SOLID}
  assert lines.distinguish_looks({'a': 'fedavg', 'b': 'ditto'}) == {
    'a': looks.look('fedavg'),
    'b': looks.look('ditto'),
  }
