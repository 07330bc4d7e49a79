"""Schedules rounds: their clients, and the clients' batches and seeds."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf
import tree

from algorithms import methods
from algorithms import trainers
from base import aliases
from base import errors
from base import seeds
from base import settings
from base import words
from personalization.rounds import cohorts
from tasks import task as tasks
from tasks.data import batches
from tff_runtimes import rounds

# The largest number of rounds in one program.
_MOST_ROUNDS = 50
# Rounds are one program only if all clients' examples take at most these bytes.
_MOST_BYTES = 2**30

SAMPLING = ('fixed_size', 'poisson', 'cyclic_poisson', 'passes', 'cycles')


@dataclasses.dataclass(frozen=True)
class TrainingSettings(settings.Settings):
  """The settings of trainings: their rounds, clients and batches."""

  total_rounds: int = settings.field(
    100, 'The number of rounds.', minimum=0, maximum=10_000_000
  )
  total_epochs: int = settings.field(
    0,
    'The number of passes over the clients, each with as many rounds as there'
    ' are cohorts; 0 for total_rounds.',
    minimum=0,
  )
  clients_per_round: int = settings.field(
    10, 'The number of clients in a round; 0 for all.', minimum=0
  )
  client_sampling: str = settings.field(
    'fixed_size',
    'How the clients of a round are sampled: clients_per_round of all'
    ' (fixed_size), each independently with the same probability (poisson;'
    ' clients_per_round on average), the same among parts of the clients that'
    ' take turns (cyclic_poisson), or in passes over all clients, in a new'
    ' order each time (passes) or always the same (cycles).',
    choices=SAMPLING,
  )
  client_parts: int = settings.field(
    0,
    'The number of parts of the clients that take turns with cyclic_poisson; 0'
    ' for the root of the number of rounds of a pass.',
    minimum=0,
  )
  batch_size: int = settings.field(
    0, "The number of examples in a batch; 0 for the task's.", minimum=0
  )
  client_epochs: int = settings.field(
    1, 'The passes of a client over its examples in a round.', minimum=1
  )
  client_steps: int = settings.field(
    0,
    'The number of batches of a client in a round, all of them full, however'
    ' many examples it has; 0 for client_epochs.',
    minimum=0,
  )
  drop_partial_batches: bool = settings.field(
    False, 'Whether to leave out a last batch that is not full.'
  )
  poisson_batches: bool = settings.field(
    False,
    'Whether each batch samples each example independently, with batch_size'
    ' examples on average, instead of being a part of a shuffled pass.',
  )
  rounds_per_checkpoint: int = settings.field(
    50,
    'The number of rounds between checkpoints.',
    minimum=1,
    maximum=10_000_000,
  )
  rounds_per_evaluation: int = settings.field(
    0,
    'The number of rounds between evaluations of the validation clients,'
    ' personalized by the method; 0 to evaluate only after the last round.',
    minimum=0,
  )
  seed: int = settings.field(
    0, 'The seed of all random numbers.', minimum=0, maximum=2**31 - 1
  )


def count_parts(training_settings: TrainingSettings, num_clients: int) -> int:
  """Counts the parts of clients that take turns, see `sample`.

  Raises:
    UserError: If a part would have too few clients for a round.
  """
  if training_settings.client_sampling != 'cyclic_poisson':
    return 1
  size = training_settings.clients_per_round
  parts = training_settings.client_parts or round((num_clients / size) ** 0.5)
  if parts * size > num_clients:
    raise errors.UserError(
      f'client_parts is {parts}, but {num_clients} clients cannot be divided'
      f' into so many parts of {size} or more, the clients_per_round.'
    )
  return parts


def sample(
  training_settings: TrainingSettings,
  num_clients: int,
  round_num: int,
  stream: Sequence[int | str] = (),
) -> np.ndarray:
  """Draws the clients that take part in a round, and returns their rows.

  Args:
    training_settings: How to train.
    num_clients: The number of clients to draw from.
    round_num: The round, from 1.
    stream: The key that is drawn by, see `streams`; by default the seed.
  """
  stream = stream or (training_settings.seed,)
  if not 0 < training_settings.clients_per_round < num_clients:
    return np.arange(num_clients)
  size = training_settings.clients_per_round
  if training_settings.client_sampling in ('passes', 'cycles'):
    # The last round of a pass may have fewer.
    number, turn = divmod(round_num - 1, -(-num_clients // size))
    if training_settings.client_sampling == 'cycles':
      number = 0
    # No guarantee rests on the order of a pass.
    rng = seeds.generator('pass', training_settings.seed, number)
    order = rng.permutation(num_clients)
    return order[turn * size :][:size]
  rng = seeds.generator('cohort', *stream, round_num)
  if training_settings.client_sampling == 'poisson':
    return np.flatnonzero(rng.random(num_clients) < size / num_clients)
  if training_settings.client_sampling == 'cyclic_poisson':
    parts = count_parts(training_settings, num_clients)
    # Nor does any guarantee rest on who is in which part.
    shuffle = seeds.generator('parts', training_settings.seed)
    part = shuffle.permutation(num_clients)[(round_num - 1) % parts :: parts]
    return np.sort(part[rng.random(len(part)) < size * parts / num_clients])
  return rng.choice(num_clients, size, replace=False)


class Schedule:
  """The rounds of a training; trainings of several methods may share it.

  Where cohorts are drawn from clients of the same group, the groups take turns
  within an epoch, a pass over all clients. Each group has the same rounds that
  it would have without the other groups.

  Attributes:
    clients: The clients that take part.
    batch_size: The number of examples in a batch.
    rounds_at_once: The number of rounds that `make_rounds` makes.
    several: Makes `rounds_at_once` rounds from a first one on, stacked, in the
      form that `PLAN` takes. Recent results are cached.
  """

  def __init__(
    self,
    task: tasks.Task,
    training_settings: TrainingSettings,
    num_kept: int = 1,
    attribute: str | None = None,
    stream: Sequence[int | str] = (),
  ):
    """Makes a schedule.

    Args:
      task: The task.
      training_settings: How to train.
      num_kept: Number of recent results of `make_rounds` to cache.
      attribute: The attribute with each client's group; None for one group.
      stream: The key that it draws by, see `streams`; by default the seed.

    Raises:
      UserError: If the settings do not fit the task.
    """
    self.clients = cohorts.Cohorts(task.train, task.padded)
    if not len(self.clients):
      raise errors.UserError(
        f'{task.name} has no clients with examples to train on. Change its'
        ' settings.'
      )
    per_round = training_settings.clients_per_round
    if per_round > len(self.clients):
      raise errors.UserError(
        f'clients_per_round is {per_round}, but {task.name} has'
        f' {words.count(len(self.clients), "clients")} with examples to train'
        ' on.'
      )
    self._settings = training_settings
    self._stream = tuple(stream) or (training_settings.seed,)
    self._attributes = task.attributes
    self.batch_size = training_settings.batch_size or task.batch_size
    groups = np.zeros(len(self.clients), np.int32)
    if attribute is not None:
      groups = self._attributes[attribute].gather(self.clients.client_ids)
    self._members = {g: np.flatnonzero(groups == g) for g in np.unique(groups)}
    self._turns = [
      (group, turn)
      for group, turns in self.rounds_per_epoch.items()
      for turn in range(turns)
    ]
    self.rounds_at_once = min(
      training_settings.rounds_per_checkpoint, _MOST_ROUNDS
    )
    self.make_rounds = functools.lru_cache(num_kept)(self._make_rounds)

  @property
  def group_sizes(self) -> dict[int, int]:
    """The number of clients of each group."""
    return {group: len(members) for group, members in self._members.items()}

  @property
  def rounds_per_epoch(self) -> dict[int, int]:
    """The number of rounds of each group in an epoch."""
    return {
      group: -(-size // (self._settings.clients_per_round or size))
      for group, size in self.group_sizes.items()
    }

  def num_rounds(
    self, training_settings: TrainingSettings, epochs: int | None
  ) -> int:
    """Counts the rounds of a training; `epochs` is None for the run's."""
    if epochs is None and not training_settings.total_epochs:
      return training_settings.total_rounds
    return len(self._turns) * (
      training_settings.total_epochs if epochs is None else epochs
    )

  def _sample(self, round_num: int) -> tuple[np.ndarray, int]:
    """Draws the clients of a round; also returns its number in its group."""
    epoch, place = divmod(round_num - 1, len(self._turns))
    group, turn = self._turns[place]
    own_round = epoch * self.rounds_per_epoch[group] + turn + 1
    members = self._members[group]
    drawn = sample(self._settings, len(members), own_round, self._stream)
    return members[drawn], own_round

  def _seeds(self, round_num: int, size: int) -> np.ndarray:
    rng = seeds.generator('client', *self._stream, round_num)
    return seeds.pairs(rng, size)

  def _batching(self, round_num: int) -> cohorts.Batching:
    # No guarantee rests on the order of batches that are not Poisson samples.
    is_chance = self._settings.poisson_batches
    stream = self._stream if is_chance else (self._settings.seed,)
    return cohorts.Batching(
      self.batch_size,
      shuffle=('batches', *stream, round_num),
      drop_partial=self._settings.drop_partial_batches,
      epochs=self._settings.client_epochs,
      num_steps=self._settings.client_steps,
      poisson=self._settings.poisson_batches,
    )

  def make_round(
    self, round_num: int
  ) -> tuple[np.ndarray, cohorts.Data, np.ndarray]:
    """Returns the rows of a round's clients, their data and their seeds."""
    rows, own_round = self._sample(round_num)
    return (
      rows,
      self.clients.data('train', rows, self._batching(own_round))
      if len(rows)
      else [],
      self._seeds(own_round, len(rows)),
    )

  def attributes(
    self, method: methods.Method, rows: np.ndarray
  ) -> Mapping[str, np.ndarray]:
    """Returns the attributes that a method needs of clients, stacked."""
    return self.clients.attributes(
      {**self._attributes, **method.attributes},
      method.trainer.attributes,
      rows,
    )

  @functools.cached_property
  def _is_stacked(self) -> bool:
    """Whether all clients' examples are few enough to be stacked."""
    rows = len(self.clients) * self.clients.pad_to['train']
    return rows * self.clients.example_bytes('train') <= _MOST_BYTES

  @functools.cached_property
  def examples(self) -> Mapping[str, tf.Tensor] | None:
    """All clients' examples, in the form that `PLAN` takes.

    They are stacked or, where padding to the largest client would take too much
    memory, concatenated. None if the clients of a cohort are not padded, if the
    concatenation is too large as well, or if cohorts of groups differ in size.
    """
    most = self._settings.clients_per_round or len(self.clients)
    sizes = {min(most, len(members)) for members in self._members.values()}
    if not self.clients.padded or (len(sizes) > 1 and not self._sizes_vary):
      return None
    if self._is_stacked:
      return self.clients.examples('train', np.arange(len(self.clients)))
    rows, own_round = self._sample(1)
    indices, _ = self.clients.batch_indices(
      'train', rows, self._batching(own_round)
    )
    of_round, _ = self._find_examples(rows, indices)
    most = max(self.clients.sizes['train'].sum(), of_round.size)
    if most * self.clients.example_bytes('train') > _MOST_BYTES:
      return None
    return self.clients.concatenate('train')

  def _make_rounds(self, first_round: int) -> Mapping[str, tf.Tensor]:
    size = len(self.clients)
    numbers = range(first_round, first_round + self.rounds_at_once)
    samples = [self._sample(round_num) for round_num in numbers]
    per_round = []
    for rows, own_round in samples:
      indices, mask = self.clients.batch_indices(
        'train', rows, self._batching(own_round)
      )
      now = {'mask': mask, 'seed': self._seeds(own_round, len(rows))}
      if not self._is_stacked:
        now['examples'], indices = self._find_examples(rows, indices)
      now['indices'] = indices
      per_round.append(now if len(rows) == size else now | {'rows': rows})
    if self._sizes_vary:
      per_round = self._pad([rows for rows, _ in samples], per_round)
    return tree.map_structure(
      lambda *leaves: tf.constant(np.stack(leaves)), *per_round
    )

  @functools.cached_property
  def _sizes_vary(self) -> bool:
    """Whether cohorts may differ in size because of how they are drawn."""
    drawn = 0 < self._settings.clients_per_round < len(self.clients)
    return drawn and self._settings.client_sampling != 'fixed_size'

  def _pad(
    self,
    cohorts_rows: Sequence[np.ndarray],
    per_round: Sequence[Mapping[str, np.ndarray]],
  ) -> list[dict[str, np.ndarray]]:
    """Pads cohorts to one size, so that all rounds have the same shapes.

    Each is padded with other clients, as each row may be written to only once;
    'size' is the number of clients that take part.
    """
    size, expected = len(self.clients), self._settings.clients_per_round
    # More are hardly ever drawn. If they are, another program is compiled.
    usual = min(size, expected + math.ceil(5 * math.sqrt(expected)))
    pad_to = max([usual, *map(len, cohorts_rows)])
    padded = []
    for rows, now in zip(cohorts_rows, per_round):
      others = np.setdiff1d(np.arange(size), rows)[: pad_to - len(rows)]
      now = {
        name: np.pad(leaf, [(0, len(others))] + [(0, 0)] * (np.ndim(leaf) - 1))
        for name, leaf in now.items()
      }
      all_rows = np.concatenate([rows, others])
      padded.append(now | {'rows': all_rows, 'size': np.int32(len(rows))})
    return padded

  def _find_examples(
    self, rows: np.ndarray, indices: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Finds the examples that clients need in the concatenation of all.

    Args:
      rows: The clients.
      indices: Their batches, as indices of their own examples.

    Returns:
      The places of the examples, `[clients, examples]` int32, and the batches
      as indices of these places.
    """
    sizes = self.clients.sizes['train']
    if indices[0].size < sizes.max():
      used, indices = batches.list_used(indices)
    else:
      # Places beyond a client's last example are padding, of any value.
      used = np.minimum(np.arange(sizes.max()), sizes[rows, np.newaxis] - 1)
    first = (np.cumsum(sizes) - sizes)[rows, np.newaxis]
    return (first + used).astype(np.int32), indices


def _clients(
  fixed: tuple[aliases.Structure, Mapping[str, tf.Tensor]],
  states: aliases.ClientState,
  now: Mapping[str, tf.Tensor],
) -> trainers.Client:
  """Makes the clients of a round.

  Args:
    fixed: The examples and the attributes of all clients.
    states: The states of all clients.
    now: A round of `Schedule.make_rounds`.
  """
  examples, attributes = fixed

  def take(values: aliases.Structure, rows: tf.Tensor) -> aliases.Structure:
    return tree.map_structure(lambda leaf: tf.gather(leaf, rows), values)

  if 'rows' in now:
    attributes, states = take((attributes, states), now['rows'])
  if 'examples' in now:
    examples = take(examples, now['examples'])
  elif 'rows' in now:
    examples = take(examples, now['rows'])
  data = batches.ClientData(examples, now['indices'], now['mask'])
  return trainers.Client(data, states, now['seed'], attributes)


def _keep(
  states: aliases.ClientState,
  now: Mapping[str, tf.Tensor],
  new: aliases.ClientState,
) -> aliases.ClientState:
  """Returns the states of all clients after a round."""
  if 'rows' not in now:
    return new
  if 'size' in now:
    # The other clients did not take part.
    takes_part = tf.range(tf.size(now['rows'])) < now['size']

    def choose(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
      is_new = tf.reshape(takes_part, [-1] + [1] * (after.shape.rank - 1))
      return tf.where(is_new, after, tf.gather(before, now['rows']))

    new = tree.map_structure(choose, states, new)
  return tree.map_structure(
    lambda before, after: tf.tensor_scatter_nd_update(
      before, now['rows'][:, tf.newaxis], after
    ),
    states,
    new,
  )


# Makes several rounds one program. The examples and attributes of all clients
# are the same in all rounds; the states of all clients are kept between rounds.
PLAN = rounds.Plan(_clients, _keep, lambda now: now.get('size'))
