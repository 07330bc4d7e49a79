"""What is wrong is told before any training, and how to put it right."""

import contextlib
import errno
import fcntl
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import NamedTuple
import urllib.request

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest

from experiments import run
from experiments.command_line import launch
from personalization.rounds import training
from tasks import registry as task_registry

_ROOT = pathlib.Path(__file__).absolute().parents[2]

_SETTINGS = (
  'task.num_train_clients=5',
  'task.num_validation_clients=3',
  'task.num_test_clients=4',
  'task.max_examples=40',
  'clients_per_round=3',
  'rounds_per_checkpoint=2',
  'total_rounds=5',
)
_RUN = (
  '--algorithm=fedavg,fedadam',
  '--seed=3',
  *(f'--set={setting}' for setting in _SETTINGS),
)


class Result(NamedTuple):
  """What came of a run: its exit status, and what it wrote where."""

  status: int
  shown: str
  said: str


@pytest.fixture(name='call')
def _call(capfd):
  """Runs what a user does, but in this process, to which TFF is known."""

  def call(*arguments):
    capfd.readouterr()
    with flagsaver.flagsaver():
      flags.FLAGS(['run', *arguments])
      status = launch.attempt(run.main)
    return Result(status, *capfd.readouterr())

  return call


@pytest.fixture(name='fail')
def _fail(call, monkeypatch):
  """Returns the message of a run that ends before it trains."""

  def fail(*arguments):
    with monkeypatch.context() as patch:
      patch.setattr(
        training, 'train', lambda *_, **__: pytest.fail('It trains.')
      )
      return _message(call(*arguments))

  return fail


def _message(result):
  assert result.status == 1, result
  assert not result.shown
  assert 'Traceback' not in result.said
  *before, message = re.split('^Error: ', result.said, flags=re.MULTILINE)
  assert len(before) == 1
  return message


@pytest.fixture(name='output_dir')
def _output_dir(tmp_path):
  """A folder for a run that must not even make it."""
  folder = tmp_path / 'output'
  yield folder
  assert not folder.exists()


# Wrong arguments, and what is in the message.
_WRONG_SETTINGS = {
  '--task=syntetic': ["task 'syntetic'", "'synthetic'?"],
  '--set=task.name=syntetic': ["task 'syntetic'", "'synthetic'?"],
  '--algorithm=fedavg,finetunning': [
    "algorithm 'finetunning'",
    "'finetuning'?",
  ],
  '--algorithm=': ['algorithms must not be empty'],
  '--set=totl_rounds=3': ["'totl_rounds'", "'total_rounds'?"],
  '--set=task.alpa=1': ["'alpa'", "'alpha'?"],
  '--set=client_lerning_rate=1': [
    "'client_lerning_rate'",
    "'client_learning_rate'?",
  ],
  '--set=fedavg.client_lerning_rate=1': [
    "'client_lerning_rate'",
    "'client_learning_rate'?",
  ],
  '--set=fedavgg.client_learning_rate=1': ["'fedavgg'", "'fedavg'?"],
  '--algorithm=local --set=client_learning_rate=1': [
    'client_learning_rate',
    'not of the chosen local',
  ],
  '--set=total_rounds': ['name=value', "'total_rounds'"],
  '--set=client_learning_rate=-1': [
    'client_learning_rate must be at least 0, not -1'
  ],
  '--set=client_learning_rate=nan': [
    'client_learning_rate must be a finite number'
  ],
  '--set=client_learning_rate=fast': [
    "client_learning_rate must be a number, not 'fast'"
  ],
  '--set=batch_size=1.5': ['batch_size must be a whole number'],
  '--set=drop_partial_batches=maybe': [
    'drop_partial_batches must be true or false'
  ],
  '--set=server_optimizer=adamm': ['server_optimizer must be one of', 'adam'],
  '--set=server_momentum=1.1': ['server_momentum must be at most 1'],
  '--set=total_rounds=-1': ['total_rounds must be at least 0'],
  f'--total_rounds={10**30}': ['total_rounds must be at most 10000000'],
  '--set=batch_size=100000000': ['batch_size must be at most 1000000'],
  '--set=client_learning_rate=1e39': ['client_learning_rate must be from'],
  '--algorithm=hypcluster --set=num_clusters=100000000': [
    'num_clusters must be at most 1000'
  ],
  '--algorithm=finetuning --set=finetuning_learning_rates=': [
    'finetuning_learning_rates must not be empty'
  ],
  '--set=warmstart_from=x\0y': ['Invalid path', 'null byte'],
  f'--preset={"x" * 5000}': ['Invalid path', 'too long'],
  '--seed=3000000000': ['seed must be at most 2147483647'],
  '--set=evaluation_fractions=1e-9': [
    'evaluation_fractions must be at least 0.001'
  ],
  '--set=task.min_examples=300': ['min_examples must be at most'],
  '--clients_per_round=101': [
    'clients_per_round is 101',
    'synthetic has 100 clients',
  ],
  '--set=choose=each': ["choose is 'each'", "'all'"],
  '--preset=scool': ["preset 'scool'", "'school'?"],
  '--preset=/not/there.toml': ['no file /not/there.toml'],
  '--task=school --data_dir=/not/there': ['/not/there does not exist'],
}


