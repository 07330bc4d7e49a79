"""Which figures the results of runs have the numbers for, and those figures."""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
from typing import TypeVar

from experiments.reporting import plots
from experiments.reporting import report

# The name of a figure's file, and the figure.
_Figures = Iterator[tuple[str, plots.Figure]]
_Key = TypeVar('_Key')


def _of_clients(repeats: report.Repeats, judged: tuple[str, bool]) -> _Figures:
  """The test clients one by one, those of all repeats."""
  metrics = {m: repeats.of_clients(m, 'metric') for m in repeats.methods}
  yield 'clients', plots.box_plot(metrics, *judged)
  for method in repeats.methods:
    if len(repeats.names(method, 'candidates')) == 1:
      continue  # There is nothing that could hurt.
    titles = {'': method} | {
      f'_part_{part}': f'{method}, {float(part):.0%} of the evaluation set'
      for part in repeats.names(method, 'evaluation_fractions')
    }
    for part, title in titles.items():
      # Who has nothing in the part was not judged by it.
      clients = [
        client
        for client in zip(
          repeats.of_clients(method, f'before{part}'),
          repeats.of_clients(method, f'metric{part}'),
          repeats.of_clients(method, 'personalization_examples'),
        )
        if not math.isnan(client[0])
      ]
      if clients:
        yield (
          f'hurt_{method}{part}',
          plots.hurt_scatter(*zip(*clients), *judged, title=title),
        )


def _of_candidates(
  repeats: report.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """What each candidate would be for all clients."""
  of_methods = {
    method: {
      name: {
        measure: repeats.values(method, 'candidates', name, measure)
        for measure in repeats.names(method, 'candidates', name)
      }
      for name in repeats.names(method, 'candidates')
    }
    for method in repeats.methods
  }
  for method, candidates in of_methods.items():
    chosen = {
      name for run in repeats.runs for name in run.methods[method]['chosen']
    }
    if len(candidates) > 2:
      figure = plots.candidate_curves(
        candidates,
        *judged,
        title=method,
        chosen=chosen.pop() if len(chosen) == 1 else None,
      )
      yield f'candidates_{method}', figure
  with_ood = {
    method: {
      name: (own['test'], own['out_of_distribution'])
      for name, own in candidates.items()
      if 'out_of_distribution' in own
    }
    for method, candidates in of_methods.items()
  }
  if all(with_ood.values()):
    yield 'ood', plots.ood_curves(with_ood, *judged)


def _of_clusters(repeats: report.Repeats) -> _Figures:
  """Clusters, run by run, as which is the first is another one in each."""
  for k, run in enumerate(repeats.runs):
    suffix = f'_{k + 1}' if len(repeats.runs) > 1 else ''
    for method in repeats.methods:
      rounds = run.rounds.get(run.methods[method]['training'], {})
      shares = {
        name.replace('_', ' '): own
        for name, own in rounds.items()
        if name.startswith('cluster_')
      }
      if shares:
        figure = plots.cluster_shares(shares, title=method)
        yield f'clusters_{method}{suffix}', figure
      groups = run.methods[method].get('clusters', {}).get('groups')
      if groups:
        figure = plots.cluster_groups(groups, title=method)
        yield f'groups_{method}{suffix}', figure


def _of_communication(
  by_rounds: Sequence[report.Repeats], judged: tuple[str, bool]
) -> _Figures:
  """The trainings of each number of rounds."""
  methods = {
    method: [
      (
        repeats.values(method, 'communication', 'total_parameters'),
        repeats.values(method, 'test', 'mean'),
      )
      for repeats in by_rounds
      if method in repeats.methods
    ]
    for method in by_rounds[-1].methods
  }
  yield 'communication', plots.communication(methods, *judged)


def _numbers(
  repeats: report.Repeats, where: Mapping[_Key, Sequence[str]]
) -> dict[str, dict[_Key, list[float]]]:
  """What is in places of methods' results, of those that have them all."""
  of_methods = {
    method: {
      key: repeats.values(method, *place) for key, place in where.items()
    }
    for method in repeats.methods
  }
  return {
    method: own
    for method, own in of_methods.items()
    if not any(map(math.isnan, itertools.chain(*own.values())))
  }


def _of_parts(repeats: report.Repeats, judged: tuple[str, bool]) -> _Figures:
  """Clients with parts of their sets."""
  for name, of_what, statistic, drawn in (
    ('personalization_fractions', 'personalization set', 'mean', judged),
    ('evaluation_fractions', 'evaluation set', 'hurt', ('clients hurt', False)),
  ):
    parts = repeats.names(repeats.methods[0], name)
    where = {1.0: ('test', statistic)} | {
      float(part): (name, part, statistic) for part in parts
    }
    methods = {
      method: own
      for method, own in _numbers(repeats, where).items()
      if statistic != 'hurt' or len(repeats.names(method, 'candidates')) > 1
    }
    if parts and methods:
      yield name, plots.fractions(methods, of_what, *drawn)


def _of_choices(repeats: report.Repeats, judged: tuple[str, bool]) -> _Figures:
  """Ways to choose a candidate, and whether to take it."""
  ways = {'one for all': 'all', 'one for each': 'each'}
  methods = _numbers(
    repeats, {label: ('tuning', way, 'mean') for label, way in ways.items()}
  )
  if methods:
    yield 'tuning', plots.tuning(methods, *judged)

  where = {'nobody': ('before',), 'everybody': ('test',)} | {
    label: ('acceptance', criterion, 'test')
    for criterion, label in report.CRITERIA.items()
    if any(repeats.names(m, 'acceptance', criterion) for m in repeats.methods)
  }
  if len(where) > 2:
    hurt, means = (
      _numbers(repeats, {key: (*place, name) for key, place in where.items()})
      for name in ('hurt', 'mean')
    )
    methods = {
      method: {key: (hurt[method][key], means[method][key]) for key in where}
      for method in means
      if method in hurt
    }
    yield 'acceptance', plots.acceptance(methods, *judged)


def draw(by_rounds: Sequence[report.Repeats]) -> _Figures:
  """All figures that the results of runs have the numbers for.

  Args:
    by_rounds: The repeats of each number of rounds, see `report.read_repeats`.
      All figures but that of the communication are of the last of them.

  Yields:
    The name of each figure, and the figure.
  """
  repeats = by_rounds[-1]
  judged = repeats.metric, repeats.higher_is_better
  yield from _of_clients(repeats, judged)
  yield from _of_candidates(repeats, judged)
  yield from _of_clusters(repeats)
  yield from _of_communication(by_rounds, judged)
  yield from _of_parts(repeats, judged)
  yield from _of_choices(repeats, judged)
