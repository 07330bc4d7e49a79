"""The figures that the results of runs have the numbers for."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
import pathlib
from typing import TypeVar

import numpy as np
from sklearn import cluster

from base import errors
from experiments.reporting import plots
from experiments.reporting import repeats
from experiments.reporting import results_folder
from experiments.reporting import tables
from personalization import client_states
from personalization import measures

# What results say of each candidate that is drawn.
_MEASURES = ('validation', 'test', 'test_hurt', 'out_of_distribution')
# What a training measures in which clients choose their steps.
_STEPS = ('steps', 'intra_variance')
# Where the state of a client has its embedding, see `algorithms/fedembed`.
_EMBEDDING = 'e/'
# With fewer there is nothing to see.
_FEWEST_EMBEDDINGS = 10
# The name of a figure's file, and the figure.
_Figures = Iterator[tuple[str, plots.Figure]]
_Key = TypeVar('_Key')


def _of_clients(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """Draws the test clients one by one, those of all repeats."""
  metrics = {m: repeated.of_clients(m, 'metric') for m in repeated.methods}
  yield 'clients', plots.box_plot(metrics, *judged)
  for method in repeated.methods:
    if len(repeated.names(method, 'candidates')) == 1:
      continue  # There is nothing that could hurt.
    titles = {'': method} | {
      f'_part_{part}': f'{method}, {float(part):.0%} of the evaluation set'
      for part in repeated.names(method, 'evaluation_fractions')
    }
    for part, title in titles.items():
      # A client with nothing in the part was not judged by it.
      clients = [
        client
        for client in zip(
          repeated.of_clients(method, f'before{part}'),
          repeated.of_clients(method, f'metric{part}'),
          repeated.of_clients(method, 'personalization_examples'),
        )
        if not math.isnan(client[0])
      ]
      if clients:
        yield (
          f'hurt_{method}{part}',
          plots.hurt_scatter(*zip(*clients), *judged, title=title),
        )


def _without_stage(repeated: repeats.Repeats, method: str) -> str | None:
  """Finds the method that differs in nothing but its last training.

  It has what this one begins with: PerFL is GroupPerFL without the groups.
  """
  own = repeated.runs[0].methods
  for other in repeated.methods:
    if (
      own[method].get('begins_with') is not None
      and own[method]['begins_with'] == own[other].get('training')
      and method.partition('+')[2] == other.partition('+')[2]
    ):
      return other
  return None


def _pairs(
  repeated: repeats.Repeats, first: str, second: str
) -> list[tuple[str, float, float]]:
  """Lists the known group, if any, and two methods' metrics of each client."""
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
  """Draws what a training changed for clients, all of them and each group."""
  for method in repeated.methods:
    other = _without_stage(repeated, method)
    if other is None:
      continue
    pairs = _pairs(repeated, other, method)
    groups = sorted({group for group, *_ in pairs if group})
    for group in ('', *groups):
      of_group = [values for own, *values in pairs if group in ('', own)]
      suffix, title = (f'_{group}', f', {group}') if group else ('', '')
      yield (
        f'change_{method}{suffix}',
        plots.relative_changes(
          *zip(*of_group), *judged, title=f'{method} against {other}{title}'
        ),
      )


def _of_candidates(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """Draws what each candidate would be for all clients."""
  of_methods = {
    method: {
      candidate: {
        measure: repeated.values(method, 'candidates', str(candidate), measure)
        for measure in repeated.names(method, 'candidates', str(candidate))
        if measure in _MEASURES
      }
      for candidate in repeated.candidates_of(method)
    }
    for method in repeated.methods
  }
  for method, candidates in of_methods.items():
    chosen = {
      name for run in repeated.runs for name in run.methods[method]['chosen']
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
      candidate: (own['test'], own['out_of_distribution'])
      for candidate, own in candidates.items()
      if 'out_of_distribution' in own
    }
    for method, candidates in of_methods.items()
  }
  if all(with_ood.values()):
    yield 'ood', plots.ood_curves(with_ood, *judged)


