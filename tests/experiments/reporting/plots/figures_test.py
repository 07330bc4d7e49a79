"""Tests of which figures are drawn of runs."""

import json
import shutil

import numpy as np
import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import repeats
from experiments.reporting.plots import figures
from tests.experiments import run_folders
from tests.experiments import small_runs
from tests.experiments.reporting.plots import drawn

_SETTINGS = (
  'task.num_train_clients=6',
  'task.num_validation_clients=3',
  'task.num_test_clients=4',
  'task.max_examples=40',
  'total_rounds=3',
  'clients_per_round=4',
  'finetuning_epochs=3',
  'coefficients=0,0.5',
)
_MEASURED = (
  'rounds_per_evaluation=2',
  'ood_examples=20',
  'evaluation_fractions=0.5',
  'personalization_fractions=0.5',
  'acceptance_margin=0',
)
_USUAL = {
  'clients',
  'learning',
  'candidates_finetuning',
  'hurt_finetuning',
  'hurt_knn_per',
  'communication',
}


def _run(folder, *assignments):
  config = configs.resolve(
    user_settings.read(
      None,
      [*_SETTINGS, *assignments],
      {'algorithms': 'fedavg,finetuning,knn_per,hypcluster'},
    )
  )
  small_runs.run(config, folder)


def _draw(*folders):
  return dict(figures.draw(repeats.read(folders)))


class TestFigures:
  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    cls.root = tmp_path_factory.mktemp('figures')
    cls.one = cls.root / 'one'
    _run(cls.one)

  def another(self, name, methods=None, **configuration):
    """A run with the same results, but for what is given."""
    folder = self.root / name
    shutil.copytree(self.one, folder)
    contents = json.loads((folder / 'results.json').read_text())
    contents['configuration'].update(configuration)
    for method, results in (methods or {}).items():
      contents['methods'][method].update(results)
    (folder / 'results.json').write_text(json.dumps(contents))
    return run_folders.sealed(folder)

  def test_of_a_run(self):
    assert set(_draw(self.one)) == _USUAL | {'clusters_hypcluster'}

  def test_say_what_privacy_the_trainings_have(self):
    privacy = {'privacy': {'text': 'client: ε 2, δ 0.001'}}
    folder = self.another('private', {'fedavg': privacy, 'finetuning': privacy})
    for figure in _draw(folder).values():
      assert figure.get_supxlabel() == (
        'synthetic, 4 test clients\n'
        'FedAvg, FedAvg + fine-tuning – client: ε 2, δ 0.001'
      )

  def test_of_what_else_is_measured_though_a_method_diverged(self):
    folder = self.root / 'more'
    _run(folder, *_MEASURED, 'finetuning.finetuning_learning_rates=1e30')
    found = _draw(folder)
    assert set(found) - set(_draw(self.one)) == {
      'validation',
      'ood',
      'acceptance',
      'personalization_fractions',
      'evaluation_fractions',
      'hurt_finetuning_part_0.5',
      'hurt_knn_per_part_0.5',
    }
    for figure in found.values():
      figure.draw_without_rendering()

  def test_of_repeats(self):
    communication = {
      'communication': {'total_parameters': 7.0},
      'test': {'mean': 0.5},
    }
    found = _draw(
      self.one,
      self.another('repeat', seed=1),
      self.another('short', {'fedavg': communication}, total_rounds=1),
    )
    clusters = {f'clusters_hypcluster_{k}' for k in (1, 2)}
    assert set(found) == _USUAL | clusters
    # A point for each number of rounds: 3 rounds of 4 clients, both ways.
    (plot,) = found['communication'].axes
    first, last = drawn.lines(plot)['FedAvg']
    assert first == [7, 0.5]
    assert last[0] == 3 * 4 * 2 * (60 * 10 + 10)
    # Four clients of each repeat.
    points, _ = found['hurt_finetuning'].axes
    assert sum(len(c.get_offsets()) for c in points.collections) == 8

  def test_of_groups_and_tuning(self):
    test = {'mean': 0.5}
    folder = self.another(
      'silos',
      {
        'hypcluster': {'clusters': {'groups': {'en': {'0': 3, '1': 1}}}},
        'finetuning': {'tuning': {'all': test, 'each': test}},
      },
    )
    found = set(_draw(folder)) - set(_draw(self.one))
    assert found == {'groups_hypcluster', 'tuning'}


