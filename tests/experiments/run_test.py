import csv
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from algorithms import registry as algorithm_registry
from base import errors
from experiments import run
from experiments.configuration import config as config_lib
from experiments.reporting import output
from experiments.reporting import terminal
from personalization import training
from tasks import registry
from tasks.data import populations
from tasks.models import linear
from tests import data

_SMALL = (
  'task.num_train_clients=6',
  'task.num_validation_clients=3',
  'task.num_test_clients=4',
  'task.max_examples=40',
  'total_rounds=7',
  'clients_per_round=4',
  'rounds_per_checkpoint=3',
)
_METHODS = ('fedavg', 'finetuning', 'local')


def _config(*assignments, algorithms='fedavg'):
  return config_lib.resolve(
    config_lib.read(None, [*_SMALL, *assignments], {'algorithms': algorithms})
  )


def _run(config, folder, data_dir=None):
  with mock.patch.object(sys, 'stderr'):
    return run.run(config, folder, data_dir)


def _rows(folder):
  with (folder / 'per_client.csv').open(newline='') as file:
    return list(csv.DictReader(file))


def _numbers(folder):
  """All that two runs of the same must have the same, to the bit."""
  results = json.loads((folder / 'results.json').read_text())
  for result in results['methods'].values():
    for name in ('training_seconds', 'evaluation_seconds'):
      result.pop(name)
  metrics = {path.name: path.read_text() for path in folder.glob('metrics/*')}
  return results, (folder / 'per_client.csv').read_text(), metrics


class _Stopped(Exception):
  """Stands for whatever may stop a run."""


def _stop_in_round(last):
  """Stops a training behind a round."""

  def train(*args, on_round, **kwargs):
    def on_round_or_stop(round_num, metrics):
      on_round(round_num, metrics)
      if round_num == last:
        raise _Stopped

    return real(*args, on_round=on_round_or_stop, **kwargs)

  real = training.train
  return mock.patch.object(training, 'train', train)


def _stop_behind_a_method():
  def add(folder, *args):
    real(folder, *args)
    raise _Stopped

  real = output.Folder.add
  return mock.patch.object(output.Folder, 'add', add)


class RunTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.root)
    cls.config = _config('finetuning_epochs=2', algorithms=_METHODS)
    cls.results = _run(cls.config, cls.root / 'whole')

  def test_leaves_a_result_for_each_method_and_client(self):
    self.assertEqual(tuple(self.results), _METHODS)
    self.assertEqual(
      [(row['method'], row['client']) for row in _rows(self.root / 'whole')],
      [(m, f'test_{i:06d}') for m in _METHODS for i in range(4)],
    )
    for result in self.results.values():
      self.assertEqual(result['test']['num_clients'], 4)

  def test_tells_of_the_training(self):
    fedavg, local = self.results['fedavg'], self.results['local']
    self.assertEqual(fedavg['rounds'], 7)
    self.assertGreater(fedavg['training_seconds'], 0)
    self.assertEqual(local['rounds'], 0)
    self.assertIsNone(local['training'])

  def test_tells_what_was_sent(self):
    # 60 features and 10 classes; 7 rounds of 4 clients.
    size = 60 * 10 + 10
    self.assertEqual(
      self.results['finetuning']['communication'],
      {
        'parameters_down': size,
        'parameters_up': size,
        'total_parameters': 7 * 4 * 2 * size,
      },
    )
    local = self.results['local']['communication']
    self.assertEqual(local['total_parameters'], 0)

  def test_what_trains_the_same_is_trained_once(self):
    self.assertEqual(self.results['finetuning']['training'], 'fedavg')
    self.assertEqual(
      os.listdir(self.root / 'whole' / 'checkpoints'), ['fedavg']
    )

  def test_before_finetuning_is_the_model_that_was_handed_over(self):
    self.assertEqual(
      self.results['finetuning']['before'], self.results['fedavg']['test']
    )

  def test_what_was_handed_over_is_what_it_would_have_trained(self):
    config = _config('finetuning_epochs=2', algorithms='finetuning')
    alone = _run(config, self.root / 'alone')['finetuning']
    for part in ('candidates', 'test'):
      self.assertEqual(alone[part], self.results['finetuning'][part])

  def test_a_finished_run_is_not_run_again(self):
    with mock.patch.object(training, 'train', side_effect=AssertionError):
      again = _run(self.config, self.root / 'whole')
    self.assertEqual(again, self.results)

  def test_stopped_again_and_again_it_ends_with_the_same_numbers(self):
    # Which also tells that the configuration is all that they depend on.
    preset = str(self.root / 'whole' / 'config.toml')
    config = config_lib.resolve(config_lib.read(preset))
    folder = self.root / 'stopped'
    # On the way to the first checkpoint, to the second, and behind the last.
    for last_round in (2, 5, 7):
      with _stop_in_round(last_round), self.assertRaises(_Stopped):
        _run(config, folder)
    with _stop_behind_a_method(), self.assertRaises(_Stopped):
      _run(config, folder)
    self.assertEqual(_rows(folder)[-1]['method'], 'fedavg')
    results = _run(config, folder)
    self.assertEqual(_numbers(folder), _numbers(self.root / 'whole'))
    # How long it took, nobody knows.
    self.assertIsNone(results['finetuning']['training_seconds'])

  def test_on_the_native_runtime(self):
    native = _run(_config('runtime=native'), self.root / 'native')
    self.assertAlmostEqual(
      native['fedavg']['test']['mean'],
      self.results['fedavg']['test']['mean'],
      places=4,
    )

  def test_the_robust_aggregator(self):
    results = _run(_config('aggregator=robust'), self.root / 'robust')
    self.assertIsNotNone(results['fedavg']['test']['mean'])

  @parameterized.parameters(
    ('clients_per_round=7', 'clients_per_round is 7, but synthetic has 6'),
    ('choose=each', "choose is 'each', but clients of synthetic"),
  )
  def test_is_refused_before_anything_is_written(self, assignment, message):
    with self.assertRaisesRegex(errors.UserError, message):
      _run(_config(assignment), self.root / 'refused')
    self.assertFalse((self.root / 'refused').exists())

  def test_a_method_that_cannot_do_the_task(self):
    build = algorithm_registry.build

    def build_other(*args, **kwargs):
      method = build(*args, **kwargs)
      return dataclasses.replace(method, personalizes_new_clients=False)

    with mock.patch.object(algorithm_registry, 'build', build_other):
      with self.assertRaisesRegex(errors.UserError, 'fedavg can personalize'):
        _run(_config(), self.root / 'impossible')

  def test_a_folder_of_another_configuration_is_refused(self):
    with self.assertRaisesRegex(errors.UserError, 'another configuration'):
      _run(_config(), self.root / 'whole')


