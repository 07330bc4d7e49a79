"""Tests of the evaluation of a finished run on other clients."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest

from algorithms import aggregation
from algorithms import registry as algorithm_registry
from base import errors
from experiments.reporting import results_folder
from experiments.runs import evaluating
from experiments.runs import finished_methods
from experiments.runs import sources
from tasks import registry as task_registry
from tests.experiments import small_runs
from tests.tasks import table_source

_METHODS = 'finetuning', 'hypcluster', 'ditto'


@pytest.fixture(name='copy')
def _copy(finished, tmp_path):
  """Writes the table with other rows."""
  with finished.table.open(newline='') as file:
    rows = list(csv.DictReader(file))

  def copy(change):
    changed = [change(dict(row)) for row in rows]
    path = tmp_path / 'new.csv'
    return table_source.write(path, [row for row in changed if row])

  return copy


def _evaluate(source, output_dir, *assignments):
  return evaluating.evaluate(str(source), assignments, output_dir, None)[0]


def _with_other_name(row):
  return row | {'who': f'new {row["who"]}'}


def test_own_clients_have_the_numbers_of_the_run_bit_for_bit(
  finished, tmp_path
):
  results = _evaluate(finished.folder, tmp_path / 'out')
  of_run = json.loads((finished.folder / 'results.json').read_text())['methods']
  assert tuple(results) == _METHODS
  for name, result in results.items():
    # The candidates have what there was to choose by, too.
    for what in ('test', 'before', 'pooled', 'chosen', 'candidates', 'costs'):
      assert result[what] == of_run[name][what]
    assert result['clients_in_training'] == 6
  assert small_runs.rows(tmp_path / 'out') == small_runs.rows(finished.folder)


def test_new_clients_are_as_old_ones_but_for_what_these_keep(
  finished, tmp_path, copy
):
  path = copy(_with_other_name)
  results = _evaluate(finished.folder, tmp_path / 'out', f'task.path={path}')
  rows = small_runs.rows(tmp_path / 'out')
  assert all(result['clients_in_training'] == 0 for result in results.values())
  for old, new in zip(small_runs.rows(finished.folder), rows, strict=True):
    assert new['client'] == f'new {old["client"]}'
    assert new['before'] == old['before']
    assert new['candidate'] == old['candidate']
    has_same = new['metric'] == old['metric']
    assert has_same == (old['method'] != 'ditto')
  # What they start from is the global model.
  of_ditto = results['ditto']['candidates']
  assert (
    of_ditto['personal model, 0 epochs']['test']
    == of_ditto['global model']['test']
  )
  again = results_folder.read(tmp_path / 'out')
  assert again.methods == results


def test_all_clients_of_a_new_table_may_be_evaluated(finished, tmp_path, copy):
  # With other means, and no rows to choose by.
  path = copy(
    lambda row: (
      row | {'part': 'test', 'b': int(row['b']) + 9}
      if row['who'] in ('c1', 'c4')
      else None
    )
  )
  source = f'{finished.folder}:finetuning'
  settings = (f'task.path={path}', 'task.hold_out=all_clients')
  (result,) = _evaluate(source, tmp_path / 'out', *settings).values()
  assert result['test']['num_clients'] == 2
  assert not any(
    'validation' in candidate for candidate in result['candidates'].values()
  )
  # The same command has nothing more to do.
  assert _evaluate(source, tmp_path / 'out', *settings)['finetuning'] == result


@pytest.mark.parametrize(
  ('method', 'assignments', 'message'),
  [
    (':fedper', (), "Unknown method 'fedper'"),
    ('', ('total_rounds=4',), 'total_rounds cannot be changed after'),
    ('', ('task.name=synthetic',), 'task.name cannot be changed after'),
    ('', ('task.widht=1',), "Unknown setting 'widht'"),
    (
      '',
      ('task.model=dense',),
      r'another model than the run: hidden is \(64,\), not \(\)\. Evaluate',
    ),
    ('', ('task.path=no.csv',), 'There is no file or folder .*no.csv'),
  ],
)
def test_what_cannot_be_evaluated_is_told(
  finished, tmp_path, method, assignments, message
):
  source = f'{finished.folder}{method}'
  with pytest.raises(errors.UserError, match=message):
    _evaluate(source, tmp_path / 'out', *assignments)
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('method', ['finetuning', 'ditto'])
def test_who_evaluates_is_not_told_to_resume_from_another_checkpoint(
  finished, tmp_path, method
):
  folder = shutil.copytree(finished.folder, tmp_path / 'run')
  (path,) = folder.glob(f'checkpoints/{method}/*_3.npz')
  path.write_bytes(b'')
  with pytest.raises(errors.UserError, match='_3.npz is not as.* work again'):
    _evaluate(f'{folder}:{method}', tmp_path / 'out')


def _negate(path):
  with np.load(path) as file:
    arrays = {name: -file[name] for name in file.files}
  np.savez(path, **arrays)


@pytest.mark.parametrize(
  ('pattern', 'change'),
  [
    ('checkpoints/finetuning/*_3.npz', _negate),
    (
      'checkpoints/ditto/*_3.npz',
      lambda path: path.rename(path.with_stem('program_state_9999')),
    ),
    (
      'encoding.json',
      lambda path: path.write_text(
        path.read_text().replace('"mean": ', '"mean": 1', 1)
      ),
    ),
    (
      'checkpoints/ditto/client_states.sqlite',
      lambda path: path.write_bytes(path.read_bytes() + bytes(65536)),
    ),
  ],
)
def test_what_a_run_did_not_write_is_not_evaluated(
  finished, tmp_path, pattern, change
):
  folder = shutil.copytree(finished.folder, tmp_path / 'run')
  (path,) = folder.glob(pattern)
  change(path)
  with pytest.raises(errors.UserError, match='is not as it was written'):
    _evaluate(folder, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_data_without_clients_to_evaluate_are_told(finished, tmp_path, copy):
  # One row can be either adapted to or judged by.
  path = copy(lambda row: row | {'who': row['a'] + row['b']})
  settings = (f'task.path={path}', 'task.hold_out=all_clients')
  with pytest.raises(errors.UserError, match='has no clients for test'):
    _evaluate(finished.folder, tmp_path / 'out', *settings)


def test_a_run_of_before_there_were_encodings_is_told(finished, tmp_path):
  folder = shutil.copytree(finished.folder, tmp_path / 'run')
  (folder / 'encoding.json').unlink()
  (folder / 'manifest.json').unlink()
  with pytest.raises(errors.UserError, match='Repeat the command of the run'):
    _evaluate(folder, tmp_path / 'out')


def test_a_folder_without_a_finished_run_is_told(tmp_path):
  with pytest.raises(errors.UserError, match='not an output folder of a run'):
    _evaluate(tmp_path, tmp_path / 'out')


def test_results_of_another_run_are_left_alone(finished, tmp_path):
  # Of the settings of an evaluation, but not evaluated from that run.
  folder = shutil.copytree(finished.folder, tmp_path / 'out')
  text = (folder / 'config.toml').read_text()
  encoding = f'encoding_file = "{finished.folder}/encoding.json"'
  text = text.replace('encoding_file = "none"', encoding)
  (folder / 'config.toml').write_text(text)
  (folder / 'manifest.json').unlink()
  with pytest.raises(errors.UserError, match='has results of another run'):
    _evaluate(finished.folder, folder)


def test_a_method_of_its_own_clients_alone_is_told(finished):
  silos = dataclasses.replace(
    task_registry.load('synthetic', num_train_clients=2), cross_silo=True
  )
  settings = algorithm_registry.make_settings('mocha', {})
  method = algorithm_registry.build(
    'mocha', silos.model, settings, aggregation.mean(), ('test',), num_clients=2
  )
  source = sources.read(str(finished.folder))
  with pytest.raises(errors.UserError, match='only clients that it was train'):
    evaluating._check_task(source, 'ditto', method, silos, silos)


def test_a_choice_of_each_client_is_its_own(finished):
  run = results_folder.read(finished.folder)
  rows = [
    {'client': 'c0', 'candidate': 'a'},
    {'client': 'c1', 'candidate': 'b'},
  ]
  run = dataclasses.replace(
    run,
    methods={'ditto': {'chosen': {'a': 1, 'b': 1}}},
    clients={'ditto': rows},
  )
  chosen = finished_methods.chosen_candidates(run, 'ditto', ['c1', 'c0'])
  assert chosen == {'c1': 'b', 'c0': 'a'}
  with pytest.raises(errors.UserError, match='c2 was none of them'):
    finished_methods.chosen_candidates(run, 'ditto', ['c2'])


def test_where_none_is_chosen_new_clients_have_the_last_candidate(finished):
  run = dataclasses.replace(
    results_folder.read(finished.folder),
    methods={'fedpc': {'chosen': {}, 'candidates': {'a': {}, 'b': {}}}},
    clients={'fedpc': []},
  )
  chosen = finished_methods.chosen_candidates(run, 'fedpc', ['new'])
  assert chosen == {'new': 'b'}