@pytest.mark.parametrize('arguments', _WRONG_SETTINGS)
def test_a_wrong_setting(fail, output_dir, arguments):
  message = fail(*arguments.split(), f'--output_dir={output_dir}')
  for part in _WRONG_SETTINGS[arguments]:
    assert part in message


# Wrong presets, and what is in the message.
_WRONG_PRESETS = {
  'totl_rounds = 3': ['preset.toml', "'totl_rounds'", "'total_rounds'?"],
  'total_rounds = "many"': [
    'preset.toml: ',
    "must be a whole number, not 'many'",
  ],
  'total_rounds = -3': ['preset.toml: ', 'total_rounds must be at least 0'],
  '[task]\nalpa = 1': ["'alpa'", "'alpha'?"],
  '[tsk]\nalpha = 1': ["'tsk'", "'task'?"],
  '[fedavg]\nclient_lerning_rate = 1': [
    "'client_lerning_rate'",
    "'client_learning_rate'?",
  ],
  'algorithms = ["fedavgg"]': ["'fedavgg'", "'fedavg'?"],
  'total_rounds =': ['preset.toml cannot be read'],
  f'x = {"[" * 5000}{"]" * 5000}': ['preset.toml cannot be read: max'],
  f'x = {"{a = " * 5000}1{"}" * 5000}': ['preset.toml cannot be read: max'],
  f'client_learning_rate = {10**400}': [
    'preset.toml: ',
    'client_learning_rate must be a number, not 1000',
  ],
  '\x00': ['preset.toml cannot be read'],
}


@pytest.mark.parametrize('text', _WRONG_PRESETS)
def test_a_wrong_preset(fail, tmp_path, output_dir, text):
  preset = tmp_path / 'preset.toml'
  preset.write_text(text)
  message = fail(f'--preset={preset}', f'--output_dir={output_dir}')
  for part in _WRONG_PRESETS[text]:
    assert part in message


@pytest.fixture(name='no_network')
def _no_network(monkeypatch, tmp_path):
  """An empty cache, and a proxy that nobody is behind."""
  for name in ('no_proxy', 'NO_PROXY'):
    monkeypatch.delenv(name, raising=False)
  for name in ('http_proxy', 'https_proxy', 'HTTPS_PROXY'):
    monkeypatch.setenv(name, 'http://127.0.0.1:9')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  # Which would remember other proxies.
  monkeypatch.setattr(urllib.request, '_opener', None)


def test_data_that_cannot_be_downloaded(fail, tmp_path, output_dir, no_network):
  del no_network
  data_dir = tmp_path / 'data'
  data_dir.mkdir()
  start = time.monotonic()
  message = fail(
    '--task=school', f'--data_dir={data_dir}', f'--output_dir={output_dir}'
  )
  assert time.monotonic() - start < 10
  assert 'cannot be downloaded' in message
  assert 'Download https://' in message
  assert f'save it as {data_dir}/school/school.mat' in message
  assert not list(data_dir.iterdir())


@pytest.mark.parametrize('contents', [b'', b'no .mat file' * 1000])
def test_data_that_are_damaged(
  fail, tmp_path, output_dir, no_network, contents
):
  del no_network
  path = tmp_path / 'data' / 'school' / 'school.mat'
  path.parent.mkdir(parents=True)
  path.write_bytes(contents)
  message = fail(
    '--task=school',
    f'--data_dir={tmp_path / "data"}',
    f'--output_dir={output_dir}',
  )
  assert f'{path} is damaged' in message
  assert 'https://' in message
  assert path.read_bytes() == contents


def test_an_output_dir_that_is_a_file(fail, tmp_path):
  path = tmp_path / 'file'
  path.write_text('mine')
  assert str(path) in fail(*_RUN, f'--output_dir={path}')
  assert path.read_text() == 'mine'


@pytest.fixture(name='finished', scope='module')
def _finished(tmp_path_factory):
  """The folder of a run that is done."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  with flagsaver.flagsaver():
    flags.FLAGS(['run', *_RUN, f'--output_dir={folder}'])
    assert run.main() == 0
  return folder


@pytest.fixture(name='folder')
def _folder(finished, tmp_path):
  """A copy of it."""
  return shutil.copytree(finished, tmp_path / 'folder')


def _contents(folder):
  """The bytes of its files, but for TensorBoard's, one for each start."""
  return {
    path.relative_to(folder): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file() and 'tensorboard' not in path.parts
  }


