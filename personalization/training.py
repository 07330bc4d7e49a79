"""The training loop: rounds of a method, from which a killed run goes on."""

import asyncio
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from algorithms import algorithm as algorithm_lib
from base import errors
from base import seeds
from personalization import checkpoints
from personalization import cohorts
from personalization import prefetch
from personalization import schedule as schedule_lib
from runtimes import cohort
from runtimes import rounds as rounds_lib
from tasks import task as task_lib
from tasks.models import model as model_lib

Options = schedule_lib.Options
Schedule = schedule_lib.Schedule


@dataclasses.dataclass(frozen=True)
class Trained:
  """What training ends with.

  Attributes:
    server_state: The server's state.
    client_ids: The clients that could take part: those with examples.
    client_states: Their states, stacked in their order; an empty structure if
      the method keeps none.
    dropped_clients: How many updates were dropped, over all rounds, because
      they were not finite.
    skipped_clients: The clients without examples, which never took part.
    round: The number of the last round.
  """

  server_state: Any
  client_ids: tuple[str, ...]
  client_states: Any
  dropped_clients: int
  skipped_clients: tuple[str, ...]
  round: int = 0


def initial_client_states(
  algorithm: algorithm_lib.Algorithm,
  client_ids: Sequence[str],
  seed: int,
  first_number: int = 0,
) -> Any:
  """The states of clients before their first round, stacked.

  Args:
    algorithm: The method.
    client_ids: The clients.
    seed: The seed of the run.
    first_number: The number of the first of them; the others' follow.

  Returns:
    The states.
  """
  if not len(algorithm.initialize_client.type_signature.result):
    client_ids = ('any',)  # The empty structure is the same for all.
  return cohorts.stack(
    [
      algorithm.initialize_client(np.array([seed, number], np.int32))
      for number in range(first_number, first_number + len(client_ids))
    ]
  )


def client_states(
  trained: Trained,
  algorithm: algorithm_lib.Algorithm,
  client_ids: Sequence[str],
  seed: int,
  first_row: int = 0,
) -> Any:
  """Clients' states, stacked; that of a client held out is the initial one.

  Args:
    trained: What training ended with.
    algorithm: The method.
    client_ids: The clients.
    seed: The seed of the run.
    first_row: The row of the first of them in their population. The number of a
      client that was held out is its row, after those of the trained clients.

  Returns:
    The states.
  """
  if not tree.flatten(trained.client_states):
    return trained.client_states
  row = {client_id: i for i, client_id in enumerate(trained.client_ids)}
  states = trained.client_states
  if any(client_id not in row for client_id in client_ids):
    unique = tuple(dict.fromkeys(client_ids))
    new = {client_id: len(row) + i for i, client_id in enumerate(unique)}
    states = tree.map_structure(
      lambda *leaves: np.concatenate(leaves),
      states,
      initial_client_states(algorithm, unique, seed, len(row) + first_row),
    )
    row = new | row
  rows = [row[client_id] for client_id in client_ids]
  return tree.map_structure(lambda leaf: leaf[rows], states)


def saved_models(
  algorithm: algorithm_lib.Algorithm,
  checkpoint_dir: pathlib.Path,
  round_num: int,
  like: model_lib.Weights,
) -> tuple[model_lib.Weights, ...]:
  """The models of a checkpoint, whatever else is in it.

  Args:
    algorithm: The method that was trained.
    checkpoint_dir: Where its checkpoints are.
    round_num: The round.
    like: What the models must look like.

  Returns:
    The models, in the order of `algorithm.models`.

  Raises:
    UserError: If there is no such checkpoint, or it has other models.
  """
  manager = checkpoints.NpzProgramStateManager(checkpoint_dir)
  # The server's state comes first in a checkpoint, see `_train`.
  places = ('/'.join(map(str, (0, *place))) for place in algorithm.models)
  structure = collections.OrderedDict((place, like) for place in places)
  try:
    models = asyncio.run(manager.load(round_num, structure, is_part=True))
  except tff.program.ProgramStateNotFoundError as error:
    raise errors.UserError(
      f'{checkpoint_dir} has no checkpoint of round {round_num}.'
    ) from error
  return tuple(models.values())


