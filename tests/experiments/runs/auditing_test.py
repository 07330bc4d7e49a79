"""Audits of small private runs, and of runs with planted faults."""

import dataclasses
import json

import numpy as np
import pytest

from algorithms.privacy import private_aggregation
from base import errors
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import results_folder
from experiments.runs import auditing
from experiments.runs import execution
from experiments.runs import secret_seeds
from experiments.runs import single_run
from personalization.privacy import silo_privacy
from personalization.rounds import streams
from tests.experiments import small_runs

_CANARIES = 256
# One Gaussian release with all clients, whose ε is exact.
_PRIVATE = (
  'total_rounds=2',
  'clients_per_round=0',
  'client_weighting=uniform',
  'privacy.name=gaussian',
  'privacy.noise=1.4',
)
_BOTH = ['fedavg', 'fedprox']


def _config(*assignments, algorithms=('fedavg',)):
  return small_runs.config(*_PRIVATE, *assignments, algorithms=list(algorithms))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('audited') / 'run'
  small_runs.run(_config(algorithms=_BOTH), path)
  return path


def _audit(path, name=''):
  auditing.audit(f'{path}{name}', _CANARIES, None)
  return json.loads((path / 'audit' / 'audit.json').read_text())


def test_a_right_mechanism_passes(folder):
  found = _audit(folder)
  assert not found['findings']
  of_canaries = found['canaries']['fedavg']
  assert of_canaries['bound'] < of_canaries['claimed']
  assert (
    0.2 * of_canaries['claimed']
    < of_canaries['normal_bound']
    < of_canaries['claimed']
  )
  (pair,) = found['releases']
  assert pair['releases'] == _BOTH
  assert abs(pair['correlation']) < 0.3
  low, high = found['membership']['fedavg']['interval']
  assert low <= found['membership']['fedavg']['area'] <= high
  written = {path.name for path in (folder / 'audit').iterdir()}
  assert {'audit.json', 'canaries_fedavg.png', 'membership.svg'} <= written


def test_a_secret_seed_is_not_needed(tmp_path, monkeypatch):
  vault = tmp_path / 'vault'
  monkeypatch.setenv(secret_seeds.VARIABLE, str(vault))
  small_runs.run(
    _config('privacy.seed=secret', algorithms=_BOTH), tmp_path / 'run'
  )
  next(vault.iterdir()).unlink()
  found = _audit(tmp_path / 'run')
  assert not found['findings'] and len(found['releases']) == 1


class _Unclipped(private_aggregation.Gaussian):
  """Clips to much more than it says."""

  def query(self, specs, seed):
    del specs
    return private_aggregation.GaussianQuery(
      1e4 * self.clip, self.noise * self.clip, seed
    )


class _HalfOfTheNoise(private_aggregation.Gaussian):
  """Adds half of the noise that it says."""

  def query(self, specs, seed):
    del specs
    return private_aggregation.GaussianQuery(
      self.clip, self.noise * self.clip / 2, seed
    )


@pytest.mark.parametrize(
  ('fault', 'assuming'), [(_Unclipped, ''), (_HalfOfTheNoise, ' if noise is')]
)
def test_a_wrong_clip_or_half_of_the_noise_is_found(
  folder, monkeypatch, fault, assuming
):
  monkeypatch.setattr(private_aggregation, 'Gaussian', fault)
  found = _audit(folder, ':fedavg')
  assert 'fedavg: ε is at least' in found['findings'][0]
  assert assuming in found['findings'][0]
  of_canaries = found['canaries']['fedavg']
  assert of_canaries['normal_bound'] > of_canaries['claimed']


@pytest.fixture(name='silos')
def _silos(tmp_path):
  """A run of silos that each protect their own examples."""
  rng = np.random.default_rng(0)
  lines = ['who,x,y,target']
  for k in range(120):
    x, y = rng.normal(size=2)
    lines.append(f'c{k % 4},{x},{y},{"yes" if x + y > k % 4 - 1 else "no"}')
  table = tmp_path / 'table.csv'
  table.write_text('\n'.join(lines) + '\n')
  config = configs.resolve(
    user_settings.read(
      None,
      (
        f'task.path={table}',
        'task.client_column=who',
        'task.target_column=target',
        'task.model=dense',
        'total_rounds=2',
        'clients_per_round=0',
        'privacy.noise=1.4',
      ),
      {'task.name': 'table', 'privacy.name': 'example', 'algorithms': 'fedavg'},
    )
  )
  small_runs.run(config, tmp_path / 'silos')
  return tmp_path / 'silos'


