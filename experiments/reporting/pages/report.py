"""The report of runs and grids: its contents, and when it is written."""

import collections
from collections.abc import Iterable, Sequence
import math
import pathlib
import shlex
import statistics
import time

import numpy as np

from algorithms import registry
from base import errors
from base import words
from base.aliases import Json
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.reporting import repeats
from experiments.reporting import results_folder
from experiments.reporting import sources
from experiments.reporting import tables
from experiments.reporting.figures import drawing
from experiments.reporting.figures import grids
from experiments.reporting.figures import methods
from experiments.reporting.figures import scales
from experiments.reporting.pages import page
from experiments.reporting.pages import sheets

_SECONDS_PER_LOOK = 5
# Either of these is written once all runs of a grid are done.
_OF_FINISHED_GRIDS = results_folder.RESULTS, 'plots'
# A table lists at most this many points of a grid, the best ones.
_MOST_POINTS = 500


# The columns of a table of costs: their place in results, and their format.
_COSTS = {
  'rounds': (('rounds',), '.0f'),
  'training, s': (('training_seconds',), '.3g'),
  'evaluation, s': (('evaluation_seconds',), '.3g'),
  'parameters to a client in a round': (
    ('communication', 'parameters_down'),
    '.3g',
  ),
  'parameters from a client in a round': (
    ('communication', 'parameters_up'),
    '.3g',
  ),
  'parameters sent in total': (('communication', 'total_parameters'), '.3g'),
}


def _describe(
  entry: sources.Run | sources.Grid,
) -> dict[str, sheets.Cell | str]:
  """Describes what was run in a folder, and how far it is."""
  if isinstance(entry, sources.Run):
    settings = entry.configuration
    return {
      'folder': str(entry.path),
      'task': settings['task.name'],
      'methods': ', '.join(settings['algorithms']),
      'seed': str(settings['seed']),
      'rounds': str(settings['total_rounds']),
      'status': entry.status,
    }
  failed = len(entry.failures)
  records = [record for point in entry.points for record in point.records]
  tasks = {c['task.name'] for c in entry.configurations.values()}
  return {
    'folder': str(entry.path),
    'task': ', '.join(sorted(tasks)) or 'a grid',
    'methods': ', '.join(dict.fromkeys(point.name for point in entry.points)),
    'seed': ', '.join(map(str, sorted({record['seed'] for record in records}))),
    'rounds': '–',
    'status': f'{words.count(len(records), "runs")} of'
    f' {words.count(len(entry.points), "points")}'
    + (f', {failed} failed' if failed else ''),
  }


def _what_was_run(
  entries: Sequence[sources.Run | sources.Grid],
) -> page.Section:
  parts = sheets.make('runs', 'Folders', [*map(_describe, entries)])
  # The settings of runs, and of the best points of grids.
  labels, configured = [], []
  failures: sheets.Rows = []
  note = ''
  for entry in entries:
    if isinstance(entry, sources.Run):
      labels.append(entry.path.name)
      configured.append(entry.configuration)
    else:
      note = 'For grids, these are the settings of the best points.'
      failures += [{'run': failure} for failure in entry.failures]
      for row, settings in entry.configurations.items():
        labels.append(f'{entry.path.name}: {registry.title(row)}')
        configured.append(settings)
  parts += sheets.make('failures', 'Failed', failures)
  differing = [
    [sheets.Cell(name), *(sheets.Cell(_setting(value)) for value in values)]
    for name, values in sources.differences(configured).items()
  ]
  if differing:
    # Labels may be the same, as those of folders.
    columns, title = ['setting', *labels], 'Settings that differ'
    parts.append(sheets.Sheet('differences', title, columns, differing, note))
  return page.Section('Runs and grids', parts)


def _setting(value: Json) -> str:
  if isinstance(value, list):
    return ', '.join(map(str, value))
  return '–' if value is None else str(value)


def _quantile(values: Sequence[float], share: float) -> float:
  """Returns a quantile over clients; NaN if a model diverged."""
  return float(np.quantile(values, share))


def _choice(method: repeats.Series) -> str:
  """Says which candidate was chosen, or which one is shown instead."""
  counts: dict[str, int] = collections.Counter()
  for repeat in method.repeats:
    counts.update(repeat.result['chosen'])
  if not counts:
    last = method.names('candidates')[-1:]
    return '; '.join(['none is chosen', *(f'shown: {name}' for name in last)])
  most = max(counts, key=lambda candidate: counts[candidate])
  return most if len(counts) == 1 else f'most often {most}'


