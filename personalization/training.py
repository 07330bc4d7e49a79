"""The training loop: rounds of a method, with checkpoints to resume from."""

import asyncio
import collections
from collections.abc import (
  Awaitable,
  Callable,
  Generator,
  Iterable,
  Mapping,
  Sequence,
)
import contextlib
import dataclasses
import math
import pathlib
import time
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from algorithms import methods
from algorithms import trainers
from base import errors
from base import seeds
from personalization import checkpoints
from personalization import client_states
from personalization import cohorts
from personalization import prefetch
from personalization import schedules
from tasks import task as tasks
from tasks.models import models
from tff_runtimes import cohort
from tff_runtimes import rounds

# Two, so that there is another if the last one is damaged.
_KEPT_CHECKPOINTS = 2
# A training of which no update was finite in so many rounds has diverged.
_MOST_ROUNDS_IN_VAIN = 10
# Several rounds are one program only if all clients' states are no more bytes.
_MOST_STATE_BYTES = 2**29
# A training that can be stopped asks about this often whether to go on.
_SECONDS_AT_ONCE = 0.5

# The metrics of a round, by name.
_Metrics = Mapping[str, float]
# What one round is given, or several: see `schedule`.
_Own = Any


@dataclasses.dataclass(frozen=True)
class Trained:
  """The result of a training.

  Attributes:
    server_state: The server's state.
    client_states: The states of the clients with examples, who could take part.
      Further training changes them in place.
    dropped_clients: The number of updates, over all rounds, that were dropped
      because they were not finite.
    skipped_clients: The clients without examples, who never took part.
    round: The number of the last round.
    rounds_in_vain: The number of the last rounds of which all updates were
      dropped.
    diverged: Whether these were so many that the training was stopped, or all
      of its rounds.
  """

  server_state: Any
  client_states: client_states.ClientStates
  dropped_clients: int
  skipped_clients: tuple[str, ...]
  round: int = 0
  rounds_in_vain: int = 0
  diverged: bool = False

  def states_of(self, client_ids: Sequence[str], rows: Sequence[int]) -> Any:
    """Returns clients' states, stacked; those of held-out clients are new.

    Args:
      client_ids: The clients.
      rows: Their rows in their population. Held-out clients are numbered by
        them, after the trained clients.
    """
    trained = self.client_states.rows
    return self.client_states.read(
      [trained.get(c, len(trained) + row) for c, row in zip(client_ids, rows)]
    )


def make_client_states(
  method: methods.Method,
  client_ids: Sequence[str],
  seed: int,
  folder: pathlib.Path | None = None,
) -> client_states.ClientStates:
  """Makes the states of clients before their first round.

  Args:
    method: The method.
    client_ids: The clients.
    seed: The seed of the run.
    folder: The folder of their database; by default it is a temporary one.
  """
  return client_states.ClientStates(
    client_ids,
    lambda number: method.initialize_client(np.array([seed, number], np.int32)),
    folder,
  )


def saved_models(
  method: methods.Method,
  checkpoint_dir: pathlib.Path,
  round_num: int,
  like: models.Weights,
) -> tuple[models.Weights, ...]:
  """Loads the models of a checkpoint, and nothing else of it.

  Args:
    method: The method that was trained.
    checkpoint_dir: The folder of its checkpoints.
    round_num: The round.
    like: What the models must look like.

  Returns:
    The models, in the order of `method.model_places`.

  Raises:
    UserError: If there is no such checkpoint, or it has other models.
  """
  manager = checkpoints.NpzProgramStateManager(checkpoint_dir)
  # The server's state comes first in a checkpoint, see `_train`.
  places = ('/'.join(map(str, (0, *place))) for place in method.model_places)
  structure = collections.OrderedDict((place, like) for place in places)
  try:
    found = asyncio.run(manager.load(round_num, structure, is_part=True))
  except tff.program.ProgramStateNotFoundError as error:
    raise errors.UserError(
      f'{checkpoint_dir} has no checkpoint of round {round_num}.'
    ) from error
  return tuple(found.values())


