"""Tests of FedPC's tables, on records of a few users."""

import json
import math

import numpy as np
import pytest

from algorithms import aggregation
from algorithms import registry
from experiments.configuration import configs
from experiments.reproduction import fedpc
from experiments.reproduction import tables
from experiments.sweeps import grid_file
from experiments.sweeps import grid_results
from tests.algorithms import prompting
from tests.experiments.reproduction import finished

_MODELS = {
  'prompt': prompting.MODEL,
  'two_heads': prompting.WITH_TWO_HEADS,
  'generated_once': prompting.GENERATED,
  'head': prompting.WITH_HEAD,
}
_AMOUNTS = ('1 example', '5 examples', '15 examples', 'all examples')
_USERS = list('abcd')
_TABLE = finished.table(
  ['FedPC', 'Meta', 'Generated'],
  crossed={'users': {'known': {}, 'withheld': {}}},
  published={'FedPC': {'known, 1': 57.2}, 'Frozen': {'known, 1': 50.3}},
)


def _candidate(pooled, spread=1.0):
  """The record of a candidate; the perplexities of users vary a little."""
  users = [pooled and pooled * 1.01 ** (spread * i) for i in range(len(_USERS))]
  return {'pooled': pooled, 'test': users}


def _record(of_amounts, frozen_weights=1_000, seconds=None):
  candidates = {
    'pretrained': _candidate(90.0),
    '0 updates': _candidate(80.0),
    **{
      f'15 updates, {amount}': _candidate(value, 1 + 0.1 * i)
      for i, (amount, value) in enumerate(zip(_AMOUNTS, of_amounts))
    },
  }
  return {
    'seed': 0,
    'clients': _USERS,
    'candidates': candidates,
    'training_seconds': 0.25,
    'evaluation_seconds': seconds,
    'frozen_weights': frozen_weights,
    'validation': 1.0,
    'test': [80.0] * len(_USERS),
  }


def _point(name, *records):
  return grid_results.summarize(grid_file.Point(name, {}, {}), records)


def _winners(**changes):
  falling, flat = (70.0, 60.0, 55.0, 50.0), (75.0, 75.5, 74.5, 75.0)
  return {
    'FedPC_known': _point('fedpc', _record(falling, **changes)),
    'FedPC_withheld': _point(
      'fedpc', _record(falling, seconds=0.5), _record((72.0, 60, 55, 52.0))
    ),
    'Meta_withheld': _point('fedprox', _record(flat)),
    'Generated_withheld': _point('fedpc_generated', _record(flat)),
  }


def _show(folder, winners):
  return fedpc.show(fedpc.FEDPC, _TABLE, finished.Grid(winners), folder)


def test_a_figure_is_the_perplexity_of_all_users_at_each_k(tmp_path):
  figures = _show(tmp_path, _winners())
  assert figures['FedPC']['known'] == {'1': 70, '5': 60, '15': 55, 'all': 50}
  assert figures['FedPC']['withheld']['all'] == 51.0
  assert set(figures['Meta']) == {'withheld'}


def test_frozen_is_the_same_for_all_k(tmp_path):
  figures = _show(tmp_path, _winners())
  assert set(figures['Frozen']['known'].values()) == {80.0}
  assert set(figures['Pretrained']['withheld'].values()) == {90.0}


@pytest.mark.parametrize('number, is_there', [(81_912_576, 1), (1_858_304, 0)])
def test_published_figures_are_beside_those_of_distilgpt2(
  tmp_path, capsys, number, is_there
):
  _show(tmp_path, _winners(frozen_weights=number))
  printed = capsys.readouterr().out
  for published in ('(57.2)', '(50.3)'):
    assert (published in printed) == bool(is_there)


