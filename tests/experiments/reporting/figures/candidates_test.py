"""Tests of the figures of candidates."""

import math

import pytest

from experiments.reporting import looks
from experiments.reporting.figures import candidates
from tests.experiments import made_up_folders
from tests.experiments.reporting.figures import described


def _epochs(*numbers, label=''):
  return [(f'{k} epochs, {label}', k, 'epochs', label) for k in numbers]


def _series(names, method='finetuning', **measured):
  found = {
    name: dict(value=value, unit=unit, label=label)
    | {
      measure: values[k]
      for measure, values in measured.items()
      if isinstance(values, (list, range))
    }
    for k, (name, value, unit, label) in enumerate(names)
  }
  return made_up_folders.series(
    method,
    candidates=found,
    chosen=measured.get('chosen', {}),
    higher_is_better=measured.get('higher_is_better', False),
    metric='loss',
  )


_NAMES = _epochs(0, 1, 2)
_MEASURED = dict(
  test=[3, 2, 4], validation=[2.5, 1.5, 3], test_hurt=[0, 0.25, 0.5]
)


def _draw(names=_NAMES, **measured):
  (drawn,) = candidates.curves([_series(names, **(measured or _MEASURED))])
  return drawn


def test_means_and_shares_hurt_by_the_number_of_a_candidate():
  drawn = _draw()
  assert described.lines(drawn, 'loss') == {
    'test': [[0, 3], [1, 2], [2, 4]],
    'validation': [[0, 2.5], [1, 1.5], [2, 3]],
  }
  assert described.lines(drawn, 'clients hurt') == {
    'test': [[0, 0], [1, 0.25], [2, 0.5]]
  }
  text = described.texts(drawn)
  for part in ('FedAvg + fine-tuning', 'epochs', 'loss', '(lower is better)'):
    assert part in text


def test_the_chosen_one_is_marked():
  drawn = _draw(**_MEASURED, chosen={'1 epochs, ': 4})
  assert described.lines(drawn, 'loss')['chosen'] == [[1, 2]]
  assert described.lines(drawn, 'clients hurt')['chosen'] == [[1, 0.25]]


def test_candidates_that_differ_in_more_are_several_curves():
  names = [
    *_epochs(0),
    *_epochs(1, label='rate 0.1'),
    *_epochs(1, label='rate 1e-05'),
  ]
  assert described.lines(_draw(names), 'loss') == {
    'rate 0.1': [[0, 3], [1, 2]],
    'rate 1e-05': [[0, 3], [1, 4]],
  }


def test_candidates_without_a_number_are_left_out():
  drawn = _draw([('global', None, '', ''), *_epochs(0, 1, label='mine')])
  assert described.lines(drawn, 'loss')['test'] == [[0, 2], [1, 4]]


def test_coefficients():
  drawn = _draw([(f'{c}', c, 'coefficient', '') for c in (0, 0.5, 1)])
  assert described.lines(drawn, 'loss')['test'] == [[0, 3], [0.5, 2], [1, 4]]
  assert 'coefficient' in described.texts(drawn)


def test_without_a_baseline_nobody_is_hurt():
  assert 'layer' in _draw(test=[3, 2, 4]).spec


def test_two_candidates_are_no_curve():
  assert not [*candidates.curves([_series(_epochs(0, 1), **_MEASURED)])]


def test_the_first_epochs_do_not_spoil_the_axis():
  means = [50.0] + [1 + 0.01 * k for k in range(9)]
  drawn = _draw(_epochs(*range(10)), test=means)
  assert drawn.spec['encoding']['y']['scale']['domain'][1] < 1.2
  assert drawn.omitted == 'not shown: up to 50'


def test_rates_have_no_color_of_a_method():
  names = _epochs(0) + [
    name for k in range(5) for name in _epochs(1, 2, label=f'rate {k}')
  ]
  drawn = _draw(names, test=[*range(11)])
  colors = drawn.spec['layer'][1]['encoding']['fill']['scale']['range']
  assert len(set(colors)) == 5
  assert set(colors).isdisjoint(looks.COLORS)


class TestOutOfDistribution:
  def draw(self, *series):
    (drawn,) = candidates.ood(series)
    return described.lines(drawn)

  def series(self, names, own, others, method='local', higher=True):
    return _series(
      names,
      method,
      test=own,
      out_of_distribution=others,
      higher_is_better=higher,
    )

  def test_own_examples_against_those_of_all(self):
    found = self.draw(
      self.series(_epochs(0, 1), [0.4, 0.6], [0.5, 0.3]),
      self.series([('global', None, '', '')], [0.4], [0.5], 'fedavg'),
    )
    assert found == {'Local': [[0.4, 0.5], [0.6, 0.3]], 'FedAvg': [[0.4, 0.5]]}

  def test_of_many_epochs_the_first_and_some_later_ones(self):
    numbers = range(1, 101)
    found = self.draw(
      self.series(_epochs(*numbers), [*numbers], [-k for k in numbers])
    )
    places = [x for x, _ in found['Local']]
    assert (places[:3], places[-1], len(places)) == ([1, 2, 4], 100, 11)

  def test_what_is_far_worse_than_any_method_is_left_out(self):
    """By more than half of what is between the methods' bests."""
    numbers = [*range(11)]
    for higher, other, place, end in (
      (True, 8, 0, [7, -7]),
      (False, 4, -1, [6, -6]),
    ):
      found = self.draw(
        self.series(
          _epochs(*numbers), numbers, [-k for k in numbers], higher=higher
        ),
        self.series(
          [('', None, '', '')], [other], [8], 'fedavg', higher=higher
        ),
      )
      assert found['Local'][place] == end

  def test_of_several_curves_that_of_the_best(self):
    names = [
      *_epochs(0),
      *_epochs(1, label='rate 1'),
      *_epochs(1, label='rate 2'),
    ]
    found = self.draw(self.series(names, [0.4, 0.5, 0.7], [0, 1, 2]))
    assert found['Local'] == [[0.4, 0], [0.7, 2]]

  def test_of_what_diverged_there_is_the_name(self):
    name = [('global', None, '', '')]
    found = self.draw(
      self.series(name, [math.nan], [math.nan], 'a'),
      self.series(name, [0.4], [0.5], 'b'),
    )
    assert [*found] == ['a (diverged)', 'b']

  def test_without_such_examples_there_is_no_figure(self):
    assert not [*candidates.ood([_series(_NAMES, **_MEASURED)])]


@pytest.mark.parametrize('number', [1, 2])
def test_a_single_curve_has_the_color_of_its_method(number):
  names = [n for k in range(number) for n in _epochs(1, 2, label=f'rate {k}')]
  drawn = _draw(
    [*names, ('global', None, '', '')], test=[*range(2 * number + 1)]
  )
  colors = drawn.spec['transform'][0]['calculate']
  assert (looks.look('finetuning').color in colors) == (number == 1)
