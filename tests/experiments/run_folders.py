"""Folders as runs leave them, for tests."""

import csv
import json
import pathlib
from typing import Any

from experiments.reporting import manifests
from experiments.reporting import results_folder


def write(
  path: pathlib.Path,
  means: dict[str, float | None],
  seed: int = 0,
  total_rounds: int = 5,
  **settings: Any,
) -> pathlib.Path:
  """Writes a folder as a run leaves it, with a mean for each method."""
  (path / 'metrics').mkdir(parents=True)
  results = {
    'configuration': {
      'seed': seed,
      'total_rounds': total_rounds,
      'task': {'name': 'school'},
      **settings,
    },
    'methods': {
      name: {
        'metric': 'loss',
        'higher_is_better': False,
        'test': {'mean': mean, 'deviation': 0.5, 'hurt': None},
      }
      for name, mean in means.items()
    },
  }
  (path / 'results.json').write_text(json.dumps(results))
  rows = [f'{name},c{k},{k},\n' for name in means for k in (1, 2)]
  (path / 'per_client.csv').write_text(
    'method,client,metric,before\n' + ''.join(rows)
  )
  (path / 'metrics' / 'fedavg.csv').write_text('round,loss\n1,0.5\n2,0.25\n')
  return sealed(path)


def sealed(path: pathlib.Path) -> pathlib.Path:
  """Makes the results of a folder, which a test has changed, valid again."""
  (path / manifests.NAME).unlink(missing_ok=True)
  contents = json.loads((path / 'results.json').read_text())
  with (path / 'per_client.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  contents['checksum'] = results_folder.checksum(contents, rows)
  (path / 'results.json').write_text(json.dumps(contents))
  return path
