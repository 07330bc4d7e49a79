"""Counts and draws how many examples of each class each client has."""

from collections.abc import Sequence
import csv
import io
import pathlib

import numpy as np

from base import errors
from base import words
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.reporting import folders
from experiments.reporting import looks
from experiments.reporting.figures import figure
from experiments.reporting.figures import scales
from tasks import registry
from tasks import task

_NAME = 'clients_by_class'
# The beginning of the file of numbers, by which programs recognize the file.
_HEADER = 'client,0'
# The largest number of characters of a class's name that are shown.
_LONGEST = 24


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


def draw(counts: np.ndarray, classes: Sequence[str] = ()) -> figure.Figure:
  """Draws how many examples of each class each client has.

  Args:
    counts: The numbers of examples, `[clients, classes]`.
    classes: The names of the classes; by default their numbers.

  Returns:
    The figure, which is twice as wide as the others, so that a thousand clients
    fit. They are sorted by their most common class and then by size.
  """
  sizes = counts.sum(axis=1)
  ordered = counts[np.lexsort((-sizes, counts.argmax(axis=1)))]
  num_clients, num_classes = counts.shape
  names = [
    name if len(name) <= _LONGEST else f'{name[: _LONGEST - 1]}…'
    for name in classes or [str(k) for k in range(num_classes)]
  ]
  rows: figure.Rows = []
  for k, of_client in enumerate(ordered.tolist()):
    rows += [
      {'client': k, 'class': names[c], 'examples': n}
      for c, n in enumerate(of_client)
      if n
    ]
  width = 2 * figure.WIDTH - 170
  noun = words.noun(num_clients, 'clients')
  label = f'{num_clients:,} {noun}, by their most common class and size'
  x = scales.number(
    'client',
    label,
    axis=scales.WHOLE | {'grid': False, 'tickCount': 10},
    scale={'domain': [0, num_clients], 'nice': False},
  )
  wide = 'symlog' if sizes.max() > 4 * sizes.min() else 'linear'
  examples = scales.number(
    'all', 'examples', scale={'type': wide}, axis={'tickCount': 4}
  )
  total = {'op': 'sum', 'field': 'examples', 'as': 'all'}
  above = scales.layer(
    'area',
    {'x': x | {'title': None, 'axis': None}, 'y': examples},
    {'aggregate': [total], 'groupby': ['client']},
    interpolate='step-after',
    color=looks.SAME,
  )
  color = scales.number(
    'examples',
    'examples of the class',
    scale={'type': 'log', 'scheme': 'viridis', 'reverse': True},
    legend={'orient': 'right', 'direction': 'vertical'},
  )
  below = scales.layer(
    'rect',
    {
      'x': x | {'bin': {'binned': True}},
      'x2': {'field': 'end'},
      'y': scales.kind('class', 'class', scale={'domain': names}),
      'color': color,
      'tooltip': scales.tooltip('class', 'examples'),
    },
    {'calculate': 'datum.client + 1', 'as': 'end'},
    strokeWidth=0,
  )
  height = min(18 * num_classes, 460)
  views = [
    {**above, 'width': width, 'height': 60},
    {**below, 'width': width, 'height': height},
  ]
  return figure.Figure(
    _NAME,
    'Examples of each class that clients have',
    rows,
    {'vconcat': views, 'spacing': 12, 'bounds': 'flush'},
  )


def main(
  request: user_settings.Request,
  output_dir: pathlib.Path,
  data_dir: str | None,
) -> int:
  """Writes the figure and its numbers; returns the exit status."""
  config = configs.resolve(request)
  numbers = output_dir / f'{_NAME}.csv'
  for path in figure.paths(output_dir, _NAME).values():
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
  drawn = draw(of_clients, loaded.classes).add_captions(config.task)
  written = figure.save(drawn, output_dir)
  table = io.StringIO()
  writer = csv.writer(table, lineterminator='\n')
  named = [f'{k}: {name}' for k, name in enumerate(loaded.classes)]
  writer.writerow(['client', *(named or range(of_clients.shape[1]))])
  writer.writerows([name, *of_classes] for name, of_classes in counts.items())
  folders.write(numbers, table.getvalue())
  terminal.say(f'Written to {written}, .csv')
  return 0
