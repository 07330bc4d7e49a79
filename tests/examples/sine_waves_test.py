"""The example of a task, and the program that runs both examples."""

import json
import os
import subprocess
import sys

import numpy as np
import tensorflow as tf

from examples import sine_waves
from tasks import task as tasks


def _task(**settings):
  return sine_waves.load(sine_waves.SineWavesSettings(**settings), None, 0)


def test_clients_are_held_out():
  task = _task(num_clients=10, num_examples=8)
  train, validation, test = (
    set(population.client_ids)
    for population in (task.train, task.validation, task.test)
  )
  assert (len(train), len(validation), len(test)) == (10, 5, 5)
  assert not (train & validation or train & test or validation & test)
  for name, load in task.test.sets.items():
    assert name in ('personalization', 'evaluation')
    assert load(min(test))['x'].shape == (4, 1)


def test_points_are_on_the_wave_of_the_clients_group():
  task = _task(noise=0.0)
  group = task.attributes[tasks.GROUP]
  for client_id in task.train.client_ids[:10]:
    points = task.train.sets['train'](client_id)
    x, y = points['x'][:, 0], points['y']
    # The phase that fits best, to two digits.
    phases = np.arange(-np.pi, np.pi, 0.01)
    errors = [np.mean(np.square(np.sin(x + phase) - y)) for phase in phases]
    assert min(errors) < 1e-4
    expected = {'sine': 0.0, 'cosine': np.pi / 2}[group.name(client_id)]
    assert abs(phases[np.argmin(errors)] - expected) < 4 * 0.3


def test_the_network_represents_and_decides():
  model = sine_waves.SineNetwork(width=5)
  weights = model.init(tf.constant([0, 1]))
  batch = {'x': tf.constant([[0.5], [1.0]]), 'y': tf.constant([0.0, 1.0])}
  assert model.encode(weights, batch).shape == [2, 5]
  np.testing.assert_allclose(
    model.loss(weights, batch),
    np.square(model.scores(weights, batch) - batch['y']),
    rtol=1e-6,
  )


def test_the_program_runs_both_examples(tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'examples.run',
      '--task=sine_waves',
      '--algorithm=fedavg,feddyn',
      '--total_rounds=2',
      '--set=task.num_clients=12',
      '--set=client_learning_rate=0.01',
      f'--output_dir={tmp_path / "run"}',
    ],
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=True,
  )
  assert 'feddyn' in done.stdout
  results = json.loads((tmp_path / 'run' / 'results.json').read_text())
  methods = results['methods']
  assert methods['feddyn']['rounds'] == 2
  assert set(methods['fedavg']['groups']) == {'sine', 'cosine'}
