"""Tests of grids whose rows are run under several conditions each."""

from experiments.reproduction import crossed_grids

_CONTENTS = {
  'preset': 'school',
  'crossed': {
    'users': {'even': {'task.even': True}, 'odd': {'task.even': False}},
    'noise': {'none': {}, 'some': {'noise': 1}},
  },
  'rows': {'Slow': {'algorithm': 'fedavg', 'settings': {'rate': 0.1}}},
  'grid': [
    {'algorithms': ['Slow'], 'values': {'rounds': [1, 2]}},
    {'algorithms': ['ditto'], 'only': {'noise': ['some'], 'users': ['odd']}},
  ],
}


def test_a_row_stands_for_one_under_each_combination():
  contents, cells = crossed_grids.expand(_CONTENTS)
  assert cells['Slow_odd_none'] == ('Slow', ('odd', 'none'))
  assert contents['rows']['Slow_even_some'] == {
    'algorithm': 'fedavg',
    'settings': {'rate': 0.1, 'task.even': True, 'noise': 1},
  }
  assert contents['grid'][0] == {
    'algorithms': [
      f'Slow_{users}_{noise}'
      for users in ('even', 'odd')
      for noise in ('none', 'some')
    ],
    'values': {'rounds': [1, 2]},
  }


def test_a_grid_can_be_for_some_conditions_alone():
  contents, cells = crossed_grids.expand(_CONTENTS)
  assert contents['grid'][1] == {'algorithms': ['ditto_odd_some']}
  assert [c.conditions for c in cells.values() if c.method == 'ditto'] == [
    ('odd', 'some')
  ]
