"""Synthetic(alpha, beta): classification that differs from client to client.

The generator of Li et al., "Federated optimization in heterogeneous networks"
(FedProx, 2020), section 5.1, which Ditto uses as well. For client k,

  u_k ~ N(0, alpha)       W_k ~ N(u_k, 1), b_k ~ N(u_k, 1)     the model
  B_k ~ N(0, beta)        v_k ~ N(B_k, 1)
  x ~ N(v_k, diag(j^-1.2)), y = argmax softmax(W_k^T x + b_k)  the examples

where alpha and beta are standard deviations, as in FedProx's code; in its paper
they are variances. At 0 and 1 both readings agree.

Two facts are not in the papers:
- u_k moves the scores of all classes equally, so that alpha changes no label.
- The W_k have nothing in common. A held-out client thus has nothing to learn
  from the others, and federated averaging is no better than chance there, for
  any alpha. So `shared` adds a common W_0 to all W_k; 0 gives FedProx's
  generator.
"""

import dataclasses
import functools

import numpy as np

from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks.data import devices
from tasks.data import populations
from tasks.models import linear

_NUM_FEATURES = 60
_NUM_CLASSES = 10
# The deviations of the features: the roots of the variances j^-1.2.
_DEVIATIONS = np.arange(1, _NUM_FEATURES + 1) ** -0.6


@dataclasses.dataclass(frozen=True)
class SyntheticSettings(settings.Settings):
  """The settings of Synthetic."""

  num_train_clients: int = settings.field(
    100, 'The number of clients to train on.', minimum=1
  )
  num_validation_clients: int = settings.field(
    25, 'The number of validation clients.', minimum=1
  )
  num_test_clients: int = settings.field(
    50, 'The number of test clients.', minimum=1
  )
  alpha: float = settings.field(
    1.0, "The deviation of the means of clients' models.", minimum=0
  )
  beta: float = settings.field(
    1.0, "The deviation of the means of clients' features.", minimum=0
  )
  shared: float = settings.field(
    2.0,
    "The size of the part that all clients' models have in common; the part of"
    ' each client has size 1.',
    minimum=0,
  )
  min_examples: int = settings.field(
    20, 'The smallest number of examples of a client.', minimum=1
  )
  max_examples: int = settings.field(
    200, 'The largest number of examples of a client.', minimum=1
  )
  log_examples_mean: float = settings.field(
    4.0,
    "The mean of the logarithm of a client's number of examples above"
    ' min_examples.',
  )
  log_examples_deviation: float = settings.field(
    1.0, 'The deviation of this logarithm; 2 in FedProx.', minimum=0
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    settings.require_order(self, 'min_examples', 'max_examples')


@dataclasses.dataclass(frozen=True)
class SyntheticClient:
  """A client's distribution, and a sample that is drawn when first needed.

  Attributes:
    weights: The weights W_k of the labels' model, `[features, classes]`.
    bias: The bias b_k of the labels' model, `[classes]`.
    center: The mean v_k of the features.
    size: The number of examples.
    rng: The generator that draws the sample.
  """

  weights: np.ndarray
  bias: np.ndarray
  center: np.ndarray
  size: int
  rng: np.random.Generator

  @functools.cached_property
  def examples(self) -> populations.Examples:
    """The sample."""
    shape = self.size, _NUM_FEATURES
    x = self.rng.normal(self.center, _DEVIATIONS, shape).astype(np.float32)
    y = np.argmax(x @ self.weights + self.bias, axis=1).astype(np.int32)
    return {'x': x, 'y': y}


def make_client(
  settings: SyntheticSettings, seed: int, client_id: str
) -> SyntheticClient:
  """Makes a client, which depends only on the arguments."""
  common = seeds.generator('synthetic', seed)
  rng = seeds.generator('synthetic', seed, client_id)

  model_mean = rng.normal(0, settings.alpha)
  weights = rng.normal(model_mean, 1, (_NUM_FEATURES, _NUM_CLASSES))
  weights += settings.shared * common.normal(size=weights.shape)
  bias = rng.normal(model_mean, 1, _NUM_CLASSES)
  center_mean = rng.normal(0, settings.beta)
  center = rng.normal(center_mean, 1, _NUM_FEATURES)

  # Capped before it becomes an integer: a lognormal number can be of any size.
  more = rng.lognormal(
    settings.log_examples_mean, settings.log_examples_deviation
  )
  size = int(min(settings.min_examples + more, settings.max_examples))
  return SyntheticClient(weights, bias, center, size, rng)


def load(
  settings: SyntheticSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Makes the task; nothing is read from `data_dir`."""
  del data_dir

  # Remaking a client takes less than a millisecond. This many of them take some
  # 100 MB at most with the default sizes.
  @functools.lru_cache(maxsize=2048)
  def examples(client_id: str) -> populations.Examples:
    return make_client(settings, seed, client_id).examples

  def load_client(client_id: str, limit: int | None) -> populations.Examples:
    return populations.take(examples(client_id), slice(limit))

  def make_devices(name: str, number: int) -> devices.Devices:
    client_ids = tuple(f'{name}_{i:06d}' for i in range(number))
    sizes = [make_client(settings, seed, c).size for c in client_ids]
    return devices.Devices(client_ids, load_client, np.array(sizes, np.int64))

  return task.Task(
    name='synthetic',
    model=linear.LogisticRegression(_NUM_FEATURES, _NUM_CLASSES),
    metric='accuracy',
    higher_is_better=True,
    batch_size=20,
    padded=True,
    **devices.make_populations(
      train=make_devices('train', settings.num_train_clients),
      validation=make_devices('validation', settings.num_validation_clients),
      test=make_devices('test', settings.num_test_clients),
    ),
  )


registry.register_task('synthetic', SyntheticSettings)
