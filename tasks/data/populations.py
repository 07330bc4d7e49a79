"""Populations of clients, each with named sets of examples."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TypedDict

import numpy as np

# A mapping from a feature's name to an array whose first axis is the examples.
Examples = Mapping[str, np.ndarray]
# Loads the examples of a client, given its id.
Load = Callable[[str], Examples]


@dataclasses.dataclass(frozen=True)
class Population:
  """Clients and the examples that each of them has.

  Attributes:
    client_ids: The names of the clients.
    sets: For each named set of a client ('train'; or 'personalization' and
      'evaluation'; …) a function from the client's id to its examples in it.
      It may be called from any thread.
    sizes: For each set, each client's number of examples. If it is None, all
      clients are loaded before the first round to count them.
    pad_to: For some sets, a number of examples that no client exceeds with any
      seed. Padded to it, runs with all seeds share compiled programs.
  """

  client_ids: Sequence[str]
  sets: Mapping[str, Load]
  sizes: Mapping[str, np.ndarray] | None = None
  pad_to: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def count_examples(self) -> Mapping[str, np.ndarray]:
    """Counts each client's examples in each set, `[clients]`."""
    if self.sizes is not None:
      return self.sizes
    counts = [
      [num_examples(load(client_id)) for load in self.sets.values()]
      for client_id in self.client_ids
    ]
    by_set = np.array(counts, np.int64).reshape(-1, len(self.sets)).T
    return dict(zip(self.sets, by_set))


class Populations(TypedDict):
  """The populations of a task, see `tasks.task`."""

  train: Population
  validation: Population
  test: Population
  cross_silo: bool


def num_examples(examples: Examples) -> int:
  """Counts examples."""
  return len(next(iter(examples.values())))


def take(examples: Examples, rows: slice | np.ndarray) -> Examples:
  """Takes some examples, in the order of `rows`."""
  return {name: values[rows] for name, values in examples.items()}


def halves(load: Load) -> Mapping[str, Load]:
  """Makes the two sets of held-out clients.

  Args:
    load: Loads all examples of a client, in the same order at every call.

  Returns:
    'personalization', the first floor(n / 2) examples of a client, and
    'evaluation', the others.
  """

  def part(half: Callable[[int], slice]) -> Load:
    def load_part(client_id: str) -> Examples:
      examples = load(client_id)
      return take(examples, half(num_examples(examples) // 2))

    return load_part

  return {
    'personalization': part(lambda middle: slice(middle)),
    'evaluation': part(lambda middle: slice(middle, None)),
  }


def half_sizes(sizes: np.ndarray) -> Mapping[str, np.ndarray]:
  """Returns the sizes of the sets of `halves`, given clients' sizes."""
  return {'personalization': sizes // 2, 'evaluation': sizes - sizes // 2}
