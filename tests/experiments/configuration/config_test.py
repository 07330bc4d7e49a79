import dataclasses
import os
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tomli_w

from base import errors
from experiments.configuration import config as config_lib


def _resolve(preset=None, assignments=(), **flags):
  flags = {
    {'task': 'task.name'}.get(name, name): value
    for name, value in flags.items()
  }
  return config_lib.resolve(config_lib.read(preset, assignments, flags))


class ConfigTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder)

  def preset(self, text):
    path = self.folder / 'preset.toml'
    path.write_text(text)
    return str(path)

  def test_without_anything_all_methods_run_on_synthetic(self):
    config = _resolve()
    self.assertEqual(config.task, 'synthetic')
    self.assertEqual(
      list(config.hyperparameters),
      ['fedavg', 'fedavgm', 'fedadam', 'local', 'finetuning'],
    )

  def test_a_later_place_overrides_an_earlier_one(self):
    preset = self.preset('seed = 1\ntotal_rounds = 1\nbatch_size = 1')
    config = _resolve(preset, ['seed=2', 'total_rounds=2'], seed=3)
    self.assertEqual(config.options.batch_size, 1)
    self.assertEqual(config.options.total_rounds, 2)
    self.assertEqual(config.options.seed, 3)

  def test_in_one_place_the_later_setting_wins(self):
    config = _resolve(
      None,
      [
        'finetuning.client_learning_rate=.1',
        'client_learning_rate=.2',
        'fedavg.client_learning_rate=.3',
      ],
      algorithms='fedavg,finetuning',
    )
    rates = {
      name: own.client_learning_rate
      for name, own in config.hyperparameters.items()
    }
    self.assertEqual(rates, {'fedavg': 0.3, 'finetuning': 0.2})

  def test_a_bare_name_is_of_every_chosen_method_that_has_it(self):
    config = _resolve(
      None, ['finetuning_epochs=3'], algorithms='fedavg,local,finetuning'
    )
    self.assertEqual(config.hyperparameters['local'].finetuning_epochs, 3)
    self.assertEqual(config.hyperparameters['finetuning'].finetuning_epochs, 3)

  def test_tables_of_a_preset(self):
    config = _resolve(
      self.preset("""
            algorithms = ["fedavg", "finetuning"]
            client_learning_rate = 0.5
            [task]
            name = "synthetic"
            alpha = 2
            [finetuning]
            finetuning_learning_rates = [0.1, 1]
            client_learning_rate = 0.25
        """)
    )
    self.assertEqual(config.task_parameters.alpha, 2.0)
    finetuning = config.hyperparameters['finetuning']
    self.assertEqual(finetuning.finetuning_learning_rates, (0.1, 1.0))
    self.assertEqual(finetuning.client_learning_rate, 0.25)
    self.assertEqual(config.hyperparameters['fedavg'].client_learning_rate, 0.5)

  def test_the_preset_of_the_tasks_name_is_the_default(self):
    config = _resolve(task='school')
    self.assertEqual(config.options.seed, 100)
    self.assertEqual(config.options, _resolve('school').options)
    other = _resolve(self.preset(''), task='school')
    self.assertEqual(other.options.seed, 0)

  @parameterized.parameters('school', 'school.toml')
  def test_a_preset_that_comes_with_the_code(self, name):
    self.assertEqual(_resolve(name).task, 'school')

  @parameterized.parameters(*config_lib.preset_names())
  def test_every_preset_resolves(self, name):
    self.assertIn('name', _resolve(name).to_dict()['task'])

  @parameterized.parameters('emnist', 'stackoverflow', 'landmarks', 'ted_multi')
  def test_every_row_of_motleys_tables_has_a_preset(self, task):
    config = _resolve(task=task)
    self.assertEqual(
      list(config.hyperparameters),
      ['local', 'fedadam', 'finetuning', 'knn_per', 'ensemble'],
    )
    # The ensemble is of models that are trained as all others are.
    self.assertEqual(config.settings.aggregator, 'robust')
    fedadam = dataclasses.asdict(config.hyperparameters['fedadam'])
    for name in ('finetuning', 'knn_per', 'ensemble'):
      own = dataclasses.asdict(config.hyperparameters[name])
      self.assertEqual({key: own[key] for key in fedadam}, fedadam)

    hypcluster = _resolve(f'{task}_hypcluster')
    self.assertEqual(list(hypcluster.hyperparameters), ['hypcluster'])
    self.assertEqual(hypcluster.task_parameters, config.task_parameters)
    own = hypcluster.hyperparameters['hypcluster']
    self.assertEqual(
      hypcluster.options.total_rounds - own.warmstart_rounds,
      config.options.total_rounds,
    )
    self.assertEqual(
      own.num_clusters, config.hyperparameters['ensemble'].num_clusters
    )

  def test_a_preset_may_set_what_is_not_chosen_after_all(self):
    config = _resolve(
      self.preset("""
            finetuning_epochs = 3
            [task]
            name = "synthetic"
            alpha = 2.0
            [finetuning]
            finetuning_shuffle = true
        """),
      task='school',
      algorithms='fedavg',
    )
    self.assertEqual(list(config.hyperparameters), ['fedavg'])
    self.assertEqual(config.to_dict()['task'].keys(), {'name', 'split_seed'})

  def test_a_preset_without_a_task_sets_those_of_the_chosen_one(self):
    preset = self.preset('[task]\nsplit_seed = 3')
    config = _resolve(preset, task='school')
    self.assertEqual(config.task_parameters.split_seed, 3)

  def test_as_a_preset_it_gives_itself(self):
    config = _resolve(
      None,
      ['task.split_seed=none', 'finetuning_learning_rates=.1,.003'],
      task='school',
      seed=5,
      runtime='native',
    )
    preset = self.preset(tomli_w.dumps(config.to_dict()))
    self.assertEqual(_resolve(preset), config)
    self.assertEqual(config_lib.from_file(pathlib.Path(preset)), config)
    self.assertEqual(_resolve(preset).digest(), config.digest())

  def test_an_algorithm_named_twice_runs_once(self):
    config = _resolve(algorithms='local,fedavg,local')
    self.assertEqual(list(config.hyperparameters), ['local', 'fedavg'])
    self.assertEqual(config.settings.algorithms, ('local', 'fedavg'))

  @parameterized.named_parameters(
    ('task', {'task': 'scool'}, "task 'scool'. Did you mean 'school'?"),
    (
      'algorithm',
      {'algorithms': 'fedavg,lokal'},
      "algorithm 'lokal'. Did you mean 'local'?",
    ),
    ('no_algorithm', {'algorithms': ''}, 'No algorithm is chosen'),
    ('preset', {'preset': 'scool'}, "Did you mean 'school'?"),
    ('assignment', {'assignments': ['x']}, "takes name=value, not 'x'"),
  )
  def test_is_refused_at_once(self, arguments, message):
    arguments = dict(arguments)
    preset = arguments.pop('preset', None)
    assignments = arguments.pop('assignments', ())
    if 'task' in arguments:
      arguments['task.name'] = arguments.pop('task')
    with self.assertRaisesRegex(errors.UserError, message):
      config_lib.read(preset, assignments, arguments)

  @parameterized.parameters(
    ('batc_size=1', "Unknown setting 'batc_size'. Did you mean 'batch_size'"),
    ('alpha=1', "Did you mean 'task.alpha'?"),
    ('task.alhpa=1', "task synthetic: Unknown .* Did you mean 'alpha'?"),
    ('finetunin.x=1', "Did you mean 'finetuning'?"),
    ('local.finetuning_epoch=1', "local: .* mean 'finetuning_epochs'?"),
    ('fedavg.client_learning_rate=1', 'not of the chosen local'),
    ('client_learning_rate=1', 'not of the chosen local'),
    ('finetuning_epochs=x', "local: .* must be a whole number, not 'x'"),
    ('total_rounds=-1', 'total_rounds must be at least 0'),
    ('choose=some', 'choose must be one of all, each'),
  )
  def test_a_setting_is_refused(self, assignment, message):
    with self.assertRaisesRegex(errors.UserError, message):
      _resolve(None, [assignment], algorithms='local')

  @parameterized.parameters(
    ('seed = ', 'preset.toml cannot be read: Invalid value'),
    ('sed = 1', "preset .*preset.toml: Unknown setting 'sed'"),
    ('[lokal]\nfinetuning_epochs = 1', "Did you mean 'local'?"),
    ('[task]\nname = 3', "Unknown task '3'"),
    ('[seed]\nx = 3', "'seed'"),
    ('seed = [3]', 'preset .*preset.toml: settings: seed must be a whole'),
    ('total_rounds = -1', 'preset.toml: .* total_rounds must be at least 0'),
    ('[task]\nalhpa = 1', "preset.toml: task synthetic: .* mean 'alpha'?"),
    ('[task]\nmin_examples = 300', 'preset.toml: .* min_examples must be at'),
    ('[local]\nfinetuning_epochs = 0', 'preset.toml: local: finetuning_epochs'),
    ('algorithms = ["lokal"]', "preset.toml: Unknown algorithm 'lokal'"),
  )
  def test_a_preset_is_refused(self, text, message):
    with self.assertRaisesRegex(errors.UserError, message):
      _resolve(self.preset(text))

  def test_what_is_set_elsewhere_is_not_put_down_to_the_preset(self):
    preset = self.preset('total_rounds = -1\nseed = 1')
    self.assertEqual(_resolve(preset, ['total_rounds=1']).options.seed, 1)
    with self.assertRaisesRegex(errors.UserError, '^--set: settings: batch_si'):
      _resolve(self.preset('seed = 1'), ['batch_size=-1'])

  def test_paths_are_the_users_under_bazel_run(self):
    self.preset('seed = 7')
    environment = {'BUILD_WORKING_DIRECTORY': str(self.folder)}
    with mock.patch.dict(os.environ, environment):
      self.assertEqual(_resolve('preset.toml').options.seed, 7)
      self.assertEqual(config_lib.user_path('x'), self.folder / 'x')
      self.assertEqual(config_lib.user_path('/x'), pathlib.Path('/x'))
      first, second = (
        _resolve(None, [f'warmstart_from={path}'])
        for path in (
          'a,b:fedavg',
          f'{self.folder}/a,../{self.folder.name}/b:fedavg',
        )
      )
      self.assertEqual(first.digest(), second.digest())
      self.assertEqual(
        first.settings.warmstart_from,
        (str(self.folder / 'a'), str(self.folder / 'b:fedavg')),
      )

  def test_differences(self):
    first = _resolve(seed=1, algorithms='local')
    second = _resolve(seed=2, algorithms='local,fedavg')
    self.assertEqual(
      config_lib.differences(first, second),
      [
        "algorithms: ['local'], not ['local', 'fedavg']",
        'seed: 1, not 2',
      ],
    )
    self.assertEmpty(config_lib.differences(first, first))


if __name__ == '__main__':
  absltest.main()
