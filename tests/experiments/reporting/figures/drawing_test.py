"""Tests of which figures are drawn of runs."""

import json
import shutil

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import sources
from experiments.reporting.figures import drawing
from tests.experiments import run_folders
from tests.experiments import small_runs
from tests.experiments.reporting.figures import described

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
  'shares',
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
  drawn = [*drawing.draw(sources.read_repeats(folders))]
  found = {one.name: one for one in drawn}
  assert len(found) == len(drawn)
  return found


@pytest.fixture(name='root', scope='module')
def _root(tmp_path_factory):
  """A folder with that of a run, 'one'."""
  root = tmp_path_factory.mktemp('figures')
  _run(root / 'one')
  return root


def _another(root, name, methods=None, **configuration):
  """A run with the same results, but for what is given."""
  folder = root / name
  shutil.copytree(root / 'one', folder)
  contents = json.loads((folder / 'results.json').read_text())
  contents['configuration'].update(configuration)
  for method, results in (methods or {}).items():
    contents['methods'][method].update(results)
  (folder / 'results.json').write_text(json.dumps(contents))
  return run_folders.sealed(folder)


def test_of_a_run(root):
  found = _draw(root / 'one')
  assert set(found) == _USUAL | {'clusters_hypcluster', 'groups_hypcluster'}
  assert {one.captions for one in map(_frozen, found.values())} == {
    ('synthetic, 4 test clients',)
  }


def _frozen(one):
  return type(one)(**vars(one) | {'captions': tuple(one.captions)})


def test_say_what_privacy_the_trainings_have(root):
  privacy = {'privacy': {'text': 'client: ε 2, δ 0.001'}}
  folder = _another(root, 'private', {'fedavg': privacy, 'finetuning': privacy})
  for drawn in _draw(folder).values():
    assert list(drawn.captions) == [
      'synthetic, 4 test clients',
      'FedAvg, FedAvg + fine-tuning – client: ε 2, δ 0.001',
    ]


def test_of_what_else_is_measured_though_a_method_diverged(root):
  _run(root / 'more', *_MEASURED, 'finetuning.finetuning_learning_rates=1e30')
  found = _draw(root / 'more')
  assert set(found) - set(_draw(root / 'one')) == {
    'validation',
    'ood',
    'acceptance',
    'personalization_fractions',
    'evaluation_fractions',
    'hurt_finetuning_part_0.5',
    'hurt_knn_per_part_0.5',
  }
  for drawn in found.values():
    assert 'synthetic, 4 test clients' in described.texts(drawn)


def test_of_repeats(root):
  communication = {
    'communication': {'total_parameters': 7.0},
    'test': {'mean': 0.5},
  }
  found = _draw(
    root / 'one',
    _another(root, 'repeat', seed=1),
    _another(root, 'short', {'fedavg': communication}, total_rounds=1),
  )
  assert set(found) == _USUAL | {
    f'{kind}_hypcluster_{k}' for kind in ('clusters', 'groups') for k in (1, 2)
  }
  # A point for each number of rounds: 3 rounds of 4 clients, both ways.
  first, last = described.lines(found['communication'])['FedAvg']
  assert first == [7, 0.5]
  assert last[0] == 3 * 4 * 2 * (60 * 10 + 10)
  # Four clients of each repeat.
  assert len(found['hurt_finetuning'].data) == 8


def test_of_groups_and_tuning(root):
  test = {'mean': 0.5}
  folder = _another(
    root,
    'silos',
    {
      'hypcluster': {'clusters': {'groups': {'en': {'0': 3, '1': 1}}}},
      'finetuning': {'tuning': {'all': test, 'each': test}},
    },
  )
  found = set(_draw(folder)) - _USUAL
  assert found == {'clusters_hypcluster', 'groups_hypcluster', 'tuning'}
