"""The training loop: rounds of a method, with checkpoints to resume from."""

import asyncio
import collections
from collections.abc import (
  Awaitable,
  Callable,
  Mapping,
  Sequence,
)
import contextlib
import dataclasses
import pathlib
from typing import TypeVar

import numpy as np
import tensorflow_federated as tff
import tree

from algorithms import methods
from algorithms import process
from base import aliases
from base import errors
from base import seeds
from personalization.rounds import checkpoints
from personalization.rounds import client_states
from personalization.rounds import prefetch
from personalization.rounds import round_runners
from personalization.rounds import schedules
from personalization.rounds import streams
from tasks import task as tasks
from tasks.models import models

# Two, so that there is another if the last one is damaged.
_KEPT_CHECKPOINTS = 2
# A training diverged if no update was finite in this many rounds in a row.
_MOST_ROUNDS_WITHOUT_UPDATE = 10

_T = TypeVar('_T')
# The metrics of a round, by name.
_Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Trained:
  """The result of a training.

  Attributes:
    server_state: The server's state.
    client_states: The states of the clients with examples, which could take
      part. Further training changes them in place.
    dropped_clients: The number of updates, over all rounds, that were dropped
      because they were not finite.
    skipped_clients: The clients without examples, which never took part.
    round: The number of the last round.
    rounds_without_update: The number of rounds up to the last one in which all
      updates were dropped.
    diverged: Whether these were all rounds, or so many that the training was
      stopped.
  """

  server_state: process.State
  client_states: client_states.ClientStates
  dropped_clients: int
  skipped_clients: tuple[str, ...]
  round: int = 0
  rounds_without_update: int = 0
  diverged: bool = False

  def read_states(
    self, client_ids: Sequence[str], rows: Sequence[int]
  ) -> aliases.ClientState:
    """Returns clients' states, stacked; held-out clients have initial states.

    Args:
      client_ids: The clients.
      rows: Their rows in their population, by which held-out clients are
        numbered, after the trained clients.
    """
    trained = self.client_states.rows
    return self.client_states.read(
      [trained.get(c, len(trained) + row) for c, row in zip(client_ids, rows)]
    )


@dataclasses.dataclass(frozen=True)
class Callbacks:
  """The callbacks of a training, which do nothing by default.

  Attributes:
    release_managers: Called with each round's metrics and number.
    on_round: Called after each round with its number, from 1, and its metrics.
    on_checkpoint: Called with the round of the checkpoint that training starts
      from, 0 if there is none, and with the round of each checkpoint that is
      written.
    on_file: Called with the path of each checkpoint and its SHA-256, before it
      is written.
    should_stop: Called now and then to ask whether to stop, with a checkpoint,
      before the last round; if it is None, training goes on to the end.
    evaluate: Called after every `rounds_per_evaluation` rounds, before the
      checkpoint and `on_round` of the last of them, so that it is repeated
      after a kill in between.
  """

  release_managers: tuple[tff.program.ReleaseManager, ...] = ()
  on_round: Callable[[int, _Metrics], None] = lambda *_: None
  on_checkpoint: Callable[[int], None] = lambda _: None
  on_file: checkpoints.OnFile = lambda *_: None
  should_stop: Callable[[], bool] | None = None
  evaluate: Callable[[Trained], Awaitable[None]] | None = None


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
    folder: The folder of their database; a temporary one by default.
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
  """Loads only the models of a checkpoint.

  Args:
    method: The method that was trained.
    checkpoint_dir: The folder of its checkpoints.
    round_num: The round.
    like: Weights with the names, shapes and types of the models.

  Returns:
    The models, in the order of `method.model_places`.

  Raises:
    UserError: If there is no such checkpoint, or it has other models.
  """
  manager = checkpoints.NpzProgramStateManager(checkpoint_dir)
  # The server's state comes first in a checkpoint, see `_Checkpoints`.
  places = ('/'.join(map(str, (0, *place))) for place in method.model_places)
  structure = collections.OrderedDict((place, like) for place in places)
  try:
    found = asyncio.run(manager.load(round_num, structure, is_part=True))
  except tff.program.ProgramStateNotFoundError as error:
    raise errors.UserError(
      f'{checkpoint_dir} has no checkpoint of round {round_num}.'
    ) from error
  except checkpoints.DamagedCheckpointError as error:
    raise errors.UserError(
      f'{error.fault} Do the run again, in another folder.'
    ) from error
  return tuple(found.values())


