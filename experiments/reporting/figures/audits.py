"""Figures of an audit: the visibility of canaries, and members by losses."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from base.aliases import Json
from experiments.reporting import looks
from experiments.reporting.figures import figure
from experiments.reporting.figures import scales

_BINS = 24
# Points of a curve: more are not to be seen.
_POINTS = 200
_IN, _OUT = 'in the training', 'left out'


def _histogram(name: str, found: Mapping[str, Json]) -> figure.Figure:
  """Draws how visible canaries are that were in, and that were left out."""
  is_in = np.array(found['is_in'])
  scores = np.array(found['scores'])
  outside = scores[~is_in]
  scores = (scores - np.mean(outside)) / np.std(outside, ddof=1)
  edges = np.histogram_bin_edges(scores, _BINS)
  rows: figure.Rows = []
  for kind, members in ((_IN, scores[is_in]), (_OUT, scores[~is_in])):
    shares = np.histogram(members, edges)[0] / len(members)
    # A step begins at each edge, and the last one ends at zero.
    rows += [
      {
        'canaries': kind,
        'score': scales.rounded(edge),
        'share': scales.rounded(share),
      }
      for edge, share in zip(edges, [*shares, 0.0])
    ]
  colors = {_IN: looks.CATEGORIES[2], _OUT: looks.CATEGORIES[0]}
  dashes = {_IN: [1, 0], _OUT: [6, 3]}
  spec = scales.layer(
    'line',
    {
      'x': scales.number(
        'score',
        'visibility in the model, in deviations of those left out',
        scale=scales.TIGHT,
      ),
      'y': scales.number('share', 'share of canaries', axis=scales.PERCENT),
      'color': scales.categories('canaries', colors),
      'strokeDash': scales.categories('canaries', dashes),
      'tooltip': scales.tooltip('canaries', 'score', 'share'),
    },
    interpolate='step-after',
    strokeWidth=2,
  )
  return figure.Figure(
    f'canaries_{name}',
    'Canaries',
    rows,
    spec | {'height': 200},
    subject=f'Canaries in {name}',
    note='The further apart the two are, the more a training tells about each'
    ' client.',
    captions=[
      f'{found["canaries"]} canaries; ε is at least {found["bound"]:.3g}'
      f' ({found["right"]} of {found["guesses"]} guesses are right), at least'
      f' {found["normal_bound"]:.3g} if noise is normal; claimed is'
      f' {found["claimed"]:.4g} (δ {found["delta"]:.2g})'
    ],
  )


def _roc(members: Mapping[str, Mapping[str, Json]]) -> figure.Figure:
  """Draws how many members are found by their losses, and how many others."""
  rows: figure.Rows = []
  names: list[str] = []
  for name, found in members.items():
    low, high = found['interval']
    names.append(f'{name}: {found["area"]:.3f} ({low:.3f} to {high:.3f})')
    false, true = np.array(found['false']), np.array(found['true'])
    shown = np.unique(np.linspace(0, len(false) - 1, _POINTS).astype(int))
    rows += [
      {
        'training': names[-1],
        'others': scales.rounded(x),
        'members': scales.rounded(y),
      }
      for x, y in zip(false[shown], true[shown])
    ]
  x = scales.number(
    'others', 'share of others who are taken for members', axis=scales.PERCENT
  )
  y = scales.number(
    'members', 'share of members who are found', axis=scales.PERCENT
  )
  curve = scales.layer(
    'line',
    {
      'x': x,
      'y': y,
      'color': scales.categories('training', _cycle(names, looks.CATEGORIES)),
      'strokeDash': scales.categories('training', _cycle(names, _DASHES)),
      'tooltip': scales.tooltip('training', 'others', 'members'),
    },
    strokeWidth=2,
  )
  for channel in ('color', 'strokeDash'):
    curve['encoding'][channel]['legend'] = {'columns': 1, 'symbolSize': 250}
  chance = scales.layer(
    'line',
    {'x': x, 'y': y},
    data=[{'others': k, 'members': k} for k in (0, 1)],
    color=looks.SAME,
    strokeWidth=1,
  )
  (kind,) = {found['of'] for found in members.values()}
  return figure.Figure(
    'membership',
    'Membership by loss',
    rows,
    {'layer': [chance, curve], 'height': 300},
    note='A threshold of the loss finds this share of those that were trained'
    ' on, and takes this share of others for them. The diagonal is chance.',
    captions=[f'{kind}; area under the curve (95% interval)'],
  )


_DASHES = ([1, 0], [8, 4], [2, 3], [8, 3, 2, 3])


def _cycle(names: Sequence[str], values: Sequence[Json]) -> dict[str, Json]:
  return {name: values[k % len(values)] for k, name in enumerate(names)}


def draw(
  canaries: Mapping[str, Mapping[str, Json]],
  members: Mapping[str, Mapping[str, Json]],
) -> Iterator[figure.Figure]:
  """Draws what an audit found of each training.

  Args:
    canaries: What canaries showed, as in audit.json.
    members: What losses showed.
  """
  for name, found in canaries.items():
    yield _histogram(name, found)
  yield _roc(members)
