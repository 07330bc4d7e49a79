"""Tests of runs: what they leave behind, and that they can be stopped."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import results_folder
from experiments.reporting import tables
from experiments.runs import execution
from experiments.runs import single_run
from personalization.rounds import training
from tasks import registry
from tasks import task as tasks
from tasks.data import populations
from tests import data
from tests.experiments import small_runs
from tests.tff_runtimes import worker_programs

_METHODS = ('fedavg', 'finetuning', 'local')


def _stop_behind_a_method():
  def add(folder, *args):
    real(folder, *args)
    raise small_runs.Stopped

  real = results_folder.RunFolder.add
  return mock.patch.object(results_folder.RunFolder, 'add', add)


class TestRun:
  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    cls.root = tmp_path_factory.mktemp('runs')
    cls.config = small_runs.config(
      'finetuning_epochs=2', 'rounds_per_evaluation=2', algorithms=_METHODS
    )
    cls.results = small_runs.run(cls.config, cls.root / 'whole')

  def test_leaves_a_result_for_each_method_and_client(self):
    assert tuple(self.results) == _METHODS
    assert [
      (row['method'], row['client'])
      for row in small_runs.rows(self.root / 'whole')
    ] == [(m, f'test_{i:06d}') for m in _METHODS for i in range(4)]
    for result in self.results.values():
      assert result['test']['num_clients'] == 4

  def test_tells_of_the_training(self):
    fedavg, local = self.results['fedavg'], self.results['local']
    assert fedavg['rounds'] == 7
    assert fedavg['training_seconds'] > 0
    assert local['rounds'] == 0
    # No model of these has any.
    assert fedavg['frozen_weights_sha256'] is None
    assert local['training'] is None

  def test_tells_what_was_sent(self):
    # 60 features and 10 classes; 7 rounds of 4 clients.
    size = 60 * 10 + 10
    assert self.results['finetuning']['communication'] == {
      'parameters_down': size,
      'parameters_up': size,
      'total_parameters': 7 * 4 * 2 * size,
    }
    local = self.results['local']['communication']
    assert local['total_parameters'] == 0

  def test_what_trains_the_same_is_trained_once(self):
    assert self.results['finetuning']['training'] == 'fedavg'
    assert os.listdir(self.root / 'whole' / 'checkpoints') == ['fedavg']

  def test_before_finetuning_is_the_model_that_was_handed_over(self):
    assert (
      self.results['finetuning']['before'] == self.results['fedavg']['test']
    )

  def test_what_was_handed_over_is_what_it_would_have_trained(self):
    config = small_runs.config('finetuning_epochs=2', algorithms='finetuning')
    alone = small_runs.run(config, self.root / 'alone')['finetuning']
    for part in ('candidates', 'test'):
      assert alone[part] == self.results['finetuning'][part]

  def test_a_finished_run_is_not_run_again(self):
    with mock.patch.object(training, 'train', side_effect=AssertionError):
      again = small_runs.run(self.config, self.root / 'whole')
    assert again == self.results

  def test_stopped_again_and_again_it_ends_with_the_same_numbers(self):
    # Which also tells that the configuration is all that they depend on.
    preset = str(self.root / 'whole' / 'config.toml')
    config = configs.resolve(user_settings.read(preset))
    folder = self.root / 'stopped'
    # On the way to the first checkpoint, to the second, and behind the last.
    for last_round in (2, 5, 7):
      with small_runs.stopped_in_round(last_round):
        small_runs.run(config, folder)
    with _stop_behind_a_method(), pytest.raises(small_runs.Stopped):
      small_runs.run(config, folder)
    assert small_runs.rows(folder)[-1]['method'] == 'fedavg'
    results = small_runs.run(config, folder)
    assert small_runs.numbers(folder) == small_runs.numbers(self.root / 'whole')
    # How long it took, nobody knows.
    assert results['finetuning']['training_seconds'] is None

  def test_metrics_of_rounds_go_to_a_table_and_to_tensorboard(self):
    with (self.root / 'whole/metrics/fedavg.csv').open() as file:
      table = list(csv.DictReader(file))
    assert [row['round'] for row in table] == [str(k) for k in range(1, 8)]
    losses = [
      value.simple_value
      for events in (self.root / 'whole/tensorboard/fedavg').iterdir()
      for event in tf.compat.v1.train.summary_iterator(str(events))
      for value in event.summary.value
      if value.tag == 'loss'
    ]
    assert losses == [np.float32(row['loss']) for row in table]

  def test_validation_clients_are_evaluated_in_the_course_of_a_training(self):
    found = results_folder.read(self.root / 'whole').validation
    # A method without rounds has no course.
    assert list(found) == ['fedavg', 'finetuning']
    for metrics in found.values():
      assert metrics['round'] == [2, 4, 6]
    assert found['finetuning']['before'] == found['fedavg']['metric']
    chosen = set(map(int, found['finetuning']['candidate']))
    assert chosen <= set(range(3))

  def test_on_the_native_runtime(self):
    native = small_runs.run(
      small_runs.config('runtime=native'), self.root / 'native'
    )
    assert native['fedavg']['test']['mean'] == pytest.approx(
      self.results['fedavg']['test']['mean'], abs=5e-5
    )

  def test_on_remote_workers(self):
    with contextlib.ExitStack() as stack:
      addresses = [
        stack.enter_context(worker_programs.started()).address for _ in range(2)
      ]
      config = small_runs.config(
        'runtime=remote', f'remote_workers={",".join(addresses)}'
      )
      remote = small_runs.run(config, self.root / 'remote')
    assert remote['fedavg']['test']['mean'] == pytest.approx(
      self.results['fedavg']['test']['mean'], abs=5e-5
    )

  def test_without_its_workers_it_says_which_one_is_missing(self):
    config = small_runs.config('runtime=remote', 'remote_workers=127.0.0.1:1')
    message = 'remote_workers: .* at 127.0.0.1:1 cannot be used'
    with pytest.raises(errors.UserError, match=message):
      small_runs.run(config, self.root / 'nobody')

  def test_the_robust_aggregator(self):
    results = small_runs.run(
      small_runs.config('aggregator=robust'), self.root / 'robust'
    )
    assert results['fedavg']['test']['mean'] is not None

  def test_a_private_run_says_what_it_guarantees(self):
    config = small_runs.config(
      'privacy.name=gaussian',
      'privacy.epsilon=9',
      'client_weighting=uniform',
      'client_sampling=poisson',
      'rounds_per_evaluation=7',
      algorithms='fedavg,local',
    )
    results = small_runs.run(config, self.root / 'private')
    written = json.loads((self.root / 'private/results.json').read_text())
    guarantee = written['methods']['fedavg']['privacy']
    assert guarantee == json.loads(json.dumps(results['fedavg']['privacy']))
    assert guarantee['epsilon'] == pytest.approx(9, abs=0.1)
    assert guarantee['delta'] == 6**-1.1
    assert 'Poisson, each of 6 clients with q = 0.6667' in guarantee['sampling']
    assert guarantee['noise'] > 0
    assert any(
      'validation clients in the' in s for s in guarantee['not_covered']
    )
    assert written['methods']['local']['privacy'] is None
    text = io.StringIO()
    tables.print_results(results, text)
    assert 'ε' in text.getvalue()
    assert 'nothing is sent' in text.getvalue()

  @pytest.mark.parametrize(
    ('way', 'sampling', 'says'),
    [
      ('gaussian', 'poisson', 'with fixed_size, .*neighbors: .* replaced'),
      ('gaussian', 'fixed_size', 'with poisson, .*neighbors: .* or not'),
      ('tree', 'cycles', 'with passes, '),
    ],
  )
  def test_what_another_sampling_would_cost_is_said(self, way, sampling, says):
    def epsilons(config):
      task = execution.load_task(config, None)
      built = execution.build_methods(config, task)
      text = execution.compare_sampling(config, task, built)
      return built['fedavg'].guarantee.epsilon, text

    def make(sampling):
      return small_runs.config(
        f'privacy.name={way}',
        'privacy.noise=9',
        'client_weighting=uniform',
        f'client_sampling={sampling}',
      )

    epsilon, text = epsilons(make(sampling))
    assert re.search(says, text)
    other, _ = epsilons(make(re.search('with ([a-z_]*),', text)[1]))
    assert f'client_sampling={sampling} has ε {epsilon:.3g};' in text
    assert f'would have {other:.3g}' in text

  @pytest.mark.parametrize(
    'changed',
    [
      ('clients_per_round=0', 'privacy.noise=1'),
      ('privacy.noise=0',),
      ('privacy.name=matrix', 'privacy.noise=1'),
    ],
  )
  def test_where_nothing_is_to_be_compared_nothing_is_said(self, changed):
    config = small_runs.config(
      'privacy.name=gaussian', 'client_weighting=uniform', *changed
    )
    task = execution.load_task(config, None)
    built = execution.build_methods(config, task)
    assert execution.compare_sampling(config, task, built) is None

  def test_a_robust_aggregator_is_refused_with_privacy(self):
    config = small_runs.config(
      'privacy.name=gaussian',
      'privacy.noise=1',
      'client_weighting=uniform',
      'aggregator=robust',
    )
    with pytest.raises(errors.UserError, match='aggregator must be mean'):
      small_runs.run(config, self.root / 'robust_private')

  @pytest.mark.parametrize(
    ('assignment', 'message'),
    [
      ('clients_per_round=7', 'clients_per_round is 7, but synthetic has 6'),
      ('choose=each', "choose is 'each', but clients of synthetic"),
    ],
  )
  def test_is_refused_before_anything_is_written(self, assignment, message):
    with pytest.raises(errors.UserError, match=message):
      small_runs.run(small_runs.config(assignment), self.root / 'refused')
    assert not (self.root / 'refused').exists()

  def test_more_uses_of_protected_examples_are_refused(self):
    config = small_runs.config(
      'privacy.name=example', 'privacy.noise=1', 'rounds_per_evaluation=2'
    )
    with pytest.raises(errors.UserError, match='rounds_per_evaluation must be'):
      small_runs.run(config, self.root / 'protected')

  def test_a_method_that_cannot_do_the_task(self):
    config = small_runs.config(algorithms='fedavg,mocha')
    with pytest.raises(errors.UserError, match='mocha can personalize'):
      small_runs.run(config, self.root / 'impossible')

  def test_a_folder_of_another_configuration_is_refused(self):
    with pytest.raises(errors.UserError, match='another configuration'):
      small_runs.run(small_runs.config(), self.root / 'whole')


class TestMeasured:
  def test_what_else_is_measured(self, tmp_path):
    config = small_runs.config(
      'finetuning_epochs=2',
      'ood_examples=30',
      'evaluation_fractions=0.5',
      'personalization_fractions=0.5',
      'acceptance_margin=0',
      'hypcluster.warmstart_rounds=2',
      'baseline=finetuning',
      algorithms='hypcluster,finetuning',
    )
    results = small_runs.run(config, tmp_path)
    finetuning = results['finetuning']
    for name in (
      'out_of_distribution',
      'evaluation_fractions',
      'personalization_fractions',
      'acceptance',
    ):
      assert name in finetuning
    assert finetuning['candidates']['0 epochs']['out_of_distribution_hurt'] == 0
    hypcluster = results['hypcluster']
    assert sum(hypcluster['clusters']['sizes'].values()) == 4
    assert hypcluster['hurt_against'] == 'finetuning'
    worse = hypcluster['against']['finetuning']['worse']
    assert hypcluster['test']['hurt'] == worse / 4
    assert finetuning['hurt_against'] is None
    # Two models down; in the 2 warm rounds of 7 both up, else one.
    sent = hypcluster['communication']
    one = finetuning['communication']['parameters_down']
    assert sent['parameters_down'] == pytest.approx(2 * one, abs=5e-8)
    assert sent['parameters_up'] == pytest.approx(
      (2 * 2 + 5) / 7 * one, abs=5e-8
    )
    (first, *_) = small_runs.rows(tmp_path)
    assert first['metric_ood'] != ''
    assert first['cluster'] == ''


_load = registry.load
_IN_STAGES = (
  'fedadam',
  'fedadam+finetuning',
  'group',
  'group+finetuning',
)


def _load_with_groups(*args, **kwargs):
  """Loads a task with two groups of clients, in turns."""
  task = _load(*args, **kwargs)
  clients = [
    client_id
    for population in (task.train, task.validation, task.test)
    for client_id in population.client_ids
  ]
  groups = {client_id: int(client_id[-1]) % 2 for client_id in clients}
  known = tasks.Attribute(('even', 'odd'), groups)
  return dataclasses.replace(task, attributes={'group': known})


class TestStages:
  """A global model, models of groups that begin with it, and fine-tuning."""

  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    cls.root = tmp_path_factory.mktemp('stages')
    cls.config = small_runs.config(
      'finetuning_epochs=2', 'group_epochs=4', algorithms=_IN_STAGES
    )
    with mock.patch.object(registry, 'load', _load_with_groups):
      cls.results = small_runs.run(cls.config, cls.root / 'whole')
      yield

  def test_the_global_model_and_the_groups_are_trained_once(self):
    folder = self.root / 'whole' / 'checkpoints'
    assert sorted(os.listdir(folder)) == ['fedadam', 'group']
    assert [r['training'] for r in self.results.values()] == [
      'fedadam',
      'fedadam',
      'group',
      'group',
    ]
    assert [r['started_from_training'] for r in self.results.values()] == [
      None,
      None,
      'fedadam',
      'fedadam',
    ]

  def test_before_fine_tuning_is_the_model_of_the_group(self):
    before = self.results['group+finetuning']['before']
    assert before['mean'] == self.results['group']['test']['mean']

  def test_costs_are_those_of_all_stages(self):
    # 7 rounds of 4 of 6 clients; 4 epochs of one round for each group.
    passes = 7 * 4 / 6
    assert self.results['fedadam+finetuning']['costs'] == {
      'all': {
        'models_received': 7,
        'models_sent': pytest.approx(passes),
        'gradient_passes': pytest.approx(passes + 2),
        'loss_passes': 0,
      }
    }
    in_groups = {
      'models_received': pytest.approx(7 + 4),
      'models_sent': pytest.approx(passes + 4),
      'gradient_passes': pytest.approx(passes + 4 + 2),
      'loss_passes': 0,
    }
    assert self.results['group+finetuning']['costs'] == {
      'even': in_groups,
      'odd': in_groups,
    }
    assert self.results['group']['rounds'] == 8

  def test_what_was_sent_is_that_of_all_stages(self):
    size = 60 * 10 + 10
    group = self.results['group']['communication']
    assert group['parameters_down'] == pytest.approx(size)
    assert group['total_parameters'] == pytest.approx(
      7 * 4 * 2 * size + 8 * 3 * 2 * size
    )

  def test_stopped_in_any_stage_it_ends_with_the_same_numbers(self):
    folder = self.root / 'stopped'
    for last_round in (5, 8):  # Of the global model, and of the groups.
      with small_runs.stopped_in_round(last_round):
        small_runs.run(self.config, folder)
    small_runs.run(self.config, folder)
    assert small_runs.numbers(folder) == small_runs.numbers(self.root / 'whole')

  def test_the_native_runtime_agrees(self):
    config = small_runs.config(
      'finetuning_epochs=2',
      'group_epochs=4',
      'runtime=native',
      algorithms=_IN_STAGES,
    )
    native = small_runs.run(config, self.root / 'native')
    for name, result in native.items():
      assert result['test']['mean'] == pytest.approx(
        self.results[name]['test']['mean'], abs=5e-5
      )

  def test_alone_it_trains_what_it_begins_with(self):
    config = small_runs.config(
      'finetuning_epochs=2', 'group_epochs=4', algorithms='group+finetuning'
    )
    alone = small_runs.run(config, self.root / 'alone')['group+finetuning']
    assert alone['test'] == self.results['group+finetuning']['test']
    assert alone['started_from_training'] == 'group+finetuning-global'

  def test_a_saved_model_begins_the_first_stage(self):
    config = small_runs.config(
      'group_epochs=0',
      'total_rounds=0',
      f'warmstart_from={self.root / "whole"}:fedadam',
      algorithms='fedadam,group',
    )
    results = small_runs.run(config, self.root / 'warm')
    expected = self.results['fedadam']['test']['mean']
    assert results['fedadam']['test']['mean'] == expected
    assert results['group']['test']['mean'] == expected

  def test_groups_that_are_found_are_saved(self):
    config = small_runs.config(
      'groups=inferred', 'num_groups=2', 'group_epochs=2', algorithms='group'
    )
    folder = self.root / 'inferred'
    result = small_runs.run(config, folder)['group']
    found = json.loads((folder / 'groups' / 'group.json').read_text())
    assert len(found) == 6 + 3 + 4
    for row in small_runs.rows(folder):
      assert found[row['client']] == int(row['cluster'])
      # Reports are by the groups that are known.
      assert row['group'] == ('even', 'odd')[int(row['client'][-1]) % 2]
    assert list(result['costs']) == ['0', '1']


class TestBadClients:
  """Clients that cannot take part are left out, and reported."""

  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    folder = tmp_path_factory.mktemp('bad')
    real = registry.load

    def load(*args, **kwargs):
      task = real(*args, **kwargs)
      return dataclasses.replace(
        task, train=_spoil(task.train), test=_spoil(task.test)
      )

    with mock.patch.object(registry, 'load', load):
      with mock.patch.object(terminal, 'say') as say:
        results = small_runs.run(
          small_runs.config('clients_per_round=0'), folder
        )
    cls.result = results['fedavg']
    cls.rows = small_runs.rows(folder)
    cls.said = [call.args[0] for call in say.call_args_list]

  def test_without_examples_in_training(self):
    assert self.result['skipped_in_training'] == ['train_000001']
    assert (
      'fedavg: training: left out 1 client without examples: train_000001'
      in self.said
    )

  def test_without_examples_in_evaluation(self):
    assert self.result['skipped_in_evaluation'] == ['test_000001']
    assert self.result['test']['num_clients'] == 3
    assert len(self.rows) == 3
    assert (
      'fedavg: evaluation: left out 1 client without examples: test_000001'
      in self.said
    )

  def test_an_update_that_is_not_finite(self):
    assert self.result['dropped_updates'] == 7
    assert self.result['test']['mean'] is not None
    assert (
      'fedavg: training: dropped 7 updates of clients with numbers that are'
      ' not finite' in self.said
    )


class TestDiverged:
  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    cls.folder = tmp_path_factory.mktemp('diverged') / 'run'
    cls.request = user_settings.read(
      None,
      [*small_runs.SMALL, 'fedavg.client_learning_rate=1e38'],
      {'algorithms': ['fedavg', 'local']},
    )
    cls.shown = io.StringIO()
    with (
      contextlib.redirect_stdout(cls.shown),
      pytest.raises(errors.UserError, match='fedavg diverged: updates, or'),
    ):
      single_run.main(cls.request, cls.folder, None)
    cls.results = results_folder.read(cls.folder).methods

  def test_a_method_is_named_and_the_others_go_on(self):
    table = self.shown.getvalue()
    assert re.search('fedavg +diverged +– +diverged +–', table)
    assert re.search('local +0', table)

  def test_metrics_that_are_no_numbers_are_told_as_well(self):
    runs = [
      {'fedavg': {'test': {'mean': 0.5}}, 'ditto': {'test': {'mean': mean}}}
      for mean in (0.5, None)
    ]
    single_run.refuse_diverged(runs[:1])
    with pytest.raises(errors.UserError, match='^ditto diverged'):
      single_run.refuse_diverged(runs)

  def test_it_has_no_number(self):
    result = self.results['fedavg']
    assert result['diverged']
    assert result['test']['num_clients'] == 4
    for name in ('mean', 'interval', 'weighted_mean', 'largest_tenth', 'hurt'):
      assert result['test'][name] is None
    assert self.results['local']['against']['fedavg']['p_wilcoxon'] is None
    (hurt,) = {
      row['hurt']
      for row in small_runs.rows(self.folder)
      if row['method'] == 'fedavg'
    }
    assert not hurt

  def test_it_is_told_again_when_it_is_asked_for_again(self):
    with pytest.raises(errors.UserError, match='client_learning_rate'):
      single_run.main(self.request, self.folder, None)


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


class TestSchool:
  @pytest.fixture(autouse=True)
  def _needs_data(self):
    data.path('school/school.mat')

  def test_lands_near_the_papers_numbers(self, tmp_path):
    config = configs.resolve(user_settings.read('school'))
    results = small_runs.run(config, tmp_path, str(data.path('')))
    for method, mean in (
      ('fedavg', 0.0130),
      ('local', 0.0121),
      ('finetuning', 0.0116),
    ):
      assert results[method]['test']['mean'] == pytest.approx(
        mean, abs=0.0006
      ), method

  def test_each_client_can_choose_for_itself(self, tmp_path):
    config = configs.resolve(
      user_settings.read(
        'school',
        ['choose=each', 'finetuning_epochs=20'],
        {'algorithms': 'local'},
      )
    )
    results = small_runs.run(config, tmp_path, str(data.path('')))
    assert len(results['local']['chosen']) > 1
