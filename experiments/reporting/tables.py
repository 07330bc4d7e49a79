"""Tables of runs for the terminal."""

from collections.abc import Mapping, Sequence
import math
from typing import TextIO

import rich.table

from base import names
from base import words
from base.aliases import Json
from experiments.command_line import terminal
from experiments.reporting import repeats
from experiments.reporting import results_folder

# When a client uses its personalized model, in words.
CRITERIA = {
  'min_examples': 'enough examples',
  'margin': 'better held out',
}

# The costs of a client, by their names in results.json.
COSTS = {
  'models_received': 'models received',
  'models_sent': 'models sent',
  'gradient_passes': 'passes for gradients',
  'loss_passes': 'passes for losses alone',
}

# With fewer clients, the intervals of a mean are less reliable.
_ENOUGH_CLIENTS = 20
# The largest number of clusters whose shares are shown.
_MOST_CLUSTERS = 4


def _interval(interval: Sequence[float] | None) -> str:
  return '–' if interval is None else ' to '.join(map(_number, interval))


def _number(value: float | None) -> str:
  return 'diverged' if value is None else f'{value:#.4g}'


def _describe_choice(chosen: Mapping[str, int]) -> str:
  most_often = max(chosen, key=lambda candidate: chosen[candidate])
  return most_often if len(chosen) == 1 else f'each its own, most {most_often}'


def _describe_clusters(sizes: Mapping[str, int]) -> str:
  """Writes the shares of clusters, the largest first."""
  total = sum(sizes.values())
  shares = [f'{n / total:.0%}' for n in sorted(sizes.values(), reverse=True)]
  more = ', …' if len(shares) > _MOST_CLUSTERS else ''
  return f' ({", ".join(shares[:_MOST_CLUSTERS])}{more})'


def _cells(test: Mapping[str, Json]) -> list[str]:
  """Writes the statistics of the test clients that are in the table."""
  mean = _number(test['mean'])
  if test['mean'] is not None:
    mean += f' ± {_number(test["deviation"])}'
  return [
    mean,
    _interval(test['interval']),
    _number(test['worst_tenth']),
    '–' if test['hurt'] is None else f'{test["hurt"]:.0%}',
  ]


def results_table(
  results: Mapping[str, results_folder.Result],
) -> rich.table.Table:
  """Makes the table of one run, with a row for each method."""
  any_result = next(iter(results.values()))
  better = 'higher' if any_result['higher_is_better'] else 'lower'
  num_clients = any_result['test']['num_clients']
  title = (
    f'{any_result["metric"]} of {words.count(num_clients, "test clients")}'
  )
  title += f'; {better} is better'
  if num_clients < _ENOUGH_CLIENTS:
    title += (
      '\nFew clients: where metrics are skewed, an interval holds the true mean'
      ' less often; of 8 in 86 to 91 cases of 100.'
    )
  for against in {result.get('hurt_against') for result in results.values()}:
    if against is not None:
      title += f'\nhurt: of methods without a baseline, against {against}'
  numbers = ['mean ± deviation', '95% interval of the mean', 'worst tenth']
  table = terminal.make_table(title, 'method', numbers=[*numbers, 'hurt'])
  table.add_column('chosen candidate')
  any_private = any(result.get('privacy') for result in results.values())
  if any_private:
    table.add_column('privacy of the training')

  def add_row(
    name: str,
    test: Mapping[str, Json] | None,
    candidate: str = '',
    privacy: str = '',
  ) -> None:
    cells = [''] * 4 if test is None else _cells(test)
    table.add_row(name, *cells, candidate, *([privacy] if any_private else []))

  for method, result in results.items():
    privacy = result.get('privacy') or {'text': 'nothing is sent'}
    if result.get('all_reported'):
      add_row(method, None, 'none is chosen', privacy['text'])
      for candidate, test in result['all_reported'].items():
        add_row(f'  {candidate}', test)
      continue
    chosen = _describe_choice(result['chosen'])
    if 'clusters' in result:
      chosen += _describe_clusters(result['clusters']['sizes'])
    add_row(method, result['test'], chosen, privacy['text'])
    for criterion, accepting in result.get('acceptance', {}).items():
      add_row(
        f'  if {CRITERIA[criterion]}',
        accepting['test'],
        f'taken by {accepting["accepted"]:.0%}',
      )
  return table