def _results(series: Sequence[repeats.Series]) -> page.Section:
  if not series:
    return page.Section('Results', [], 'No method is finished yet.')
  rows: sheets.Rows = []
  for method in series:
    weak = 0.1 if method.higher_is_better else 0.9
    values = [repeat.client_values('metric') for repeat in method.repeats]
    # A run has it among its statistics, and a grid's by itself.
    hurt = _finite(method.values('test', 'hurt') + method.values('hurt'))
    rows.append(
      {
        'method': method.name,
        'mean': sheets.spread([repeat.mean for repeat in method.repeats]),
        'deviation over clients': _mean(float(np.std(v)) for v in values),
        'median': _mean(_quantile(v, 0.5) for v in values),
        'a tenth of clients is worse than': _mean(
          _quantile(v, weak) for v in values
        ),
        'hurt': sheets.share(statistics.fmean(hurt) if hurt else None),
        'chosen candidate': _choice(method),
        'seeds': sheets.number(len(method.repeats), 'd'),
      }
    )
  return page.Section(
    'Results',
    sheets.make(
      'results',
      f'{scales.metric_title(series[0])}, over test clients',
      rows,
      'With several seeds, the mean is shown with its deviation over seeds.'
      ' Hurt is the share of the clients that personalization makes worse.',
    ),
  )


def _mean(values: Iterable[float]) -> sheets.Cell:
  return sheets.number(statistics.fmean(values))


def _finite(values: Iterable[float]) -> list[float]:
  return [value for value in values if math.isfinite(value)]


def _privacy(
  series: Sequence[repeats.Series], runs: Sequence[sources.Run]
) -> page.Section:
  rows: sheets.Rows = []
  for method in series:
    guarantee = method.repeats[0].result.get('privacy')
    if guarantee:
      epsilon = guarantee['epsilon']
      rows.append(
        {
          'method': method.name,
          'ε': sheets.number(math.inf if epsilon is None else epsilon),
          'δ': sheets.number(guarantee['delta'], '.2g'),
          'guarantee': guarantee['text'],
          'neighbors': guarantee['neighbors'],
          'mechanism': guarantee['mechanism'],
          'sampling': guarantee['sampling'],
          'accountant': guarantee['accountant'],
          'assumptions': '; '.join(guarantee['assumptions']) or 'none',
          'not covered': '; '.join(guarantee['not_covered']) or 'nothing',
        }
      )
  texts = dict.fromkeys(run.privacy for run in runs if run.privacy)
  return page.Section(
    'Privacy', sheets.make('privacy', 'Guarantees', rows, ' '.join(texts))
  )


def _costs(series: Sequence[repeats.Series]) -> page.Section:
  with_costs = [method for method in series if method.names('communication')]
  rows: sheets.Rows = [
    {
      'method': method.name,
      **{
        column: sheets.spread(values, form)
        if (values := _finite(method.values(*keys)))
        else '–'
        for column, (keys, form) in _COSTS.items()
      },
    }
    for method in with_costs
  ]
  rows_of_clients: sheets.Rows = [
    {
      'method': method.name,
      **{
        column: tables.write_cost([r.result for r in method.repeats], name)
        for name, column in tables.COSTS.items()
      },
    }
    for method in with_costs
  ]
  return page.Section(
    'Time and communication',
    [
      *sheets.make('costs', 'Costs', rows),
      *sheets.make('client_costs', 'Costs of a client', rows_of_clients),
      *methods.communication([series]),
    ],
  )


def _grid(grid: sources.Grid) -> page.Section:
  title = f'Grid {grid.path.name}'
  settings = dict.fromkeys(name for p in grid.points for name in p.values)
  if not grid.points:
    return page.Section(title, [], 'No run is finished yet.')
  sign = 1 if grid_records.lower_is_chosen(grid.points[0].records[0]) else -1
  ordered = sorted(
    grid.points,
    key=lambda p: (
      sign * p.validation if math.isfinite(p.validation) else math.inf
    ),
  )
  rows: sheets.Rows = [
    {
      'method': point.name,
      **{name: _value(point.values.get(name)) for name in settings},
      'validation': sheets.number(point.validation),
      'test': sheets.number(point.test),
      'seeds': sheets.number(len(point.records), 'd'),
    }
    for point in ordered[:_MOST_POINTS]
  ]
  note = 'The means of each point over its seeds, with the best point first.'
  if len(ordered) > _MOST_POINTS:
    note += f' {len(ordered) - _MOST_POINTS} further points are not listed.'
  points = sheets.make(f'{grid.path.name}_points', 'Points', rows, note)
  return page.Section(title, [*grids.draw_grid(grid), *points])


