"""The report of runs and grids: its contents, and when it is written."""

from collections.abc import Mapping, Sequence
import math
import pathlib
import shlex
import statistics
import time
from typing import Any

import numpy as np

from base import errors
from base import words
from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import grid_records
from experiments.reporting import names
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


def _what_was_run(
  entries: Sequence[sources.Run | sources.Grid],
) -> page.Section:
  rows = []
  for entry in entries:
    if isinstance(entry, sources.Run):
      settings = entry.configuration
      cells = [
        settings['task.name'],
        ', '.join(settings['algorithms']),
        str(settings['seed']),
        str(settings['total_rounds']),
        entry.status,
      ]
    else:
      failed = len(entry.failures)
      rows_of_grid = dict.fromkeys(point.name for point in entry.points)
      seeds = {
        record['seed'] for point in entry.points for record in point.records
      }
      tasks = {
        configuration['task.name']
        for configuration in entry.configurations.values()
      }
      cells = [
        ', '.join(sorted(tasks)) or 'a grid',
        ', '.join(rows_of_grid),
        ', '.join(map(str, sorted(seeds))),
        '–',
        f'{words.count(entry.num_runs, "runs")} of'
        f' {words.count(len(entry.points), "points")}'
        + (f', {failed} failed' if failed else ''),
      ]
    rows.append([sheets.Cell(text) for text in (str(entry.path), *cells)])
  parts = [
    sheets.Sheet(
      'runs',
      'Folders',
      ['folder', 'task', 'methods', 'seed', 'rounds', 'status'],
      rows,
    )
  ]
  grids = [entry for entry in entries if isinstance(entry, sources.Grid)]
  failures = [
    [sheets.Cell(failure)] for grid in grids for failure in grid.failures
  ]
  if failures:
    parts.append(sheets.Sheet('failures', 'Failed', ['run'], failures))
  labels, configured = _configured(entries)
  differing = sources.differences(configured)
  if differing:
    parts.append(
      sheets.Sheet(
        'differences',
        'Settings that differ',
        ['setting', *labels],
        [
          [sheets.Cell(name), *(sheets.Cell(_setting(v)) for v in values)]
          for name, values in differing.items()
        ],
        'For grids, these are the settings of the best points.'
        if grids
        else '',
      )
    )
  return page.Section('Runs and grids', parts)


def _configured(
  entries: Sequence[sources.Run | sources.Grid],
) -> tuple[list[str], list[Mapping[str, Any]]]:
  """Returns labels and settings of runs, and of the best points of grids."""
  labels, configured = [], []
  for entry in entries:
    name = entry.path.name
    if isinstance(entry, sources.Run):
      labels.append(name)
      configured.append(entry.configuration)
    else:
      for row, settings in entry.configurations.items():
        labels.append(f'{name}: {names.written_out(row)}')
        configured.append(settings)
  return labels, configured


def _setting(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(str, value))
  return '–' if value is None else str(value)


def _quantile(values: Sequence[float], share: float) -> float:
  """Returns a quantile over clients; NaN if a model diverged."""
  return float(np.quantile(values, share))


def _hurt(method: repeats.Series) -> float | None:
  """Returns the share of clients that are hurt; None without a baseline."""
  shares = [
    share
    for share in method.values('test', 'hurt') + method.values('hurt')
    if math.isfinite(share)
  ]
  return statistics.fmean(shares) if shares else None


def _choice(method: repeats.Series) -> str:
  """Says which candidate was chosen, or which one is shown instead."""
  counts: dict[str, int] = {}
  for repeat in method.repeats:
    for candidate, count in repeat.result['chosen'].items():
      counts[candidate] = counts.get(candidate, 0) + count
  if not counts:
    last = method.names('candidates')[-1:]
    return '; '.join(['none is chosen', *(f'shown: {name}' for name in last)])
  most = max(counts, key=lambda candidate: counts[candidate])
  return most if len(counts) == 1 else f'most often {most}'


def _metric(method: repeats.Series) -> str:
  return ' '.join(scales.metric_label(method.metric, method.higher_is_better))


