"""Folders as runs leave them, for tests."""

import json
import pathlib
from typing import Any


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
  return path
