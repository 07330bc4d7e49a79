"""All figures for which the results of runs have the numbers."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
import pathlib
from typing import TypeVar

import numpy as np
from sklearn import cluster

from base import errors
from experiments.reporting import names
from experiments.reporting import repeats
from experiments.reporting import results_folder
from experiments.reporting import tables
from experiments.reporting.plots import candidate_plots
from experiments.reporting.plots import client_plots
from experiments.reporting.plots import cluster_plots
from experiments.reporting.plots import method_plots
from experiments.reporting.plots import round_plots
from experiments.reporting.plots import style
from experiments.reporting.plots import validation_figures
from personalization.judgement import measures
from personalization.rounds import client_states

# The results of candidates that are drawn.
_MEASURES = ('validation', 'test', 'test_hurt', 'out_of_distribution')
# The metrics of a training in which clients choose their number of steps.
_STEPS = ('steps', 'intra_variance')
# Counts of a round, and other measures that are not metrics of the model.
_COUNTS = ('round', 'num_examples', 'num_clients', 'dropped_clients', 'passes')
# The beginnings of measures of a round's clients: how many of them are in each
# cluster or known group, and the share of the model that they are sent.
_OF_COHORTS = ('cluster_', 'group_', 'share_')
_DROPPED = 'dropped updates'
# The prefix of the embedding in a client's state, see `algorithms/fedembed`.
_EMBEDDING = 'e/'
# A figure needs more embeddings than these to show anything.
_FEWEST_EMBEDDINGS = 10
# The name of a figure's file, and the figure.
_Figures = Iterator[tuple[str, style.Figure]]
_Key = TypeVar('_Key')


def _of_clients(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """Draws the individual test clients of all repeats."""
  metrics = {m: repeated.client_values(m, 'metric') for m in repeated.methods}
  yield 'clients', client_plots.box_plot(metrics, *judged)
  for method in repeated.methods:
    if len(repeated.names(method, 'candidates')) == 1:
      continue  # Nobody is hurt by the only candidate.
    title = names.written_out(method)
    titles = {'': title} | {
      f'_part_{part}': f'{title}, {float(part):.0%} of the evaluation set'
      for part in repeated.names(method, 'evaluation_fractions')
    }
    for part, title in titles.items():
      # Clients with no examples in the part have no metric on it.
      clients = [
        client
        for client in zip(
          repeated.client_values(method, f'before{part}'),
          repeated.client_values(method, f'metric{part}'),
          repeated.client_values(method, 'personalization_examples'),
        )
        if not math.isnan(client[0])
      ]
      if clients:
        yield (
          f'hurt_{method}{part}',
          client_plots.hurt_scatter(*zip(*clients), *judged, title=title),
        )


def _without_stage(repeated: repeats.Repeats, method: str) -> str | None:
  """Finds the method that only lacks the last training of a method.

  The last training starts from that method's training. For example, PerFL is
  GroupPerFL without the training of groups.
  """
  results = repeated.runs[0].methods
  before = results[method].get('started_from_training')
  if before is None:
    return None
  for other in repeated.methods:
    if (
      before == results[other].get('training')
      and method.partition('+')[2] == other.partition('+')[2]
    ):
      return other
  return None


def _pairs(
  repeated: repeats.Repeats, first: str, second: str
) -> list[tuple[str, float, float]]:
  """Lists each client's known group, if any, and its metric by two methods."""
  pairs = []
  for run in repeated.runs:
    before = {row['client']: row for row in run.clients[first]}
    pairs += [
      (
        row.get('group', ''),
        float(before[row['client']]['metric']),
        float(row['metric']),
      )
      for row in run.clients[second]
      if row['client'] in before
    ]
  return pairs


def of_stages(repeated: repeats.Repeats, judged: tuple[str, bool]) -> _Figures:
  """Draws how a training changed the metric of all clients and each group."""
  for method in repeated.methods:
    other = _without_stage(repeated, method)
    if other is None:
      continue
    pairs = _pairs(repeated, other, method)
    groups = sorted({group for group, *_ in pairs if group})
    for group in ('', *groups):
      of_group = [values for known, *values in pairs if group in ('', known)]
      suffix = f'_{group}' if group else ''
      against = (
        f'{names.written_out(method)} against {names.written_out(other)}'
      )
      title = f'{against}, {group}' if group else against
      yield (
        f'change_{method}{suffix}',
        client_plots.relative_changes(*zip(*of_group), *judged, title=title),
      )