def train(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
  *,
  schedule: schedules.Schedule | None = None,
  start: Trained | None = None,
  checkpoint_dir: pathlib.Path | None = None,
  callbacks: Callbacks = Callbacks(),
) -> Trained:
  """Trains a method, from the last checkpoint if there is one.

  A training stops as soon as it has diverged, see `Trained`.

  Args:
    method: The method.
    task: The task.
    training_settings: How to train.
    schedule: The rounds of the training, if the caller has made them already.
    start: An earlier training to continue, instead of a checkpoint; by default
      there is none.
    checkpoint_dir: The folder of the checkpoints; by default there are none.
    callbacks: The callbacks.

  Returns:
    The result after the last round, or after the round at which it was stopped.

  Raises:
    UserError: If the task does not fit the method or the settings, or the
      checkpoint is damaged or of another training.
  """
  if start and checkpoint_dir:
    raise ValueError('A training with checkpoints cannot start from another.')
  check(method, task)
  schedule = schedule or make_schedule(method, task, training_settings)
  clients = schedule.clients
  stream = streams.find_for_training(method, task, training_settings)
  start = start or Trained(
    server_state=method.initial_state(
      seeds.pair('model', training_settings.seed),
      seeds.pair('noise', *stream),
    ),
    client_states=make_client_states(
      method, clients.client_ids, training_settings.seed, checkpoint_dir
    ),
    dropped_clients=0,
    skipped_clients=tuple(clients.skipped),
  )
  with contextlib.ExitStack() as stack:
    saved = None
    if checkpoint_dir:
      saved = _Checkpoints(checkpoint_dir, callbacks.on_file)
      # An exception that is kept would otherwise keep the database locked.
      stack.callback(start.client_states.close)
    loop = _Loop(method, training_settings, schedule, start, saved, callbacks)
    trained = asyncio.run(loop.run())
    stack.pop_all()
  return trained