def train(
  method: methods.Method,
  task: tasks.Task,
  how: schedules.TrainingSettings,
  *,
  schedule: schedules.Schedule | None = None,
  start: Trained | None = None,
  checkpoint_dir: pathlib.Path | None = None,
  release_managers: tuple[tff.program.ReleaseManager, ...] = (),
  on_round: Callable[[int, _Metrics], None] = lambda *_: None,
  on_checkpoint: Callable[[int], None] = lambda _: None,
  should_stop: Callable[[], bool] | None = None,
  evaluate: Callable[[Trained], Awaitable[None]] | None = None,
) -> Trained:
  """Trains, from the last checkpoint if there is one.

  A training stops as soon as it has diverged, see `Trained`.

  Args:
    method: The method.
    task: The task.
    how: How to train.
    schedule: The rounds of the training, if the caller has made them already.
    start: Where to begin, in the place of checkpoints; by default there is no
      training before.
    checkpoint_dir: The folder of the checkpoints; by default there are none.
    release_managers: Are given each round's metrics and number.
    on_round: Called after each round with its number, from 1, and its metrics.
    on_checkpoint: Called with the round of the checkpoint that training begins
      at, 0 if there is none, and with that of each checkpoint that is written.
    should_stop: Asked now and then whether to stop, with a checkpoint, before
      the last round; by default training goes on to the end.
    evaluate: Called after every `how.rounds_per_evaluation` rounds, before the
      checkpoint and `on_round` of the last of them: a kill in between repeats
      it.

  Returns:
    The state after the last round, or after that at which it was stopped.

  Raises:
    UserError: If the task does not go with the method or the settings, or the
      checkpoint is damaged or of another training.
  """
  if start and checkpoint_dir:
    raise ValueError('A training with checkpoints cannot start from another.')
  check(method, task)
  schedule = schedule or make_schedule(method, task, how)
  clients = schedule.clients
  start = start or Trained(
    server_state=method.initial_state(seeds.pair('model', how.seed)),
    client_states=make_client_states(
      method, clients.client_ids, how.seed, checkpoint_dir
    ),
    dropped_clients=0,
    skipped_clients=tuple(clients.skipped),
  )
  with contextlib.ExitStack() as stack:
    if checkpoint_dir:
      # Else an exception that is kept would keep the database locked.
      stack.callback(start.client_states.close)
    trained = asyncio.run(
      _train(
        method,
        how,
        schedule,
        start,
        checkpoint_dir,
        release_managers,
        on_round,
        on_checkpoint,
        should_stop,
        evaluate,
      )
    )
    stack.pop_all()
  return trained


def make_schedule(
  method: methods.Method, task: tasks.Task, how: schedules.TrainingSettings
) -> schedules.Schedule:
  """Makes the rounds of a method's training."""
  attribute = method.trainer.cohort_attribute
  return schedules.Schedule(task, how, attribute=attribute)


def check(
  method: methods.Method, task: tasks.Task, name: str = 'this method'
) -> None:
  """Raises a `UserError` if a method, of this name, cannot do a task."""
  if not (task.cross_silo or method.personalizes_new_clients):
    raise errors.UserError(
      f'{name} can personalize only clients that it was trained on, and the'
      f' clients that {task.name} is judged by are not among them. Take a'
      ' task where they are, as school, or leave the method out.'
    )
  for attribute in method.needs:
    found = *method.trainer.found_attributes, *method.attributes
    if attribute not in (*task.attributes, *found, tasks.SIZE):
      raise errors.UserError(
        f'{name} needs to know the {attribute} of each client, which'
        f' {task.name} does not tell. Take another task, or leave the method'
        ' out.'
      )


class _OneByOne:
  """Runs one round at a time; clients' states are in memory for their round."""

  def __init__(
    self,
    method: methods.Method,
    schedule: schedules.Schedule,
    states: client_states.ClientStates,
  ):
    self._method = method
    self._schedule = schedule
    self._states = states

  def to_come(
    self, done: int, total_rounds: int
  ) -> Generator[tuple[int, _Own], None, None]:
    """Yields the number of rounds to run next, and what they are given."""
    for round_num in range(done + 1, total_rounds + 1):
      yield 1, self._schedule.one(round_num)

  def run(
    self, server_state: Any, done: int, first: int, num_rounds: int, own: _Own
  ) -> tuple[Any, Any]:
    """Runs a round; returns the server's state and the round's metrics."""
    del first
    rows, data, client_seeds = own
    clients = cohorts.clients(
      trainers.Client,
      len(rows),
      data=data,
      state=self._states.read(rows),
      seed=client_seeds,
      attributes=self._schedule.attributes(self._method, rows),
    )
    server_state, new_states, metrics = self._method.next(
      server_state, clients, *self._method.constants
    )
    # A round may be one without clients.
    if len(rows) and not self._states.is_empty:
      self._states.write(rows, cohorts.stack(new_states), done + num_rounds)
    return server_state, metrics

  def store(self, round_num: int) -> None:
    """Does nothing, as `run` has given the clients' states to their store."""


