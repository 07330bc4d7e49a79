"""A finished run of a table, which the tests of what follows a run share."""

import pathlib
from typing import NamedTuple

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from tests.experiments import small_runs
from tests.tasks import table_source


class FinishedTable(NamedTuple):
  """A table, and the folder of a run that has learned it."""

  table: pathlib.Path
  folder: pathlib.Path


@pytest.fixture(name='finished', scope='session')
def _finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedTable:
  path = tmp_path_factory.mktemp('finished')
  parts = ['train', 'train', 'test', 'validation', 'train']
  rows = [
    row | {'part': parts[k % 5]} for k, row in enumerate(table_source.rows())
  ]
  rows[0]['a'] = rows[7]['a'] = ''
  table = table_source.write(path / 't.csv', rows)
  assignments = (
    f'task.path={table}',
    'task.client_column=who',
    'task.target_column=y',
    'task.feature_columns=color,b,a',
    'task.split_column=part',
    'task.missing=fill',
    'total_rounds=3',
    'clients_per_round=0',
    'offer_baseline=false',
    'finetuning_epochs=2',
    'hypcluster.num_clusters=2',
    'ditto.personal_epochs=1',
  )
  request = user_settings.read(
    None,
    assignments,
    {'task.name': 'table', 'algorithms': 'finetuning,hypcluster,ditto'},
  )
  small_runs.run(configs.resolve(request), path / 'run')
  return FinishedTable(table, path / 'run')
