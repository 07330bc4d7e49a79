"""Secret seeds: where they are, and that only with them a run goes on."""

import hashlib
import re
import stat

import numpy as np
import pytest

from base import errors
from base import seeds
from experiments.runs import execution
from experiments.runs import finished_methods
from experiments.runs import secret_seeds
from experiments.runs import sources
from personalization.rounds import streams
from tests.experiments import small_runs

_PRIVATE = (
  'privacy.name=gaussian',
  'privacy.noise=0.5',
  'privacy.seed=secret',
  'client_weighting=uniform',
  'client_sampling=poisson',
)


@pytest.fixture(name='vault', autouse=True)
def _vault(tmp_path, monkeypatch):
  path = tmp_path / 'vault' / 'inner'
  monkeypatch.setenv(secret_seeds.VARIABLE, str(path))
  return path


def _config(*assignments, **kwargs):
  return small_runs.config(*_PRIVATE, *assignments, **kwargs)


def _digest(folder):
  return (folder / secret_seeds.RECORD).read_text().strip()


def test_only_the_owner_can_read_a_secret_of_128_bits(tmp_path, vault):
  folder, other = tmp_path / 'run', tmp_path / 'other'
  folder.mkdir()
  other.mkdir()
  secret = secret_seeds.obtain(folder)
  (path,) = vault.iterdir()
  assert path.read_bytes() == secret and len(secret) * 8 == 128
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert path.name == _digest(folder) == hashlib.sha256(secret).hexdigest()
  assert secret_seeds.obtain(folder) == secret
  assert secret_seeds.obtain(other) != secret


def test_is_kept_out_of_the_results(tmp_path, monkeypatch):
  monkeypatch.setenv(secret_seeds.VARIABLE, str(tmp_path / 'deep' / 'within'))
  with pytest.raises(errors.UserError, match='in the folder of the results'):
    secret_seeds.obtain(tmp_path)


def test_a_stopped_run_goes_on_only_with_its_secret(tmp_path, vault):
  whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
  results = small_runs.run(_config(), whole)
  guarantee = results['fedavg']['privacy']
  assert 'simulated' not in guarantee['text'] and guarantee['seed'] == 'secret'

  # Another run with the same secret, which is stopped.
  stopped.mkdir()
  (stopped / secret_seeds.RECORD).write_text(_digest(whole))
  with small_runs.stopped_in_round(5):
    small_runs.run(_config(), stopped)
  key = vault / _digest(whole)
  secret = key.read_bytes()
  key.unlink()
  with pytest.raises(errors.UserError, match=f'the file {re.escape(str(key))}'):
    small_runs.run(_config(), stopped)
  key.write_bytes(secret[::-1])
  with pytest.raises(errors.UserError, match='it is damaged'):
    small_runs.run(_config(), stopped)
  key.write_bytes(secret)
  small_runs.run(_config(), stopped)
  assert small_runs.numbers(stopped) == small_runs.numbers(whole)

  # What has ended is restored without it.
  key.unlink()
  source = sources.read(str(whole))
  task = execution.load_task(source.config, None)
  (finished,) = finished_methods.restore(source, task, ['fedavg']).values()
  assert finished.training.ended.round == 7


def test_two_runs_draw_other_noise_and_other_clients(tmp_path):
  both = [tmp_path / 'first', tmp_path / 'second']
  for folder in both:
    small_runs.run(_config(), folder)
  first, second = (small_runs.numbers(folder)[-1] for folder in both)
  assert first != second


def test_no_file_of_a_run_has_the_key(tmp_path, vault, monkeypatch):
  drawn = []

  def find(*args):
    drawn.append(found := real(*args))
    return found

  real = streams.find_for_training
  monkeypatch.setattr(streams, 'find_for_training', find)
  folder = tmp_path / 'run'
  small_runs.run(_config(), folder)
  key = seeds.pair('noise', *drawn[-1])
  hidden = [
    *(path.read_bytes() for path in vault.iterdir()),
    key.tobytes(),
    drawn[-1][0].encode(),
  ]
  read = 0
  for path in folder.rglob('*'):
    if path.is_file():
      found = [path.read_bytes()]
      if path.suffix == '.npz':
        with np.load(path) as arrays:
          found += [arrays[name].tobytes() for name in arrays.files]
      assert not [h for h in hidden for text in found if h in text], path
      read += 1
  assert read > 5


def test_checkpoints_without_a_record_are_not_trained_on(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  with pytest.raises(errors.UserError, match='no secret_seed.txt'):
    secret_seeds.obtain(tmp_path)