# Another configuration, and how the message says it differs.
_OTHERS = {
  '--seed=4': ['seed: 3, not 4'],
  '--total_rounds=6': ['total_rounds: 5, not 6'],
  '--set=task.beta=0': ['task.beta: 1.0, not 0.0'],
  '--set=fedadam.server_learning_rate=1': [
    'fedadam.server_learning_rate: 0.03, not 1.0'
  ],
  '--runtime=native': ['runtime: cohort, not native'],
  '--algorithm=fedavg': ['algorithms: ', 'fedadam'],
  '--task=school': ['task.name: synthetic, not school'],
}


@pytest.mark.parametrize('argument', _OTHERS)
def test_the_folder_of_another_configuration(
  fail, folder, monkeypatch, argument
):
  arguments = [*_RUN, argument]
  if argument == '--task=school':
    # The folder is in the way, whether there are data or not.
    load = task_registry.load
    monkeypatch.setattr(
      task_registry, 'load', lambda *_, **__: load('synthetic')
    )
    arguments = [argument, '--clients_per_round=0']
  before = _contents(folder)
  message = fail(*arguments, f'--output_dir={folder}')
  for part in (
    f'{folder} belongs to another configuration',
    *_OTHERS[argument],
  ):
    assert part in message
  assert _contents(folder) == before


def test_a_folder_that_nobody_knows_the_configuration_of(fail, folder):
  (folder / 'config.toml').unlink()
  before = _contents(folder)
  assert 'no config.toml' in fail(*_RUN, f'--output_dir={folder}')
  assert _contents(folder) == before


@pytest.mark.parametrize('text', ['', 'seed = ', 'seed = "x"', 'sed = 3'])
def test_a_folder_whose_configuration_is_damaged(fail, folder, text):
  (folder / 'config.toml').write_text(text)
  before = _contents(folder)
  assert str(folder) in fail(*_RUN, f'--output_dir={folder}')
  assert _contents(folder) == before


@pytest.mark.parametrize(
  ('name', 'damage'),
  [
    ('results.json', lambda text: ''),
    ('results.json', lambda text: '[' * 100_000),
    ('results.json', lambda text: text.replace('"mean": 0.', '"mean": 1.')),
    ('results.json', lambda text: text.replace('"fedavg"', '"../../x"')),
    ('per_client.csv', lambda text: ''),
    ('per_client.csv', lambda text: text.replace('fedavg,', 'fedavg,other')),
  ],
)
def test_damaged_results(fail, folder, name, damage):
  path = folder / name
  path.write_text(damage(path.read_text()))
  before = _contents(folder)
  message = fail(*_RUN, f'--output_dir={folder}')
  assert 'damaged' in message
  assert f'Delete {folder}/results.json' in message
  assert _contents(folder) == before


@pytest.mark.parametrize('name', ['vocab.json', 'per_client.csv', 'metrics'])
def test_the_folder_of_something_else(fail, tmp_path, name):
  (tmp_path / name).write_text('mine')
  message = fail(*_RUN, f'--output_dir={tmp_path}')
  assert f'{tmp_path} has {name} but no config.toml' in message
  assert (tmp_path / name).read_text() == 'mine'


def test_a_folder_that_another_run_writes_to(fail, folder):
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    message = fail(*_RUN, f'--output_dir={folder}')
  finally:
    os.close(descriptor)
  assert f'Another run is writing to {folder}' in message


@pytest.fixture(name='full_disk')
def _full_disk(monkeypatch):
  """Has the nth flush of a file fail, as on a disk that is full."""

  @contextlib.contextmanager
  def at(call):
    calls = itertools.count(1)

    def fsync(descriptor):
      del descriptor
      if next(calls) == call:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
      patch.setattr(os, 'fsync', fsync)
      yield

  return at


@pytest.mark.parametrize(
  ('flush', 'name', 'outlook'),
  [
    (1, 'manifest.json', 'starts from the beginning'),
    (2, 'config.toml', 'starts from the beginning'),
    (3, 'metrics/fedavg.csv', 'goes on with round 1 of 5 of fedavg'),
    (8, 'program_state_4.npz', 'goes on with round 3 of 5 of fedavg'),
    (13, 'manifest.json', 'goes on with the evaluation of fedavg'),
    (14, 'per_client.csv', 'goes on with the evaluation of fedavg'),
    (16, 'manifest.json', 'goes on with the evaluation of fedavg'),
  ],
)
def test_a_disk_that_is_full(
  call, finished, tmp_path, full_disk, flush, name, outlook
):
  with full_disk(flush):
    message = _message(call(*_RUN, f'--output_dir={tmp_path / "run"}'))
  assert f'{name} cannot be written: No space left on device.' in message
  assert message.endswith(
    f' Make room on the disk. The same command {outlook}.\n'
  )
  assert not list(tmp_path.rglob('*tmp'))
  assert call(*_RUN, f'--output_dir={tmp_path / "run"}').status == 0
  for name in ('per_client.csv', 'checkpoints/fedavg/program_state_5.npz'):
    expected = (finished / name).read_bytes()
    assert (tmp_path / 'run' / name).read_bytes() == expected


