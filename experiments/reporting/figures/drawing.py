"""All figures for which the results of runs have the numbers."""

import collections
from collections.abc import Iterator, Sequence
import itertools
import pathlib

from base import errors
from experiments.reporting import repeats
from experiments.reporting import sources
from experiments.reporting import tables
from experiments.reporting.figures import candidates
from experiments.reporting.figures import clients
from experiments.reporting.figures import clusters
from experiments.reporting.figures import figure
from experiments.reporting.figures import methods
from experiments.reporting.figures import rounds
from experiments.reporting.figures import scales


def draw_rounds(runs: Sequence[sources.Run]) -> Iterator[figure.Figure]:
  """Draws metrics by round, also those of runs in progress."""
  yield from rounds.learning(sources.list_curves(runs, 'rounds'))
  finished = sources.list_series(runs)
  # Before a method is finished, its direction is not known.
  metric = ['metric']
  if finished:
    metric = scales.metric_label(*finished[0].judged)
  yield from rounds.validation(sources.list_curves(runs, 'validation'), metric)


def draw_clients(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws the individual test clients of methods."""
  yield clients.boxes(series)
  yield from clients.shares(series)
  yield from clients.hurt(series)
  yield from clients.changes(series)


def draw_choices(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws what follows from candidates, and from parts of clients' sets."""
  yield from candidates.curves(series)
  yield from candidates.ood(series)
  yield from methods.tuning(series)
  yield from methods.acceptance(series)
  yield from methods.parts(series)


def draw_groups(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws known groups, and the clusters and steps that were found."""
  yield from clusters.groups(series)
  yield from clusters.group_counts(series)
  yield from rounds.cluster_shares(series)
  yield from rounds.trajectories(series)


def draw_states(series: Sequence[repeats.Series]) -> Iterator[figure.Figure]:
  """Draws what clients keep, as the checkpoints have it."""
  yield from clusters.steps(series)
  yield from clusters.embeddings(series)


def _captions(series: Sequence[repeats.Series]) -> list[str]:
  """Describes the clients of figures, and what to know of the methods."""
  caption = figure.describe_clients(
    series[0].task,
    max(len(repeat.clients) for one in series for repeat in one.repeats),
    max(len(one.repeats) for one in series),
  )
  methods_of = collections.defaultdict(list)
  for one in series:
    result = one.repeats[0].result
    if result.get('all_reported'):
      *_, last = result['all_reported']
      text = f'no candidate is chosen; results of clients are with {last}'
      methods_of[text].append(one.name)
    if result.get('privacy'):
      methods_of[result['privacy']['text']].append(one.name)
  return [caption] + [
    f'{", ".join(names)} – {text}' for text, names in methods_of.items()
  ]


def draw(by_rounds: Sequence[Sequence[sources.Run]]) -> Iterator[figure.Figure]:
  """Draws all figures of repeats.

  Args:
    by_rounds: The repeats of each number of rounds, see
      `sources.read_repeats`. All figures but that of communication show only
      the last of them.

  Yields:
    The figures.
  """
  every = [sources.list_series(runs) for runs in by_rounds]
  series = every[-1]
  captions = _captions(series)
  for drawn in itertools.chain(
    draw_clients(series),
    draw_choices(series),
    draw_rounds(by_rounds[-1]),
    draw_groups(series),
    draw_states(series),
    methods.communication(every),
  ):
    yield drawn.add_captions(*captions)


def draw_best_points(
  series: Sequence[repeats.Series],
) -> Iterator[figure.Figure]:
  """Draws the individual test clients of the best points of a grid."""
  for drawn in (clients.boxes(series), *clients.hurt(series)):
    yield drawn.add_captions(*_captions(series))


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
  by_rounds = sources.read_repeats(folders)
  try:
    for drawn in draw(by_rounds):
      print(figure.save(drawn, output_dir), flush=True)
  except OSError as error:
    raise errors.UserError(str(error)) from error
  if len(by_rounds[-1]) > 1:
    tables.print_repeats(sources.list_series(by_rounds[-1]))
  return 0
