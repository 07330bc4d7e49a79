"""Which clients train in a round, on which batches and with which seeds."""

import collections
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from base import errors
from base import seeds
from base import settings
from personalization import cohorts
from runtimes import rounds
from tasks import task as task_lib
from tasks.data import batches

# Rounds whose batches are made at a time, where rounds are one program.
_MOST_ROUNDS = 50
# All clients' examples are in memory at once then; more than this are not.
_MOST_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class Options(settings.Settings):
  """How long, with whom and in what batches to train."""

  total_rounds: int = settings.field(100, 'The number of rounds.', minimum=0)
  clients_per_round: int = settings.field(
    10, 'The number of clients in a round; 0 for all.', minimum=0
  )
  batch_size: int = settings.field(
    0, "The number of examples in a batch; 0 for the task's own.", minimum=0
  )
  client_epochs: int = settings.field(
    1, 'The passes of a client over its examples in a round.', minimum=1
  )
  drop_partial_batches: bool = settings.field(
    False, 'Whether to leave out a last batch that is not full.'
  )
  rounds_per_checkpoint: int = settings.field(
    50, 'The number of rounds from checkpoint to checkpoint.', minimum=1
  )
  seed: int = settings.field(
    0, 'The seed of all that is random.', minimum=0, maximum=2**31 - 1
  )


def sample(options: Options, num_clients: int, round_num: int) -> np.ndarray:
  """The rows of the clients that take part in a round."""
  if options.clients_per_round in (0, num_clients):
    return np.arange(num_clients)
  rng = seeds.generator('cohort', options.seed, round_num)
  return rng.choice(num_clients, options.clients_per_round, replace=False)


class Schedule:
  """The rounds of a training; several that differ in method may share it.

  Attributes:
    clients: The clients that take part.
    rounds_at_once: How many rounds `several` gives the batches of.
  """

  def __init__(
    self, task: task_lib.Task, options: Options, kept: int = 1
  ) -> None:
    """Looks at all clients.

    Args:
      task: The task.
      options: How to train.
      kept: How many results of `several` to keep, for another training.

    Raises:
      UserError: If the options do not go with the task.
    """
    self.clients = cohorts.Cohorts(task.train, task.padded)
    if not len(self.clients):
      raise errors.UserError(
        f'{task.name} has no clients with examples to train on. Change its'
        ' settings.'
      )
    if options.clients_per_round > len(self.clients):
      raise errors.UserError(
        f'clients_per_round is {options.clients_per_round}, but {task.name} has'
        f' {len(self.clients)} clients with examples to train on.'
      )
    self._options = options
    self._batch_size = options.batch_size or task.batch_size
    self.rounds_at_once = min(options.rounds_per_checkpoint, _MOST_ROUNDS)
    self.several = functools.lru_cache(kept)(self._several)

  def _seeds(self, round_num: int, size: int) -> np.ndarray:
    rng = seeds.generator('client', self._options.seed, round_num)
    return seeds.pairs(rng, size)

  def _batching(self, round_num: int) -> Mapping[str, Any]:
    """How a round's examples become batches."""
    return dict(
      batch_size=self._batch_size,
      shuffle=('batches', self._options.seed, round_num),
      drop_partial=self._options.drop_partial_batches,
      epochs=self._options.client_epochs,
    )

  def one(self, round_num: int) -> tuple[np.ndarray, Any, np.ndarray]:
    """The rows of a round's clients, their data and their seeds."""
    rows = sample(self._options, len(self.clients), round_num)
    return (
      rows,
      self.clients.data('train', rows, **self._batching(round_num)),
      self._seeds(round_num, len(rows)),
    )

  @functools.cached_property
  def examples(self) -> Mapping[str, tf.Tensor] | None:
    """All clients' examples, stacked; None if they are not to be."""
    rows = np.arange(len(self.clients))
    padded = self.clients.padded
    if not padded or self.clients.stacked_bytes('train') > _MOST_BYTES:
      return None
    return self.clients.examples('train', rows)

  def _several(self, first_round: int) -> Any:
    """What is each round's own, stacked, in the form that `PLAN` takes."""
    size = len(self.clients)
    own = []
    for round_num in range(first_round, first_round + self.rounds_at_once):
      rows = sample(self._options, size, round_num)
      indices, weights = self.clients.batches(
        'train', rows, **self._batching(round_num)
      )
      now = dict(
        indices=indices,
        mask=weights,
        seed=self._seeds(round_num, len(rows)),
      )
      own.append(now if len(rows) == size else now | dict(rows=rows))
    return tree.map_structure(
      lambda *leaves: tf.constant(np.stack(leaves)), *own
    )


def _clients(examples: Any, states: Any, now: Mapping[str, tf.Tensor]) -> Any:
  """What `next` takes of a round's clients."""
  if 'rows' in now:
    examples, states = tree.map_structure(
      lambda leaf: tf.gather(leaf, now['rows']), (examples, states)
    )
  return collections.OrderedDict(
    data=batches.ClientData(examples, now['indices'], now['mask']),
    state=states,
    seed=now['seed'],
  )


def _keep(states: Any, now: Mapping[str, tf.Tensor], new: Any) -> Any:
  """The states of all clients after a round."""
  if 'rows' not in now:
    return new
  return tree.map_structure(
    lambda leaf, own: tf.tensor_scatter_nd_update(
      leaf, now['rows'][:, tf.newaxis], own
    ),
    states,
    new,
  )


# How rounds follow from one another where they are one program: what is fixed
# are `Schedule.examples`, what is kept the clients' states.
PLAN = rounds.Plan(_clients, _keep)