def _of_clusters(repeated: repeats.Repeats) -> _Figures:
  """Draws clusters run by run, as their numbers mean nothing across runs."""
  for k, run in enumerate(repeated.runs):
    suffix = f'_{k + 1}' if len(repeated.runs) > 1 else ''
    for method in repeated.methods:
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


def of_steps(repeated: repeats.Repeats) -> _Figures:
  """Draws the steps that clients choose, run by run, of each training."""
  for k, run in enumerate(repeated.runs):
    suffix = f'_{k + 1}' if len(repeated.runs) > 1 else ''
    trainings = {run.methods[method]['training'] for method in repeated.methods}
    for training in sorted(trainings & run.rounds.keys()):
      measured = {
        name.replace('_', ' '): run.rounds[training][name]
        for name in _STEPS
        if name in run.rounds[training]
      }
      if len(measured) < len(_STEPS):
        continue
      yield (
        f'trajectory_{training}{suffix}',
        plots.trajectories(measured, title=f'{training}, mean over clients'),
      )
      checkpoints = results_folder.checkpoint_dir(run.path, training)
      if not (checkpoints / client_states.FILE_NAME).exists():
        continue
      last_round = len(run.rounds[training]['steps'])
      steps = [
        int(state['steps'])
        for _, state in client_states.saved(checkpoints, last_round)
        if state['last_round'] == last_round
      ]
      yield (
        f'steps_{training}{suffix}',
        plots.histogram(
          steps, 'steps', title=f'{training}, round {last_round}'
        ),
      )


def _confusion(
  groups: Sequence[str],
  clusters: Sequence[str] | None,
  vectors: np.ndarray,
  method: str,
) -> plots.Figure:
  """Draws in which cluster the clients of each group are.

  Args:
    groups: The known group of each client.
    clusters: The cluster of each client; None for those that k-means finds.
    vectors: The embedding of each client.
    method: The name of the method.
  """
  known = sorted(set(groups), key=lambda name: (len(name), name))
  what = 'cluster of the method'
  if clusters is None:
    what = 'cluster of embeddings, by k-means'
    k_means = cluster.KMeans(len(known), n_init=10, random_state=0)
    columns = k_means.fit_predict(vectors)
  else:
    _, columns = np.unique(clusters, return_inverse=True)
  counts = np.zeros([len(known), columns.max() + 1], int)
  np.add.at(counts, (list(map(known.index, groups)), columns), 1)
  order, share = measures.match(counts)
  return plots.confusion(counts[:, order], known, what, share, title=method)


def _of_embeddings(repeated: repeats.Repeats) -> _Figures:
  """Draws the embeddings that clients keep, run by run, of each training."""
  for k, run in enumerate(repeated.runs):
    suffix = f'_{k + 1}' if len(repeated.runs) > 1 else ''
    for method in repeated.methods:
      training = run.methods[method]['training']
      rows = {row['client']: row for row in run.clients[method]}
      if training is None or any('group' not in own for own in rows.values()):
        continue
      checkpoints = results_folder.checkpoint_dir(run.path, training)
      if not (checkpoints / client_states.FILE_NAME).exists():
        continue
      last_round = run.methods[method]['rounds']
      found = [
        (rows[client], vector)
        for client, state in client_states.saved(checkpoints, last_round)
        for name, vector in state.items()
        if name.startswith(_EMBEDDING) and client in rows
      ]
      if len(found) > _FEWEST_EMBEDDINGS:
        own, vectors = zip(*found)
        groups = [row['group'] for row in own]
        yield (
          f'embeddings_{method}{suffix}',
          plots.embeddings(vectors, groups, title=method),
        )
        clusters = [row['cluster'] for row in own if row.get('cluster')]
        yield (
          f'confusion_{method}{suffix}',
          _confusion(groups, clusters or None, np.array(vectors), method),
        )