class _AtOnce:
  """Runs several rounds as one program, which keeps all clients' states."""

  def __init__(
    self,
    run: rounds.Rounds,
    method: methods.Method,
    how: schedules.TrainingSettings,
    schedule: schedules.Schedule,
    states: client_states.ClientStates,
  ):
    self._run = run
    self._method = method
    self._how = how
    self._schedule = schedule
    self._states = states
    self._rows = np.arange(len(schedule.clients))
    self._all_states = states.read(self._rows)
    self._changed = np.zeros(len(self._rows), bool)
    self._fixed = (
      schedule.examples,
      schedule.attributes(method, self._rows),
    )

  def to_come(
    self, done: int, total_rounds: int
  ) -> Generator[tuple[int, _Own], None, None]:
    """Yields the number of rounds to run next, and what they are given."""
    how = self._how
    intervals = [how.rounds_per_checkpoint]
    if how.rounds_per_evaluation:
      intervals.append(how.rounds_per_evaluation)
    while done < total_rounds:
      num_rounds = min(
        self._schedule.rounds_at_once,
        total_rounds - done,
        *(every - done % every for every in intervals),
      )
      yield num_rounds, self._schedule.several(done + 1)
      done += num_rounds

  def run(
    self, server_state: Any, done: int, first: int, num_rounds: int, own: _Own
  ) -> tuple[Any, Any]:
    """Runs rounds; returns the server's state and the rounds' metrics.

    Args:
      server_state: The server's state before them.
      done: The number of rounds before them.
      first: The first of them, among those that `own` is of.
      num_rounds: The number of rounds.
      own: What the rounds are given.
    """
    del done
    server_state, self._all_states, metrics = self._run(
      num_rounds,
      server_state,
      self._all_states,
      self._fixed,
      own,
      self._method.constants,
      first,
    )
    rows = self._rows  # Without 'rows' all clients take part.
    if 'rows' in own:
      rows = np.asarray(own['rows'])[first : first + num_rounds]
    self._changed[rows] = True
    return server_state, metrics

  def store(self, round_num: int) -> None:
    """Gives the clients' states after a round to their store."""
    rows = self._rows[self._changed]
    changed = tree.map_structure(lambda leaf: leaf[rows], self._all_states)
    self._states.write(rows, changed, round_num)
    self._changed[:] = False


def _make_runner(
  method: methods.Method,
  how: schedules.TrainingSettings,
  schedule: schedules.Schedule,
  states: client_states.ClientStates,
) -> _OneByOne | _AtOnce:
  """Makes what runs the rounds: several at once, where that is possible."""
  context = tff.framework.get_context_stack().current
  state_bytes = len(schedule.clients) * states.bytes_per_client
  if (
    isinstance(context, cohort.CohortContext)
    and isinstance(method.next, tff.Computation)
    and state_bytes <= _MOST_STATE_BYTES
    and schedule.examples is not None
  ):
    run = context.rounds(method.next, schedules.PLAN)
    if run is not None:
      return _AtOnce(run, method, how, schedule, states)
  return _OneByOne(method, schedule, states)


def _count(
  counts: np.ndarray, rounds: Sequence[_Metrics], most_in_vain: int
) -> np.ndarray:
  """Counts updates that were dropped, and the last rounds without another.

  The second number stays as it is once it is `most_in_vain`.
  """
  dropped, in_vain = counts
  for metrics in rounds:
    dropped += int(metrics['dropped_clients'])
    if in_vain < most_in_vain:
      if metrics['num_clients']:
        in_vain = 0
      elif metrics['dropped_clients']:
        in_vain += 1
  return np.array([dropped, in_vain], np.int64)


