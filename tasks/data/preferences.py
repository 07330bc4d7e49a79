"""Users who like one type of examples: labels differ from user to user.

As in FedEmbed (Silva et al. 2022), section 4. Half of the examples of a user of
type k are of type k, with label 1; the others, with label 0, have types that
are uniform among the other types. No user has an example twice.

The first users have the types 0, 1, …, so that each type has a user; the types
of the other users follow from the shares of the types.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools

import numpy as np

from base import errors
from base import seeds
from base import settings
from tasks import task
from tasks.data import populations
from tasks.data import silos
from tasks.models import preference

# The number of a user's examples of each label, in each part.
_SIZES = {'train': 10, 'test': 5, 'validation': 5}

# A user's examples of each part, as rows of the data.
Split = Mapping[str, np.ndarray]
# The rows from which parts of a user's examples are drawn. Parts from the same
# source share no example within a user.
Sources = Mapping[tuple[str, ...], np.ndarray]


@dataclasses.dataclass(frozen=True)
class PreferenceSettings(silos.SplitSettings):
  """The settings of a task of preferences."""

  users: int = settings.field(900, 'The number of users.', minimum=1)
  balanced: bool = settings.field(
    True,
    'Whether all types are liked by the same number of users; if not, some are'
    ' liked by far more users than others.',
  )
  reuse: bool = settings.field(
    True,
    'Whether several users may have the same example to train on.',
  )
  hold_out: str = settings.field(
    'examples',
    'Whether examples of each user are held out, or users: validation and test'
    ' users, beside those to train on.',
    choices=('examples', 'clients'),
  )
  held_out_users: int = settings.field(
    100,
    'The number of validation users, and of test users, if users are held out.',
    minimum=1,
  )
  activation: str = settings.field(
    'none',
    'The activation after the normalizations in the encoder; the paper has'
    ' none.',
    choices=preference.ACTIVATIONS,
  )


def types_of_users(
  shares: Sequence[float], num_users: int, rng: np.random.Generator
) -> np.ndarray:
  """Assigns types to users.

  Args:
    shares: The share of the users that like each type.
    num_users: The number of users.
    rng: Draws the order of the users after the first of each type.

  Returns:
    The type of each user, `[users]`. Each type has its share of the users,
    rounded such that the numbers add up, and at least one.

  Raises:
    UserError: If there are fewer users than types.
  """
  num_types = len(shares)
  if num_users < num_types:
    raise errors.UserError(
      f'users is {num_users}, but there are {num_types} types, each of which'
      ' somebody must like. Set a larger number.'
    )
  others = num_users - num_types
  wanted = np.maximum(np.array(shares) * num_users - 1, 0)
  # The largest remainders are rounded up. Rounded first, as .1 * 10 is not 1.
  wanted = np.round(wanted * (others / max(wanted.sum(), 1e-9)), 9)
  counts = wanted.astype(int)
  most = np.argsort(counts - wanted, kind='stable')
  counts[most[: others - counts.sum()]] += 1
  rest = rng.permutation(np.repeat(np.arange(num_types), counts))
  return np.concatenate([np.arange(num_types), rest])


class _Pool:
  """The examples from which users draw, by their type."""

  def __init__(
    self, rows: np.ndarray, types: np.ndarray, num_types: int, reuse: bool
  ):
    self._by_type = [rows[types[rows] == k] for k in range(num_types)]
    self._reuse = reuse

  def shuffle(self, rng: np.random.Generator) -> None:
    """Shuffles the examples of each type, if each is used once."""
    if not self._reuse:
      self._by_type = [rng.permutation(rows) for rows in self._by_type]

  def liked(self, k: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws `size` examples of type k."""
    rows = self._by_type[k]
    if len(rows) < size:
      raise errors.UserError(
        f'There are too few examples of type {k} for all users who like it.'
        ' Set fewer users, or task.reuse to true.'
      )
    if self._reuse:
      return rng.choice(rows, size, replace=False)
    self._by_type[k] = rows[size:]
    return rows[:size]

  def others(self, k: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws `size` examples of other types than k, each equally likely."""
    left = np.array([len(rows) for rows in self._by_type])
    left[k] = 0
    counts = np.zeros(len(left), int)
    for _ in range(size):
      # A type without examples left is no longer drawn.
      open_types = np.flatnonzero(counts < left)
      if not len(open_types):
        raise errors.UserError(
          'There are too few examples for all users. Set fewer users, or'
          ' task.reuse to true.'
        )
      counts[rng.choice(open_types)] += 1
    drawn = [self.liked(t, n, rng) for t, n in enumerate(counts) if n]
    return rng.permutation(np.concatenate(drawn))


def draw(
  users: Sequence[int],
  types: np.ndarray,
  sources: Sources,
  seed: int,
  reuse: bool,
  first: int = 0,
) -> Sequence[Split]:
  """Draws the examples of users.

  Args:
    users: The type that each user likes.
    types: The type of each example.
    sources: The rows from which parts of a user's examples are drawn.
    seed: The seed of the draw.
    reuse: Whether several users may have the same example to train on.
    first: The number of the first user.

  Returns:
    The examples of each user; those that the user likes come first.

  Raises:
    UserError: If there are too few examples.
  """
  num_types = int(types.max()) + 1
  splits: list[dict[str, np.ndarray]] = [{} for _ in users]
  for parts, rows in sources.items():
    pool = _Pool(rows, types, num_types, reuse or 'train' not in parts)
    pool.shuffle(seeds.generator('pool', seed, *parts))
    sizes = [_SIZES[part] for part in parts]
    ends = np.cumsum(sizes)[:-1]
    generators = [
      seeds.generator('preferences', seed, first + u, *parts)
      for u in range(len(users))
    ]
    # Liked examples are drawn first for all users, as they cannot be replaced.
    liked = [
      pool.liked(k, sum(sizes), rng) for k, rng in zip(users, generators)
    ]
    for split, liked_rows, k, rng in zip(splits, liked, users, generators):
      others = pool.others(k, sum(sizes), rng)
      both = zip(parts, np.split(liked_rows, ends), np.split(others, ends))
      split |= {part: np.concatenate(rows) for part, *rows in both}
  return splits


@dataclasses.dataclass(frozen=True)
class Data:
  """Examples of types that users may like.

  Attributes:
    take: Returns the features 'x' of some rows. It may be called from any
      thread.
    types: The type of each row.
    shares: The share of the users that like each type.
    sources: The rows for users to train on.
    held_out: The rows for held-out users.
  """

  take: Callable[[np.ndarray], np.ndarray]
  types: np.ndarray
  shares: Sequence[float]
  sources: Sources
  held_out: Sources

  def examples(self, rows: np.ndarray) -> populations.Examples:
    """Returns the examples of a part; the user likes the first half."""
    liked = np.arange(len(rows)) < len(rows) // 2
    return {
      'x': self.take(rows),
      'y': liked.astype(np.int32),
      'type': self.types[rows].astype(np.int32),
    }


def _sets(
  client_ids: Sequence[str], load: Callable[[str, str], populations.Examples]
) -> populations.Population:
  """Makes the population of held-out users."""
  parts = {'personalization': 'train', 'evaluation': 'test'}
  return populations.Population(
    client_ids,
    {
      name: functools.partial(lambda part, c: load(c, part), part)
      for name, part in parts.items()
    },
    {
      name: np.full(len(client_ids), 2 * _SIZES[part])
      for name, part in parts.items()
    },
  )


def make_task(
  name: str,
  preference_settings: PreferenceSettings,
  model: preference.PreferenceModel,
  data: Data,
  seed: int,
) -> task.Task:
  """Makes a task of preferences.

  Args:
    name: The name of the task.
    preference_settings: The settings.
    model: The model.
    data: The examples.
    seed: The seed of the run.

  Returns:
    The task. The type that a user likes is the user's group.
  """
  seed = preference_settings.seed(seed)
  rng = seeds.generator('types', seed)
  likes: dict[str, int] = {}
  splits: dict[str, Split] = {}

  def add(size: int, sources: Sources, reuse: bool) -> tuple[str, ...]:
    """Draws further users; returns their ids."""
    first = len(likes)
    ids = tuple(f'user_{u:05d}' for u in range(first, first + size))
    users = types_of_users(data.shares, size, rng).tolist()
    likes.update(zip(ids, users))
    drawn = draw(users, data.types, sources, seed, reuse, first)
    splits.update(zip(ids, drawn))
    return ids

  def load(client_id: str, part: str) -> populations.Examples:
    return data.examples(splits[client_id][part])

  made = silos.make_lazy_populations(
    add(preference_settings.users, data.sources, preference_settings.reuse),
    load,
    {
      part: np.full(preference_settings.users, 2 * size)
      for part, size in _SIZES.items()
    },
  )
  if preference_settings.hold_out == 'clients':
    held_out_users = preference_settings.held_out_users
    made['validation'] = _sets(add(held_out_users, data.held_out, True), load)
    made['test'] = _sets(add(held_out_users, data.held_out, True), load)
    made['cross_silo'] = False
  names = tuple(map(str, range(len(data.shares))))
  return task.Task(
    name=name,
    model=model,
    metric='macro_f1',
    higher_is_better=True,
    batch_size=2 * _SIZES['train'],
    padded=False,
    attributes={task.GROUP: task.Attribute(names, likes)},
    **made,
  )
