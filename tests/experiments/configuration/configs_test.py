"""Tests of configurations: what users give, put together and checked."""

import os
import pathlib
from unittest import mock

import pytest
import tomli_w

from base import errors
from experiments.command_line import paths
from experiments.configuration import configs
from experiments.configuration import user_settings


def _resolve(preset=None, assignments=(), **flags):
  flags = {
    {'task': 'task.name'}.get(name, name): value
    for name, value in flags.items()
  }
  return configs.resolve(user_settings.read(preset, assignments, flags))


def _own(config, name):
  """The settings of a method, by their names."""
  return config.method_settings[name].to_dict()


class TestConfig:
  @pytest.fixture(autouse=True)
  def _set_up(self, tmp_path):
    self.folder = tmp_path

  def preset(self, text):
    path = self.folder / 'preset.toml'
    path.write_text(text)
    return str(path)

  def test_without_anything_all_methods_run_on_synthetic(self):
    config = _resolve()
    assert config.task == 'synthetic'
    assert list(config.method_settings) == [
      'fedavg',
      'fedavgm',
      'fedadam',
      'local',
      'finetuning',
    ]

  def test_a_later_place_overrides_an_earlier_one(self):
    preset = self.preset('seed = 1\ntotal_rounds = 1\nbatch_size = 1')
    config = _resolve(preset, ['seed=2', 'total_rounds=2'], seed=3)
    assert config.training.batch_size == 1
    assert config.training.total_rounds == 2
    assert config.training.seed == 3

  def test_privacy_has_a_table_of_its_own(self):
    preset = self.preset('[privacy]\nname = "distributed"\nnoise = 2\nbits = 9')
    config = _resolve(preset, ['privacy.clip=0.5'])
    assert config.privacy == 'distributed'
    assert config.privacy_settings.noise == 2
    assert config.privacy_settings.bits == 9
    assert config.privacy_settings.clip == 0.5
    again = self.folder / 'again.toml'
    again.write_text(tomli_w.dumps(config.to_dict()))
    assert configs.read(again) == config

  def test_what_a_preset_says_of_another_privacy_means_nothing(self):
    preset = self.preset('[privacy]\nname = "distributed"\nnoise = 2\nbits = 9')
    config = _resolve(
      preset, ['privacy.epsilon=1'], **{'privacy.name': 'gaussian'}
    )
    assert config.privacy_settings.epsilon == 1
    assert config.privacy_settings.noise is None

  @pytest.mark.parametrize(
    ('way', 'sampling'),
    [
      ('none', 'fixed_size'),
      ('gaussian', 'poisson'),
      ('adaptive', 'poisson'),
      ('tree', 'cycles'),
      ('matrix', 'cyclic_poisson'),
      ('local', 'fixed_size'),
      ('distributed', 'fixed_size'),
      ('example', 'fixed_size'),
    ],
  )
  def test_clients_are_sampled_as_costs_least_where_nothing_is_set(
    self, way, sampling
  ):
    private = [] if way == 'none' else ['privacy.noise=1']
    config = _resolve(None, private, **{'privacy.name': way})
    assert config.training.client_sampling == sampling
    assert config.to_dict()['client_sampling'] == sampling
    again = self.folder / 'again.toml'
    again.write_text(tomli_w.dumps(config.to_dict()))
    assert configs.read(again) == config

  def test_clients_are_sampled_as_is_set(self):
    preset = self.preset('client_sampling = "passes"')
    private = {'privacy.name': 'gaussian', 'privacy.noise': 1.0}
    config = _resolve(preset, [], **private)
    assert config.training.client_sampling == 'passes'
    config = _resolve(preset, ['client_sampling=fixed_size'], **private)
    assert config.training.client_sampling == 'fixed_size'

  def test_the_baseline_is_a_method_of_the_run(self):
    two = dict(algorithms='local,fedavg+finetuning')
    run = _resolve(None, ['baseline=finetuning'], **two).run
    assert run.baseline == 'finetuning'
    for other in ('fedavg', 'fedavgg'):
      with pytest.raises(errors.UserError, match=f"--set: .*'{other}'"):
        _resolve(None, [f'baseline={other}'], **two)

  def test_without_privacy_there_is_none(self):
    assert _resolve().to_dict()['privacy'] == {'name': 'none'}

  @pytest.mark.parametrize(
    ('flags', 'message'),
    (
      ({'privacy.name': 'gausian'}, "'gaussian'"),
      (
        {'privacy.epsilon': 1.0},
        'Choose a way, for example --privacy=gaussian',
      ),
      ({'privacy.name': 'gaussian'}, 'either the epsilon or the noise'),
      (
        {'privacy.name': 'gaussian', 'privacy.epsilon': 0.0},
        'the flags: privacy gaussian: epsilon must be above 0',
      ),
    ),
  )
  def test_privacy_that_makes_no_sense_is_refused(self, flags, message):
    with pytest.raises(errors.UserError, match=message):
      _resolve(None, [], **flags)

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
      name: _own(config, name)['client_learning_rate']
      for name in config.method_settings
    }
    assert rates == {'fedavg': 0.3, 'finetuning': 0.2}

  def test_a_bare_name_is_of_every_chosen_method_that_has_it(self):
    config = _resolve(
      None, ['finetuning_epochs=3'], algorithms='fedavg,local,finetuning'
    )
    assert _own(config, 'local')['finetuning_epochs'] == 3
    assert _own(config, 'finetuning')['finetuning_epochs'] == 3

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
    assert config.task_settings.alpha == 2.0
    finetuning = _own(config, 'finetuning')
    assert finetuning['finetuning_learning_rates'] == (0.1, 1.0)
    assert finetuning['client_learning_rate'] == 0.25
    assert _own(config, 'fedavg')['client_learning_rate'] == 0.5

  def test_the_preset_of_the_tasks_name_is_the_default(self):
    config = _resolve(task='school')
    assert config.training.seed == 100
    assert config.training == _resolve('school').training
    other = _resolve(self.preset(''), task='school')
    assert other.training.seed == 0

  @pytest.mark.parametrize('name', ['school', 'school.toml'])
  def test_a_preset_that_comes_with_the_code(self, name):
    assert _resolve(name).task == 'school'

  @pytest.mark.parametrize('name', user_settings.preset_names())
  def test_every_preset_resolves(self, name):
    assert 'name' in _resolve(name).to_dict()['task']

  @pytest.mark.parametrize(
    'task', ['emnist', 'stackoverflow', 'landmarks', 'ted_multi']
  )
  def test_every_row_of_motleys_tables_has_a_preset(self, task):
    config = _resolve(task=task)
    assert list(config.method_settings) == [
      'local',
      'fedadam',
      'finetuning',
      'knn_per',
      'ensemble',
    ]
    # The ensemble is of models that are trained as all others are.
    assert config.run.aggregator == 'robust'
    fedadam = _own(config, 'fedadam')
    for name in ('finetuning', 'knn_per', 'ensemble'):
      settings_of_method = _own(config, name)
      assert {key: settings_of_method[key] for key in fedadam} == fedadam

    hypcluster = _resolve(f'{task}_hypcluster')
    assert list(hypcluster.method_settings) == ['hypcluster']
    assert hypcluster.task_settings == config.task_settings
    settings_of_method = hypcluster.method_settings['hypcluster'].to_dict()
    assert (
      hypcluster.training.total_rounds - settings_of_method['warmstart_rounds']
      == config.training.total_rounds
    )
    ensemble = _own(config, 'ensemble')
    assert settings_of_method['num_clusters'] == ensemble['num_clusters']

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
    assert list(config.method_settings) == ['fedavg']
    assert config.to_dict()['task'].keys() == {'name', 'protocol', 'split_seed'}

  def test_a_preset_without_a_task_sets_those_of_the_chosen_one(self):
    preset = self.preset('[task]\nsplit_seed = 3')
    config = _resolve(preset, task='school')
    assert config.task_settings.split_seed == 3

  def test_as_a_preset_it_gives_itself(self):
    config = _resolve(
      None,
      ['task.split_seed=none', 'finetuning_learning_rates=.1,.003'],
      task='school',
      seed=5,
      runtime='native',
    )
    preset = self.preset(tomli_w.dumps(config.to_dict()))
    assert _resolve(preset) == config
    assert configs.read(pathlib.Path(preset)) == config
    assert _resolve(preset).digest() == config.digest()

  def test_an_algorithm_named_twice_runs_once(self):
    config = _resolve(algorithms='local,fedavg,local')
    assert list(config.method_settings) == ['local', 'fedavg']
    assert config.run.algorithms == ('local', 'fedavg')

  @pytest.mark.parametrize(
    ('assignment', 'message'),
    [
      ('batc_size=1', "Unknown setting 'batc_size'. Did you mean 'batch_size'"),
      ('beta=1', "Did you mean 'task.beta'?"),
      ('task.alhpa=1', "task synthetic: Unknown .* Did you mean 'alpha'?"),
      ('finetunin.x=1', "Did you mean 'finetuning'?"),
      ('local.finetuning_epoch=1', "local: .* mean 'finetuning_epochs'?"),
      ('fedavg.client_learning_rate=1', 'not of the chosen local'),
      ('client_learning_rate=1', 'not of the chosen local'),
      ('finetuning_epochs=x', "local: .* must be a whole number, not 'x'"),
      ('total_rounds=-1', 'total_rounds must be at least 0'),
      ('choose=some', 'choose must be one of all, each'),
      ('runtime=remote', "must not be 'remote' without workers"),
      ('remote_workers=a:1,b', "HOST:PORT, as 10.0.0.2:10000, not 'b'"),
      ('remote_workers=a:65536', "HOST:PORT, .* not 'a:65536'"),
      ('remote_workers=a:1', "must be empty with the runtime 'cohort'"),
      ('remote_key=a', 'remote_key must be given together'),
    ],
  )
  def test_a_setting_is_refused(self, assignment, message):
    with pytest.raises(errors.UserError, match=message):
      _resolve(None, [assignment], algorithms='local')

  @pytest.mark.parametrize(
    ('text', 'message'),
    [
      ('seed = ', 'preset.toml cannot be read: Invalid value'),
      ('sed = 1', "preset .*preset.toml: Unknown setting 'sed'"),
      ('[lokal]\nfinetuning_epochs = 1', "Did you mean 'local'?"),
      ('[task]\nname = 3', "Unknown task '3'"),
      ('[seed]\nx = 3', "'seed'"),
      ('seed = [3]', 'preset .*preset.toml: settings: seed must be a whole'),
      ('total_rounds = -1', 'preset.toml: .* total_rounds must be at least 0'),
      ('[task]\nalhpa = 1', "preset.toml: task synthetic: .* mean 'alpha'?"),
      ('[task]\nmin_examples = 300', 'preset.toml: .* min_examples must be at'),
      (
        '[local]\nfinetuning_epochs = 0',
        'preset.toml: local: finetuning_epochs',
      ),
      ('algorithms = ["lokal"]', "preset.toml: Unknown algorithm 'lokal'"),
    ],
  )
  def test_a_preset_is_refused(self, text, message):
    with pytest.raises(errors.UserError, match=message):
      _resolve(self.preset(text))

  def test_what_is_set_elsewhere_is_not_put_down_to_the_preset(self):
    preset = self.preset('total_rounds = -1\nseed = 1')
    assert _resolve(preset, ['total_rounds=1']).training.seed == 1
    with pytest.raises(errors.UserError, match='^--set: settings: batch_si'):
      _resolve(self.preset('seed = 1'), ['batch_size=-1'])

  def test_paths_are_the_users_under_bazel_run(self):
    self.preset('seed = 7')
    environment = {'BUILD_WORKING_DIRECTORY': str(self.folder)}
    with mock.patch.dict(os.environ, environment):
      assert _resolve('preset.toml').training.seed == 7
      assert paths.user_path('x') == self.folder / 'x'
      assert paths.user_path('/x') == pathlib.Path('/x')
      first, second = (
        _resolve(None, [f'warmstart_from={path}'])
        for path in (
          'a,b:fedavg',
          f'{self.folder}/a,../{self.folder.name}/b:fedavg',
        )
      )
      assert first.digest() == second.digest()
      assert first.run.warmstart_from == (
        str(self.folder / 'a'),
        str(self.folder / 'b:fedavg'),
      )
      table = _resolve(None, ['task.name=table', 'task.path=t.csv'])
      assert table.task_settings.path == str(self.folder / 't.csv')
      assert table.task_settings.text_vocabulary is None

  def test_differences(self):
    first = _resolve(seed=1, algorithms='local')
    second = _resolve(seed=2, algorithms='local,fedavg')
    assert configs.differences(first, second) == [
      "algorithms: ['local'], not ['local', 'fedavg']",
      'seed: 1, not 2',
    ]
    assert not configs.differences(first, first)

  def test_with_other_workers_it_is_the_same_run(self):
    first, second = (
      _resolve(None, ['runtime=remote', f'remote_workers={workers}'])
      for workers in ('a:1', 'b:1,c:1')
    )
    assert first.digest() == second.digest()
    assert not configs.differences(first, second)


