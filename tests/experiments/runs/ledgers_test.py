"""The ledger of a folder: what is one use, and what starts and seeds add."""

import dataclasses
import json
import math

import pytest

from base import errors
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import execution
from experiments.runs import ledgers
from experiments.runs import repeated_runs
from personalization.privacy import accounting
from personalization.privacy import ledger
from tests.experiments import small_runs
from tests.tasks import table_source

_PRIVATE = (
  'privacy.name=gaussian',
  'privacy.noise=3',
  'client_weighting=uniform',
  'client_sampling=poisson',
  'total_rounds=1',
)


def _config(*assignments, algorithms='fedavg'):
  return small_runs.config(*_PRIVATE, *assignments, algorithms=algorithms)


def _make(config):
  task = execution.load_task(config, None)
  return ledgers.make(config, execution.build_methods(config, task))


def _names(uses):
  return [use.name for use in uses]


def test_a_training_that_methods_share_is_one_use():
  uses, methods = _make(
    _config(algorithms='fedavg,finetuning,local,fedprox,ditto')
  )
  # A local training sends nothing.
  assert _names(uses) == ['fedavg', 'fedprox', 'ditto']
  one = methods['fedavg'].guarantee.epsilon
  assert ledger.add(uses[:1]).epsilon == one
  expected = accounting.poisson(3.0, 4 / 6, 3)
  delta = methods['fedavg'].guarantee.delta
  total = ledger.add(uses)
  assert total.epsilon == accounting.epsilon(expected, delta)[0] > one


@pytest.fixture(name='table')
def _table(tmp_path):
  """Returns settings of a table of groups of silos."""
  path = table_source.write(tmp_path / 't.csv', table_source.rows())
  return (
    f'task.path={path}',
    'task.client_column=who',
    'task.target_column=y',
    'task.feature_columns=b,a',
    'task.group_column=site',
    'client_weighting=uniform',
    'clients_per_round=0',
    'total_rounds=2',
  )


def _make_of_table(table, algorithms, way, *assignments):
  names = {
    'task.name': 'table',
    'algorithms': algorithms,
    'privacy.name': way,
    'privacy.noise': 5.0,
  }
  request = user_settings.read(None, [*table, *assignments], names)
  return _make(configs.resolve(request))


def test_stages_are_uses_that_follow_each_other(table):
  uses, methods = _make_of_table(table, 'group', 'gaussian')
  assert _names(uses) == ['group-global', 'group']
  assert uses[1].before == ('group-global',)
  assert len(uses[1].events) == 2
  # Client by client, both stages are what the guarantee of the method counts.
  total = ledger.add(uses)
  assert total.epsilon == pytest.approx(
    methods['group'].guarantee.epsilon, rel=1e-4
  )


def test_within_silos_each_method_is_a_use(table):
  uses, methods = _make_of_table(
    table, 'fedavg,finetuning', 'example', 'privacy.delta=.01'
  )
  assert _names(uses) == ['fedavg', 'finetuning']
  for use, method in zip(uses, methods.values()):
    assert ledger.add([use]).epsilon == pytest.approx(
      method.guarantee.epsilon, rel=1e-3
    )


class TestStarts:
  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    cls.root = tmp_path_factory.mktemp('starts')
    small_runs.run(_config(), cls.root / 'private')
    small_runs.run(small_runs.config('total_rounds=1'), cls.root / 'public')

  def _start(self, name, *assignments):
    start = f'warmstart_from={self.root / name}'
    return _config('seed=1', start, *assignments)

  def test_a_private_one_adds_its_events(self):
    uses, methods = _make(self._start('private'))
    guarantee = methods['fedavg'].guarantee
    expected = accounting.poisson(3.0, 4 / 6, 2)
    assert (
      guarantee.epsilon == (accounting.epsilon(expected, guarantee.delta)[0])
    )
    assert uses[-1].before == (f'{self.root / "private"}:fedavg',)
    assert 'the model that this one starts from' in guarantee.assumptions[-1]

  def test_one_of_other_neighbors_is_refused(self):
    config = self._start('private', 'client_sampling=fixed_size')
    with pytest.raises(errors.UserError, match='there is no single ε'):
      _make(config)

  def test_one_without_privacy_on_the_same_clients_reveals_them(self):
    results = small_runs.run(self._start('public'), self.root / 'open')
    assert results['fedavg']['privacy']['text'] == 'not private'
    written = json.loads((self.root / 'open' / 'privacy.json').read_text())
    assert written['text'].endswith(f'because of {self.root}/public:fedavg.')
    assert written['all']['epsilon'] is None

  def test_an_older_folder_without_a_ledger_is_refused(self):
    # Which has no manifest, either.
    for name in ('privacy.json', 'manifest.json'):
      (self.root / 'private' / name).rename(self.root / name)
    with pytest.raises(errors.UserError, match='those of an older version'):
      _make(self._start('private'))
    for name in ('privacy.json', 'manifest.json'):
      (self.root / name).rename(self.root / 'private' / name)

  def test_another_task_is_taken_to_be_of_others(self):
    config = self._start('public')
    methods = execution.build_methods(config, execution.load_task(config, None))
    elsewhere = dataclasses.replace(config, task='another')
    uses, made = ledgers.make(elsewhere, methods)
    assert _names(uses) == ['fedavg']
    assert made['fedavg'].guarantee == methods['fedavg'].guarantee


def test_repeats_are_added(tmp_path, capsys):
  by_seed = {seed: _config(f'seed={seed}') for seed in (0, 1)}
  repeated_runs.run(by_seed, tmp_path)
  uses = ledgers.read(tmp_path)
  assert _names(uses) == ['seed 0: fedavg', 'seed 1: fedavg']
  total = ledger.add(uses)
  expected = accounting.poisson(3.0, 4 / 6, 2)
  assert total.epsilon == accounting.epsilon(expected, total.delta)[0]
  ledgers.show(tmp_path)
  shown = ' '.join(capsys.readouterr().err.split())
  assert 'All 2 trainings of this folder together: client: ε' in shown
  assert math.isfinite(total.epsilon) and '(simulated)' in shown
