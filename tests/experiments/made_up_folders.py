"""Folders of runs and grids as programs leave them, and what is in them."""

from collections.abc import Mapping, Sequence
import json
import math
import pathlib
from typing import Any

import tomli_w

from experiments.reporting import grid_records
from experiments.reporting import repeats
from experiments.reporting import sources
from tests.experiments import run_folders


def series(
  name: str = 'finetuning',
  values: tuple[float, ...] = (0.5, 0.75, 0.9),
  before_values: tuple[float, ...] = (0.4, 0.8, 0.9),
  higher_is_better: bool = True,
  seeds: int = 1,
  rounds: Mapping[str, Sequence[float]] | None = None,
  columns: Mapping[str, Sequence[Any]] | None = None,
  **result: Any,
) -> repeats.Series:
  """Makes a method with one seed, or the same with several."""
  cells = {
    'client': [f'client_{i}' for i in range(len(values))],
    'metric': values,
    'before': before_values,
    'personalization_examples': [10] * len(values),
    **(columns or {}),
  }
  clients = [dict(zip(cells, row)) for row in zip(*cells.values())]
  of_any = {
    'metric': 'accuracy',
    'higher_is_better': higher_is_better,
    'chosen': {'3 epochs': len(clients)},
  }
  return repeats.Series(
    name,
    'school',
    [
      repeats.Repeat(seed, {**of_any, **result}, clients, rounds or {})
      for seed in range(seeds)
    ],
  )


def point(
  validation: float, lower_is_better: bool = False, **values: Any
) -> sources.GridPoint:
  """Makes a point of a grid that ran with one seed."""
  record = record_of_grid('ditto', 0, validation, values)
  record['higher_is_better'] = not lower_is_better
  return sources.GridPoint('ditto', values, [record])


def record_of_grid(
  method: str, seed: int, validation: float | None, values: dict[str, Any]
) -> dict[str, Any]:
  """Makes the record of a run of a grid."""
  return {
    'key': f'{method} {seed} {values}',
    'name': method,
    'algorithm': method,
    'values': values,
    'seed': seed,
    'metric': 'accuracy',
    'higher_is_better': True,
    'chosen_by': 'accuracy',
    'validation': validation,
    'clients': ['a', 'b'],
    'test': [0.5, validation],
    'personalization_examples': [3, 4],
    'chosen': {'global': 2},
  }


def write_run(
  folder: pathlib.Path,
  methods: tuple[str, ...] = ('fedavg', 'finetuning'),
  finished: int | None = None,
  **settings: Any,
) -> pathlib.Path:
  """Writes the folder of a run, of which some methods are finished."""
  configuration = {
    'algorithms': list(methods),
    'seed': 0,
    'total_rounds': 2,
    'task': {'name': 'school'},
    **settings,
  }
  (folder / 'metrics').mkdir(parents=True)
  (folder / 'config.toml').write_text(tomli_w.dumps(configuration))
  (folder / 'metrics/fedavg.csv').write_text('round,loss\n1,0.5\n2,0.25\n')
  done = methods[:finished]
  if not done:
    return folder
  results = {
    name: {
      'metric': 'accuracy',
      'higher_is_better': True,
      'chosen': {'global': 2},
      'test': {'mean': 0.625, 'hurt': 0.5},
      'before': None,
      'training': 'fedavg',
      'rounds': 2,
      'privacy': None,
    }
    for name in done
  }
  contents = {'configuration': configuration, 'methods': results}
  (folder / 'results.json').write_text(json.dumps(contents))
  rows = [f'{name},{c},5,{v},.5\n' for name in done for c, v in CLIENTS.items()]
  (folder / 'per_client.csv').write_text(
    'method,client,personalization_examples,metric,before\n' + ''.join(rows)
  )
  return run_folders.sealed(folder)


# The metric of each client of `write_run`; one of them diverged.
CLIENTS = {'</script><b>a': 0.5, 'b': 0.75, 'c': math.nan}


def write_grid(folder: pathlib.Path, cut_off: str = '') -> pathlib.Path:
  """Writes the folder of a grid: three rates, of which one diverged."""
  (folder / 'logs').mkdir(parents=True)
  lines = [
    grid_records.to_line(
      record_of_grid('ditto', seed, validation, {'rate': rate})
    )
    for seed in (1, 2)
    for rate, validation in ((0.1, 0.6), (1.0, 0.8), (10.0, None))
  ]
  (folder / 'runs').mkdir()
  (folder / 'runs/of_a_program.jsonl').write_text(''.join(lines) + cut_off)
  (folder / 'logs/4f.log').write_text('ditto rate=3 seed=1\nOut of memory')
  return folder
