"""The example of a task, and the program that runs both examples."""

import json

import numpy as np
import tensorflow as tf

from examples import sine_waves
from tasks import task as tasks
from tests.experiments import programs


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


def test_a_run_takes_both_examples_and_a_module_where_the_user_is(tmp_path):
  (tmp_path / 'own_methods.py').write_text(
    'from algorithms import fedavg, registry\n'
    "registry.register_trainer('own', fedavg.FedAvg, title='Own',"
    " does='the same', sends='the update')\n"
  )
  done = programs.run(
    'run',
    '--set=modules=examples.fedexp,examples.sine_waves,own_methods',
    '--task=sine_waves',
    '--algorithm=fedavg,fedexp,own',
    '--total_rounds=2',
    '--set=task.num_clients=12',
    '--set=client_learning_rate=0.01',
    '--output_dir=run',
    BUILD_WORKING_DIRECTORY=str(tmp_path),
  )
  assert done.returncode == 0, done.stderr
  results = json.loads((tmp_path / 'run' / 'results.json').read_text())
  methods = results['methods']
  assert methods['fedexp']['rounds'] == 2
  assert methods['own']['test'] == methods['fedavg']['test']
  assert set(methods['fedavg']['groups']) == {'sine', 'cosine'}
