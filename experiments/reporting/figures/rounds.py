"""Figures of measurements by round."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np

from experiments.reporting import looks
from experiments.reporting import repeats
from experiments.reporting import sources
from experiments.reporting.figures import figure
from experiments.reporting.figures import lines
from experiments.reporting.figures import scales

# The metrics of a training in which clients choose their number of steps.
_STEPS = ('steps', 'intra_variance')
# Counts of a round, and other measures that are not metrics of the model.
_COUNTS = ('round', 'num_examples', 'num_clients', 'dropped_clients', 'passes')
# The beginnings of measures of a round's clients: how many of them are in each
# cluster or known group, and the share of the model that they are sent.
_OF_COHORTS = ('cluster_', 'group_', 'share_')
# The labels of measures that are shares.
_DROPPED, _CLUSTER = 'dropped updates', 'share of clients'
_CLIPPED = 'clipped updates'
# The labels of measures of private rounds.
_OF_NOISE = {'clipped': _CLIPPED, 'noise_to_signal': 'noise over signal'}
_HURT = 'validation\nclients hurt'
_SHARES = _DROPPED, _CLUSTER, _CLIPPED, _HURT
# The largest number of rounds that a line has points for.
_MOST_ROUNDS = 300
_ROUND = scales.number('round', 'round', axis=scales.WHOLE)

# What was measured in all repeats, by the label of the measure, the name of the
# line, and the round.
_Measured = dict[str, dict[str, dict[int, list[float]]]]


def _add(
  measured: _Measured,
  label: str,
  name: str,
  rounds: Sequence[float],
  values: Sequence[float],
) -> None:
  by_round = measured.setdefault(label, {}).setdefault(name, {})
  for number, value in zip(rounds, values):
    by_round.setdefault(int(number), []).append(value)


def _points(by_round: Mapping[int, repeats.OfRepeats]) -> list[lines.Point]:
  """Returns the points of a line: of a long one only some, with the last."""
  rounds = sorted(by_round)
  step = -(-len(rounds) // _MOST_ROUNDS)
  some = sorted({*rounds[::step], rounds[-1]}) if rounds else []
  return [([number], by_round[number]) for number in some]


def _draw(
  name: str,
  title: str,
  measured: _Measured,
  found: Mapping[str, looks.Look],
  **attributes: Any,
) -> Iterator[figure.Figure]:
  """Draws a panel of each measure, if there are any."""
  panels = [
    lines.Panel(
      label.split('\n'),
      [
        lines.Curve(name, found[name], _points(by_round))
        for name, by_round in of_lines.items()
      ],
      is_share=label in _SHARES,
      is_loss='loss' in label,
    )
    for label, of_lines in measured.items()
  ]
  if panels:
    yield lines.draw(
      name, title, panels, _ROUND, has_marks=False, height=130, **attributes
    )


def _find_looks(curves: Sequence[sources.Curve]) -> dict[str, looks.Look]:
  return lines.distinguish_looks({one.name: one.method for one in curves})


def learning(trainings: Sequence[sources.Curve]) -> Iterator[figure.Figure]:
  """Draws the metrics of all trainings by round, with a panel for each."""
  measured: _Measured = {}
  for training in trainings:
    for rounds in training.repeats:
      updates = np.array(rounds.get('num_clients', 1))
      dropped = np.array(rounds.get('dropped_clients', 0))
      for name, values in rounds.items():
        if name not in (*_COUNTS, *_STEPS) and not name.startswith(_OF_COHORTS):
          # A round in which all updates were dropped has no measurements.
          known = np.where(updates > 0, values, np.nan).tolist()
          label = _OF_NOISE.get(name, f'training {scales.words(name)}')
          _add(measured, label, training.name, rounds['round'], known)
      if np.any(dropped):
        shares = (dropped / np.maximum(updates + dropped, 1)).tolist()
        _add(measured, _DROPPED, training.name, rounds['round'], shares)
  yield from _draw(
    'learning',
    'Training by rounds',
    measured,
    _find_looks(trainings),
    note='The metrics of the clients of each round, measured before they train'
    ' in it. Lines are means over seeds, and bands their deviation.',
  )


def validation(
  methods: Sequence[sources.Curve], metric: Sequence[str]
) -> Iterator[figure.Figure]:
  """Draws the validation clients by round, which shows when to stop.

  It has the mean at the candidate that would be chosen and, for methods that
  personalize, the share of clients hurt.

  Args:
    methods: The methods that were evaluated during their training.
    metric: The label of the metric, line by line.
  """
  label = '\n'.join(['validation', *metric])
  measured: _Measured = {}
  for method in methods:
    for rounds in method.repeats:
      columns = {label: 'metric'}
      # Nobody is hurt where nothing is personalized.
      if rounds.get('before') != rounds.get('metric'):
        columns[_HURT] = 'hurt'
      for name, column in columns.items():
        if column in rounds:
          _add(measured, name, method.name, rounds['round'], rounds[column])
  yield from _draw(
    'validation',
    'Validation clients by rounds',
    measured,
    _find_looks(methods),
    note='The metric that the validation clients would have if training stopped'
    ' at a round. Once a line no longer improves, training may stop.',
  )


def split_repeats(
  series: Sequence[repeats.Series],
) -> Iterator[tuple[repeats.Series, repeats.Repeat, str, str]]:
  """Yields all repeats, with a suffix for names of files and one for titles."""
  for one in series:
    several = len(one.repeats) > 1
    for k, repeat in enumerate(one.repeats, 1):
      of_repeat = f', repeat {k}' if several else ''
      yield one, repeat, f'_{k}' if several else '', one.name + of_repeat


def list_trainings(series: Sequence[repeats.Series]) -> list[repeats.Series]:
  """Returns a series for each training, which several methods may share."""
  found: dict[tuple[str, ...], repeats.Series] = {}
  for one in series:
    training = one.repeats[0].result.get('training')
    if training:
      of_training = dataclasses.replace(one, method=training, row='')
      found.setdefault((of_training.key, one.task), of_training)
  return list(found.values())


def cluster_shares(
  series: Sequence[repeats.Series],
) -> Iterator[figure.Figure]:
  """Draws the share of the clients that choose each cluster, by round.

  As in Motley, figure 6 (a); run by run, as numbers of clusters differ.
  """
  for one, repeat, suffix, subject in split_repeats(series):
    measured: _Measured = {}
    for name, shares in repeat.rounds.items():
      if name.startswith('cluster_'):
        name = scales.words(name)
        _add(measured, _CLUSTER, name, repeat.rounds['round'], shares)
    colors = zip(measured.get(_CLUSTER, ()), itertools.cycle(looks.CATEGORIES))
    yield from _draw(
      f'clusters_{one.key}{suffix}',
      'Clusters by rounds',
      measured,
      {name: looks.Look(color) for name, color in colors},
      subject=subject,
      note='The share of the clients of each round that choose a cluster.',
    )


def trajectories(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the steps that clients choose by round.

  As in Chen et al. 2022, figure 12, which shows a single client.
  """
  for one, repeat, suffix, subject in split_repeats(list_trainings(series)):
    measured: _Measured = {}
    if set(_STEPS) <= repeat.rounds.keys():
      for name in _STEPS:
        rounds, values = repeat.rounds['round'], repeat.rounds[name]
        _add(measured, scales.words(name), one.name, rounds, values)
    yield from _draw(
      f'trajectory_{one.key}{suffix}',
      'Steps by rounds',
      measured,
      {one.name: looks.Look(looks.look(one.method).color)},
      subject=f'{subject}, mean over clients',
    )