def train(
  algorithm: algorithm_lib.Algorithm,
  task: task_lib.Task,
  options: Options,
  *,
  schedule: Schedule | None = None,
  start: Trained | None = None,
  checkpoint_dir: pathlib.Path | None = None,
  release_managers: tuple[tff.program.ReleaseManager, ...] = (),
  on_round: Callable[[int, Mapping[str, float]], None] = lambda *_: None,
) -> Trained:
  """Trains, from the last checkpoint if there is one.

  Args:
    algorithm: The method.
    task: The task.
    options: How to train.
    schedule: Its rounds, if the caller has them already.
    start: Where to begin; by default at the beginning.
    checkpoint_dir: Where checkpoints are, and are written.
    release_managers: Get the training metrics, by round.
    on_round: Called after each round with its number, from 1, and its metrics.

  Returns:
    The state after the last round.

  Raises:
    UserError: If the options do not go with the task, or the checkpoint with
      either.
  """
  if not (task.cross_silo or algorithm.personalizes_new_clients):
    raise errors.UserError(
      f'{task.name} evaluates clients that were never trained on, for whom'
      ' this method has no model. Choose a task whose clients are all in'
      ' training, such as school.'
    )
  schedule = schedule or Schedule(task, options)
  if start is None:
    clients = schedule.clients
    start = Trained(
      server_state=algorithm.initial_state(seeds.pair('model', options.seed)),
      client_ids=clients.client_ids,
      client_states=initial_client_states(
        algorithm, clients.client_ids, options.seed
      ),
      dropped_clients=0,
      skipped_clients=tuple(clients.skipped),
    )
  return asyncio.run(
    _train(
      algorithm,
      options,
      schedule,
      start,
      checkpoint_dir,
      release_managers,
      on_round,
    )
  )


def _rounds(
  algorithm: algorithm_lib.Algorithm, schedule: Schedule
) -> rounds_lib.Rounds | None:
  """What runs several rounds at once; None if they have to run one by one."""
  context = tff.framework.get_context_stack().current
  if (
    not isinstance(context, cohort.CohortContext)
    or not isinstance(algorithm.next, tff.Computation)
    or schedule.examples is None
  ):
    return None
  return context.rounds(algorithm.next, schedule_lib.PLAN)


def _to_come(
  options: Options,
  schedule: Schedule,
  done: int,
  total_rounds: int,
  at_once: bool,
) -> Iterator[tuple[int, Any]]:
  """How many rounds come next, and what of them is known beforehand."""
  while done < total_rounds:
    if at_once:
      until_checkpoint = options.rounds_per_checkpoint - (
        done % options.rounds_per_checkpoint
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
  algorithm: algorithm_lib.Algorithm,
  options: Options,
  schedule: Schedule,
  trained: Trained,
  checkpoint_dir: pathlib.Path | None,
  release_managers: tuple[tff.program.ReleaseManager, ...],
  on_round: Callable[[int, Mapping[str, float]], None],
) -> Trained:
  """See `train`."""
  total_rounds = options.total_rounds if algorithm.trains else 0
  server_state, states = trained.server_state, trained.client_states
  dropped = np.int64(trained.dropped_clients)
  start = trained.round

  manager = checkpoint_dir and checkpoints.NpzProgramStateManager(
    checkpoint_dir
  )
  if manager:
    # The server's type rather than its state: there are states that grow.
    server_type = algorithm.initialize.type_signature.result.member
    saved, version = await manager.load_latest((server_type, states, dropped))
    if version:
      (server_state, states, dropped), start = saved, version

  at_once = _rounds(algorithm, schedule) if start < total_rounds else None
  unreleased = []
  done = start
  to_come = _to_come(options, schedule, done, total_rounds, bool(at_once))
  with contextlib.closing(prefetch.prefetch(to_come)) as coming:
    for num_rounds, own in coming:
      if at_once:
        server_state, states, measured = at_once(
          num_rounds, server_state, states, schedule.examples, own
        )
      else:
        rows, data, seed = own
        clients = cohorts.clients(
          len(rows),
          data=data,
          state=tree.map_structure(lambda leaf: leaf[rows], states),  # noqa: B023
          seed=seed,
        )
        server_state, new_states, measured = algorithm.next(
          server_state, clients
        )
        states = _updated(states, rows, new_states)
      new = [
        {name: float(np.ravel(value)[i]) for name, value in measured.items()}
        for i in range(num_rounds)
      ]
      dropped = dropped + np.int64(sum(m['dropped_clients'] for m in new))
      new = list(enumerate(new, done + 1))
      unreleased += new
      done += num_rounds
      if done % options.rounds_per_checkpoint == 0 or done == total_rounds:
        # The metrics first: a kill between the two repeats rounds, and
        # releasing a round again replaces it.
        for released_round, released in unreleased:
          for release_manager in release_managers:
            await release_manager.release(released, released_round)
        unreleased = []
        if manager:
          await manager.save((server_state, states, dropped), done)
      for round_num, metrics in new:
        on_round(round_num, metrics)
  return dataclasses.replace(
    trained,
    round=done,
    server_state=server_state,
    client_states=states,
    dropped_clients=int(dropped),
  )


def _updated(states: Any, rows: np.ndarray, new: Any) -> Any:
  """The clients' states with those of `rows` replaced."""
  if not tree.flatten(states):
    return states
  new = cohorts.stack(new)

  def replace(leaf: np.ndarray, own: np.ndarray) -> np.ndarray:
    leaf = leaf.copy()
    leaf[rows] = own
    return leaf

  return tree.map_structure(replace, states, new)
