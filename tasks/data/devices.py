"""Cross-device tasks: some clients are held out, and their examples halved.

`silos` is its counterpart for cross-silo tasks.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from base import errors
from base import seeds
from base import settings
from base import words
from tasks.data import populations


@dataclasses.dataclass(frozen=True)
class HeldOutSettings(settings.Settings):
  """The settings of a task that holds out some of its clients."""

  num_validation_clients: int | None = settings.field(
    None,
    'The number of validation clients; none for the same share of all clients'
    " as in Motley, which gives Motley's number on its database.",
    minimum=1,
  )
  num_test_clients: int | None = settings.field(
    None,
    'The number of test clients; none for the same share as in Motley.',
    minimum=1,
  )
  split_seed: int = settings.field(
    13,
    'The seed of the split into training, validation and test clients, which'
    ' does not depend on the seed of the run. 13 gives the split of Motley.',
    minimum=0,
    maximum=2**32 - 1,
  )

  def permuted(self, client_ids: Sequence[str]) -> list[str]:
    """Puts the clients into the order in which they are split."""
    # Motley uses NumPy's old generator.
    rng = np.random.RandomState(self.split_seed)
    return rng.permutation(client_ids).tolist()

  def split(
    self, client_ids: Sequence[str], validation: float, test: float
  ) -> tuple[list[str], list[str], list[str]]:
    """Splits clients into populations.

    Args:
      client_ids: The clients, in the order of `permuted`.
      validation: The share of validation clients, if no number is set.
      test: The share of test clients, if no number is set.

    Returns:
      The validation clients, the test clients, and the rest.

    Raises:
      UserError: If there are too few clients.
    """
    available = len(client_ids)
    first = self.num_validation_clients or max(1, round(available * validation))
    second = self.num_test_clients or min(
      max(1, round(available * test)), available - first
    )
    if second < 1 or first + second > available:
      raise errors.UserError(
        f'num_validation_clients is {first} and num_test_clients {second}, but'
        f' the data have {words.count(available, "clients")} in all. Set'
        ' smaller numbers.'
      )
    ends = first, first + second
    return (
      list(client_ids[: ends[0]]),
      list(client_ids[ends[0] : ends[1]]),
      list(client_ids[ends[1] :]),
    )


@dataclasses.dataclass(frozen=True)
class Devices:
  """Some clients and how to load them.

  Attributes:
    client_ids: The names of the clients.
    load: Returns the examples of a client, given its id and a limit: the first
      `limit` of them, or all if it is None. They have the same order at every
      call. It may be called from any thread.
    sizes: Each client's number of examples, `[clients]`.
  """

  client_ids: Sequence[str]
  load: Callable[[str, int | None], populations.Examples]
  sizes: np.ndarray


def make_populations(
  *,
  train: Devices,
  validation: Devices,
  test: Devices,
  max_train_examples: int | None = None,
  max_held_out_examples: int | None = None,
  shuffle_key: tuple[int | str, ...] | None = None,
) -> populations.Populations:
  """Makes the populations of a cross-device task.

  Args:
    train: The clients to train on.
    validation: The validation clients.
    test: The test clients.
    max_train_examples: The largest number of examples to take from a client to
      train on; None for all.
    max_held_out_examples: The same for a held-out client.
    shuffle_key: Held-out clients adapt to the first half of their examples and
      are evaluated on the second. With this key of `base.seeds`, their examples
      are shuffled before, in the same way at every call.

  Returns:
    The populations.
  """

  def held_out(clients: Devices) -> populations.Population:
    def load(client_id: str) -> populations.Examples:
      examples = clients.load(client_id, max_held_out_examples)
      if shuffle_key is None:
        return examples
      rng = seeds.generator(*shuffle_key, client_id)
      size = populations.num_examples(examples)
      return populations.take(examples, rng.permutation(size))

    sizes = _limit_sizes(max_held_out_examples, clients.sizes)
    return populations.Population(
      clients.client_ids,
      populations.halves(load),
      populations.half_sizes(sizes),
    )

  return populations.Populations(
    train=populations.Population(
      train.client_ids,
      {'train': lambda client_id: train.load(client_id, max_train_examples)},
      {'train': _limit_sizes(max_train_examples, train.sizes)},
    ),
    validation=held_out(validation),
    test=held_out(test),
    cross_silo=False,
  )


def _limit_sizes(limit: int | None, sizes: np.ndarray) -> np.ndarray:
  return sizes if limit is None else np.minimum(sizes, limit)
