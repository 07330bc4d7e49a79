"""Gaussian: the mean of each client's numbers, in a two-level model.

The model of Chen et al. 2022, "Self-aware personalized federated learning",
sections 2.1 and 4.1, in which all optima are known in closed form:

  theta_m ~ N(theta_0, sigma_0^2)           the parameter of client m
  y_m1, y_m2, ... ~ N(theta_m, sigma^2)     its N_m numbers

Given only a client's own numbers, theta_m has the variance sigma_m^2 = sigma^2
/ N_m. With a `dimension` above 1 these are vectors with independent entries:
several repeats in one, with the same N_m. The metrics are the distance of
theta_m from the learned parameter, and of theta_0 from the global model
('parent_l1_error'). Candidates are chosen by the distance to further numbers of
each client.

The defaults are the paper's case 1, where clients are alike; the preset
`gaussian_case_2` is its case 2, where they differ.
"""

import dataclasses
import functools

import numpy as np

from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks.data import populations
from tasks.models import gaussian


@dataclasses.dataclass(frozen=True)
class GaussianSettings(settings.Settings):
  """The settings of Gaussian."""

  num_clients: int = settings.field(20, 'The number of clients, M.', minimum=1)
  parent: float = settings.field(1.6, "theta_0, the mean of clients' own.")
  inter_variance: float = settings.field(
    0.001, "sigma_0^2, the variance of clients' parameters.", minimum=0
  )
  example_variance: float = settings.field(
    0.1, "sigma^2, the variance of a client's numbers.", above=0
  )
  min_examples: int = settings.field(
    10, 'The smallest number of examples of a client.', minimum=1
  )
  max_examples: int = settings.field(
    20, 'The largest number of examples of a client.', minimum=1
  )
  dimension: int = settings.field(
    1, "The number of entries of a client's parameter.", minimum=1
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    settings.require_order(self, 'min_examples', 'max_examples')


@dataclasses.dataclass(frozen=True)
class Posterior:
  """The posterior distribution of a parameter.

  Attributes:
    mean: The mean, `[dimension]`, or of each client, `[clients, dimension]`.
    variance: The variance of all of its entries, `[]` or `[clients]`.
  """

  mean: np.ndarray
  variance: np.ndarray


@dataclasses.dataclass(frozen=True)
class Federation:
  """Clients, their parameters and their numbers.

  Attributes:
    parent: theta_0.
    inter_variance: sigma_0^2.
    parameters: theta_m of each client, `[clients, dimension]`.
    variances: sigma_m^2 of each client, `[clients]`.
    numbers: The numbers that each client trains on, `[N_m, dimension]`.
    further: As many further numbers, for validation.
  """

  parent: float
  inter_variance: float
  parameters: np.ndarray
  variances: np.ndarray
  numbers: tuple[np.ndarray, ...]
  further: tuple[np.ndarray, ...]

  @property
  def _weights(self) -> np.ndarray:
    """w_m = 1 / (sigma_0^2 + sigma_m^2)."""
    return 1 / (self.inter_variance + self.variances)

  @functools.cached_property
  def local_posterior(self) -> Posterior:
    """theta_m from the client's own numbers, theta_m(L)."""
    means = np.array([np.mean(y, 0, dtype=np.float64) for y in self.numbers])
    return Posterior(means, self.variances)

  @functools.cached_property
  def global_posterior(self) -> Posterior:
    """theta_0 from all clients' numbers, theta(G), equation (2)."""
    w = self._weights
    return Posterior(w @ self.local_posterior.mean / w.sum(), 1 / w.sum())

  @functools.cached_property
  def federated_posterior(self) -> Posterior:
    """theta_m from all clients' numbers, theta_m(FL), equation (3).

    It belongs to a client that assumes its theta_m to be theta_0, which draws
    it nearer to the others than the model does.
    """
    w, precisions = self._weights, 1 / self.variances
    local = self.local_posterior.mean
    total = precisions + w.sum() - w
    from_client = (precisions - w)[:, np.newaxis] * local
    return Posterior(
      (from_client + w @ local) / total[:, np.newaxis], 1 / total
    )

  @functools.cached_property
  def hierarchical_posterior(self) -> Posterior:
    """theta_m from all clients' numbers, in the model of this task."""
    w, local = self._weights, self.local_posterior.mean
    of_others = w.sum() - w
    mean = (w @ local - w[:, np.newaxis] * local) / of_others[:, np.newaxis]
    prior = 1 / (self.inter_variance + 1 / of_others)
    total = 1 / self.variances + prior
    share = (prior / total)[:, np.newaxis]
    return Posterior((1 - share) * local + share * mean, 1 / total)

  @property
  def gains(self) -> np.ndarray:
    """Returns each client's gain by federated learning, equation (4)."""
    return self.variances / self.federated_posterior.variance


def draw(gaussian_settings: GaussianSettings, seed: int) -> Federation:
  """Draws clients and their numbers."""
  rng = seeds.generator('gaussian', seed)
  sizes = rng.integers(
    gaussian_settings.min_examples,
    gaussian_settings.max_examples + 1,
    gaussian_settings.num_clients,
  )
  deviation, spread = np.sqrt(
    [gaussian_settings.example_variance, gaussian_settings.inter_variance]
  )
  shape = gaussian_settings.num_clients, gaussian_settings.dimension
  parameters = rng.normal(gaussian_settings.parent, spread, shape)

  def numbers() -> tuple[np.ndarray, ...]:
    return tuple(
      rng.normal(theta, deviation, (size, gaussian_settings.dimension)).astype(
        np.float32
      )
      for theta, size in zip(parameters, sizes)
    )

  return Federation(
    gaussian_settings.parent,
    gaussian_settings.inter_variance,
    parameters,
    gaussian_settings.example_variance / sizes,
    numbers(),
    numbers(),
  )


def load(
  gaussian_settings: GaussianSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Makes the task; nothing is read from `data_dir`."""
  del data_dir
  clients = draw(gaussian_settings, seed)
  ids = tuple(f'client_{m:04d}' for m in range(gaussian_settings.num_clients))

  def loader(values: tuple[np.ndarray, ...]) -> populations.Load:
    examples = {
      client_id: {
        'parent': np.full(len(y), gaussian_settings.parent, np.float32),
        'variance': np.full(len(y), variance, np.float32),
        'y': y,
      }
      for client_id, y, variance in zip(ids, values, clients.variances)
    }
    return examples.__getitem__

  train, validation = loader(clients.numbers), loader(clients.further)
  test = loader(tuple(clients.parameters[:, np.newaxis].astype(np.float32)))

  def population(**sets: populations.Load) -> populations.Population:
    # All sets but the parameters have at most this many examples.
    largest = {
      name: gaussian_settings.max_examples
      for name, part in sets.items()
      if part is not test
    }
    return populations.Population(ids, sets, pad_to=largest)

  return task.Task(
    name='gaussian',
    model=gaussian.GaussianMean(gaussian_settings.dimension),
    metric='l1_error',
    higher_is_better=False,
    train=population(train=train),
    validation=population(personalization=train, evaluation=validation),
    test=population(personalization=train, evaluation=test),
    cross_silo=True,
    # All numbers of a client, so that steps are gradient descent.
    batch_size=gaussian_settings.max_examples,
    padded=True,
  )


registry.register_task('gaussian', GaussianSettings)
