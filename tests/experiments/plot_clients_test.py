"""Tests of the program that draws the classes of clients."""

import csv

import numpy as np
import pytest

from base import errors
from experiments.configuration import user_settings
from experiments.reporting.figures import classes
from tasks import registry
from tests.experiments import programs


def test_writes_the_figure_and_its_numbers(tmp_path):
  done = programs.run(
    'plot_clients',
    '--task=synthetic',
    '--set=task.num_train_clients=5',
    '--set=task.num_validation_clients=1',
    '--set=task.num_test_clients=2',
    f'--output_dir={tmp_path}',
  )
  assert done.returncode == 0, done.stderr
  names = {path.name for path in tmp_path.iterdir()}
  assert names == {
    f'clients_by_class.{e}' for e in ('png', 'svg', 'pdf', 'csv')
  }
  with (tmp_path / 'clients_by_class.csv').open(newline='') as file:
    rows = list(csv.reader(file))
  assert len(rows) == 1 + 5 + 1 + 2
  header, *clients = rows
  assert header[:3] == ['client', '0', '1']
  assert all(len(row) == len(header) for row in clients)
  assert all(sum(map(int, counts)) >= 20 for _, *counts in clients)


def test_the_classes_of_a_table_have_their_names(tmp_path):
  table = tmp_path / 'drinks.csv'
  lines = [f'c{k % 3},{k},{("tea", "beer")[k % 2]}\n' for k in range(60)]
  table.write_text('who,age,drink\n' + ''.join(lines))
  settings = [
    f'task.path={table}',
    'task.client_column=who',
    'task.target_column=drink',
  ]
  request = user_settings.read(None, settings, {'task.name': 'table'})
  for _ in range(2):  # It may replace what it wrote.
    assert not classes.main(request, tmp_path / 'out', None)
  with (tmp_path / 'out/clients_by_class.csv').open(newline='') as file:
    header, *clients = csv.reader(file)
  assert header == ['client', '0: beer', '1: tea']
  assert clients == [[f'c{k}', '10', '10'] for k in range(3)]


def test_a_file_of_others_is_found_before_the_task_is_loaded(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(registry, 'load', lambda *_, **__: pytest.fail('Loaded.'))
  (tmp_path / 'clients_by_class.csv').write_text('client,age\n')
  request = user_settings.read(None, [], {'task.name': 'synthetic'})
  with pytest.raises(errors.UserError, match='by_class.csv is there already'):
    classes.main(request, tmp_path, None)


def test_all_examples_of_a_held_out_client_are_counted():
  task = registry.load('synthetic', num_test_clients=1)
  (client_id,) = task.test.client_ids
  labels = np.concatenate(
    [load(client_id)['y'] for load in task.test.sets.values()]
  )
  np.testing.assert_array_equal(
    classes.count(task)[client_id], np.bincount(labels, minlength=10)
  )


def test_a_task_without_classes_is_refused():
  task = registry.load('synthetic')

  def without(population):
    sets = {
      name: lambda client_id: {'y': np.zeros(3, np.float32)}
      for name in population.sets
    }
    return type(population)(population.client_ids, sets)

  task = type(task)(
    **vars(task)
    | {n: without(getattr(task, n)) for n in ('train', 'validation', 'test')}
  )
  with pytest.raises(errors.UserError, match='have no classes'):
    classes.count(task)


@pytest.mark.parametrize(
  ('arguments', 'answer'),
  [
    (['--help'], '--task'),
    (['--task=mnits'], "Did you mean 'mnist'?"),
    (['x'], "The argument 'x' is not a flag"),
  ],
)
def test_is_answered_without_importing_anything_heavy(arguments, answer):
  done = programs.run_without_tensorflow('plot_clients', *arguments)
  assert answer in done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  assert bool(done.returncode) == (arguments != ['--help'])