def test_learning_is_drawn_without_who_happened_to_be_in_a_round(tmp_path):
  folder = run_folders.write(tmp_path / 'run', {'group': 1})
  contents = json.loads((folder / 'results.json').read_text())
  contents['methods']['group'].update(training='group', rounds=2)
  (folder / 'results.json').write_text(json.dumps(contents))
  (folder / 'metrics/group.csv').write_text(
    'round,num_clients,dropped_clients,loss,accuracy,group_0,group_1,share_sent'
    '\n1,4,0,2,0.5,0.25,0.75,0.5\n2,4,0,1,0.75,1,0,0.5\n'
  )
  (repeated,) = repeats.read([run_folders.sealed(folder)])
  ((name, figure),) = figures.of_rounds(repeated)
  assert name == 'learning'
  labels = [plot.get_ylabel() for plot in figure.axes]
  assert labels == ['training loss', 'training accuracy']


def test_clusters_have_the_same_numbers_as_in_the_table_of_clients():
  figure = figures._confusion(
    ['a', 'a', 'b', 'b'], ['10', '10', '2', '2'], np.zeros([4, 1]), 'hypcluster'
  )
  (plot,) = figure.axes
  assert [text.get_text() for text in plot.get_xticklabels()] == ['10', '2']
  assert [text.get_text() for text in plot.texts] == ['2', '2']


def test_of_stages_each_client_beside_the_method_without_the_last(tmp_path):
  folder = run_folders.write(
    tmp_path / 'run',
    {'fedadam': 1, 'fedadam+finetuning': 2, 'group': 3, 'group+finetuning': 4},
  )
  contents = json.loads((folder / 'results.json').read_text())
  for name, result in contents['methods'].items():
    in_groups = name.startswith('group')
    result['training'] = 'group' if in_groups else 'fedadam'
    result['started_from_training'] = 'fedadam' if in_groups else None
  (folder / 'results.json').write_text(json.dumps(contents))
  rows = ['method,client,metric,group']
  for name, metrics in (
    ('fedadam', '99'),
    ('fedadam+finetuning', '44'),
    ('group', '98'),
    ('group+finetuning', '24'),
  ):
    rows += [f'{name},c1,{metrics[0]},beer', f'{name},c2,{metrics[1]},tea']
  (folder / 'per_client.csv').write_text('\n'.join(rows) + '\n')

  (repeated,) = repeats.read([run_folders.sealed(folder)])
  found = dict(figures.of_stages(repeated, ('loss', False)))
  assert set(found) == {
    f'change_{method}{group}'
    for method in ('group', 'group+finetuning')
    for group in ('', '_beer', '_tea')
  }
  (plot,) = found['change_group+finetuning_beer'].axes
  (bar,) = (bar for bar in plot.patches if bar.get_height())
  assert bar.get_x() <= -0.5 <= bar.get_x() + bar.get_width()


def test_the_steps_that_clients_chose_are_those_of_the_last_round(tmp_path):
  config = small_runs.config(algorithms='self_fl,fedavg')
  small_runs.run(config, tmp_path / 'run')
  (repeated,) = repeats.read([tmp_path / 'run'])
  found = dict(figures.of_steps(repeated))
  assert set(found) == {'steps_self_fl', 'trajectory_self_fl'}
  (plot,) = found['steps_self_fl'].axes
  (run,) = repeated.runs
  measured = run.rounds['self_fl']
  heights = {round(bar.get_x() + 0.5): bar.get_height() for bar in plot.patches}
  num_clients = sum(heights.values())
  assert num_clients == measured['num_clients'][-1]
  mean = sum(steps * n for steps, n in heights.items()) / num_clients
  assert mean == pytest.approx(measured['steps'][-1])
  steps, _ = found['trajectory_self_fl'].axes
  (line,) = steps.get_lines()
  assert list(line.get_ydata()) == list(measured['steps'])