def _without_results(folder):
  """As if the run had been killed behind the last round of all."""
  (folder / 'results.json').unlink()
  (folder / 'per_client.csv').unlink()


def _checkpoint(folder, method, version=5):
  return folder / 'checkpoints' / method / f'program_state_{version}.npz'


@pytest.mark.parametrize(
  'damage',
  [
    lambda contents: b'',
    lambda contents: b'x' * len(contents),
    lambda contents: contents[: len(contents) // 2],
    lambda contents: contents[:400] + b'\xff' + contents[401:],
  ],
  ids=['empty', 'another_file', 'cut_off', 'a_byte'],
)
def test_a_damaged_checkpoint(call, folder, finished, damage):
  _without_results(folder)
  path = _checkpoint(folder, 'fedavg')
  path.write_bytes(damage(path.read_bytes()))
  for problem in 'is not as it was written', 'cannot be read':
    before = _contents(folder)
    message = call(*_RUN, f'--output_dir={folder}').said
    assert f'{path} {problem}' in message
    assert 'delete it to resume' in message.lower()
    assert _contents(folder) == before
    (folder / 'manifest.json').unlink(missing_ok=True)  # Of an older version.


def test_damaged_metrics(call, folder):
  _without_results(folder)
  path = folder / 'metrics' / 'fedavg.csv'
  path.write_text(path.read_text().replace(',', ',x', 50))
  before = _contents(folder)
  message = _message(call(*_RUN, f'--output_dir={folder}'))
  assert f'{path} is not as it was written' in message
  assert 'delete it and the checkpoints' in message
  assert _contents(folder) == before


def test_what_to_do_about_a_damaged_checkpoint(call, folder, finished):
  _without_results(folder)
  path = _checkpoint(folder, 'fedavg')
  path.unlink()
  assert call(*_RUN, f'--output_dir={folder}').status == 0
  for name in (path.relative_to(folder), 'per_client.csv'):
    assert (folder / name).read_bytes() == (finished / name).read_bytes()


def test_the_checkpoint_of_another_model(call, folder):
  _without_results(folder)
  path = _checkpoint(folder, 'fedavg')
  shutil.copy(_checkpoint(folder, 'fedadam'), path)
  before = _contents(folder)
  message = _message(call(*_RUN, f'--output_dir={folder}'))
  assert f'{path} is not as it was written, but its checkpoints/f' in message
  (folder / 'manifest.json').unlink()
  before = _contents(folder)
  message = call(*_RUN, f'--output_dir={folder}').said
  assert f'{path} holds the state of another program' in message
  assert _contents(folder) == before


class _Code:
  """What a pickle runs."""

  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path(os.environ['PFL_TEST_RAN']),)


def test_a_checkpoint_runs_no_code(call, folder, tmp_path, monkeypatch):
  monkeypatch.setenv('PFL_TEST_RAN', str(tmp_path / 'ran'))
  _without_results(folder)
  path = _checkpoint(folder, 'fedavg')
  arrays = dict(np.load(path))
  name = next(iter(arrays))
  arrays[name] = np.array([_Code()], dtype=object)
  np.savez(path, **arrays)
  (folder / 'manifest.json').unlink()
  message = call(*_RUN, f'--output_dir={folder}').said
  assert f'{path} cannot be read' in message
  assert not (tmp_path / 'ran').exists()


def test_held_out_clients_without_examples_enough(fail, tmp_path):
  # One example cannot be halved.
  message = fail(
    *_RUN,
    '--set=task.min_examples=1',
    '--set=task.max_examples=1',
    f'--output_dir={tmp_path / "output"}',
  )
  assert 'synthetic has no clients for validation' in message


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--total_rounds=-1', 'total_rounds'),
    ('--seed=-1', 'seed'),
    ('--runtime=distant', 'cohort'),
    ('--tsk=school', "Unknown command line flag 'tsk'"),
  ],
)
def test_a_wrong_flag(argument, message):
  with flagsaver.flagsaver():
    with pytest.raises(flags.Error, match=message):
      flags.FLAGS(['run', argument])


def test_the_exit_status_of_the_program(output_dir):
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.run', '--task=syntetic'],
    cwd=_ROOT,
    env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 1
  assert not done.stdout
  assert done.stderr.startswith("Error: the flags: Unknown task 'syntetic'.")
  assert len(done.stderr.splitlines()) == 1
