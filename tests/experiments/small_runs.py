"""Small runs, for tests."""

from collections.abc import Iterator
import contextlib
import csv
import dataclasses
import json
import pathlib
import sys
from typing import Any
from unittest import mock

import pytest

from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.runs import single_run
from personalization.rounds import training

SMALL = (
  'task.num_train_clients=6',
  'task.num_validation_clients=3',
  'task.num_test_clients=4',
  'task.max_examples=40',
  'total_rounds=7',
  'clients_per_round=4',
  'rounds_per_checkpoint=3',
)


def config(*assignments: str, algorithms: Any = 'fedavg') -> configs.Config:
  """Makes the configuration of a small run."""
  return configs.resolve(
    user_settings.read(None, [*SMALL, *assignments], {'algorithms': algorithms})
  )


def run(
  configuration: configs.Config,
  folder: pathlib.Path,
  data_dir: str | None = None,
) -> dict[str, Any]:
  """Runs a configuration without showing how far it is."""
  with mock.patch.object(sys, 'stderr'):
    return single_run.run(configuration, folder, data_dir)


class Stopped(Exception):
  """Stands for whatever may stop a run."""


@contextlib.contextmanager
def stopped_in_round(last: int) -> Iterator[None]:
  """Stops the training that is run within, behind a round."""

  def train(*args: Any, callbacks: Any, **kwargs: Any) -> Any:
    def on_round(round_num: int, metrics: Any) -> None:
      callbacks.on_round(round_num, metrics)
      if round_num == last:
        raise Stopped

    stopping = dataclasses.replace(callbacks, on_round=on_round)
    return real(*args, callbacks=stopping, **kwargs)

  real = training.train
  with mock.patch.object(training, 'train', train), pytest.raises(Stopped):
    yield


def rows(folder: pathlib.Path) -> list[dict[str, str]]:
  """Reads the clients of a run."""
  with (folder / 'per_client.csv').open(newline='') as file:
    return list(csv.DictReader(file))


def numbers(folder: pathlib.Path) -> Any:
  """Reads all that must be the same, to the bit, if a run is run again."""
  results = json.loads((folder / 'results.json').read_text())
  del results['checksum']  # It is of the seconds as well.
  for result in results['methods'].values():
    for name in ('training_seconds', 'evaluation_seconds'):
      result.pop(name)
  rounds = {
    str(path.relative_to(folder)): path.read_text()
    for part in ('metrics', 'validation')
    for path in folder.glob(f'{part}/*')
  }
  return results, (folder / 'per_client.csv').read_text(), rounds