def test_of_silos_the_canaries_are_examples(silos, monkeypatch):
  found = _audit(silos)
  of_canaries = found['canaries']['fedavg']
  assert not found['findings']
  assert of_canaries['bound'] < of_canaries['claimed']
  right = silo_privacy.SiloProtections.numbers
  less_noise = np.array([1, 1 / 3, 1, 1, 1], np.float32)
  monkeypatch.setattr(
    silo_privacy.SiloProtections,
    'numbers',
    lambda *given: less_noise * right(*given),
  )
  found = _audit(silos)
  assert 'fedavg: ε is at least' in found['findings'][0]


def test_a_seed_that_two_releases_share_is_found(tmp_path, monkeypatch):
  def of_seed(method, task, training_settings):
    del method, task
    return (training_settings.seed,)

  with monkeypatch.context() as faulty:
    faulty.setattr(streams, 'find_for_training', of_seed)
    small_runs.run(_config(algorithms=_BOTH), tmp_path / 'run')
  found = _audit(tmp_path / 'run')
  assert [text for text in found['findings'] if 'share noise' in text]
  (pair,) = found['releases']
  assert pair['correlation'] > 0.6


def test_points_of_several_runs_that_share_noise_are_found(
  tmp_path, monkeypatch
):
  def of_seed(method, task, training_settings):
    del method, task
    return (training_settings.seed,)

  with monkeypatch.context() as faulty:
    faulty.setattr(streams, 'find_for_training', of_seed)
    for noise in (1.4, 5.0):
      small_runs.run(
        _config(f'privacy.noise={noise}'), tmp_path / f'noise_{noise}'
      )
  found = _audit(tmp_path)
  (pair,) = found['releases']
  assert pair['releases'] == ['noise_1.4: fedavg', 'noise_5.0: fedavg']
  assert pair['shared']


def test_what_canaries_cannot_audit_is_said(tmp_path):
  small_runs.run(
    _config('privacy.noise_cohort=600', algorithms=_BOTH), tmp_path / 'run'
  )
  found = _audit(tmp_path / 'run')
  assert not found['findings']
  assert not found['canaries']
  assert 'larger rounds' in found['without_canaries']['fedavg']
  assert len(found['releases']) == 1


def test_a_folder_without_privacy_is_refused(tmp_path):
  small_runs.run(small_runs.config(), tmp_path)
  with pytest.raises(errors.UserError, match='without privacy'):
    auditing.audit(str(tmp_path), _CANARIES, None)


def test_a_run_that_is_not_finished_is_refused(tmp_path):
  config = _config(algorithms=_BOTH)
  with results_folder.open_folder(tmp_path / 'run', config) as folder:
    task = execution.load_task(config, None)
    execution.set_runtime(config.run)
    folder.begin(task.encoding)
    single_run.Run(config, task, folder).evaluate(['fedavg'])
  with pytest.raises(errors.UserError, match='has not finished fedprox'):
    auditing.audit(str(tmp_path / 'run'), _CANARIES, None)
  (tmp_path / 'empty').mkdir()
  with pytest.raises(errors.UserError, match=r'results.json is missing'):
    auditing.audit(str(tmp_path / 'empty'), _CANARIES, None)


def test_a_method_without_a_model_is_refused(tmp_path):
  small_runs.run(_config(algorithms=['fedavg', 'local']), tmp_path)
  with pytest.raises(errors.UserError, match='released no model'):
    auditing.audit(f'{tmp_path}:local', _CANARIES, None)


def test_losses_are_those_of_the_released_model(folder):
  (one, _) = auditing._list_trainings(
    auditing._read_runs(str(folder))[''], '', None
  )
  losses = auditing._losses(one, one.task.train, ['train'])
  assert len(losses) == len(one.task.train.client_ids)
  worse = dataclasses.replace(
    one, last=tuple({n: 100 * w for n, w in m.items()} for m in one.last)
  )
  assert np.mean(auditing._losses(worse, one.task.train, ['train'])) > np.mean(
    losses
  )