def _of_communication(
  by_rounds: Sequence[repeats.Repeats], judged: tuple[str, bool]
) -> _Figures:
  """Draws the trainings of each number of rounds."""
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
  yield 'communication', plots.communication(methods, *judged)


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
    method: own
    for method, own in of_methods.items()
    if not any(map(math.isnan, itertools.chain(*own.values())))
  }


def _of_parts(repeated: repeats.Repeats, judged: tuple[str, bool]) -> _Figures:
  """Draws clients with parts of their sets."""
  for name, of_what, statistic, drawn in (
    ('personalization_fractions', 'personalization set', 'mean', judged),
    ('evaluation_fractions', 'evaluation set', 'hurt', ('clients hurt', False)),
  ):
    parts = repeated.names(repeated.methods[0], name)
    where = {1.0: ('test', statistic)} | {
      float(part): (name, part, statistic) for part in parts
    }
    methods = {
      method: own
      for method, own in _numbers(repeated, where).items()
      if statistic != 'hurt' or len(repeated.names(method, 'candidates')) > 1
    }
    if parts and methods:
      yield name, plots.fractions(methods, f'part of the {of_what}', *drawn)


def _of_choices(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> _Figures:
  """Draws ways to choose a candidate, and criteria to take it."""
  ways = {'one for all': 'all', 'one for each': 'each'}
  methods = _numbers(
    repeated, {label: ('tuning', way, 'mean') for label, way in ways.items()}
  )
  if methods:
    yield 'tuning', plots.tuning(methods, *judged)

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
    points = {
      method: {key: (hurt[method][key], means[method][key]) for key in where}
      for method in means
      if method in hurt
    }
    yield 'acceptance', plots.acceptance(points, *judged)


def _privacy(repeated: repeats.Repeats) -> str:
  """Tells the privacy of the methods' trainings; nothing if none is private."""
  results = repeated.runs[0].methods
  texts = {
    method: result['privacy']['text']
    for method, result in results.items()
    if result.get('privacy')
  }
  methods_of = collections.defaultdict(list)
  for method, text in texts.items():
    methods_of[text].append(method)
  return '\n'.join(
    f'{", ".join(methods)} – {text}' for text, methods in methods_of.items()
  )


def draw(by_rounds: Sequence[repeats.Repeats]) -> _Figures:
  """Draws all figures that the results of runs have the numbers for.

  Args:
    by_rounds: The repeats of each number of rounds, see `repeats.read`. All
      figures but that of the communication are of the last of them.

  Yields:
    The name of each figure, and the figure.
  """
  repeated = by_rounds[-1]
  judged = repeated.metric, repeated.higher_is_better
  for name, figure in itertools.chain(
    _of_clients(repeated, judged),
    _of_candidates(repeated, judged),
    of_stages(repeated, judged),
    _of_clusters(repeated),
    of_steps(repeated),
    _of_embeddings(repeated),
    _of_communication(by_rounds, judged),
    _of_parts(repeated, judged),
    _of_choices(repeated, judged),
  ):
    plots.add_caption(figure, _privacy(repeated))
    yield name, figure


def main(folders: Sequence[pathlib.Path], output_dir: pathlib.Path) -> int:
  """Draws the results of runs, and shows those of repeats as a table.

  Args:
    folders: The output folders of the runs.
    output_dir: The folder for the figures.

  Returns:
    The exit status.

  Raises:
    UserError: If the results cannot be read, or the figures not be written.
  """
  by_rounds = repeats.read(folders)
  try:
    for name, figure in draw(by_rounds):
      plots.save(figure, output_dir / name)
      print(f'{output_dir / name}.png, .svg', flush=True)
  except OSError as error:
    raise errors.UserError(str(error)) from error
  if len(by_rounds[-1].runs) > 1:
    tables.print_repeats(by_rounds[-1])
  return 0