def _of_candidates(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """Draws the metric if all clients used the same candidate."""
  of_methods = {
    method: {
      candidate: {
        measure: repeated.values(method, 'candidates', str(candidate), measure)
        for measure in repeated.names(method, 'candidates', str(candidate))
        if measure in _MEASURES
      }
      for candidate in repeated.list_candidates(method)
    }
    for method in repeated.methods
  }
  for method, candidates in of_methods.items():
    chosen = {
      name for run in repeated.runs for name in run.methods[method]['chosen']
    }
    if len(candidates) > 2:
      figure = candidate_plots.candidate_curves(
        candidates,
        *judged,
        method,
        chosen=chosen.pop() if len(chosen) == 1 else None,
      )
      yield f'candidates_{method}', figure
  with_ood = {
    method: {
      candidate: (measured['test'], measured['out_of_distribution'])
      for candidate, measured in candidates.items()
      if 'out_of_distribution' in measured
    }
    for method, candidates in of_methods.items()
  }
  if all(with_ood.values()):
    yield 'ood', candidate_plots.ood_curves(with_ood, *judged)


def _one_by_one(
  repeated: repeats.Repeats,
) -> Iterator[tuple[results_folder.FinishedRun, str, str]]:
  """Yields each run with a suffix for its files and one for its titles."""
  several = len(repeated.runs) > 1
  for k, run in enumerate(repeated.runs, 1):
    yield run, f'_{k}' if several else '', f', repeat {k}' if several else ''


def _of_clusters(repeated: repeats.Repeats) -> _Figures:
  """Draws clusters run by run, as their numbers differ from run to run."""
  for run, suffix, of_run in _one_by_one(repeated):
    for method in repeated.methods:
      title = names.written_out(method) + of_run
      rounds = run.rounds.get(run.methods[method]['training'], {})
      shares = {
        name.replace('_', ' '): by_round
        for name, by_round in rounds.items()
        if name.startswith('cluster_')
      }
      if shares:
        figure = round_plots.cluster_shares(shares, title=title)
        yield f'clusters_{method}{suffix}', figure
      groups = run.methods[method].get('clusters', {}).get('groups')
      if groups:
        figure = cluster_plots.cluster_groups(groups, title=title)
        yield f'groups_{method}{suffix}', figure


def _measured(
  rounds: Mapping[str, Sequence[float]],
) -> dict[str, np.ndarray]:
  """Returns a training's measurements by round, by the labels of panels."""
  updates = np.array(rounds['num_clients'])
  dropped = np.array(rounds['dropped_clients'])
  # A round in which all updates were dropped has no measurements.
  measured = {
    f'training {name.replace("_", " ")}': np.where(updates > 0, values, np.nan)
    for name, values in rounds.items()
    if name not in (*_COUNTS, *_STEPS) and not name.startswith(_OF_COHORTS)
  }
  if np.any(dropped):
    measured[_DROPPED] = dropped / np.maximum(updates + dropped, 1)
  return measured


def of_rounds(repeated: repeats.Repeats) -> _Figures:
  """Draws the metrics of all trainings by round."""
  trainings = {
    run.methods[method]['training']: None
    for method in repeated.methods
    for run in repeated.runs
  }
  panels: dict[str, dict[str, dict[int, list[float]]]] = {}
  for training, run in itertools.product(trainings, repeated.runs):
    if training not in run.rounds:
      continue  # It has no rounds.
    rounds = run.rounds[training]
    for label, values in _measured(rounds).items():
      series = panels.setdefault(label, {}).setdefault(training, {})
      for number, value in zip(rounds['round'], values):
        series.setdefault(int(number), []).append(value)
  if panels:
    yield 'learning', round_plots.learning_curves(panels, [_DROPPED])


def of_steps(repeated: repeats.Repeats) -> _Figures:
  """Draws the steps that clients choose, run by run, of each training."""
  for run, suffix, of_run in _one_by_one(repeated):
    trainings = {run.methods[method]['training'] for method in repeated.methods}
    for training in sorted(trainings & run.rounds.keys()):
      measured = {
        name.replace('_', ' '): run.rounds[training][name]
        for name in _STEPS
        if name in run.rounds[training]
      }
      if len(measured) < len(_STEPS):
        continue
      title = names.written_out(training) + of_run
      yield (
        f'trajectory_{training}{suffix}',
        round_plots.trajectories(
          measured, training, title=f'{title}, mean over clients'
        ),
      )
      checkpoints = results_folder.checkpoint_dir(run.path, training)
      if not (checkpoints / client_states.FILE_NAME).exists():
        continue
      last_round = len(run.rounds[training]['steps'])
      steps = [
        int(state['steps'])
        for _, state in client_states.read_saved(checkpoints, last_round)
        if state['last_round'] == last_round
      ]
      if not steps:  # All updates of the round were dropped.
        continue
      yield (
        f'steps_{training}{suffix}',
        client_plots.histogram(
          steps, 'steps', title=f'{title}, round {last_round}'
        ),
      )


def _confusion(
  groups: Sequence[str],
  clusters: Sequence[str] | None,
  vectors: np.ndarray,
  title: str,
) -> style.Figure:
  """Draws how many clients of each group are in each cluster.

  Args:
    groups: The known group of each client.
    clusters: The cluster of each client; None to find clusters by k-means.
    vectors: The embedding of each client.
    title: The title.
  """
  known = sorted(set(groups), key=lambda name: (len(name), name))
  what = 'cluster of the method'
  if clusters is None:
    what = 'cluster of embeddings, by k-means'
    k_means = cluster.KMeans(len(known), n_init=10, random_state=0)
    clusters = k_means.fit_predict(vectors).astype(str)
  found, columns = np.unique(clusters, return_inverse=True)
  counts = np.zeros([len(known), len(found)], int)
  for group, column in zip(groups, columns):
    counts[known.index(group), column] += 1
  order, share = measures.match(counts)
  return cluster_plots.confusion(
    counts[:, order], known, found[order].tolist(), what, share, title=title
  )


def _of_embeddings(repeated: repeats.Repeats) -> _Figures:
  """Draws the embeddings that clients keep, run by run, of each training."""
  for run, suffix, of_run in _one_by_one(repeated):
    for method in repeated.methods:
      training = run.methods[method]['training']
      title = names.written_out(method) + of_run
      rows = {row['client']: row for row in run.clients[method]}
      if training is None or any('group' not in row for row in rows.values()):
        continue
      checkpoints = results_folder.checkpoint_dir(run.path, training)
      if not (checkpoints / client_states.FILE_NAME).exists():
        continue
      last_round = run.methods[method]['rounds']
      found = [
        (rows[client], vector)
        for client, state in client_states.read_saved(checkpoints, last_round)
        for name, vector in state.items()
        if name.startswith(_EMBEDDING) and client in rows
      ]
      if len(found) > _FEWEST_EMBEDDINGS:
        of_clients, vectors = zip(*found)
        groups = [row['group'] for row in of_clients]
        yield (
          f'embeddings_{method}{suffix}',
          cluster_plots.embeddings(vectors, groups, title=title),
        )
        clusters = [row['cluster'] for row in of_clients if row.get('cluster')]
        yield (
          f'confusion_{method}{suffix}',
          _confusion(groups, clusters or None, np.array(vectors), title),
        )


def _of_communication(
  by_rounds: Sequence[repeats.Repeats], judged: tuple[str, bool]
) -> _Figures:
  """Draws the metric by communication, a point for each number of rounds."""
  methods = {
    method: [
      (
        repeated.values(method, 'communication', 'total_parameters'),
        repeated.values(method, 'test', 'mean'),
      )
      for repeated in by_rounds
      if method in repeated.methods
    ]
    for method in by_rounds[-1].methods
  }
  yield 'communication', method_plots.communication(methods, *judged)


def _numbers(
  repeated: repeats.Repeats, where: Mapping[_Key, Sequence[str]]
) -> dict[str, dict[_Key, list[float]]]:
  """Looks up numbers in the results of the methods that have all of them."""
  of_methods = {
    method: {
      key: repeated.values(method, *place) for key, place in where.items()
    }
    for method in repeated.methods
  }
  return {
    method: numbers
    for method, numbers in of_methods.items()
    if not any(map(math.isnan, itertools.chain(*numbers.values())))
  }


def _of_parts(repeated: repeats.Repeats, judged: tuple[str, bool]) -> _Figures:
  """Draws the results with only parts of the clients' sets."""
  for name, of_what, statistic, drawn in (
    ('personalization_fractions', 'personalization set', 'mean', judged),
    ('evaluation_fractions', 'evaluation set', 'hurt', ('clients hurt', False)),
  ):
    parts = repeated.names(repeated.methods[0], name)
    where = {1.0: ('test', statistic)} | {
      float(part): (name, part, statistic) for part in parts
    }
    methods = {
      method: by_part
      for method, by_part in _numbers(repeated, where).items()
      if statistic != 'hurt' or len(repeated.names(method, 'candidates')) > 1
    }
    if parts and methods:
      unaffected = [
        method
        for method, by_part in methods.items()
        if drawn is judged
        and all(by_part[1.0] == values for values in by_part.values())
      ]
      label = f'part of the {of_what}'
      yield name, method_plots.fractions(methods, label, *drawn, unaffected)


def _of_choices(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """Draws ways to choose a candidate, and criteria for accepting it."""
  ways = {'one for all': 'all', 'one for each': 'each'}
  methods = _numbers(
    repeated, {label: ('tuning', way, 'mean') for label, way in ways.items()}
  )
  if methods:
    yield 'tuning', method_plots.tuning(methods, *judged)

  where = {'nobody': ('before',), 'everybody': ('test',)} | {
    label: ('acceptance', criterion, 'test')
    for criterion, label in tables.CRITERIA.items()
    if any(repeated.names(m, 'acceptance', criterion) for m in repeated.methods)
  }
  if len(where) > 2:
    hurt, means = (
      _numbers(repeated, {key: (*place, name) for key, place in where.items()})
      for name in ('hurt', 'mean')
    )
    # A method that does not personalize cannot hurt anybody.
    means = {
      method: by_way for method, by_way in means.items() if method in hurt
    }
    if means:
      yield 'acceptance', method_plots.acceptance(means, hurt, *judged)


def _caption(repeated: repeats.Repeats) -> list[str]:
  """Describes the clients of the figures, and what to know of the methods."""
  first = repeated.runs[0]
  results = first.methods
  caption = style.of_whom(
    first.configuration['task.name'],
    max(result['test']['num_clients'] for result in results.values()),
    len(repeated.runs),
  )
  methods_of = collections.defaultdict(list)
  for method, result in results.items():
    if result.get('all_reported'):
      *_, last = result['all_reported']
      text = f'no candidate is chosen; results of clients are with {last}'
      methods_of[text].append(method)
    if result.get('privacy'):
      methods_of[result['privacy']['text']].append(method)
  return [caption] + [
    f'{", ".join(map(names.written_out, methods))} – {text}'
    for text, methods in methods_of.items()
  ]


def draw(by_rounds: Sequence[repeats.Repeats]) -> _Figures:
  """Draws all figures for which the results of runs have the numbers.

  Args:
    by_rounds: The repeats of each number of rounds, see `repeats.read`. All
      figures but that of communication show only the last of them.

  Yields:
    The name of each figure, and the figure.
  """
  repeated = by_rounds[-1]
  judged = repeated.metric, repeated.higher_is_better
  for name, figure in itertools.chain(
    _of_clients(repeated, judged),
    _of_candidates(repeated, judged),
    of_rounds(repeated),
    validation_figures.of_validation(repeated, judged),
    of_stages(repeated, judged),
    _of_clusters(repeated),
    of_steps(repeated),
    _of_embeddings(repeated),
    _of_communication(by_rounds, judged),
    _of_parts(repeated, judged),
    _of_choices(repeated, judged),
  ):
    style.add_caption(figure, *_caption(repeated))
    yield name, figure


def main(folders: Sequence[pathlib.Path], output_dir: pathlib.Path) -> int:
  """Draws the results of runs, and shows those of repeats as a table.

  Args:
    folders: The output folders of the runs.
    output_dir: The folder for the figures.

  Returns:
    The exit status.

  Raises:
    UserError: If the results cannot be read, or the figures cannot be written.
  """
  by_rounds = repeats.read(folders)
  try:
    for name, figure in draw(by_rounds):
      print(style.save(figure, output_dir, name), flush=True)
  except OSError as error:
    raise errors.UserError(str(error)) from error
  if len(by_rounds[-1].runs) > 1:
    tables.print_repeats(by_rounds[-1])
  return 0
