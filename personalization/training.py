"""The training loop: rounds of a method, from which a killed run goes on."""

import asyncio
import collections
from collections.abc import Callable, Generator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff

from algorithms import method as methods
from algorithms import trainers
from base import errors
from base import seeds
from personalization import checkpoints
from personalization import client_states
from personalization import cohorts
from personalization import prefetch
from personalization import schedule as schedules
from runtimes import cohort
from runtimes import rounds
from tasks import task as task_lib
from tasks.models import models

# What a run may have to go on from, if the last one was cut off.
_KEPT_CHECKPOINTS = 2


@dataclasses.dataclass(frozen=True)
class Trained:
  """What training ends with.

  Attributes:
    server_state: The server's state.
    client_states: The states of the clients that could take part, those with
      examples. Training on changes them in place.
    dropped_clients: The updates that were dropped, over all rounds, because
      they were not finite.
    skipped_clients: The clients without examples, which never took part.
    round: The number of the last round.
  """

  server_state: Any
  client_states: client_states.ClientStates
  dropped_clients: int
  skipped_clients: tuple[str, ...]
  round: int = 0

  def states_of(self, client_ids: Sequence[str], first_row: int = 0) -> Any:
    """Returns clients' states, stacked; those of held-out clients are new.

    Args:
      client_ids: The clients.
      first_row: The row of the first of them in their population. The number of
        a held-out client is its row, after those of the trained clients.
    """
    trained_ids = self.client_states.client_ids
    row = {client_id: i for i, client_id in enumerate(trained_ids)}
    unique = dict.fromkeys(client_ids)
    new = {c: len(row) + first_row + i for i, c in enumerate(unique)}
    return self.client_states.read([(new | row)[c] for c in client_ids])


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
    folder: Where they are kept, see `client_states`.
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
  """Loads the models of a checkpoint, whatever else is in it.

  Args:
    method: The method that was trained.
    checkpoint_dir: Where its checkpoints are.
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
  task: task_lib.Task,
  how: schedules.TrainingSettings,
  *,
  schedule: schedules.Schedule | None = None,
  start: Trained | None = None,
  checkpoint_dir: pathlib.Path | None = None,
  release_managers: tuple[tff.program.ReleaseManager, ...] = (),
  on_round: Callable[[int, Mapping[str, float]], None] = lambda *_: None,
) -> Trained:
  """Trains, from the last checkpoint if there is one.

  Args:
    method: The method.
    task: The task.
    how: How to train.
    schedule: Its rounds, if the caller has them already.
    start: Where to begin; by default at the beginning.
    checkpoint_dir: Where checkpoints are, and are written.
    release_managers: Get the training metrics, by round.
    on_round: Called after each round with its number, from 1, and its metrics.

  Returns:
    The state after the last round.

  Raises:
    UserError: If the settings do not go with the task, or the checkpoint with
      either.
  """
  check(method, task)
  schedule = schedule or schedules.Schedule(task, how)
  if start is None:
    clients = schedule.clients
    start = Trained(
      server_state=method.initial_state(seeds.pair('model', how.seed)),
      client_states=make_client_states(
        method, clients.client_ids, how.seed, checkpoint_dir
      ),
      dropped_clients=0,
      skipped_clients=tuple(clients.skipped),
    )
  return asyncio.run(
    _train(
      method, how, schedule, start, checkpoint_dir, release_managers, on_round
    )
  )


def check(method: methods.Method, task: task_lib.Task) -> None:
  """Raises a `UserError` if a method cannot do a task."""
  if not (task.cross_silo or method.personalizes_new_clients):
    raise errors.UserError(
      f'{task.name} evaluates clients that were never trained on, for whom'
      ' this method has no model. Choose a task whose clients are all in'
      ' training, such as school.'
    )
  for name in method.needs:
    if name not in task.attributes:
      raise errors.UserError(
        f'This method needs to know the {name} of each client, which'
        f' {task.name} does not tell. Choose another task or method.'
      )


def _rounds(
  method: methods.Method, schedule: schedules.Schedule
) -> rounds.Rounds | None:
  """Makes what runs several rounds at once; None if that cannot be."""
  context = tff.framework.get_context_stack().current
  if (
    not isinstance(context, cohort.CohortContext)
    or not isinstance(method.next, tff.Computation)
    or schedule.examples is None
  ):
    return None
  return context.rounds(method.next, schedules.PLAN)


def _to_come(
  how: schedules.TrainingSettings,
  schedule: schedules.Schedule,
  done: int,
  total_rounds: int,
  at_once: bool,
) -> Generator[tuple[int, Any], None, None]:
  """Yields how many rounds come next, and what is known of them beforehand."""
  while done < total_rounds:
    if at_once:
      until_checkpoint = how.rounds_per_checkpoint - (
        done % how.rounds_per_checkpoint
      )
      num_rounds = min(
        schedule.rounds_at_once, until_checkpoint, total_rounds - done
      )
      yield num_rounds, schedule.several(done + 1)
    else:
      num_rounds = 1
      yield num_rounds, schedule.one(done + 1)
    done += num_rounds


async def _train(
  method: methods.Method,
  how: schedules.TrainingSettings,
  schedule: schedules.Schedule,
  trained: Trained,
  checkpoint_dir: pathlib.Path | None,
  release_managers: tuple[tff.program.ReleaseManager, ...],
  on_round: Callable[[int, Mapping[str, float]], None],
) -> Trained:
  """Trains, see `train`."""
  total_rounds = how.total_rounds if method.trains else 0
  server_state, states = trained.server_state, trained.client_states
  dropped = np.int64(trained.dropped_clients)
  start = trained.round

  manager = checkpoint_dir and checkpoints.NpzProgramStateManager(
    checkpoint_dir, keep_total=_KEPT_CHECKPOINTS
  )
  if manager:
    # The server's type rather than its state: there are states that grow.
    server_type = method.initialize.type_signature.result.member
    saved, version = await manager.load_latest((server_type, dropped))
    if version:
      (server_state, dropped), start = saved, version
    states.restore(start)

  at_once = _rounds(method, schedule) if start < total_rounds else None
  all_rows = np.arange(len(schedule.clients))
  all_states = fixed = None
  if at_once:
    all_states = states.read(all_rows)
    fixed = (
      schedule.examples,
      schedule.attributes(method.trainer.needs, all_rows),
    )
  unreleased: list[tuple[int, Mapping[str, float]]] = []
  done = start
  to_come = _to_come(how, schedule, done, total_rounds, bool(at_once))
  with contextlib.closing(prefetch.prefetch(to_come)) as coming:
    for num_rounds, own in coming:
      if at_once:
        server_state, all_states, measured = at_once(
          num_rounds, server_state, all_states, fixed, own, method.constants
        )
      else:
        rows, data, client_seeds = own
        clients = cohorts.clients(
          trainers.Client,
          len(rows),
          data=data,
          state=states.read(rows),
          seed=client_seeds,
          attributes=schedule.attributes(method.trainer.needs, rows),
        )
        server_state, new_states, measured = method.next(
          server_state, clients, *method.constants
        )
        if not states.is_empty:
          states.write(rows, cohorts.stack(new_states), done + 1)
      new = [
        {name: float(np.ravel(value)[i]) for name, value in measured.items()}
        for i in range(num_rounds)
      ]
      dropped = dropped + np.int64(sum(m['dropped_clients'] for m in new))
      numbered = list(enumerate(new, done + 1))
      unreleased += numbered
      done += num_rounds
      if done % how.rounds_per_checkpoint == 0 or done == total_rounds:
        # The metrics first: a kill between the two repeats rounds, and
        # releasing a round again replaces it.
        for released_round, released in unreleased:
          for release_manager in release_managers:
            await release_manager.release(released, released_round)
        unreleased = []
        if at_once:
          states.write(all_rows, all_states, done)
        if manager:
          versions = await manager.get_versions() or [done]
          states.commit(done, versions[-1])
          await manager.save((server_state, dropped), done)
      for round_num, metrics in numbered:
        on_round(round_num, metrics)
  return dataclasses.replace(
    trained,
    round=done,
    server_state=server_state,
    dropped_clients=int(dropped),
  )
