"""Small federated problems for the tests of methods."""

import collections

import numpy as np
import tensorflow_federated as tff

from runtimes import cohort
from runtimes import native
from tasks.data import batches
from tasks.models import linear

MODEL = linear.LinearRegression(3)
SETS = ('evaluation',)
_contexts = {}


def use(runtime):
  """Runs what follows on a runtime."""
  if not _contexts:
    _contexts['native'] = native.create_native_context()
    _contexts['cohort'] = cohort.create_cohort_context()
  tff.framework.set_default_context(_contexts[runtime])


def mean():
  return tff.aggregators.MeanFactory(no_nan_division=True)


def data(seed, num_examples, batch_size=4):
  """A client's data: a linear function of its own, with noise."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[num_examples, 3]).astype(np.float32)
  noise = 0.1 * rng.normal(size=num_examples)
  y = (x @ rng.normal(size=3) + noise).astype(np.float32)
  indices, weights = batches.index_batches(num_examples, batch_size)
  return batches.ClientData(
    examples=collections.OrderedDict(x=x, y=y),
    indices=indices,
    mask=weights,
  )


def padded(own, rows=16, places=6, steps=4):
  """The same data with padding of every kind, up to the same sizes for all."""

  def pad(leaf, *sizes):
    sizes = [*sizes, *leaf.shape[len(sizes) :]]
    return np.pad(leaf, [(0, to - now) for now, to in zip(leaf.shape, sizes)])

  return batches.ClientData(
    examples=collections.OrderedDict(
      (name, pad(leaf, rows)) for name, leaf in own.examples.items()
    ),
    indices=pad(own.indices, steps, places),
    mask=pad(own.mask, steps, places),
  )


SIZES = (9, 4, 5, 12, 7)


def train_clients(algorithm, all_data=None):
  """What clients bring to a round."""
  all_data = all_data or [data(k, n) for k, n in enumerate(SIZES)]
  return [
    collections.OrderedDict(
      data=own,
      state=algorithm.initialize_client(np.array([0, k], np.int32)),
      seed=np.array([1, k], np.int32),
    )
    for k, own in enumerate(all_data)
  ]


def held_out_clients(algorithm, all_data=None):
  """What clients bring to their personalization."""
  all_data = all_data or [data(k, n) for k, n in enumerate(SIZES)]
  return [
    collections.OrderedDict(
      state=algorithm.initialize_client(np.array([0, k], np.int32)),
      personalization=own,
      evaluation=collections.OrderedDict(evaluation=data(k + 100, 6)),
      seed=np.array([1, k], np.int32),
    )
    for k, own in enumerate(all_data)
  ]


def run(algorithm, rounds=3, all_data=None, clients=None, state=None):
  """The server's state and the metrics after some rounds.

  Args:
    algorithm: The method.
    rounds: The number of rounds.
    all_data: The data of each client, if not those of `SIZES`.
    clients: What the clients bring to the first round, if it is not new; they
      are given their states after the last one.
    state: The server's state before the first round, if it is not new.

  Returns:
    The state and the metrics of the last round.
  """
  state, metrics = state or algorithm.initial_state([0, 1]), None
  clients = clients or train_clients(algorithm, all_data)
  for _ in range(rounds):
    state, client_states, metrics = algorithm.next(state, clients)
    for client, own in zip(clients, client_states):
      client['state'] = own
  return state, metrics