class WarmstartTest(parameterized.TestCase):
  """Trainings that begin with the models of finished runs."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.root)
    for name, *assignments, algorithms in (
      ('fedavg', 'fedavg'),
      ('faster', 'client_learning_rate=0.5', 'fedavg'),
      ('several', 'fedavg,fedadam'),
      ('ensemble', 'ensemble'),
      ('local', 'finetuning_epochs=2', 'local'),
    ):
      config = _config(*assignments, algorithms=algorithms)
      _run(config, cls.root / name)

  def run_from(self, sources, *assignments, algorithms='finetuning'):
    """The results and rows of a run from those of the names."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
    paths = ','.join(str(self.root / source) for source in sources.split(','))
    config = _config(
      f'warmstart_from={paths}', *assignments, algorithms=algorithms
    )
    return _run(config, folder), _rows(folder)

  def test_finetuning_begins_with_the_model_of_fedavg(self):
    config = _config('finetuning_epochs=2', algorithms='fedavg,finetuning')
    expected = _run(config, self.root / 'finetuning')['finetuning']
    for source in ('fedavg', 'several:fedavg'):
      results, rows = self.run_from(
        source, 'total_rounds=0', 'finetuning_epochs=2'
      )
      result = results['finetuning']
      for part in ('test', 'before', 'candidates'):
        self.assertEqual(result[part], expected[part])
      self.assertEqual(
        rows,
        [
          row
          for row in _rows(self.root / 'finetuning')
          if row['method'] == 'finetuning'
        ],
      )
      self.assertEqual(result['warmstart_from'], [str(self.root / source)])

  def test_hypcluster_begins_with_the_models_of_several(self):
    _, rows = self.run_from(
      'fedavg,faster', 'total_rounds=0', algorithms='hypcluster'
    )
    of_models = [_rows(self.root / name) for name in ('fedavg', 'faster')]
    for row, *of_client in zip(rows, *of_models, strict=True):
      picked = of_client[int(float(row['cluster']))]
      self.assertEqual(row['client'], picked['client'])
      self.assertAlmostEqual(
        float(row['metric']), float(picked['metric']), places=6
      )

  def test_hypcluster_begins_with_the_models_of_an_ensemble(self):
    _, rows = self.run_from(
      'ensemble', 'total_rounds=0', algorithms='hypcluster'
    )
    of_ensemble = _rows(self.root / 'ensemble')
    for row, expected in zip(rows, of_ensemble, strict=True):
      self.assertEqual(row, expected | {'method': 'hypcluster'})

  @parameterized.parameters(
    'fedavg', 'fedadam', 'knn_per', 'ditto', 'hypcluster', 'ensemble'
  )
  def test_every_method_with_a_global_model(self, name):
    num_models = 2 if name in ('hypcluster', 'ensemble') else 1
    sources = ','.join(('fedavg', 'faster')[:num_models])
    results, _ = self.run_from(sources, 'total_rounds=2', algorithms=name)
    self.assertIsNotNone(results[name]['test']['mean'])

  @parameterized.parameters(
    ('nothing', 'finetuning', 'nothing is no output folder of a run'),
    ('fedavg:fedavgm', 'finetuning', "Unknown method 'fedavgm'"),
    ('several', 'finetuning', 'trained fedavg and fedadam. Name one of them'),
    ('local', 'finetuning', 'has trained no global model'),
    ('fedavg,faster', 'finetuning', 'begins with 1 models, but there are 2'),
    (
      'fedavg',
      'hypcluster',
      'hypcluster begins with 2 models, but there are 1',
    ),
    ('fedavg', 'fedavg,local', 'local has no global model'),
  )
  def test_is_refused_before_training(self, sources, algorithms, message):
    with mock.patch.object(training, 'train', side_effect=AssertionError):
      with self.assertRaisesRegex(errors.UserError, message):
        self.run_from(sources, algorithms=algorithms)

  def test_another_model(self):
    real = registry.load

    def load(*args, **kwargs):
      task = real(*args, **kwargs)
      return dataclasses.replace(task, model=linear.LinearRegression(3))

    with mock.patch.object(registry, 'load', load):
      with self.assertRaisesRegex(
        errors.UserError,
        r"warmstart_from: .*'0/server/model/kernel' is float32\[60,10\] in it,"
        r' not float32\[3\]',
      ):
        self.run_from('fedavg')

  def test_a_checkpoint_that_is_missing(self):
    shutil.copytree(self.root / 'fedavg', self.root / 'copy')
    shutil.rmtree(self.root / 'copy' / 'checkpoints')
    with self.assertRaisesRegex(errors.UserError, 'no checkpoint of round 7'):
      self.run_from('copy')


