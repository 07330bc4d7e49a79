"""Tests of copying runs to MLflow and Weights & Biases, without either."""

import pathlib
import subprocess
import sys
from unittest import mock

import pytest

from examples import trackers
from tests.experiments import run_folders

_PROGRAM = pathlib.Path(trackers.__file__).absolute()


@pytest.fixture(name='folder')
def _folder(tmp_path):
  folder = run_folders.write(
    tmp_path / 'run',
    {'fedavg': 0.25, 'ditto': None},
    fedavg={'client_learning_rate': 0.1},
    ditto={'regularization': 2.0},
  )
  text = (folder / 'results.json').read_text()
  for name in ('fedavg', 'ditto'):
    text = text.replace(
      f'"{name}": {{"metric"', f'"{name}": {{"training": "fedavg", "metric"'
    )
  (folder / 'results.json').write_text(text)
  (folder / 'validation').mkdir()
  (folder / 'validation/fedavg.csv').write_text('round,mean\n2,nan\n4,3.0\n')
  return folder


def test_a_record_has_what_is_of_its_method(folder):
  fedavg, ditto = trackers.read(folder)
  assert (fedavg.project, fedavg.name) == ('school', 'run/fedavg')
  assert fedavg.settings == {
    'method': 'fedavg',
    'seed': 0,
    'total_rounds': 5,
    'task.name': 'school',
    'client_learning_rate': 0.1,
  }
  assert fedavg.rounds == {
    1: {'metrics/loss': 0.5},
    2: {'metrics/loss': 0.25},
    4: {'validation/mean': 3.0},
  }
  assert fedavg.results == {'test/mean': 0.25, 'test/deviation': 0.5}
  assert [row['client'] for row in fedavg.clients] == ['c1', 'c2']
  assert {path.name for path in fedavg.files} == {
    'results.json',
    'per_client.csv',
  }
  # What has diverged has no mean.
  assert ditto.results == {'test/deviation': 0.5}
  assert ditto.settings['regularization'] == 2
  assert 'client_learning_rate' not in ditto.settings


def test_mlflow_is_given_each_value_with_its_round(folder):
  record, _ = trackers.read(folder)
  mlflow = mock.MagicMock()
  mlflow.entities.Metric = lambda name, value, time, step: (name, value, step)
  trackers.to_mlflow(mlflow, record)
  mlflow.set_experiment.assert_called_once_with('school')
  mlflow.log_params.assert_called_once_with(record.settings)
  mlflow.log_metrics.assert_called_once_with(record.results)
  ((_, values), _) = mlflow.MlflowClient().log_batch.call_args
  assert values == [
    ('metrics/loss', 0.5, 1),
    ('metrics/loss', 0.25, 2),
    ('validation/mean', 3.0, 4),
  ]
  assert mlflow.log_artifact.call_count == len(record.files)


def test_wandb_is_given_the_clients_as_a_table(folder):
  record, _ = trackers.read(folder)
  wandb = mock.MagicMock()
  trackers.to_wandb(wandb, record)
  wandb.init.assert_called_once_with(
    project='school', name='run/fedavg', config=record.settings
  )
  run = wandb.init().__enter__()
  assert run.log.call_args_list[0] == mock.call({'metrics/loss': 0.5}, step=1)
  run.summary.update.assert_called_once_with(record.results)
  _, table = wandb.Table.call_args
  assert table['columns'] == ['method', 'client', 'metric', 'before']
  assert table['data'][0] == ['fedavg', 'c1', '1', '']


@pytest.mark.parametrize(
  ('tracker', 'has_results', 'message'),
  [
    ('mlflow', True, 'mlflow is not installed'),
    ('wandb', False, 'has no results of a run'),
    ('tensorboard', True, "invalid choice: 'tensorboard'"),
  ],
)
def test_it_needs_python_alone_and_tells_what_is_wrong(
  folder, tmp_path, tracker, has_results, message
):
  done = subprocess.run(
    # Without any package, this project's among them.
    [sys.executable, '-I', '-S', str(_PROGRAM), tracker]
    + [str(folder if has_results else tmp_path)],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2
  assert message in done.stderr
  assert 'Traceback' not in done.stderr
