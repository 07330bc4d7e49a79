"""Tests of the figures that compare methods."""

from experiments.reporting.figures import methods
from tests.experiments import made_up_folders
from tests.experiments.reporting.figures import described


def _measured(name, parameters, mean):
  return made_up_folders.series(
    name, communication={'total_parameters': parameters}, test={'mean': mean}
  )


def test_communication_has_a_point_for_each_number_of_rounds():
  (drawn,) = methods.communication(
    [[_measured('fedavg', 1e6, 0.4)], [_measured('fedavg', 2e6, 0.5)]]
  )
  assert described.lines(drawn) == {'FedAvg': [[1e6, 0.4], [2e6, 0.5]]}


def test_fractions():
  drawn = methods.draw_fractions(
    'evaluation_fractions',
    methods.make_curves({'finetuning': {1.0: [0.1], 0.25: [0.4]}}),
    'part of the evaluation set',
    'clients hurt',
    higher_is_better=False,
  )
  assert described.lines(drawn) == {
    'FedAvg + fine-tuning': [[0.25, 0.4], [1, 0.1]]
  }
  text = described.texts(drawn)
  for part in ('25%', '40%', 'part of the evaluation set', 'lower is better'):
    assert part in text


def test_a_method_that_has_nothing_less_is_a_level():
  local, ditto = (
    made_up_folders.series(
      name,
      test={'mean': 1.0},
      personalization_fractions={'0.5': {'mean': half}},
    )
    for name, half in (('local', 3.0), ('ditto', 1.0))
  )
  (drawn,) = methods.parts([local, ditto])
  assert drawn.name == 'personalization_fractions'
  assert described.lines(drawn) == {
    'Local': [[0.5, 3], [1, 1]],
    'Ditto (trained on all)': [[0.5, 1], [1, 1]],
  }


def test_only_methods_that_have_all_numbers_are_drawn():
  one = made_up_folders.series(
    'local', test={'mean': 1}, personalization_fractions={'0.5': {'mean': None}}
  )
  assert not [*methods.parts([one])]


def test_numbers_have_the_texts_of_their_ticks():
  drawn = methods.draw_against(
    'privacy',
    methods.make_curves({'fedavg': {0.5: [0.4, 0.6], 6: [0.1, 0.1]}}),
    'ε',
    {0.5: 'half', 6: 'six\ntimes'},
    'squared error',
    higher_is_better=False,
  )
  assert described.lines(drawn) == {'FedAvg': [[0.5, 0.5], [6, 0.1]]}
  assert drawn.spec['encoding']['x']['scale']['type'] == 'log'
  text = described.texts(drawn)
  for part in ('half', 'six', 'times', 'ε', 'lower is better'):
    assert part in text


def test_tuning():
  series = [
    made_up_folders.series(
      name, tuning={'all': {'mean': 1}, 'each': {'mean': 2}}
    )
    for name in ('ditto', 'apfl')
  ]
  (drawn,) = methods.tuning(series)
  assert 'one for all' in described.texts(drawn)
  found = described.lines(drawn)
  assert [y for _, y in found['Ditto']] == [1, 2]
  # Equal points are beside each other.
  assert all(
    left[0] < right[0] for left, right in zip(found['Ditto'], found['APFL'])
  )


def test_acceptance():
  none, all_of_them = {'mean': 3, 'hurt': 0}, {'mean': 2, 'hurt': 0.4}
  measured = {
    'before': none,
    'test': all_of_them,
    'acceptance': {'margin': {'test': none}},
  }
  (drawn,) = methods.acceptance(
    [made_up_folders.series('ditto', **measured), made_up_folders.series()]
  )
  assert [y for _, y in described.lines(drawn, 'accuracy')['Ditto']] == [
    3,
    2,
    3,
  ]
  assert described.lines(drawn, 'clients hurt')['Ditto'][1] == [1, 0.4]
  text = described.texts(drawn)
  for part in ('nobody', 'everybody', 'better held', 'clients hurt'):
    assert part in text
  assert not [*methods.acceptance([made_up_folders.series()])]
