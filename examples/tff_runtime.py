"""Runs federated averaging, written in plain TFF, on both runtimes.

  ./bazelw run //examples:tff_runtime

The federated computation knows nothing of a runtime: it runs on that which is
TFF's default context. The program prints what a round takes on each of them and
that both end with the same weights.
"""

import collections
from collections.abc import Mapping, Sequence
import time

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import cohort
from tff_runtimes import native

_NUM_ROUNDS = flags.DEFINE_integer(
  'num_rounds', 20, 'Number of rounds to train.', lower_bound=2
)
_NUM_CLIENTS = flags.DEFINE_integer(
  'num_clients', 50, 'Number of clients in each round.', lower_bound=1
)
_NUM_STEPS = 5
_LEARNING_RATE = 0.05

# A linear model of 8 features, and the 40 examples of a client.
_WEIGHTS = tff.TensorType(np.float32, [8])
_EXAMPLES = tff.to_type(
  collections.OrderedDict(x=(np.float32, [40, 8]), y=(np.float32, [40]))
)


@tff.tensorflow.computation(_WEIGHTS, _EXAMPLES)
def _train_client(
  weights: tf.Tensor, examples: Mapping[str, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the weights after some steps of gradient descent, and the loss."""
  loss = tf.zeros([])
  for _ in range(_NUM_STEPS):
    errors = tf.linalg.matvec(examples['x'], weights) - examples['y']
    loss = tf.reduce_mean(errors**2)
    gradient = tf.linalg.matvec(examples['x'], errors, transpose_a=True) / 40
    weights -= _LEARNING_RATE * gradient
  return weights, loss


@tff.federated_computation(
  tff.FederatedType(_WEIGHTS, tff.SERVER),
  tff.FederatedType(_EXAMPLES, tff.CLIENTS),
)
def _next(
  weights: tff.Value, clients: tff.Value
) -> tuple[tff.Value, tff.Value]:
  """Returns the mean of the clients' weights and of their losses."""
  trained = tff.federated_map(
    _train_client, (tff.federated_broadcast(weights), clients)
  )
  return tff.federated_mean(trained[0]), tff.federated_mean(trained[1])


def _make_clients(num_clients: int) -> list[Mapping[str, np.ndarray]]:
  """Makes examples of a linear function with noise."""
  rng = np.random.default_rng(0)
  clients: list[Mapping[str, np.ndarray]] = []
  for _ in range(num_clients):
    x = rng.normal(size=[40, 8]).astype(np.float32)
    y = (x.sum(axis=1) + rng.normal(size=40)).astype(np.float32)
    clients.append(collections.OrderedDict(x=x, y=y))
  return clients


def train(
  context: tff.framework.SyncContext, num_rounds: int, num_clients: int
) -> tuple[np.ndarray, float, float]:
  """Trains on a runtime.

  Args:
    context: The runtime's context.
    num_rounds: The number of rounds.
    num_clients: The number of clients, which all take part in each round.

  Returns:
    The weights and the loss after the last round, and the median time of a
    round in seconds.
  """
  tff.framework.set_default_context(context)
  clients = _make_clients(num_clients)
  weights, loss = np.zeros(8, np.float32), float('nan')
  times = []
  for _ in range(num_rounds):
    start = time.perf_counter()
    weights, loss = _next(weights, clients)
    times.append(time.perf_counter() - start)
  return weights, loss, float(np.median(times))


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}')
  contexts = {
    'native': native.create_native_context(),
    'cohort': cohort.create_cohort_context(),
  }
  results = []
  for name, context in contexts.items():
    weights, loss, seconds = train(
      context, _NUM_ROUNDS.value, _NUM_CLIENTS.value
    )
    print(f'{name}: loss {loss:.4f}, {1000 * seconds:.2f} ms a round')
    results.append(weights)
  first, second = results
  np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)
  difference = np.max(np.abs(first - second))
  print(f'The weights agree: they differ by at most {difference:.1e}.')


if __name__ == '__main__':
  app.run(main)