_PAIR = 'hypcluster+finetuning'


def test_a_pair_has_settings_of_its_own(tmp_path):
  preset = tmp_path / 'preset.toml'
  preset.write_text(f'["{_PAIR}"]\nfinetuning_epochs = 3')
  config = _resolve(
    str(preset),
    [f'{_PAIR}.client_learning_rate=.5', 'batch_size=4'],
    algorithms=f'fedavg,{_PAIR}',
  )
  settings_of_method = _own(config, _PAIR)
  assert settings_of_method['finetuning_epochs'] == 3
  assert settings_of_method['client_learning_rate'] == 0.5
  assert 'num_clusters' in settings_of_method
  assert _own(config, 'fedavg')['client_learning_rate'] != 0.5
  preset.write_text(tomli_w.dumps(config.to_dict()))
  assert configs.read(preset) == config


def test_a_preset_may_set_a_pair_that_is_not_chosen(tmp_path):
  preset = tmp_path / 'preset.toml'
  preset.write_text(f'["{_PAIR}"]\nfinetuning_epochs = 3')
  assert list(_resolve(str(preset), algorithms='local').method_settings) == [
    'local'
  ]
  with pytest.raises(errors.UserError, match='not of the chosen local'):
    _resolve(None, [f'{_PAIR}.finetuning_epochs=3'], algorithms='local')


def test_a_pair_with_a_short_name_is_called_by_it():
  config = _resolve(
    None,
    ['fedavg+finetuning.finetuning_epochs=3'],
    algorithms='fedavg+finetuning,finetuning',
  )
  assert list(config.method_settings) == ['finetuning']
  settings_of_method = _own(config, 'finetuning')
  assert settings_of_method['finetuning_epochs'] == 3
