"""Tests that a folder of a run is read only as the run has written it."""

import hashlib
import json
import pathlib

import pytest

from base import errors
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import manifests
from experiments.reporting import results_folder
from experiments.reporting import sources
from tests import attacks
from tests.experiments.reporting import small_outcomes

_CONFIG = configs.resolve(
  user_settings.read(None, (), {'algorithms': 'fedavg,local'})
)
_CHECKPOINTS = 'checkpoints/fedavg'


def _checkpoint(folder, path, number):
  """Writes a checkpoint as a training does."""
  path = path / _CHECKPOINTS / f'program_state_{number}.npz'
  path.parent.mkdir(parents=True, exist_ok=True)
  data = f'round {number}'.encode()
  folder.note_checkpoint(path, hashlib.sha256(data).hexdigest())
  temporary = path.with_suffix('.tmp')
  temporary.write_bytes(data)
  temporary.replace(path)


def _run(path, methods=('fedavg', 'local')):
  """Writes a folder as a run does; what is done before is not done again."""
  with results_folder.open_folder(path, _CONFIG) as folder:
    folder.begin({'mean': 0.5})
    for method in methods:
      if method in folder.results:
        continue
      metrics = folder.metrics_file(method)
      metrics.parent.mkdir(exist_ok=True)
      folder.reopen('fedavg', ['fedavg'])
      for number in (2, 4):
        with metrics.open('a') as file:
          file.write(f'{number},1\n')
        if method == 'fedavg':
          _checkpoint(folder, path, number)
      for old in (path / _CHECKPOINTS).glob('*_2.npz'):
        old.unlink()
      rows = small_outcomes.rows(method)
      folder.add(method, small_outcomes.result(), rows)


@pytest.fixture(name='path')
def _path(tmp_path) -> pathlib.Path:
  _run(tmp_path / 'run')
  return tmp_path / 'run'


def _open(path):
  with results_folder.open_folder(path, _CONFIG):
    pass


def test_a_run_is_read_as_it_was_written(path, capsys):
  assert list(results_folder.read(path).methods) == ['fedavg', 'local']
  _open(path)
  assert capsys.readouterr().err == ''


@pytest.mark.parametrize(
  'name',
  [
    'config.toml',
    'encoding.json',
    'metrics/fedavg.csv',
    f'{_CHECKPOINTS}/program_state_4.npz',
  ],
)
def test_a_file_that_was_changed_is_refused_by_name(path, name):
  text = (path / name).read_text()
  (path / name).write_text(f'{text} ')
  for read in (results_folder.read, _open):
    with pytest.raises(errors.UserError, match=f'{name} is not as'):
      read(path)
  (path / name).write_text(text)
  results_folder.read(path)


def test_results_that_were_made_up_are_refused(path):
  contents = json.loads((path / 'results.json').read_text())
  contents['methods']['local']['metric'] = 'loss'
  rows = results_folder._parse_table((path / 'per_client.csv').read_text())
  contents['checksum'] = results_folder.checksum(contents, rows)
  (path / 'results.json').write_text(json.dumps(contents))
  with pytest.raises(errors.UserError, match=r'results\.json is not as'):
    results_folder.read(path)


def test_a_checkpoint_that_was_renamed_is_told_by_its_name(path):
  checkpoint = path / _CHECKPOINTS / 'program_state_4.npz'
  checkpoint.rename(checkpoint.with_name('program_state_9999.npz'))
  for read in (results_folder.read, _open):
    with pytest.raises(
      errors.UserError, match='_9999.npz is not as .* its .*_4.npz'
    ):
      read(path)


def test_who_reads_a_run_misses_a_file_and_who_goes_on_makes_it_again(path):
  (path / 'metrics/fedavg.csv').unlink()
  with pytest.raises(errors.UserError, match=r'metrics/fedavg\.csv is gone'):
    results_folder.read(path)
  _open(path)


def test_a_damaged_manifest_is_refused(path):
  for text in ('{', '[]', '{"files": 1, "modules": {}}', '{"files": {}}'):
    (path / 'manifest.json').write_text(text)
    with pytest.raises(errors.UserError, match=r'manifest\.json is damaged'):
      results_folder.read(path)


def test_a_run_of_an_older_version_is_read_and_gets_a_manifest(path, capsys):
  (path / 'manifest.json').unlink()
  for name in ('results.json', 'per_client.csv'):
    (path / name).unlink()
  _open(path)
  assert not (path / 'manifest.json').exists()
  _open(path)
  said = capsys.readouterr().err.splitlines()
  assert len(said) == 1
  assert 'has no manifest.json' in said[0]
  _run(path)
  results_folder.read(path)
  (path / 'config.toml').write_text('')
  with pytest.raises(errors.UserError, match=r'config\.toml is not as'):
    results_folder.read(path)


def test_a_run_that_is_killed_at_any_write_goes_on(tmp_path, monkeypatch):
  replace, kills = pathlib.Path.replace, 0
  for last in range(1, 100):
    path = tmp_path / str(last)
    made = 0

    def replace_or_die(self, target, *, place=path, most=last):
      nonlocal made
      if pathlib.Path(target).is_relative_to(place):
        made += 1
        if made == most:
          raise KeyboardInterrupt
      return replace(self, target)

    with monkeypatch.context() as patch:
      patch.setattr(pathlib.Path, 'replace', replace_or_die)
      try:
        _run(path)
        break
      except KeyboardInterrupt:
        kills += 1
    if (path / 'config.toml').exists():
      sources.read([path])  # As a report that is watched.
    _run(path)
    assert list(results_folder.read(path).methods) == ['fedavg', 'local']
  assert kills > 8


def test_files_that_grow_are_no_fault(tmp_path):
  path = tmp_path / 'run'
  _run(path, ['fedavg'])
  with results_folder.open_folder(path, _CONFIG) as folder:
    folder.reopen('fedavg', ['fedavg'])
    for number in (6, 8):
      with folder.metrics_file('fedavg').open('a') as file:
        file.write(f'{number},1\n')
      _checkpoint(folder, path, number)
      results_folder.read(path)


def test_a_module_that_is_another_one_is_told(path, capsys):
  described = {'file': '/other/own.py', 'sha256': 'a' * 64}
  found = json.loads((path / 'manifest.json').read_text())
  found['modules'] = {'experiments.api': described}
  (path / 'manifest.json').write_text(json.dumps(found))
  _open(path)
  said = capsys.readouterr().err
  assert 'was /other/own.py, SHA-256 aaaa' in said
  assert 'experiments/api.py' in said
  found['modules'] = manifests.describe_modules(['experiments.api'])
  (path / 'manifest.json').write_text(json.dumps(found))
  _open(path)
  assert capsys.readouterr().err == ''


@pytest.mark.parametrize('kind', attacks.ENDLESS)
@pytest.mark.parametrize(
  'name', ['config.toml', 'results.json', 'metrics/fedavg.csv', 'manifest.json']
)
def test_what_has_no_end_is_refused(path, kind, name):
  (path / name).unlink()
  attacks.ENDLESS[kind](path / name)
  with attacks.soon():
    for read in (results_folder.read, _open, lambda path: sources.read([path])):
      with pytest.raises(errors.UserError):
        read(path)