def groups_table(
  results: Mapping[str, results_folder.Result],
) -> rich.table.Table:
  """Makes the table of known groups, with a row for each.

  It has the metric over all examples of a group together, as in tables 3 and 6
  of Liu et al.
  """
  any_result = next(iter(results.values()))
  table = terminal.make_table(
    f'{any_result["metric"]} of all examples of each group',
    'group',
    numbers=['clients', *results],
  )
  for group, of_group in any_result['groups'].items():
    pooled = [result['groups'][group]['pooled'] for result in results.values()]
    table.add_row(
      names.visible(group),
      str(of_group['num_clients']),
      *map(_number, pooled),
    )
  pooled = [result['pooled'] for result in results.values()]
  num_clients = any_result['test']['num_clients']
  table.add_row('all', str(num_clients), *map(_number, pooled))
  return table


def write_cost(results: Sequence[results_folder.Result], name: str) -> str:
  """Writes a cost of a client; the range, if groups or repeats differ in it.

  Args:
    results: The results of a method in all repeats.
    name: The name of the cost; older results do not have all of them.
  """
  numbers = [
    cost[name]
    for result in results
    for cost in result.get('costs', {}).values()
    if name in cost
  ]
  if not numbers:
    return '–'
  ends = (f'{end:.4g}' for end in (min(numbers), max(numbers)))
  return ' to '.join(dict.fromkeys(ends))


def costs_table(
  results: Mapping[str, results_folder.Result],
) -> rich.table.Table:
  """Makes the table of costs, as in table 4 of Liu et al."""
  table = terminal.make_table(
    'Costs of a client', 'method', numbers=COSTS.values()
  )
  for method, result in results.items():
    table.add_row(method, *(write_cost([result], name) for name in COSTS))
  return table


def guarantees_table(
  results: Mapping[str, results_folder.Result],
) -> rich.table.Table:
  """Makes the table of the guarantees of private methods, with a row for each.

  Methods of the same guarantee share a row.
  """
  methods: dict[tuple[str, ...], list[str]] = {}
  assumptions: dict[str, None] = {}
  for method, result in results.items():
    found = result.get('privacy')
    if found:
      noise = f'{found["mechanism"]}, z {found["noise"]:.4g}'
      cells = (
        f'{noise}, clip {found["clip"]}',
        found['neighbors'],
        found['sampling'],
        found['accountant'],
      )
      methods.setdefault(cells, []).append(method)
      assumptions.update(dict.fromkeys(found['assumptions']))
  table = terminal.make_table('How the training is private', 'method')
  for column in ('mechanism', 'neighbors', 'sampling', 'accountant'):
    table.add_column(column)
  for row, sharing in methods.items():
    table.add_row('\n'.join(sharing), *row)
  table.caption = '\n'.join(('This holds if', *(f'- {a}' for a in assumptions)))
  table.caption_justify = 'left'
  return table


def print_results(
  results: Mapping[str, results_folder.Result], file: TextIO | None = None
) -> None:
  """Prints the tables of one run, with costs if a training has stages."""
  terminal.print_table(results_table(results), file)
  if any(result.get('privacy') for result in results.values()):
    terminal.print_table(guarantees_table(results), file)
  if all('groups' in result for result in results.values()):
    terminal.print_table(groups_table(results), file)
  if any(result.get('started_from_training') for result in results.values()):
    terminal.print_table(costs_table(results), file)


def _cell(numbers: Sequence[float], form: str) -> str:
  """Writes the mean and the deviation of numbers; a dash if one is NaN."""
  mean, deviation = repeats.mean_and_deviation(numbers)
  return '–' if math.isnan(mean) else f'{mean:{form}} ± {deviation:{form}}'


def repeats_table(compared: Sequence[repeats.Series]) -> rich.table.Table:
  """Makes the table of repeats, with a row for each method.

  It has the form of Motley's tables 6 and 7.
  """
  first = compared[0]
  better = 'higher' if first.higher_is_better else 'lower'
  table = terminal.make_table(
    f'{first.metric} over {words.count(len(first.repeats), "repeats")};'
    f' {better} is better',
    'method',
    numbers=[
      f'{column} ± over repeats'
      for column in ('mean', 'deviation over clients', 'hurt')
    ],
  )

  def add_row(name: str, series: repeats.Series, *where: str) -> None:
    cells = (
      _cell(series.values(*where, number), form)
      for number, form in (
        ('mean', '#.4g'),
        ('deviation', '#.4g'),
        ('hurt', '.1%'),
      )
    )
    table.add_row(name, *cells)

  for series in compared:
    all_reported = series.names('all_reported')
    if not all_reported:
      add_row(series.method, series, 'test')
      continue
    table.add_row(f'{series.method} (none is chosen)')
    for candidate in all_reported:
      add_row(f'  {candidate}', series, 'all_reported', candidate)
  return table


def print_repeats(compared: Sequence[repeats.Series]) -> None:
  """Prints the table of repeats."""
  terminal.print_table(repeats_table(compared))