def _value(value: Json) -> sheets.Cell:
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return sheets.Cell(_setting(value), float(value) if is_number else None)


def _of_metric(
  series: Sequence[repeats.Series],
  runs: Sequence[sources.Run],
  with_states: bool,
) -> list[page.Section]:
  """Makes the sections of methods that have the same task and metric."""
  by_round = list(drawing.draw_rounds(runs))
  if not series:
    return [_results(series), page.Section('Learning', by_round)]
  learning = [*by_round, *drawing.draw_choices(series)]
  groups = list(drawing.draw_groups(series))
  if with_states:
    groups += drawing.draw_states(series)
  return [
    _results(series),
    page.Section('Clients', [*drawing.draw_clients(series)]),
    page.Section('Learning', learning),
    page.Section('Groups and clusters', groups),
    _privacy(series, runs),
    _costs(series),
  ]


def make(
  entries: Sequence[sources.Run | sources.Grid],
  command: str,
  with_states: bool = True,
) -> page.Report:
  """Makes the report of runs and grids.

  Args:
    entries: The runs and grids.
    command: The command that writes the report.
    with_states: Whether to show what clients keep, which takes longer.

  Returns:
    The report, with separate sections for each task and metric.
  """
  series = sources.list_series(entries)
  runs = [entry for entry in entries if isinstance(entry, sources.Run)]
  grids = [entry for entry in entries if isinstance(entry, sources.Grid)]
  tasks = dict.fromkeys([*(r.task for r in runs), *(s.task for s in series)])
  sections = [_what_was_run(entries)]
  for task in tasks:
    of_task = [one for one in series if one.task == task]
    # A setting of a task may decide what is measured.
    metrics: list[str | None] = list(dict.fromkeys(s.metric for s in of_task))
    for metric in metrics or [None]:
      where = f': {task}' if len(tasks) > 1 else ''
      if metric is not None and len(metrics) > 1:
        where += f': {scales.words(metric)}'
      made = _of_metric(
        [one for one in of_task if one.metric == metric],
        [
          run
          for run in runs
          if run.task == task and run.metric in (None, metric)
        ],
        with_states,
      )
      sections += [section.renamed(where) for section in made]
  return page.Report(
    f'Personalized federated learning: {", ".join(tasks)}',
    f'Folders: {len(entries)}. Finished methods: {len(series)}.',
    command,
    [*sections, *map(_grid, grids)],
  )


def _is_finished(entries: Sequence[sources.Run | sources.Grid]) -> bool:
  """Tells whether all are finished.

  A grid writes its results when all of its runs are done. Published curves that
  are run again have figures only.
  """
  return all(
    entry.status == 'finished'
    if isinstance(entry, sources.Run)
    else any((entry.path / name).exists() for name in _OF_FINISHED_GRIDS)
    for entry in entries
  )


def main(
  paths: Sequence[pathlib.Path],
  output: pathlib.Path,
  export_dir: pathlib.Path | None,
  watch: bool,
) -> int:
  """Writes a report, repeatedly if it is to be watched.

  Args:
    paths: The folders of runs and of grids.
    output: The file of the page.
    export_dir: The folder for tables and charts as separate files, if any.
    watch: Whether to rewrite the page until all runs and grids are finished.

  Returns:
    The exit status.

  Raises:
    UserError: If a file that the programs did not write would be replaced.
  """
  command = 'report ' + ' '.join(
    shlex.quote(str(part)) for part in (*paths, f'--output={output}')
  )
  folders.check_own(output)
  if export_dir is not None:
    folders.check_empty('export_dir', export_dir)
  while True:
    entries = sources.read(paths)
    is_last = not watch or _is_finished(entries)
    report = make(entries, command, with_states=is_last)
    refresh = None if is_last else _SECONDS_PER_LOOK
    with errors.writing(output):
      output.parent.mkdir(parents=True, exist_ok=True)
    folders.write(output, page.to_html(report, refresh))
    if is_last:
      break
    time.sleep(_SECONDS_PER_LOOK)
  if export_dir is not None:
    page.export(report, export_dir)
    terminal.say(f'Tables and figures are in {export_dir}')
  terminal.say(f'Written to {output}')
  return 0
