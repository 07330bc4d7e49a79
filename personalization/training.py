"""The training loop: rounds of a method, from which a killed run goes on."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from algorithms import algorithm as algorithm_lib
from personalization import checkpoints
from personalization import cohorts
from tasks import client_data
from tasks import errors
from tasks import parameters
from tasks import task as task_lib


@dataclasses.dataclass(frozen=True)
class Options(parameters.Parameters):
  """How long, with whom and in what batches to train."""

  total_rounds: int = parameters.field(100, 'The number of rounds.', minimum=0)
  clients_per_round: int = parameters.field(
    10, 'The number of clients in a round; 0 for all.', minimum=0
  )
  batch_size: int = parameters.field(
    0, "The number of examples in a batch; 0 for the task's own.", minimum=0
  )
  client_epochs: int = parameters.field(
    1, 'The passes of a client over its examples in a round.', minimum=1
  )
  drop_partial_batches: bool = parameters.field(
    False, 'Whether to leave out a last batch that is not full.'
  )
  rounds_per_checkpoint: int = parameters.field(
    50, 'The number of rounds from checkpoint to checkpoint.', minimum=1
  )
  seed: int = parameters.field(
    0, 'The seed of all that is random.', minimum=0, maximum=2**31 - 1
  )


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
  """

  server_state: Any
  client_ids: tuple[str, ...]
  client_states: Any
  dropped_clients: int
  skipped_clients: tuple[str, ...]


def seed_pair(*key: int | str) -> np.ndarray:
  """A seed for TensorFlow's stateless random numbers."""
  return cohorts.seeds(client_data.seeded_rng(*key), 1)[0]


def sample(options: Options, num_clients: int, round_num: int) -> np.ndarray:
  """The rows of the clients that take part in a round."""
  if options.clients_per_round in (0, num_clients):
    return np.arange(num_clients)
  rng = client_data.seeded_rng('cohort', options.seed, round_num)
  return rng.choice(num_clients, options.clients_per_round, replace=False)


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


def train(
  algorithm: algorithm_lib.Algorithm,
  task: task_lib.Task,
  options: Options,
  *,
  checkpoint_dir: pathlib.Path | None = None,
  release_managers: tuple[tff.program.ReleaseManager, ...] = (),
  on_round: Callable[[int, Mapping[str, float]], None] = lambda *_: None,
) -> Trained:
  """Trains, from the last checkpoint if there is one.

  Args:
    algorithm: The method.
    task: The task.
    options: How to train.
    checkpoint_dir: Where checkpoints are, and are written.
    release_managers: Get the training metrics, by round.
    on_round: Called after each round with its number, from 1, and its metrics.

  Returns:
    The state after the last round.

  Raises:
    UserError: If the options do not go with the task, or the checkpoint with
      either.
  """
  return asyncio.run(
    _train(algorithm, task, options, checkpoint_dir, release_managers, on_round)
  )


async def _train(
  algorithm: algorithm_lib.Algorithm,
  task: task_lib.Task,
  options: Options,
  checkpoint_dir: pathlib.Path | None,
  release_managers: tuple[tff.program.ReleaseManager, ...],
  on_round: Callable[[int, Mapping[str, float]], None],
) -> Trained:
  """See `train`."""
  if not (task.cross_silo or algorithm.personalizes_new_clients):
    raise errors.UserError(
      f'{task.name} evaluates clients that were never trained on, for whom'
      ' this method has no model. Choose a task whose clients are all in'
      ' training, such as school.'
    )
  clients = cohorts.Cohorts(task.train, task.padded)
  if not len(clients):
    raise errors.UserError(
      f'{task.name} has no clients with examples to train on. Change its'
      ' settings.'
    )
  if options.clients_per_round > len(clients):
    raise errors.UserError(
      f'clients_per_round is {options.clients_per_round}, but {task.name} has'
      f' {len(clients)} clients with examples to train on.'
    )
  total_rounds = options.total_rounds if algorithm.trains else 0
  batch_size = options.batch_size or task.batch_size
  server_state = algorithm.initial_state(seed_pair('model', options.seed))
  states = initial_client_states(algorithm, clients.client_ids, options.seed)
  dropped = np.int64(0)

  manager = checkpoint_dir and checkpoints.NpzProgramStateManager(
    checkpoint_dir
  )
  start = 0
  if manager:
    # The server's type rather than its state: there are states that grow.
    server_type = algorithm.initialize.type_signature.result.member
    saved, start = await manager.load_latest((server_type, states, dropped))
    if start:
      server_state, states, dropped = saved
  unreleased = []

  for round_num in range(start + 1, total_rounds + 1):
    rows = sample(options, len(clients), round_num)
    data = clients.data(
      'train',
      rows,
      batch_size,
      rng=client_data.seeded_rng('batches', options.seed, round_num),
      drop_partial=options.drop_partial_batches,
      epochs=options.client_epochs,
    )
    server_state, new_states, metrics = algorithm.next(
      server_state,
      cohorts.clients(
        len(rows),
        data=data,
        state=tree.map_structure(lambda leaf: leaf[rows], states),  # noqa: B023
        seed=cohorts.seeds(
          client_data.seeded_rng('client', options.seed, round_num),
          len(rows),
        ),
      ),
    )
    states = _updated(states, rows, new_states)
    metrics = {name: float(value) for name, value in metrics.items()}
    dropped = dropped + np.int64(metrics['dropped_clients'])
    unreleased.append((round_num, metrics))
    if (
      round_num % options.rounds_per_checkpoint == 0
      or round_num == total_rounds
    ):
      # The metrics first: a kill between the two repeats rounds, and releasing
      # a round again replaces it.
      for released_round, released in unreleased:
        for release_manager in release_managers:
          await release_manager.release(released, released_round)
      unreleased = []
      if manager:
        await manager.save((server_state, states, dropped), round_num)
    on_round(round_num, metrics)
  return Trained(
    server_state,
    clients.client_ids,
    states,
    int(dropped),
    tuple(clients.skipped),
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
