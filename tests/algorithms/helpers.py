"""Small federated problems for the tests of methods."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import aggregation
from algorithms import methods
from algorithms import process
from algorithms import registry
from algorithms import trainers
from base import errors
from tasks import task
from tasks.data import batches
from tasks.models import linear
from tasks.models import models
from tests import toys
from tff_runtimes import cohort
from tff_runtimes import native

MODEL = linear.LinearRegression(3)
# Of trainers that need the parts of a model, which a linear one does not have.
VECTOR_MODEL = toys.VectorModel()
# Of trainers that need classes, which are told from the same examples.
CLASS_MODEL = toys.SignModel()
SETS = ('evaluation',)
# The cohort runtime stacks clients of the same shapes.
RUNTIMES = ('cohort', 'unstacked', 'native')
# Numbers of examples of five clients.
SIZES = (9, 4, 5, 12, 7)
# One object for all methods, as programs are shared by methods that have the
# same aggregator.
MEAN = aggregation.mean()

# To optimize its graph takes longer than all that a small method does. The
# methods of `tests/experiments` and `tests/end_to_end` have theirs optimized.
tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})


@functools.cache
def _context(runtime: str) -> tff.framework.SyncContext:
  # As late as this, because a runtime takes a while to start.
  if runtime == 'native':
    return native.create_native_context(allow_exposed=True)
  return cohort.create_cohort_context(
    stack=False if runtime == 'unstacked' else None, trust_xla=True
  )


def use_runtime(runtime: str) -> contextlib.AbstractContextManager[None]:
  """Runs what is in its block on one of `RUNTIMES`."""
  return tff.framework.get_context_stack().install(_context(runtime))


def build_anew(
  name: str,
  model: models.Model = MODEL,
  aggregator: aggregation.Factory = MEAN,
  num_clients: int = len(SIZES),
  known_groups: int = 2,
  **values: Any,
) -> methods.Method:
  """Builds a method from its name and the settings that are not defaults."""
  settings = registry.make_settings(name, values)
  return registry.build(
    name, model, settings, aggregator, SETS, num_clients, known_groups
  )


build = functools.cache(build_anew)


@functools.cache
def model_for(name: str) -> models.Model:
  """Returns a model that a method, or a trainer, can learn."""
  for model in MODEL, VECTOR_MODEL:
    try:
      build(f'{registry.halves(name)[0]}+as_trained', model)
      return model
    except errors.UserError:  # It needs a model with several parts, or classes.
      continue
  return CLASS_MODEL


def small(name: str) -> dict[str, Any]:
  """Returns settings with which a method is quick to run."""
  trainer, personalizer = registry.entries(name)
  return {**trainer.small, **personalizer.small}


def make_batches(
  examples: Mapping[str, np.ndarray], batch_size: int = 4
) -> batches.ClientData:
  """Puts examples into batches, in their order."""
  num_examples = len(next(iter(examples.values())))
  indices, mask = batches.index_batches(num_examples, batch_size)
  return batches.ClientData(collections.OrderedDict(examples), indices, mask)


def data(
  seed: int, num_examples: int, batch_size: int = 4
) -> batches.ClientData:
  """Makes a client's data: a linear function of its own, with noise."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[num_examples, 3]).astype(np.float32)
  noise = 0.1 * rng.normal(size=num_examples)
  y = (x @ rng.normal(size=3) + noise).astype(np.float32)
  return make_batches({'x': x, 'y': y}, batch_size)


def all_data(
  sizes: Sequence[int] = SIZES, batch_size: int = 4
) -> list[batches.ClientData]:
  """Makes the data of several clients."""
  return [data(k, size, batch_size) for k, size in enumerate(sizes)]


def padded(
  client_data: batches.ClientData,
  rows: int = 16,
  places: int = 6,
  steps: int = 4,
) -> batches.ClientData:
  """Pads data in every way, up to the same sizes for all clients."""

  def pad(leaf: np.ndarray, *sizes: int) -> np.ndarray:
    to = [*sizes, *leaf.shape[len(sizes) :]]
    return np.pad(leaf, [(0, t - now) for now, t in zip(leaf.shape, to)])

  return batches.ClientData(
    collections.OrderedDict(
      (name, pad(leaf, rows)) for name, leaf in client_data.examples.items()
    ),
    indices=pad(client_data.indices, steps, places),
    mask=pad(client_data.mask, steps, places),
  )


def corrupt(
  client_data: batches.ClientData, value: float
) -> batches.ClientData:
  """Copies data, with a value that is not finite among the first features."""
  x = client_data.examples['x'].copy()
  x[0] = value
  return client_data._replace(
    examples=collections.OrderedDict(client_data.examples, x=x)
  )


def make_clients(
  method: methods.Method,
  data_of_clients: Sequence[batches.ClientData] | None = None,
  attributes: Iterable[Mapping[str, int]] | None = None,
) -> list[trainers.Client]:
  """Makes the clients of a first round, by default five of them.

  By default their attributes are 0 and 1 in turns, and their size is that of
  their data.
  """
  if data_of_clients is None:
    data_of_clients = all_data()
  if attributes is None:
    names = [name for name in method.needs if name != task.SIZE]
    turns = [dict.fromkeys(names, k) for k in range(2)]
    attributes = itertools.cycle(turns)

  def add_size(
    known: Mapping[str, int], client_data: batches.ClientData
  ) -> Mapping[str, int]:
    if task.SIZE not in method.needs or task.SIZE in known:
      return known
    used = client_data.indices[client_data.mask > 0]
    return {**known, task.SIZE: len(np.unique(used))}

  return [
    trainers.Client(
      data=client_data,
      state=method.initialize_client(np.array([0, k], np.int32)),
      seed=np.array([1, k], np.int32),
      attributes=collections.OrderedDict(add_size(known, client_data)),
    )
    for k, (client_data, known) in enumerate(zip(data_of_clients, attributes))
  ]