def make_schedule(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> schedules.Schedule:
  """Makes the rounds of a method's training."""
  attribute = method.trainer.cohort_attribute
  return schedules.Schedule(
    task,
    training_settings,
    attribute=attribute,
    stream=streams.find_for_training(method, task, training_settings),
  )


def check(
  method: methods.Method, task: tasks.Task, name: str = 'this method'
) -> None:
  """Raises a `UserError` that names a method, if it cannot learn a task."""
  if not (task.cross_silo or method.personalizes_new_clients):
    raise errors.UserError(
      f'{name} can personalize only clients that it was trained on, and the'
      f' test clients of {task.name} are not among them. Use a task where they'
      ' are, such as school, or leave the method out.'
    )
  for attribute in method.needs:
    found = *method.trainer.found_attributes, *method.attributes
    if attribute not in (*task.attributes, *found, tasks.SIZE):
      raise errors.UserError(
        f'{name} needs to know the {attribute} of each client, which'
        f' {task.name} does not have. Use another task, or leave the method'
        ' out.'
      )


class _Checkpoints:
  """The checkpoints of a training, and the clients' states that belong to them.

  A checkpoint always has its states: they are committed before it is written,
  and pruned after it is removed. It lacks the seeds of noise, which may be
  secret.
  """

  def __init__(self, folder: pathlib.Path, on_file: checkpoints.OnFile):
    self._manager = checkpoints.NpzProgramStateManager(
      folder, keep_total=_KEPT_CHECKPOINTS, on_file=on_file
    )

  async def load_latest(self, start: Trained) -> Trained:
    """Returns the training in the last checkpoint, or `start` if none is."""
    saved, done = await self._manager.load_latest(
      (start.server_state, _counts(0, 0))
    )
    start.client_states.restore(done)
    if not done:
      return start
    server_state, (dropped, without_update) = saved
    return dataclasses.replace(
      start,
      round=done,
      server_state=_replace_noise_seeds(server_state, start.server_state),
      dropped_clients=int(dropped),
      rounds_without_update=int(without_update),
    )

  async def save(self, trained: Trained) -> None:
    """Saves a training."""
    states, manager = trained.client_states, self._manager
    counts = _counts(trained.dropped_clients, trained.rounds_without_update)
    states.commit(trained.round)
    server_state = _replace_noise_seeds(trained.server_state)
    await manager.save((server_state, counts), trained.round)
    states.prune(min(await manager.get_versions() or [trained.round]))


def _replace_noise_seeds(
  state: process.State, source: process.State | None = None
) -> process.State:
  """Replaces the seeds of noise by those of another state, or by zeros."""

  def replace(
    path: Sequence[str | int],
    leaf: aliases.Structure,
    other: aliases.Structure,
  ) -> aliases.Structure:
    if path[0] == 'aggregator' and path[-1] == 'seed':
      return np.zeros_like(leaf) if source is None else other
    return leaf

  return tree.map_structure_with_path(
    replace, state, state if source is None else source
  )


def _counts(dropped_clients: int, rounds_without_update: int) -> np.ndarray:
  """Returns the counts of a training in the form that a checkpoint has."""
  return np.array([dropped_clients, rounds_without_update], np.int64)


class _Loop:
  """The loop of a training, whose `run` is called once."""

  def __init__(
    self,
    method: methods.Method,
    training_settings: schedules.TrainingSettings,
    schedule: schedules.Schedule,
    start: Trained,
    saved: _Checkpoints | None,
    callbacks: Callbacks,
  ):
    self._method = method
    self._settings = training_settings
    self._schedule = schedule
    self._trained = start
    self._saved = saved
    self._callbacks = callbacks
    self._total_rounds = 0
    if method.trains:
      self._total_rounds = schedule.num_rounds(
        training_settings, method.trainer.num_epochs
      )
    self._most_without_update = max(
      min(_MOST_ROUNDS_WITHOUT_UPDATE, self._total_rounds), 1
    )
    self._unreleased: list[tuple[int, _Metrics]] = []

  @property
  def _diverged(self) -> bool:
    return self._trained.rounds_without_update >= self._most_without_update

  @property
  def _is_over(self) -> bool:
    return self._diverged or self._trained.round >= self._total_rounds

  async def run(self) -> Trained:
    """Trains from the last checkpoint on, see `train`."""
    if self._saved:
      self._trained = await self._saved.load_latest(self._trained)
      self._callbacks.on_checkpoint(self._trained.round)
    if not self._is_over:
      await self._run_rounds(
        round_runners.make_runner(
          self._method,
          self._settings,
          self._schedule,
          self._trained.client_states,
        )
      )
    return dataclasses.replace(self._trained, diverged=self._diverged)

  async def _run_rounds(self, runner: round_runners.RoundRunner) -> None:
    prepared = runner.prepare(self._trained.round, self._total_rounds)
    pace = round_runners.Pace(self._callbacks.should_stop is not None)
    ends = False
    with contextlib.closing(prefetch.prefetch(prepared)) as coming:
      while not ends:
        try:
          inputs, num_rounds = next(coming)
        except errors.UserError:  # The data of a client are at fault.
          if self._unreleased:
            await self._save(runner)  # What was trained before is not lost.
          raise
        for portion in pace.divide(inputs, num_rounds):
          server_state, measured = runner.run(
            self._trained.server_state, self._trained.round, portion
          )
          ends = await self._finish(
            runner, server_state, measured, portion.num_rounds
          )
          if ends:
            break

  async def _finish(
    self,
    runner: round_runners.RoundRunner,
    server_state: process.State,
    measured: Mapping[str, np.ndarray],
    num_rounds: int,
  ) -> bool:
    """Counts rounds that were run, and does what is due after them.

    Args:
      runner: The runner, which has run them.
      server_state: The server's state after them.
      measured: Their metrics, by name.
      num_rounds: Their number.

    Returns:
      Whether the training ends.
    """
    new = [
      {name: float(np.ravel(value)[i]) for name, value in measured.items()}
      for i in range(num_rounds)
    ]
    numbered = list(enumerate(new, self._trained.round + 1))
    self._unreleased += numbered
    self._count(server_state, new)
    done, callbacks = self._trained.round, self._callbacks
    every = self._settings.rounds_per_evaluation
    if callbacks.evaluate and every and done % every == 0:
      runner.store(done)
      await callbacks.evaluate(self._trained)
    stops = callbacks.should_stop is not None and callbacks.should_stop()
    ends = stops or self._is_over
    if ends or done % self._settings.rounds_per_checkpoint == 0:
      await self._save(runner)
    for round_num, metrics in numbered:
      callbacks.on_round(round_num, metrics)
    return ends

  def _count(
    self, server_state: process.State, new: Sequence[_Metrics]
  ) -> None:
    """Adds rounds, by the server's state after them and each one's metrics."""
    dropped = self._trained.dropped_clients
    without_update = self._trained.rounds_without_update
    for metrics in new:
      dropped += int(metrics['dropped_clients'])
      if without_update < self._most_without_update:
        if metrics['num_clients']:
          without_update = 0
        elif metrics['dropped_clients']:
          without_update += 1
    self._trained = dataclasses.replace(
      self._trained,
      round=self._trained.round + len(new),
      server_state=server_state,
      dropped_clients=dropped,
      rounds_without_update=without_update,
    )

  async def _save(self, runner: round_runners.RoundRunner) -> None:
    # The metrics are released before the checkpoint: a kill in between repeats
    # rounds, and releasing a round again replaces it.
    for round_num, metrics in self._unreleased:
      for release_manager in self._callbacks.release_managers:
        await release_manager.release(metrics, round_num)
    self._unreleased.clear()
    runner.store(self._trained.round)
    if self._saved:
      await self._saved.save(self._trained)
      self._callbacks.on_checkpoint(self._trained.round)