def _portions(
  coming: Iterable[tuple[int, _Own]], are_short: bool
) -> Generator[tuple[int, int, _Own], None, None]:
  """Splits what is run at once, so that a portion does not take long.

  Args:
    coming: Numbers of rounds, and what the rounds are given.
    are_short: Whether that is done.

  Yields:
    The first round of a portion, the number of its rounds, and what all rounds
    that it is of are given.
  """
  per_round = math.inf
  for num_rounds, own in coming:
    first = 0
    while first < num_rounds:
      portion = num_rounds - first
      if are_short:
        # Of the first one nothing is known, not even how long it compiles.
        portion = min(portion, max(int(_SECONDS_AT_ONCE / per_round), 1))
      start = time.monotonic()
      yield first, portion, own
      per_round = (time.monotonic() - start) / portion
      first += portion


async def _train(
  method: methods.Method,
  how: schedules.TrainingSettings,
  schedule: schedules.Schedule,
  start: Trained,
  checkpoint_dir: pathlib.Path | None,
  release_managers: tuple[tff.program.ReleaseManager, ...],
  on_round: Callable[[int, _Metrics], None],
  on_checkpoint: Callable[[int], None],
  should_stop: Callable[[], bool] | None,
  evaluate: Callable[[Trained], Awaitable[None]] | None,
) -> Trained:
  """Trains, see `train`."""
  total_rounds = 0
  if method.trains:
    total_rounds = schedule.num_rounds(how, method.trainer.num_epochs)
  server_state, states = start.server_state, start.client_states
  done = start.round
  # How many updates were dropped, and in how many rounds in a row all were.
  counts = np.array([start.dropped_clients, start.rounds_in_vain], np.int64)
  most_in_vain = max(min(_MOST_ROUNDS_IN_VAIN, total_rounds), 1)

  manager = None
  if checkpoint_dir:
    manager = checkpoints.NpzProgramStateManager(
      checkpoint_dir, keep_total=_KEPT_CHECKPOINTS
    )
    # The server's type rather than its state, as some states grow.
    server_type = method.initialize.type_signature.result.member
    saved, done = await manager.load_latest((server_type, counts))
    if done:
      server_state, counts = saved
    states.restore(done)
    on_checkpoint(done)

  if done < total_rounds and counts[1] < most_in_vain:
    runner = _make_runner(method, how, schedule, states)
    unreleased: list[tuple[int, _Metrics]] = []
    to_come = runner.to_come(done, total_rounds)
    with contextlib.closing(prefetch.prefetch(to_come)) as coming:
      portions = _portions(coming, should_stop is not None)
      for first, num_rounds, own in portions:
        server_state, measured = runner.run(
          server_state, done, first, num_rounds, own
        )
        new = [
          {name: float(np.ravel(value)[i]) for name, value in measured.items()}
          for i in range(num_rounds)
        ]
        counts = _count(counts, new, most_in_vain)
        diverged = counts[1] >= most_in_vain
        numbered = list(enumerate(new, done + 1))
        unreleased += numbered
        done += num_rounds
        if evaluate and how.rounds_per_evaluation:
          if done % how.rounds_per_evaluation == 0:
            runner.store(done)
            await evaluate(
              dataclasses.replace(start, round=done, server_state=server_state)
            )
        stops = should_stop is not None and should_stop()
        is_last = stops or diverged or done == total_rounds
        if is_last or done % how.rounds_per_checkpoint == 0:
          # The metrics are released before the checkpoint: a kill in between
          # repeats rounds, and releasing a round again replaces it.
          for released_round, released in unreleased:
            for release_manager in release_managers:
              await release_manager.release(released, released_round)
          unreleased = []
          runner.store(done)
          if manager:
            # No checkpoint is ever without its states: they are committed
            # before it is there, and pruned once it is removed.
            states.commit(done)
            await manager.save((server_state, counts), done)
            states.prune(min(await manager.get_versions() or [done]))
            on_checkpoint(done)
        for round_num, metrics in numbered:
          on_round(round_num, metrics)
        if is_last:
          break
  return dataclasses.replace(
    start,
    round=done,
    server_state=server_state,
    dropped_clients=int(counts[0]),
    rounds_in_vain=int(counts[1]),
    diverged=bool(counts[1] >= most_in_vain),
  )
