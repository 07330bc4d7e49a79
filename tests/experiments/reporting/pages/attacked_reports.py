"""Reports that show attacks in all of their places."""

from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from experiments.reporting.figures import classes
from experiments.reporting.figures import drawing
from experiments.reporting.figures import figure
from experiments.reporting.pages import page
from experiments.reporting.pages import sheets
from tests import attacks
from tests.experiments import made_up_folders

NAMES = [*attacks.NAMES.values(), *attacks.UNWRITABLE.values()]


def figures(names: Sequence[str]) -> Iterator[figure.Figure]:
  """Draws figures whose clients, groups, clusters and labels have the names."""
  values = tuple(np.linspace(0.1, 0.9, len(names)))
  series = made_up_folders.series(
    'finetuning',
    values,
    values[::-1],
    columns={'client': names, 'group': names},
    groups={name: {'pooled': 0.5} for name in names},
    clusters={
      'sizes': {'0': 3},
      'groups': {name: {'0': 1, '1': 2} for name in names},
    },
    chosen={name: 1 for name in names},
  )
  labeled = [
    dataclasses.replace(series, label=name, task=name) for name in names[:3]
  ]
  yield from drawing.draw_clients([series])
  yield from drawing.draw_groups([series])
  yield from drawing.draw_clients(labeled)
  yield classes.draw(np.ones([3, len(names)], int), names)


def make(names: Sequence[str] = NAMES) -> page.Report:
  """Makes a report that shows the names in all of its places."""
  sheet = sheets.Sheet(
    'sheet', 'A', names, [[sheets.Cell(n) for n in names]] * 2, names[0]
  )
  sections = [
    page.Section('All', [sheet, *figures(names)]),
    *(
      page.Section(
        name,
        [
          dataclasses.replace(sheet, name=name, title=name, note=name),
          figure.Figure(
            f'{name} {place}',
            name,
            [{'client': name, 'value': 1}],
            {'mark': 'text', 'encoding': {'text': {'field': 'client'}}},
            subject=name,
            note=name,
            captions=[name],
            omitted=name,
          ),
        ],
        name,
      )
      for place, name in enumerate(names)
    ),
  ]
  return page.Report(names[0], ' '.join(names), ' '.join(names), sections)