def _results(series: Sequence[repeats.Series]) -> page.Section:
  if not series:
    return page.Section('Results', [], 'No method is finished yet.')
  rows = []
  for method in series:
    weak = 0.1 if method.higher_is_better else 0.9
    values = [repeat.client_values('metric') for repeat in method.repeats]
    rows.append(
      [
        sheets.Cell(method.name),
        sheets.spread([repeat.mean for repeat in method.repeats]),
        sheets.number(statistics.fmean(map(np.std, values))),
        sheets.number(statistics.fmean(_quantile(v, 0.5) for v in values)),
        sheets.number(statistics.fmean(_quantile(v, weak) for v in values)),
        sheets.share(_hurt(method)),
        sheets.Cell(_choice(method)),
        sheets.number(len(method.repeats), 'd'),
      ]
    )
  sheet = sheets.Sheet(
    'results',
    f'{_metric(series[0])}, over test clients',
    [
      'method',
      'mean',
      'deviation over clients',
      'median',
      'a tenth of clients is worse than',
      'hurt',
      'chosen candidate',
      'seeds',
    ],
    rows,
    'With several seeds, the mean is shown with its deviation over seeds. Hurt'
    ' is the share of the clients that personalization makes worse.',
  )
  return page.Section('Results', [sheet])


def _privacy(series: Sequence[repeats.Series]) -> page.Section:
  rows = []
  for method in series:
    guarantee = method.repeats[0].result.get('privacy')
    if guarantee:
      epsilon = guarantee['epsilon']
      rows.append(
        [
          sheets.Cell(method.name),
          sheets.number(math.inf if epsilon is None else epsilon),
          sheets.number(guarantee['delta'], '.2g'),
          sheets.Cell(guarantee['text']),
          sheets.Cell('; '.join(guarantee['not_covered']) or 'nothing'),
        ]
      )
  if not rows:
    return page.Section('Privacy', [])
  columns = ['method', 'ε', 'δ', 'guarantee', 'not covered']
  return page.Section(
    'Privacy', [sheets.Sheet('privacy', 'Guarantees', columns, rows)]
  )


def _costs(series: Sequence[repeats.Series]) -> page.Section:
  rows, of_client = [], []
  for method in series:
    results = [
      repeat.result
      for repeat in method.repeats
      if 'communication' in repeat.result
    ]
    if results:
      costs = (tables.write_cost(results, name) for name in tables.COSTS)
      of_client.append([sheets.Cell(method.name), *map(sheets.Cell, costs)])
      rows.append(
        [
          sheets.Cell(method.name),
          *(
            _mean_and_deviation(results, keys, form)
            for keys, form in (
              (('rounds',), '.0f'),
              (('training_seconds',), '.3g'),
              (('evaluation_seconds',), '.3g'),
              (('communication', 'parameters_down'), '.3g'),
              (('communication', 'parameters_up'), '.3g'),
              (('communication', 'total_parameters'), '.3g'),
            )
          ),
        ]
      )
  if not rows:
    return page.Section('Time and communication', [])
  columns = [
    'method',
    'rounds',
    'training, s',
    'evaluation, s',
    'parameters to a client in a round',
    'parameters from a client in a round',
    'parameters sent in total',
  ]
  return page.Section(
    'Time and communication',
    [
      sheets.Sheet('costs', 'Costs', columns, rows),
      sheets.Sheet(
        'client_costs',
        'Costs of a client',
        ['method', *tables.COSTS.values()],
        of_client,
      ),
      *methods.communication([series]),
    ],
  )


def _mean_and_deviation(
  results: Sequence[results_folder.Result], keys: Sequence[str], form: str
) -> sheets.Cell:
  values = []
  for result in results:
    value: Any = result
    for key in keys:
      value = value[key]
    if value is not None:
      values.append(float(value))
  return sheets.spread(values, form) if values else sheets.Cell('–')


def _grid(grid: sources.Grid) -> page.Section:
  settings = dict.fromkeys(name for p in grid.points for name in p.values)
  if not grid.points:
    return page.Section(f'Grid {grid.path.name}', [], 'No run is finished yet.')
  sign = 1 if grid_records.lower_is_chosen(grid.points[0].records[0]) else -1
  ordered = sorted(
    grid.points,
    key=lambda p: (
      sign * p.validation if math.isfinite(p.validation) else math.inf
    ),
  )
  rows = [
    [
      sheets.Cell(point.name),
      *(
        sheets.Cell(
          _setting(point.values.get(name)), _value(point.values.get(name))
        )
        for name in settings
      ),
      sheets.number(point.validation),
      sheets.number(point.test),
      sheets.number(len(point.records), 'd'),
    ]
    for point in ordered[:_MOST_POINTS]
  ]
  note = 'The means of each point over its seeds, with the best point first.'
  if len(ordered) > _MOST_POINTS:
    note += f' {len(ordered) - _MOST_POINTS} further points are not listed.'
  sheet = sheets.Sheet(
    f'{grid.path.name}_points',
    'Points',
    ['method', *settings, 'validation', 'test', 'seeds'],
    rows,
    note,
  )
  return page.Section(f'Grid {grid.path.name}', [*grids.draw_grid(grid), sheet])


def _value(value: Any) -> float | None:
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return float(value) if is_number else None


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
    _privacy(series),
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
