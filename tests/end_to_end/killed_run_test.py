"""A run that is killed, and started again, ends as one that was not."""

from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import processes

_ROOT = pathlib.Path(__file__).absolute().parents[2]
_TIMEOUT = 240.0

_SETTINGS = (
  'task.num_train_clients=8',
  'task.num_validation_clients=3',
  'task.num_test_clients=4',
  'task.max_examples=40',
  'clients_per_round=3',
  'finetuning_epochs=2',
)
_METHODS = ('fedadam', 'finetuning')


@dataclasses.dataclass(frozen=True)
class _Case:
  """How to kill a run: in the training of which method.

  The training is long enough for it not to be over by then.
  """

  method: str
  total_rounds: int
  rounds_per_checkpoint: int


_CASES = {
  'cohort': _Case('finetuning', 400, 10),
  'native': _Case('fedadam', 40, 3),
}


def _command(folder: pathlib.Path, runtime: str) -> list[str]:
  case = _CASES[runtime]
  command = [sys.executable, '-m', 'experiments.run']
  command += [f'--algorithm={",".join(_METHODS)}', '--seed=3']
  command += [f'--runtime={runtime}', f'--output_dir={folder}']
  for setting in (
    *_SETTINGS,
    f'total_rounds={case.total_rounds}',
    f'rounds_per_checkpoint={case.rounds_per_checkpoint}',
  ):
    command += ['--set', setting]
  return command


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
  return subprocess.Popen(
    command,
    cwd=_ROOT,
    env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _commands(pid: int) -> dict[psutil.Process, str]:
  """Returns the processes that a process has started, and their commands."""
  commands = {}
  for process in psutil.Process(pid).children(recursive=True):
    with contextlib.suppress(psutil.NoSuchProcess):
      commands[process] = ' '.join(process.cmdline())
  return commands


def _checkpoints(folder: pathlib.Path, method: str) -> list[int]:
  """The rounds of a method's checkpoints."""
  paths = (folder / 'checkpoints' / method).glob('program_state_*.npz')
  return sorted(int(path.stem.rpartition('_')[2]) for path in paths)


@dataclasses.dataclass(frozen=True)
class KilledRun:
  """A run at the time when it was killed.

  Attributes:
    round: The round of its last checkpoint.
    done: The methods with results.
    children: The processes that it had started, and their commands.
    said: What it had written.
  """

  round: int
  done: tuple[str, ...]
  children: dict[psutil.Process, str]
  said: str


def _methods_done(folder: pathlib.Path) -> tuple[str, ...]:
  results = folder / 'results.json'
  if not results.exists():
    return ()
  return tuple(json.loads(results.read_text())['methods'])


class _Runs:
  """Starts runs, and kills those that are left over."""

  def __init__(self):
    self.started: list[subprocess.Popen[str]] = []

  def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
    self.started.append(_start(command))
    return self.started[-1]

  def kill_in_training(
    self, folder: pathlib.Path, runtime: str, method: str
  ) -> KilledRun:
    """Starts a run and kills it when a method has a checkpoint."""
    process = self.start(_command(folder, runtime))
    deadline = time.monotonic() + _TIMEOUT
    while not _checkpoints(folder, method) and process.poll() is None:
      assert time.monotonic() < deadline, 'There was no checkpoint.'
      time.sleep(0.01)
    children = _commands(process.pid)
    process.send_signal(signal.SIGKILL)
    # It comes to an end only when nobody has the pipes open any more.
    shown, said = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, said
    assert not shown
    last_round = _checkpoints(folder, method)[-1]
    return KilledRun(last_round, _methods_done(folder), children, said)

  def end(self) -> None:
    for process in self.started:
      process.kill()
      process.communicate()


@dataclasses.dataclass(frozen=True)
class Whole:
  """A run that was not killed, piped into `head -1`.

  Attributes:
    folder: Its folder.
    head: What came out of the pipe.
    seconds: How long the pipe was open behind the last result.
    children: The processes that it had started, and their commands.
  """

  folder: pathlib.Path
  head: str
  seconds: float
  children: dict[psutil.Process, str]


def _whole(runs: _Runs, folder: pathlib.Path, runtime: str) -> Whole:
  process = runs.start(
    ['sh', '-c', '"$@" | head -1', 'sh', *_command(folder, runtime)]
  )
  while process.poll() is None and not _checkpoints(folder, 'fedadam'):
    time.sleep(0.05)
  children = _commands(process.pid)
  shown, said = process.communicate(timeout=_TIMEOUT)
  assert 'Traceback' not in said, said
  seconds = time.time() - (folder / 'results.json').stat().st_mtime
  return Whole(folder, shown, seconds, children)


@dataclasses.dataclass(frozen=True)
class Resumed:
  """A run that was killed, and started again."""

  folder: pathlib.Path
  killed: KilledRun
  said: str


def _resumed(runs: _Runs, folder: pathlib.Path, runtime: str) -> Resumed:
  killed = runs.kill_in_training(folder, runtime, _CASES[runtime].method)
  process = runs.start(_command(folder, runtime))
  _, said = process.communicate(timeout=_TIMEOUT)
  assert process.returncode == 0, said
  return Resumed(folder, killed, said)


@pytest.fixture(name='results', scope='module')
def _results(tmp_path_factory) -> Iterator[dict[tuple[str, str], object]]:
  """All runs, at once: it is the import of TFF that takes time."""
  root = tmp_path_factory.mktemp('runs')
  runs = _Runs()
  try:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
      futures = {
        (kind, runtime): pool.submit(
          function, runs, root / f'{kind}_{runtime}', runtime
        )
        for runtime in _CASES
        for kind, function in (('whole', _whole), ('resumed', _resumed))
      }
      yield {key: future.result() for key, future in futures.items()}
  finally:
    runs.end()


_RUNTIMES = pytest.mark.parametrize('runtime', list(_CASES))


def _numbers(folder: pathlib.Path):
  """What results.json says, without how long it took."""
  results = json.loads((folder / 'results.json').read_text())
  del results['checksum']  # It is of the seconds as well.
  for result in results['methods'].values():
    del result['training_seconds'], result['evaluation_seconds']
  return results


@_RUNTIMES
def test_it_was_killed_in_the_middle_of_a_training(results, runtime):
  killed, case = results['resumed', runtime].killed, _CASES[runtime]
  assert 0 < killed.round < case.total_rounds
  assert killed.done == _METHODS[: _METHODS.index(case.method)]


@_RUNTIMES
def test_it_ends_with_the_results_of_one_that_was_not(results, runtime):
  resumed, whole = (results[k, runtime].folder for k in ('resumed', 'whole'))
  assert _numbers(resumed) == _numbers(whole)
  assert tuple(_numbers(whole)['methods']) == _METHODS


@_RUNTIMES
def test_it_ends_with_the_same_bytes(results, runtime):
  resumed, whole = (results[k, runtime].folder for k in ('resumed', 'whole'))
  last = f'program_state_{_CASES[runtime].total_rounds}.npz'
  for name in (
    'config.toml',
    'per_client.csv',
    *(f'metrics/{method}.csv' for method in _METHODS),
    *(f'checkpoints/{method}/{last}' for method in _METHODS),
  ):
    assert (resumed / name).read_bytes() == (whole / name).read_bytes(), name


@_RUNTIMES
def test_it_went_on_and_did_not_begin_again(results, runtime):
  for kind in ('whole', 'resumed'):
    path = results[kind, runtime].folder / 'results.json'
    methods = json.loads(path.read_text())['methods']
    # How long a training took that was stopped, nobody knows.
    stopped = [
      name
      for name, result in methods.items()
      if result['training_seconds'] is None
    ]
    assert stopped == [_CASES[runtime].method] * (kind == 'resumed')


@_RUNTIMES
def test_no_process_outlives_a_run(results, runtime):
  for run in (results['whole', runtime], results['resumed', runtime].killed):
    workers = [c for c in run.children.values() if 'worker_binary --p' in c]
    assert len(workers) == (runtime == 'native')
    assert all(map(processes.is_gone, run.children))


@_RUNTIMES
def test_into_head_a_run_ends_when_it_is_done(results, runtime):
  whole = results['whole', runtime]
  assert whole.head.rstrip() == 'accuracy of 4 test clients; higher is better'
  assert whole.head.count('\n') == 1
  assert whole.seconds < 15


@_RUNTIMES
def test_nothing_is_said_but_how_far_it_is(results, runtime):
  result = results['resumed', runtime]
  lines = (result.said + result.killed.said).splitlines()
  assert lines
  for line in lines:
    assert line.startswith(('Settings', *_METHODS, 'Written to'))


@_RUNTIMES
def test_it_says_from_which_round_it_goes_on(results, runtime):
  resumed, method = results['resumed', runtime], _CASES[runtime].method
  line = f'{method}: training goes on with round {resumed.killed.round + 1}'
  assert line in resumed.said.splitlines()
