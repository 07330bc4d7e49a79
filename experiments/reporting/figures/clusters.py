"""Figures of clients in clusters and in known groups, and of what they keep."""

from collections.abc import Iterator, Mapping, Sequence
import itertools
from typing import Any

import numpy as np
from sklearn import cluster
from sklearn import manifold

from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting.figures import figure
from experiments.reporting.figures import lines
from experiments.reporting.figures import rounds
from experiments.reporting.figures import scales
from personalization.judgement import summaries
from personalization.rounds import client_states

# The prefix of the embedding in a client's state, see `algorithms/fedembed`.
_EMBEDDING = 'e/'
# A figure needs more embeddings than these to show anything.
_FEWEST_EMBEDDINGS = 10
_BLUES = ('#f7fbff', '#6aaed6', '#08306b')


def groups(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the metric over all examples of each known group of clients."""
  rows: figure.Rows = []
  for one in series:
    for group in one.names('groups'):
      # A run has more about a group than a grid has.
      more = ('pooled',) if one.names('groups', group) else ()
      mean = lines.mean(one.values('groups', group, *more))
      row = {'method': one.name, 'group': group, 'value': scales.rounded(mean)}
      rows.append(row)
  values = [row['value'] for row in rows if row['value'] is not None]
  if not values:
    return
  options, omitted = scales.show_near(values)
  encoding = {
    'x': scales.number('value', scales.metric_title(series[0]), **options),
    'y': scales.kind('group', 'group', sort=None),
    **lines.encode_marks(lines.find_looks(series)),
    'tooltip': scales.tooltip(*rows[0]),
  }
  mark = scales.layer('point', encoding, opacity=1, size=50, clip=bool(omitted))
  yield figure.Figure(
    'known_groups',
    'Known groups',
    rows,
    {**mark, 'height': {'step': 24}},
    note='The metric over all examples of a group together.',
    omitted=omitted,
  )


def group_counts(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws how many clients, of each known group, are in each cluster.

  As in Motley, figure 6 (d); run by run, as numbers of clusters differ.
  """
  for one, repeat, suffix, subject in rounds.split_repeats(series):
    found = repeat.result.get('clusters') or {}
    counts = found.get('groups') or {'test clients': found.get('sizes')}
    if any(counts.values()):
      yield _count_groups(counts, f'groups_{one.key}{suffix}', subject)


def _count_groups(
  counts: Mapping[str, Mapping[str, int]], name: str, subject: str
) -> figure.Figure:
  rows: figure.Rows = [
    {'cluster': place, 'group': group, 'clients': count, 'order': order}
    for order, (group, of_group) in enumerate(counts.items())
    for place, count in of_group.items()
  ]
  colors = dict(zip(counts, itertools.cycle(looks.CATEGORIES)))
  ink = {group: looks.choose_ink(color) for group, color in colors.items()}
  legend = lines.legend([*colors], symbolType='square') | {'symbolSize': 100}
  color = scales.categories(
    'group', colors, legend=legend if len(colors) > 1 else None
  )
  x = scales.number('clients', 'test clients', stack='zero', axis=scales.WHOLE)
  told = scales.tooltip('cluster', 'group', 'clients')
  number = {
    'x': x | {'bandPosition': 0.5},
    'text': {'field': 'clients'},
    'fill': scales.kind('ink', scale=None),
    'detail': scales.kind('group'),
  }
  layers = [
    scales.layer('bar', {'x': x, 'color': color, 'tooltip': told}),
    scales.layer(
      'text',
      number,
      {'filter': 'datum.clients > 0'},
      scales.look_up('group', 'ink', ink),
      fontSize=11,
    ),
  ]
  thick = {'paddingInner': 0.35, 'paddingOuter': 0.2}
  y = scales.kind(
    'cluster', 'cluster', sort=None, scale=thick, axis={'grid': False}
  )
  encoding = {'y': y, 'order': {'field': 'order'}}
  return figure.Figure(
    name,
    'Test clients in clusters',
    rows,
    {'encoding': encoding, 'layer': layers, 'height': {'step': 36}},
    subject=subject,
    note='The number of test clients, of each known group, in each cluster.',
  )


def _saved(
  repeat: repeats.Repeat, last_round: int
) -> Iterator[tuple[str, Any]]:
  """Yields what each client keeps after a round, if it was saved."""
  folder = repeat.checkpoints
  if folder and last_round and (folder / client_states.FILE_NAME).exists():
    yield from client_states.read_saved(folder, last_round)


def steps(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws a histogram of the steps that clients chose in the last round.

  As in Chen et al. 2022, figure 11.
  """
  of_trainings = rounds.list_trainings(series)
  for one, repeat, suffix, subject in rounds.split_repeats(of_trainings):
    last_round = len(repeat.rounds.get('steps', ()))
    chosen = [
      int(state['steps'])
      for _, state in _saved(repeat, last_round)
      if state['last_round'] == last_round
    ]
    if not chosen:  # There are none, or all updates were dropped.
      continue
    numbers, counts = np.unique(chosen, return_counts=True)
    ends = [
      {'calculate': f'datum.steps {sign} 0.5', 'as': end}
      for sign, end in (('-', 'from'), ('+', 'to'))
    ]
    x = scales.number('from', 'steps', axis=scales.WHOLE)
    encoding = {
      'x': x | {'bin': {'binned': True}, 'scale': {'domainMin': 0}},
      'x2': {'field': 'to'},
      'y': scales.number('clients', 'clients', axis=scales.WHOLE),
      'tooltip': scales.tooltip('steps', 'clients'),
    }
    yield figure.Figure(
      f'steps_{one.key}{suffix}',
      'Steps of the last round',
      [
        {'steps': number, 'clients': count}
        for number, count in zip(numbers.tolist(), counts.tolist())
      ],
      {
        **scales.layer('bar', encoding, *ends, color=looks.SAME),
        'height': 150,
      },
      subject=f'{subject}, round {last_round}',
    )


def embeddings(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the embeddings that clients keep, and the clusters that they form.

  As in Silva et al. 2022, figures 3 and 5, by t-SNE: embeddings that are near
  each other are similar, but larger distances have no meaning. And a matrix of
  the clients of each known group in each cluster, of the method or else of the
  embeddings.
  """
  for one, repeat, suffix, subject in rounds.split_repeats(series):
    rows = {row['client']: row for row in repeat.clients}
    if any('group' not in row for row in rows.values()):
      continue
    found = [
      (rows[client], vector)
      for client, state in _saved(repeat, repeat.result.get('rounds', 0))
      for name, vector in state.items()
      if name.startswith(_EMBEDDING) and client in rows
    ]
    if len(found) > _FEWEST_EMBEDDINGS:
      of_clients, vectors = zip(*found)
      known = [row['group'] for row in of_clients]
      points = np.array(vectors)
      yield draw_embeddings(
        points, known, f'embeddings_{one.key}{suffix}', subject
      )
      clusters = [row['cluster'] for row in of_clients if row.get('cluster')]
      yield confusion(
        known,
        clusters or None,
        points,
        f'confusion_{one.key}{suffix}',
        subject,
      )


def _by_length(names: Sequence[str]) -> list[str]:
  """Sorts the different names, numbers by their size."""
  return sorted(set(names), key=lambda name: (len(name), name))


def draw_embeddings(
  points: np.ndarray, known: Sequence[str], name: str, subject: str
) -> figure.Figure:
  # The default perplexity of t-SNE, unless there are few clients.
  perplexity = min(30.0, (len(points) - 1) / 3)
  places = manifold.TSNE(
    init='pca', perplexity=perplexity, random_state=0
  ).fit_transform(points)
  different = _by_length(known)
  looks_of_groups = itertools.cycle(
    itertools.product(looks.SHAPES, looks.CATEGORIES)
  )
  of_groups = dict(zip(different, looks_of_groups))
  hidden = {'labels': False, 'ticks': False, 'grid': False}
  encoding: figure.Spec = {
    axis: scales.number(axis, axis=hidden, scale={'zero': False})
    for axis in 'xy'
  } | {
    channel: scales.categories(
      'group',
      {group: look[index] for group, look in of_groups.items()},
      legend=lines.legend(different),
    )
    for index, channel in enumerate(('shape', 'color'))
  }
  encoding |= {'tooltip': scales.tooltip('group')}
  mark = scales.layer('point', encoding, filled=True, size=30, opacity=1)
  return figure.Figure(
    name,
    'Embeddings',
    [
      {'group': group, 'x': scales.rounded(x), 'y': scales.rounded(y)}
      for group, (x, y) in zip(known, places.tolist())
    ],
    {**mark, 'height': 290},
    subject=subject,
    note='The embeddings of clients that are near each other are similar;'
    ' larger distances have no meaning.',
  )


def confusion(
  known: Sequence[str],
  clusters: Sequence[str] | None,
  vectors: np.ndarray,
  name: str,
  subject: str,
) -> figure.Figure:
  """Draws how many clients of each group are in each cluster.

  Args:
    known: The known group of each client.
    clusters: The cluster of each client; None to find clusters by k-means.
    vectors: The embedding of each client.
    name: The name of the figure.
    subject: Of whom it is.

  Returns:
    The figure.
  """
  different = _by_length(known)
  what = 'cluster of the method'
  if clusters is None:
    what = 'cluster of embeddings, by k-means'
    k_means = cluster.KMeans(len(different), n_init=10, random_state=0)
    clusters = k_means.fit_predict(vectors).astype(str)
  found, columns = np.unique(clusters, return_inverse=True)
  counts = np.zeros([len(different), len(found)], int)
  for group, column in zip(known, columns):
    counts[different.index(group), column] += 1
  order, share = summaries.match(counts)
  rows = [
    {
      'group': group,
      'cluster': str(found[j]),
      'clients': int(counts[i, j]),
      'share': scales.rounded(counts[i, j] / max(counts[i].sum(), 1)),
    }
    for i, group in enumerate(different)
    for j in order
  ]
  places = {
    'x': scales.kind('cluster', what, sort=None, axis={'labelAngle': 0}),
    'y': scales.kind('group', 'group', sort=None),
    'tooltip': scales.tooltip(*rows[0]),
  }
  color = scales.number(
    'share', legend=None, scale={'domain': [0, 0.5, 1], 'range': _BLUES}
  )
  ink = {
    'condition': {'test': 'datum.share > 0.5', 'value': 'white'},
    'value': 'black',
  }
  number = {'text': {'field': 'clients'}, 'fill': ink}
  layers = [
    scales.layer('rect', {'color': color}),
    scales.layer('text', number, {'filter': 'datum.clients > 0'}, fontSize=10),
  ]
  return figure.Figure(
    name,
    'Groups in clusters',
    rows,
    {'encoding': places, 'layer': layers, 'height': {'step': 26}},
    subject=f'{subject}, {share:.0%} in the cluster of their group',
  )
