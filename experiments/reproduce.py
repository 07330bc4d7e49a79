"""Reruns a published table: its methods and grids, beside its figures.

  reproduce --table=motley_school          everything, the paper's grids too
  reproduce --table=motley_school --best   only the points found best before

Every point of the grids is run with every seed, the best is chosen by
validation, and its test metric is shown beside the published one. The same
command again goes on where it was stopped.
"""

# Nothing that imports TensorFlow Federated is imported here, see run.py.
from collections.abc import Mapping
import dataclasses
import json
import pathlib
import time
import tomllib
from typing import TYPE_CHECKING, Any

from absl import app
from absl import flags
import rich.box
import rich.markup
import rich.table

from base import errors
from experiments import grid
from experiments.configuration import config as config_lib
from experiments.configuration import execution
from experiments.reporting import terminal
from experiments.sweeps import grid_file

if TYPE_CHECKING:
  from experiments.sweeps import grid_results

_TABLES = pathlib.Path(__file__).parent / 'tables'
_TABLE_WIDTH = 150


def table_names() -> tuple[str, ...]:
  """The names of the tables that come with the code."""
  return tuple(sorted(path.stem for path in _TABLES.glob('*.toml')))


_TABLE = flags.DEFINE_string(
  'table', None, f'The table: {", ".join(table_names())}.'
)
_BEST = flags.DEFINE_bool(
  'best', False, 'Runs only the points that were found best before.'
)
_JSON = flags.DEFINE_string(
  'json',
  None,
  'A file to write {method: {"ours": …, "published": …, "hurt": …}} to.',
)


@dataclasses.dataclass(frozen=True)
class Table:
  """A published table.

  Attributes:
    title: What it shows.
    published: The published figures of each method: 'mean', and maybe 'hurt'
      and 'largest_cluster'.
    whole: The paper's grids.
    best: The best points, as found here.
  """

  title: str
  published: Mapping[str, Mapping[str, float]]
  whole: grid_file.GridFile
  best: grid_file.GridFile


def read_table(name: str) -> Table:
  """Reads a table of ours; raises a `UserError` if there is none."""
  if name not in table_names():
    raise errors.unknown('table', name, table_names())
  contents = tomllib.loads((_TABLES / f'{name}.toml').read_text('utf-8'))
  title, published = contents.pop('title'), contents.pop('published')
  best = contents.pop('best')
  whole = grid_file.parse(contents, name)
  points = tuple(
    grid_file.Point(method, values, {}) for method, values in best.items()
  )
  return Table(
    title, published, whole, dataclasses.replace(whole, points=points)
  )


def compare(
  table: Table, winners: Mapping[str, 'grid_results.Outcome']
) -> dict[str, dict[str, Any]]:
  """Ours beside the published figures, for each method of the table."""
  rows = {}
  for method, published in table.published.items():
    row: dict[str, Any] = {'ours': None, 'published': published['mean']}
    if method in winners:
      for name in ('mean', 'deviation', 'hurt', 'largest_cluster'):
        row[name] = winners[method].over_repeats(name)
      row['ours'] = row['mean'][0]
      row['hurt'] = row['hurt'] and row['hurt'][0]
      row['point'] = winners[method].point.describe()
    rows[method] = row
  return rows


def _share(ours: float | None, published: float | None) -> str:
  texts = ['–' if s is None else f'{s:.1%}' for s in (ours, published)]
  return '' if ours is None else ' / '.join(texts)


def _print(table: Table, rows: Mapping[str, Mapping[str, Any]]) -> None:
  printed = rich.table.Table(
    title=table.title, title_justify='left', box=rich.box.SIMPLE
  )
  printed.add_column('method')
  printed.add_column('ours ± over repeats', justify='right')
  for name in ('published', 'difference', 'over clients'):
    printed.add_column(name, justify='right')
  printed.add_column('hurt: ours / published', justify='right')
  printed.add_column('largest cluster', justify='right')
  printed.add_column('best point', overflow='fold')
  for method, row in rows.items():
    published = table.published[method]
    if row['ours'] is None:
      printed.add_row(method, 'not finished', f'{row["published"]:.4g}')
      continue
    largest = row['largest_cluster']
    printed.add_row(
      method,
      f'{row["ours"]:.5f} ± {row["mean"][1]:.5f}',
      f'{row["published"]:.4g}',
      f'{row["ours"] - row["published"]:+.5f}',
      f'{row["deviation"][0]:.4f}',
      _share(row['hurt'], published.get('hurt')) if 'hurt' in published else '',
      _share(largest and largest[0], published.get('largest_cluster'))
      if 'largest_cluster' in published
      else '',
      rich.markup.escape(row['point']),
    )
  terminal.print_table(printed, width=_TABLE_WIDTH)


def _main() -> int:
  if _TABLE.value is None:
    raise errors.UserError(
      f'Name a table with --table: {", ".join(table_names())}.'
    )
  table = read_table(_TABLE.value)
  json_file = _JSON.value and config_lib.user_path(_JSON.value)
  if json_file and not json_file.parent.is_dir():
    raise errors.UserError(
      f'--json: there is no folder {json_file.parent}. Make it or name another.'
    )
  execution.silence_imports()
  which = table.best if _BEST.value else table.whole
  folder = config_lib.user_path(
    flags.FLAGS.output_dir
    or f'results/{_TABLE.value}{"-best" if _BEST.value else ""}'
  )
  start = time.monotonic()
  with grid.open_grid(which, folder) as opened:
    if grid.DRY_RUN.value:
      opened.dry_run()
      return 0
    failed = opened.carry_out()
    winners = opened.write()
  rows = compare(table, winners)
  _print(table, rows)
  if json_file:
    short = {
      method: {name: row.get(name) for name in ('ours', 'published', 'hurt')}
      for method, row in rows.items()
    }
    json_file.write_text(json.dumps(short, indent=2) + '\n', encoding='utf-8')
  terminal.say(
    f'Written to {folder}, in {grid.duration(time.monotonic() - start)} with'
    f' {flags.FLAGS.workers} processes.'
  )
  return 1 if failed else 0


def main(argv: list[str]) -> int:
  """Runs what the flags say, and returns the exit status."""
  if len(argv) > 1:
    raise app.UsageError(f'There is no argument {argv[1]!r}, only flags.')
  return grid.guarded(_main)


if __name__ == '__main__':
  grid.define_flags()
  flags.adopt_module_key_flags(grid)
  app.run(main)