class MeasuredTest(absltest.TestCase):
  def test_what_else_is_measured(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, folder)
    config = _config(
      'finetuning_epochs=2',
      'ood_examples=30',
      'evaluation_fractions=0.5',
      'personalization_fractions=0.5',
      'acceptance_margin=0',
      'hypcluster.warmstart_rounds=2',
      algorithms='finetuning,hypcluster',
    )
    results = _run(config, folder)
    finetuning = results['finetuning']
    for name in (
      'out_of_distribution',
      'evaluation_fractions',
      'personalization_fractions',
      'acceptance',
    ):
      self.assertIn(name, finetuning)
    self.assertEqual(
      finetuning['candidates']['0 epochs']['out_of_distribution_hurt'], 0
    )
    hypcluster = results['hypcluster']
    self.assertEqual(sum(hypcluster['clusters']['sizes'].values()), 4)
    # Two models down; in the 2 warm rounds of 7 both up, else one.
    sent = hypcluster['communication']
    one = finetuning['communication']['parameters_down']
    self.assertAlmostEqual(sent['parameters_down'], 2 * one)
    self.assertAlmostEqual(sent['parameters_up'], (2 * 2 + 5) / 7 * one)
    (first, *_) = _rows(folder)
    self.assertNotEqual(first['metric_ood'], '')
    self.assertEqual(first['cluster'], '')


