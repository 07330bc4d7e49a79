"""Counts and draws how many examples of each class each client has."""

import csv
import io
import pathlib

import numpy as np

from base import errors
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting.plots import class_plots
from experiments.reporting.plots import style
from tasks import registry
from tasks import task

_NAME = 'clients_by_class'
# The beginning of the file of numbers, by which programs recognize the file.
_HEADER = 'client,0'


def count(task: task.Task) -> dict[str, np.ndarray]:
  """Counts the examples of each client in each class.

  Args:
    task: The task.

  Returns:
    The number of examples of each class, by client.

  Raises:
    UserError: If the examples have no classes.
  """
  labels: dict[str, list[np.ndarray]] = {}
  for population in (task.train, task.validation, task.test):
    for name, load in population.sets.items():
      # In silos, the personalization set is the one that clients train on.
      if name != 'personalization' or not task.cross_silo:
        for client_id in population.client_ids:
          labels.setdefault(client_id, []).append(load(client_id)['y'])
  of_clients = {name: np.concatenate(parts) for name, parts in labels.items()}
  every = np.concatenate(list(of_clients.values()))
  if every.ndim > 1 or not np.issubdtype(every.dtype, np.integer):
    raise errors.UserError(
      f'The examples of {task.name} have no classes to be counted.'
    )
  num_classes = max(len(task.classes), every.max(initial=0) + 1)
  return {
    name: np.bincount(classes, minlength=num_classes)
    for name, classes in of_clients.items()
  }


def main(
  request: user_settings.Request,
  output_dir: pathlib.Path,
  data_dir: str | None,
) -> int:
  """Writes the figure and its numbers; returns the exit status."""
  config = configs.resolve(request)
  numbers = output_dir / f'{_NAME}.csv'
  for path in style.figure_files(output_dir, _NAME).values():
    folders.check_own(path)
  folders.check_own(numbers, _HEADER)
  loaded = registry.load(
    config.task,
    data_dir=data_dir,
    seed=config.training.seed,
    **vars(config.task_settings),
  )
  counts = count(loaded)
  of_clients = np.array(list(counts.values()))
  figure = class_plots.clients_by_class(of_clients, loaded.classes)
  style.add_caption(figure, config.task)
  written = style.save(figure, output_dir, _NAME)
  table = io.StringIO()
  writer = csv.writer(table, lineterminator='\n')
  named = [f'{k}: {name}' for k, name in enumerate(loaded.classes)]
  writer.writerow(['client', *(named or range(of_clients.shape[1]))])
  writer.writerows([name, *of_classes] for name, of_classes in counts.items())
  folders.write(numbers, table.getvalue())
  terminal.say(f'Written to {written}, .csv')
  return 0