def test_claims_are_decided_by_the_intervals_over_users(tmp_path, capsys):
  _show(tmp_path, _winners())
  written = json.loads((tmp_path / 'comparisons.json').read_text())
  found = {
    (claim['text'], claim['users']): claim for claim in written['claims']
  }
  improves = found['FedPC improves with k', 'withheld']
  assert improves['holds']
  # The users vary .3 times more.
  ratio = math.sqrt(50 / 70 * 52 / 72) * 1.01 ** (0.3 * 1.5)
  np.testing.assert_allclose(improves['ratio'], ratio, rtol=1e-6)
  assert (improves['users_lower'], improves['users_higher']) == (4, 0)
  assert found['Meta does not improve with k', 'withheld']['holds']
  assert found['Generated hardly changes with k', 'withheld']['holds']
  assert found['FedPC is better than Meta at k = all', 'withheld']['holds']
  worse = found['Generated is better than FedPC at k = 1', 'withheld']
  assert not worse['holds']
  # What was not run is not claimed.
  assert ('FedPC is better than Meta at k = all', 'known') not in found
  printed = capsys.readouterr().out
  assert 'holds: FedPC improves with k, withheld users (ratio 0.7' in printed
  assert 'does not hold: Generated is better than FedPC at k = 1' in printed


def test_times_are_of_a_user(tmp_path, capsys):
  _show(tmp_path, _winners())
  lines = capsys.readouterr().out.splitlines()
  rows = [line.split() for line in lines if line.split()[:1] == ['FedPC']]
  assert rows[-1][1:] == ['250.0', '500.0']


def test_what_diverged_has_no_figure(tmp_path):
  winners = {'FedPC_known': _point('fedpc', _record((70.0, 60, 55, None)))}
  assert _show(tmp_path, winners)['FedPC']['known']['all'] is None


@pytest.mark.parametrize('name', ['fedpc_shakespeare', 'fedpc_tv'])
def test_each_method_has_a_candidate_for_each_k(name):
  table = tables.read(name)
  for point in table.whole.points:
    config = configs.resolve(table.whole.request(point, 0))
    (method_name,) = config.method_settings
    method = registry.build(
      method_name,
      _MODELS[config.task_settings.trained],
      config.method_settings[method_name],
      aggregation.mean(),
      ('evaluation',),
    )
    names = [candidate.name for candidate in method.candidates]
    row = fedpc.find_candidates(names)
    amounts = [k for k in row if k in fedpc.FEDPC.amounts]
    assert len(set(row.values())) == len(row)
    assert amounts == ['1', '5', '15', 'all']
    for source, candidate in fedpc.FEDPC.derived.values():
      assert not point.name.startswith(f'{source}_') or candidate in names


def test_adapters_are_compared_with_a_control(tmp_path):
  """The control adapts to nothing, so that it is in the column of k = 0."""
  rows = ['FedIT', 'FedSA', 'Control']
  table = finished.table(rows, crossed={'users': {'known': {}}})
  records = {
    name: _record(values)
    for name, values in (
      ('FedIT', (70.0, 60.0, 55.0, 65.0)),
      ('FedSA', (70.0, 60.0, 55.0, 50.0)),
      ('Control', (80.0, 80.0, 80.0, 80.0)),
    )
  }
  of_control = {
    '0 updates': _candidate(60.0),
    '1 update, 1 example': _candidate(60.0),
  }
  records['Control']['candidates'] = of_control
  winners = {
    f'{name}_known': _point(name, record) for name, record in records.items()
  }
  figures = fedpc.show(fedpc.ADAPTERS, table, finished.Grid(winners), tmp_path)
  assert figures['Alone']['known']['0'] == 90
  claims = json.loads((tmp_path / 'comparisons.json').read_text())['claims']
  holds = {claim['text']: claim['holds'] for claim in claims}
  assert holds['FedIT gains by adapting']
  assert not holds['FedIT is better than the control']
  assert holds['FedSA is better than the control']
  assert holds['FedSA is better than FedIT']
  assert not [text for text in holds if text.startswith(('Alone', 'Control'))]
