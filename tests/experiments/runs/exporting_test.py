"""Tests of the export of the models of a run."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from base import errors
from experiments.runs import exporting
from tests.experiments import programs
from tests.experiments import small_runs

# What a user writes who has TensorFlow alone, by what is in README.md.
_READER = """if True:
  import csv, json, pathlib, sys
  import numpy as np
  import tensorflow as tf

  def numbers(encoding, rows):
    for name in encoding['inputs']:
      for own in encoding['columns']:
        if own['kind'] == 'number' and name == own['column']:
          yield [
            (float(row[name] or own['missing']) - own['mean'])
            / own['deviation']
            for row in rows
          ]
        elif own['kind'] == 'number' and name == f"{own['column']} is missing":
          yield [not row[own['column']] for row in rows]
        elif own['kind'] == 'category':
          for category in own['categories']:
            if name == f"{own['column']} is {category}":
              yield [row[own['column']] == category for row in rows]

  rows = list(csv.DictReader(open(sys.argv[1])))
  found = {}
  for path in sys.argv[2:]:
    facts = json.load(open(f'{path}/model.json'))
    encoding = facts['encoding']
    own = [
      row
      for row in rows
      if row['part'] == 'test' and facts.get('client', row['who']) == row['who']
    ]
    x = np.array(list(numbers(encoding, own)), np.float32).T
    model = tf.saved_model.load(f'{path}/saved_model')
    predicted = model.signatures['serving_default'](x=x)['prediction'].numpy()
    target = encoding['target']
    y = np.array([float(row[target['column']]) for row in own])
    errors = ((y - target['mean']) / target['deviation'] - predicted) ** 2
    clients = {}
    for row, error in zip(own, errors.tolist()):
      clients.setdefault(row['who'], []).append(error)
    found[path] = {who: sum(all) / len(all) for who, all in clients.items()}
  assert not {'tasks', 'algorithms', 'tensorflow_federated'} & set(sys.modules)
  print(json.dumps(found))
"""


def _export(source, output_dir, clients=(), all_clients=False, candidate=None):
  assert not exporting.main(
    str(source), clients, all_clients, candidate, output_dir, None
  )
  return output_dir


def test_exported_models_have_the_metrics_of_the_run(finished, tmp_path):
  table, run = finished
  global_model = _export(f'{run}:finetuning', tmp_path / 'global')
  of_all = _export(f'{run}:finetuning', tmp_path / 'all', all_clients=True)
  clusters = _export(f'{run}:hypcluster', tmp_path / 'clusters')
  paths = [
    global_model,
    *(of_all / f'c{k}' for k in range(6)),
    clusters / 'model_0',
    clusters / 'model_1',
  ]
  done = subprocess.run(
    [sys.executable, '-c', _READER, str(table), *map(str, paths)],
    env=programs.environment(),
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert not done.returncode, done.stderr
  found = json.loads(done.stdout)
  rows = {(row['method'], row['client']): row for row in small_runs.rows(run)}
  for k in range(6):
    client = f'c{k}'
    finetuned = rows['finetuning', client]
    cluster = rows['hypcluster', client]
    assert finetuned['candidate'] != '0 epochs'
    for path, expected in (
      (global_model, finetuned['before']),
      (of_all / client, finetuned['metric']),
      (clusters / f'model_{cluster["cluster"]}', cluster['metric']),
    ):
      np.testing.assert_allclose(
        found[str(path)][client], float(expected), rtol=1e-5
      )


@pytest.mark.parametrize(
  ('method', 'how', 'message'),
  [
    ('', dict(clients=['c1']), 'has the methods finetuning, hypcluster, ditto'),
    ('', {}, 'has trained .* Name one of them'),
    (':fedavg', dict(clients=['c1']), "Unknown method 'fedavg'"),
    (':finetuning', dict(clients=['c9']), "Unknown client 'c9'"),
    (
      ':finetuning',
      dict(clients=['c1'], candidate='9 epochs'),
      "Unknown candidate '9 epochs'.* Known: 0 epochs, 1 epoch, 2",
    ),
    (':finetuning', dict(candidate='1 epoch'), 'for the model of a --client'),
    (
      ':finetuning',
      dict(clients=['c1'], all_clients=True),
      '--client and --all_clients were both given',
    ),
    (':', {}, 'names no method after the colon'),
  ],
)
def test_what_cannot_be_exported_is_told(
  finished, tmp_path, method, how, message
):
  with pytest.raises(errors.UserError, match=message):
    _export(f'{finished.folder}{method}', tmp_path / 'out', **how)
  assert not (tmp_path / 'out').exists()


def test_a_checkpoint_that_is_gone_is_told(finished, tmp_path):
  folder = shutil.copytree(finished.folder, tmp_path / 'run')
  shutil.rmtree(folder / 'checkpoints/finetuning')
  with pytest.raises(errors.UserError, match='no checkpoint of round 3'):
    _export(f'{folder}:finetuning', tmp_path / 'out', ['c1'])


def test_a_damaged_checkpoint_is_told_with_what_helps(finished, tmp_path):
  folder = shutil.copytree(finished.folder, tmp_path / 'run')
  (path,) = folder.glob('checkpoints/finetuning/*_3.npz')
  path.write_bytes(b'')
  for clients in ((), ['c1']):
    with pytest.raises(errors.UserError, match='_3.npz is not as'):
      _export(f'{folder}:finetuning', tmp_path / 'out', clients)


def test_clients_of_any_name_have_folders_of_their_own():
  clients = ['a', '.', '..', '../a', 'a/b', 'x' * 500, 'x' * 501, 'ü é']
  names = [exporting._folder_name(client) for client in clients]
  assert len(set(names)) == len(clients)
  assert not {'.', '..'} & {*names}
  assert all('/' not in name and len(name) <= 255 for name in names)
