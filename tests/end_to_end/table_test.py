"""Tables of users, from the file to the results."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from tests.tasks import table_source


def _write_table(folder):
  return table_source.write(folder / 't.csv', table_source.rows(size=30))


def _write_images(folder):
  """Writes a table of black and of white images."""
  rows = []
  for k in range(40):
    image = np.full((8, 8, 1), 255 * (k % 2), np.uint8)
    (folder / f'{k}.png').write_bytes(tf.io.encode_png(image).numpy())
    rows.append({'who': k // 20, 'label': k % 2, 'file': f'{k}.png'})
  return table_source.write(folder / 'images.csv', rows)


@pytest.mark.parametrize(
  ('write', 'task_settings', 'is_good'),
  [
    (
      _write_table,
      ('target_column=y', 'ignored_columns=label'),
      lambda squared_error: squared_error < 0.1,
    ),
    (
      _write_table,
      (
        'target_column=label',
        'ignored_columns=y',
        'target=preference',
        'type_column=color',
        'model=dense',
        'hold_out=clients',
      ),
      lambda macro_f1: macro_f1 > 0.8,
    ),
    (
      _write_images,
      (
        'target_column=label',
        'image_column=file',
        'image_size=8',
        'image_channels=1',
        'hidden=4',
      ),
      lambda accuracy: accuracy > 0.9,
    ),
  ],
  ids=['number', 'preference', 'images'],
)
def test_a_table_is_shown_and_learned(
  write, task_settings, is_good, tmp_path, capsys
):
  path = write(tmp_path)
  settings = (
    'total_rounds=15',
    'clients_per_round=0',
    'finetuning_epochs=1',
    'client_learning_rate=0.1',
    f'task.path={path}',
    'task.client_column=who',
    *(f'task.{setting}' for setting in task_settings),
  )
  chosen = {'task.name': 'table', 'algorithms': 'finetuning'}
  config = configs.resolve(user_settings.read(None, settings, chosen))
  results = single_run.run(config, tmp_path / 'out')
  said = capsys.readouterr().err
  assert said.index(f'{path}:') < said.index('finetuning: training')
  assert is_good(results['finetuning']['test']['mean'])