class BadClientsTest(absltest.TestCase):
  """Clients that cannot take part are left out, and reported."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, folder)
    real = registry.load

    def load(*args, **kwargs):
      task = real(*args, **kwargs)
      return dataclasses.replace(
        task, train=_spoil(task.train), test=_spoil(task.test)
      )

    with mock.patch.object(registry, 'load', load):
      with mock.patch.object(terminal, 'say') as say:
        results = _run(_config('clients_per_round=0'), folder)
    cls.result = results['fedavg']
    cls.rows = _rows(folder)
    cls.said = [call.args[0] for call in say.call_args_list]

  def test_without_examples_in_training(self):
    self.assertEqual(self.result['skipped_in_training'], ['train_000001'])
    self.assertIn(
      'fedavg: training: left out 1 clients without examples: train_000001',
      self.said,
    )

  def test_without_examples_in_evaluation(self):
    self.assertEqual(self.result['skipped_in_evaluation'], ['test_000001'])
    self.assertEqual(self.result['test']['num_clients'], 3)
    self.assertLen(self.rows, 3)
    self.assertIn(
      'fedavg: evaluation: left out 1 clients without examples: test_000001',
      self.said,
    )

  def test_an_update_that_is_not_finite(self):
    self.assertEqual(self.result['dropped_updates'], 7)
    self.assertIsNotNone(self.result['test']['mean'])
    self.assertIn(
      'fedavg: training: dropped 7 updates of clients that were not finite',
      self.said,
    )


def _spoil(population):
  """Takes one client's examples away, and makes another's no numbers."""

  def spoiled(load):
    def load_spoiled(client_id):
      examples = load(client_id)
      if client_id in ('train_000001', 'test_000001'):
        return {name: values[:0] for name, values in examples.items()}
      if client_id == 'train_000002':
        return examples | {'x': np.full_like(examples['x'], np.nan)}
      return examples

    return load_spoiled

  return populations.Population(
    population.client_ids,
    {name: spoiled(load) for name, load in population.sets.items()},
  )


class SchoolTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    data.path('school/school.mat')
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder)

  def test_lands_near_the_papers_numbers(self):
    config = config_lib.resolve(config_lib.read('school'))
    results = _run(config, self.folder, str(data.path('')))
    for method, mean in (
      ('fedavg', 0.0130),
      ('local', 0.0121),
      ('finetuning', 0.0116),
    ):
      self.assertAlmostEqual(
        results[method]['test']['mean'], mean, delta=0.0006, msg=method
      )

  def test_each_client_can_choose_for_itself(self):
    config = config_lib.resolve(
      config_lib.read(
        'school',
        ['choose=each', 'finetuning_epochs=20'],
        {'algorithms': 'local'},
      )
    )
    results = _run(config, self.folder, str(data.path('')))
    self.assertGreater(len(results['local']['chosen']), 1)


def _environment():
  """That of a user; what TensorFlow has set in ours is not in it."""
  environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  return environment


class CommandTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.root)

  @parameterized.parameters(
    ('--help', 'finetuning.client_learning_rate=0.1'),
    ('--tsk=school', "Unknown command line flag 'tsk'"),
    ('--task=scool', "Did you mean 'school'?"),
    ('--algorithm=lokal', "Did you mean 'local'?"),
    ('--preset=scool', "Did you mean 'school'?"),
    ('--runtime=remote', 'should be one of'),
    ('--set=x', 'name=value'),
    ('school', "no argument 'school'"),
  )
  def test_is_answered_without_importing_tensorflow(self, argument, answer):
    code = """if True:
      import runpy, sys
      sys.argv[0] = 'run'
      try:
        runpy.run_module('experiments.run', run_name='__main__', alter_sys=True)
      finally:
        assert not {'tensorflow', 'numpy'} & set(sys.modules)
    """
    done = subprocess.run(
      [sys.executable, '-c', code, argument],
      env=_environment(),
      capture_output=True,
      text=True,
    )
    self.assertIn(answer, done.stdout + done.stderr)
    self.assertNotIn('Traceback', done.stderr)
    self.assertEqual(done.returncode, 1)

  def start(self, *arguments):
    command = [sys.executable, '-m', 'experiments.run', *arguments]
    for assignment in _SMALL:
      command += ['--set', assignment]
    return subprocess.Popen(
      command,
      # As `bazel run` has it, where the user is not where the program is.
      env=_environment() | {'BUILD_WORKING_DIRECTORY': str(self.root)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def test_shows_the_table_and_nothing_of_tensorflows(self):
    process = self.start('--algorithm=fedavg,local')
    shown, said = process.communicate(timeout=300)
    self.assertEqual(process.returncode, 0, said)
    self.assertRegex(shown, r'^accuracy of 4 test clients; higher is better')
    (folder,) = (self.root / 'results').iterdir()
    self.assertStartsWith(folder.name, 'synthetic-')
    lines = said.splitlines()
    self.assertLen(lines, 4, said)
    self.assertStartsWith(lines[0], 'fedavg: training: 7 of 7 rounds, ')
    self.assertStartsWith(lines[1], 'fedavg: evaluation: 7 of 7 clients, ')
    self.assertStartsWith(lines[2], 'local: evaluation: 7 of 7 clients, ')
    self.assertEqual(lines[3], f'Written to {folder}')

  def test_a_mistake_is_told_without_a_traceback(self):
    process = self.start('--set=batc_size=1')
    shown, said = process.communicate(timeout=300)
    self.assertEqual(process.returncode, 1)
    self.assertEmpty(shown)
    self.assertStartsWith(said, "Error: --set: Unknown setting 'batc_size'.")
    self.assertLen(said.splitlines(), 1)
    self.assertEmpty(os.listdir(self.root))

  def test_ctrl_c(self):
    process = self.start(
      '--algorithm=fedavg', '--total_rounds=1000000', '--output_dir=a'
    )
    checkpoints = self.root / 'a' / 'checkpoints' / 'fedavg'
    while process.poll() is None and not checkpoints.exists():
      time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    self.assertEqual(process.returncode, 130, said)
    self.assertIn('The same command goes on', said)
    self.assertNotIn('Traceback', said)


if __name__ == '__main__':
  absltest.main()