def hold_out(
  clients: Sequence[trainers.Client],
) -> list[process.EvaluatedClient]:
  """Personalizes clients to their data, with evaluation sets of 6 examples."""
  return [
    process.EvaluatedClient(
      personalization=client.data,
      evaluation=collections.OrderedDict(evaluation=data(k + 100, 6)),
      state=client.state,
      seed=client.seed,
      attributes=client.attributes,
    )
    for k, client in enumerate(clients)
  ]


def make_held_out(
  method: methods.Method,
  data_of_clients: Sequence[batches.ClientData] | None = None,
) -> list[process.EvaluatedClient]:
  """Makes held-out clients that were never trained."""
  return hold_out(make_clients(method, data_of_clients))


class AfterRounds(NamedTuple):
  """The state of the server and the clients after some rounds.

  Attributes:
    state: The server's state.
    clients: The clients, with their states.
    metrics: The training metrics of the last round; None after no round.
  """

  state: Any
  clients: list[trainers.Client]
  metrics: Any


def run(
  method: methods.Method,
  rounds: int = 3,
  clients: Sequence[trainers.Client] | None = None,
  state: Any = None,
) -> AfterRounds:
  """Runs rounds of all clients.

  Args:
    method: The method.
    rounds: The number of rounds.
    clients: The clients before the first round; by default five new ones.
    state: The server's state before the first round; by default the initial
      one.

  Returns:
    What there is after the rounds.
  """
  state, metrics = state or method.initial_state([0, 1]), None
  clients = list(make_clients(method) if clients is None else clients)
  for _ in range(rounds):
    state, client_states, metrics = method.next(
      state, clients, *method.constants
    )
    clients = [
      client._replace(state=client_state)
      for client, client_state in zip(clients, client_states)
    ]
  return AfterRounds(state, clients, metrics)


def replace_server(state: Any, **fields: Any) -> Any:
  """Returns a state in which fields of the trainer's S are others."""
  return state._replace(server=state.server._replace(**fields))


def weights(vector: Sequence[float]) -> models.Weights:
  """Makes the weights of `MODEL` from a kernel and a bias in one vector."""
  *kernel, bias = np.float32(vector)
  return collections.OrderedDict(kernel=np.array(kernel), bias=np.array(bias))


def vector(weights: models.Weights) -> np.ndarray:
  """Returns the kernel and the bias of `MODEL` in one vector."""
  return np.append(weights['kernel'], weights['bias'])


def features(client_data: batches.ClientData) -> np.ndarray:
  """Returns the features of all examples, with a 1 for the bias."""
  return np.insert(client_data.examples['x'], 3, 1, axis=1)


def total_error(client_data: batches.ClientData, vector: np.ndarray) -> float:
  """Sums half the squared errors of all examples."""
  return 0.5 * np.sum(
    (features(client_data) @ vector - client_data.examples['y']) ** 2
  )


def quadratic(client_data: batches.ClientData) -> tuple[np.ndarray, np.ndarray]:
  """Returns A and b of the mean loss 1/2 w.A w - b.w + c of all examples."""
  x = features(client_data).astype(np.float64)
  return x.T @ x / len(x), x.T @ client_data.examples['y'] / len(x)


def batch_gradients(
  client_data: batches.ClientData,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns A and b of each batch: the gradient of its mean loss is A w - b."""
  return [
    quadratic(
      client_data._replace(
        examples={
          name: leaf[indices[mask > 0]]
          for name, leaf in client_data.examples.items()
        }
      )
    )
    for indices, mask in zip(client_data.indices, client_data.mask)
  ]


class NumpyAdam:
  """Kingma and Ba 2015, with the correction of the moments' bias."""

  def __init__(
    self,
    learning_rate: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
  ):
    self._learning_rate = learning_rate
    self._beta_1, self._beta_2 = beta_1, beta_2
    self._epsilon = epsilon
    self._m: Any = 0.0
    self._v: Any = 0.0
    self._t = 0

  def __call__(self, gradient: np.ndarray) -> np.ndarray:
    """Returns what to subtract from the weights."""
    self._t += 1
    self._m = self._beta_1 * self._m + (1 - self._beta_1) * gradient
    self._v = self._beta_2 * self._v + (1 - self._beta_2) * gradient**2
    rate = self._learning_rate * np.sqrt(1 - self._beta_2**self._t)
    rate /= 1 - self._beta_1**self._t
    return rate * self._m / (np.sqrt(self._v) + self._epsilon)


def assert_close(first: Any, second: Any, **tolerance: float) -> None:
  """Asserts that two structures are equal up to rounding."""
  tree.map_structure(
    lambda a, b: np.testing.assert_allclose(
      a, b, **(dict(rtol=1e-4, atol=1e-6) | tolerance)
    ),
    first,
    second,
  )


def assert_equal(first: Any, second: Any) -> None:
  """Asserts that two structures are equal to the last bit."""
  tree.map_structure(np.testing.assert_array_equal, first, second)
