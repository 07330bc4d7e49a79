"""The cases in which trainers are compared with their references."""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from algorithms import methods
from algorithms import trainers
from tasks import task
from tasks.models import models
from tests import toys
from tests.algorithms import functions
from tests.algorithms import helpers
from tests.algorithms import preferring
from tests.reference import clusters
from tests.reference import fedembed
from tests.reference import global_models
from tests.reference import problem
from tests.reference import self_fl
from tests.reference import split_models

# Who takes part in each round; the last client takes part in none.
COHORTS: Mapping[str, Sequence[Sequence[int]]] = {
  'all': [range(5)] * 4,
  'partial': [(0, 1, 2), (2, 3), (0, 3, 4), (1, 2, 4)],
}
EPOCHS = (1, 3)
# What the tests compare: the simplest, and the one that asks the most.
_TESTED = (('all', 1), ('partial', 3))
# The largest difference of a trainer from its reference.
LARGEST_DIFFERENCE = 1e-5
_BATCH_SIZE = 4
_SIZES = (9, 4, 5, 12, 7, 8)
# Of the users of FedEmbed: the first three are prototypical for their types.
_LIKES = (0, 1, 2, 0, 1, 1)


def _squared_error(weights: problem.Vectors, batch: problem.Batch) -> complex:
  features = batch['x']
  if 'hidden_kernel' in weights:
    features = split_models.encode(weights, batch)
  predicted = features @ weights['kernel'] + weights['bias']
  return 0.5 * np.mean((predicted - batch['y']) ** 2)


def _classification(weights: problem.Vectors, batch: problem.Batch) -> complex:
  features = split_models.encode(weights, batch)
  scores = features @ weights['kernel'] + weights['bias']
  return problem.cross_entropy(scores, batch['y'])


@dataclasses.dataclass(frozen=True)
class Case:
  """A trainer with its settings, and what it is compared with.

  Attributes:
    trainer: The name of the trainer.
    reference: Trains a problem.
    settings: The settings that are not defaults.
    model: The model.
    scale: The scale of the targets.
    repeats: How often the cohorts take their turns.
  """

  trainer: str
  reference: Callable[[problem.Problem], problem.Trained]
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  model: models.Model = helpers.MODEL
  scale: float = 1.0
  repeats: int = 1

  def cohorts(self, name: str) -> Sequence[Sequence[int]]:
    """Returns the clients of each round, see `COHORTS`."""
    return [*COHORTS[name]] * self.repeats

  @functools.cached_property
  def method(self) -> methods.Method:
    """The method that is compared, from random models where that can be."""
    method = helpers.build(
      self.trainer,
      self.model,
      num_clients=len(_SIZES) - 1,
      known_groups=getattr(self.model, 'num_types', 0) or 2,
      **self.settings,
    )
    if len(method.model_places) != 1:
      return method
    rng = np.random.default_rng(0)
    first = collections.OrderedDict(
      (name, np.float32(rng.normal(scale=0.5, size=weight.shape)))
      for name, weight in method.trainer.model.init([0, 0]).items()
    )
    return dataclasses.replace(method, first_models=(first,))

  @property
  def _has_classes(self) -> bool:
    return isinstance(self.model, models.Classifier)

  def _examples(self, k: int) -> problem.Batch:
    if self._has_classes:
      return preferring.data(k, _LIKES[k], size=_SIZES[k]).examples
    examples = helpers.data(k, _SIZES[k]).examples
    return {**examples, 'y': np.float32(self.scale) * examples['y']}

  def clients(self, epochs: int) -> list[trainers.Client]:
    """Makes the clients; all have the same shapes."""
    made = []
    for k, size in enumerate(_SIZES):
      order = [np.random.default_rng([k, e]).permutation(size) for e in EPOCHS]
      indices = np.concatenate(
        [_put_into_batches(order[e % len(order)]) for e in range(epochs)]
      )
      data = helpers.make_batches(self._examples(k))._replace(
        indices=np.maximum(indices, 0), mask=np.float32(indices >= 0)
      )
      made.append(
        trainers.Client(
          data=helpers.padded(data, rows=12, places=_BATCH_SIZE, steps=9),
          state=self.method.initialize_client(np.array([0, k], np.int32)),
          seed=np.array([1, k], np.int32),
          attributes={
            name: np.int32(size if name == task.SIZE else k % 2)
            for name in self.method.needs
          },
        )
      )
    return made

  def make_problem(
    self, cohorts: str, clients: Sequence[trainers.Client]
  ) -> problem.Problem:
    """Returns the same in float64."""
    trainer = self.method.trainer
    first = self.method.initial_state([0, 1]).server
    weights = trainer.model.init([0, 1])
    if self.method.first_models:
      (weights,) = self.method.first_models
    model = problem.Model(
      {name: tuple(weight.shape) for name, weight in weights.items()},
      trainer.model.parts,
      _classification if self._has_classes else _squared_error,
    )
    return problem.Problem(
      model,
      [
        problem.Client(
          _doubles(self._examples(k)),
          [
            _doubles({n: v[i[m > 0]] for n, v in client.data.examples.items()})
            for i, m in zip(client.data.indices, client.data.mask)
            if m.any()
          ],
          k % 2,
          client.state,
          self._draws(client.seed),
        )
        for k, client in enumerate(clients)
      ],
      self.cohorts(cohorts),
      model.pack(weights),
      first,
      trainer.settings,
    )

  def _draws(self, seed: np.ndarray) -> list[int]:
    """Draws what a client draws: its first cluster, or other types."""
    fold = tf.random.experimental.stateless_fold_in
    if self.trainer == 'pfedkm':
      return [_draw(seed, self.method.trainer.settings.num_groups)]
    if self.trainer == 'fedembed_prototype':
      others = self.method.trainer.num_heads - 1
      return [_draw(fold(seed, step), others) for step in range(9)]
    return []


def _put_into_batches(order: np.ndarray) -> np.ndarray:
  """Puts indices into batches, with -1 for padding."""
  size = -(-len(order) // _BATCH_SIZE) * _BATCH_SIZE
  padded = np.pad(order, (0, size - len(order)), constant_values=-1)
  return padded.reshape(-1, _BATCH_SIZE).astype(np.int32)


def _doubles(examples: problem.Batch) -> dict[str, np.ndarray]:
  return {
    name: v.astype(np.float64) if v.dtype == np.float32 else v
    for name, v in examples.items()
  }


def _draw(seed: np.ndarray, most: int) -> int:
  drawn = tf.random.stateless_uniform([], seed, maxval=most, dtype=tf.int32)
  return int(drawn)


_LAYER = toys.VectorModel()
_CLASSES = toys.TypedModel(types=3)
_SGD = dict(
  client_optimizer='sgd',
  client_learning_rate=0.1,
  server_optimizer='sgd',
  embedding_learning_rate=0.1,
)


# Of Self-FL: variances far above the rate, so that clients take several steps.
_SELF_FL = dict(scale=5.0, repeats=2)
_SELF_FL_SETTINGS = dict(client_learning_rate=0.03, most_steps=60)


CASES: Mapping[str, Case] = {
  'fedavg': Case('fedavg', global_models.fedavg),
  'fedavg, alike': Case(
    'fedavg', global_models.fedavg, dict(client_weighting='uniform')
  ),
  'fedavg, kept momentum': Case(
    'fedavg',
    global_models.fedavg,
    dict(client_optimizer='momentum', client_slots='kept'),
  ),
  'fedavg, clients with Adam': Case(
    'fedavg', global_models.fedavg, dict(client_optimizer='adam')
  ),
  "fedavg, clients with PyTorch's Adam": Case(
    'fedavg',
    global_models.fedavg,
    dict(client_optimizer='adam', client_epsilon=1e-2, adam_form='pytorch'),
  ),
  'fedavg, damped momentum': Case(
    'fedavg', global_models.fedavg, dict(server_optimizer='damped_momentum')
  ),
  'fedavgm': Case('fedavgm', global_models.fedavg),
  'fedadam': Case('fedadam', global_models.fedavg),
  'fedprox': Case('fedprox', global_models.fedavg, dict(proximal=0.7)),
  'local': Case('local', global_models.local),
  'scaffold': Case('scaffold', global_models.scaffold),
  'scaffold, alike': Case(
    'scaffold', global_models.scaffold, dict(client_weighting='uniform')
  ),
  'ditto': Case('ditto', global_models.ditto, dict(regularization=0.7)),
  'mr_mtl': Case('mr_mtl', global_models.mr_mtl, dict(regularization=0.7)),
  'apfl': Case('apfl', global_models.apfl),
  'apfl, adaptive': Case(
    'apfl', global_models.apfl, dict(mixture_learning_rate=0.1)
  ),
  "apfl, the authors' code": Case(
    'apfl',
    global_models.apfl,
    dict(
      mixture_learning_rate=0.1, mixture_batches='first', mixture_decay=0.02
    ),
  ),
  'pfedme': Case(
    'pfedme', global_models.pfedme, dict(client_learning_rate=0.05)
  ),
  'pfedme, last theta': Case(
    'pfedme',
    global_models.pfedme,
    dict(client_learning_rate=0.05, personal_model='theta'),
  ),
  'pfedme, last w_i': Case(
    'pfedme',
    global_models.pfedme,
    dict(client_learning_rate=0.05, local_rate=0.05, personal_model='local'),
  ),
  'pfedme, heads': Case(
    'pfedme',
    global_models.pfedme,
    dict(
      proximal_parts=('head',),
      proximal=1.0,
      shared_optimizer='sgd',
      shared_learning_rate=0.1,
      personal_passes=2,
    ),
    _LAYER,
  ),
  'perfedavg': Case(
    'perfedavg', global_models.perfedavg, dict(inner_rate=0.05)
  ),
  'perfedavg, separate batches': Case(
    'perfedavg',
    global_models.perfedavg,
    dict(inner_rate=0.05, separate_batches=True),
  ),
  'perfedavg, Hessian': Case(
    'perfedavg',
    global_models.perfedavg,
    dict(inner_rate=0.05, form='hessian_vector'),
  ),
  'mocha': Case('mocha', global_models.mocha, dict(regularization=0.5)),
  'mocha, inverse': Case(
    'mocha',
    global_models.mocha,
    dict(relationship='inverse', regularization=1e-3, outer=2),
  ),
  'fedper': Case('fedper', split_models.split, model=_LAYER),
  'lg_fedavg': Case('lg_fedavg', split_models.split, model=_LAYER),
  'fedrep': Case(
    'fedrep', split_models.split, dict(head_epochs=2), model=_LAYER
  ),
  'fedbabu': Case('fedbabu', split_models.fedbabu, model=_LAYER),
  'fedrod': Case('fedrod', split_models.fedrod, dict(balance=0.8), _CLASSES),
  'fedrod, copied heads': Case(
    'fedrod', split_models.fedrod, dict(personal_head='copy'), _CLASSES
  ),
  'fedpc': Case(
    'fedpc', split_models.fedpc, dict(new_client_noise=0.0), _LAYER
  ),
  'fedpc, nothing averaged': Case(
    'fedpc', split_models.fedpc, dict(average_personal=False), _LAYER
  ),
  'fedpc_generated': Case(
    'fedpc_generated', split_models.fedpc_generated, model=_LAYER
  ),
  'hypcluster': Case('hypcluster', clusters.hypcluster),
  'hypcluster, warm start': Case(
    'hypcluster',
    clusters.hypcluster,
    dict(num_clusters=3, warmstart_rounds=2.0, server_optimizer='momentum'),
  ),
  'ensemble': Case('ensemble', clusters.hypcluster),
  'group': Case('group', clusters.group),
  'group, a rate of its own': Case(
    'group', clusters.group, dict(group_learning_rate=0.01)
  ),
  'pfedkm': Case('pfedkm', clusters.pfedkm, model=_CLASSES),
  'fedembed_type': Case(
    'fedembed_type', fedembed.fedembed_type, _SGD, _CLASSES
  ),
  'fedembed_type, Adam': Case(
    'fedembed_type',
    fedembed.fedembed_type,
    dict(server_learning_rate=0.01, embedding_loss='global'),
    _CLASSES,
  ),
  'fedembed_prototype': Case(
    'fedembed_prototype', fedembed.fedembed_prototype, _SGD, _CLASSES
  ),
  'fedembed_personal': Case(
    'fedembed_personal', fedembed.one_head, _SGD, _CLASSES
  ),
  'global_plus': Case('global_plus', fedembed.one_head, _SGD, _CLASSES),
  **{
    f'fedembed_som, {winner}': Case(
      'fedembed_som',
      fedembed.fedembed_som,
      dict(_SGD, som_winner=winner),
      _CLASSES,
    )
    for winner in ('node', 'all', 'mean')
  },
  **{
    name: Case(
      'self_fl', self_fl.self_fl, _SELF_FL_SETTINGS | settings, **_SELF_FL
    )
    for name, settings in {
      'self_fl': {},
      'self_fl, not smoothed': dict(smoothed=False),
      'self_fl, rate of the whole loss': dict(per_example=False),
      'self_fl, hierarchical': dict(posterior='hierarchical'),
      'self_fl, all others': dict(
        all_others=True, posterior='hierarchical', smoothed=False
      ),
      'self_fl, as FedAvg': dict(
        initialization=False, adaptive_steps=False, precision_weights=False
      ),
      'self_fl, algorithm 2': dict(augmented_steps=5),
      'self_fl, known variances': dict(
        variances='known', inter_variance=0.5, example_variance=2.0
      ),
    }.items()
  },
  'self_fl_clusters': Case(
    'self_fl_clusters',
    self_fl.self_fl_clusters,
    _SELF_FL_SETTINGS,
    **_SELF_FL,
  ),
}


class Comparison(NamedTuple):
  """How far a trainer is from its reference.

  Attributes:
    difference: The largest difference of the models that clients start from,
      over the largest weight if that is above 1.
    moved: How far training moved a client's model in the reference.
  """

  difference: float
  moved: float


def check(case: Case) -> None:
  """Asserts that a trainer is near its reference, and that it has trained."""
  for cohorts, epochs in _TESTED:
    difference, moved = compare(case, cohorts, epochs)
    assert difference < LARGEST_DIFFERENCE
    assert moved > 0.01 or not case.method.trains


def compare(case: Case, cohorts: str, epochs: int) -> Comparison:
  """Trains both, and compares the models that clients start from.

  Args:
    case: The case.
    cohorts: Who takes part, see `COHORTS`.
    epochs: The passes of a client in a round.

  Returns:
    The comparison.
  """
  # Client by client, which needs no compilation. That compiled programs and
  # TFF's own runtime do the same is a fact of every method.
  with helpers.use_runtime('unstacked'):
    return _compare(case, cohorts, epochs)


def _compare(case: Case, cohorts: str, epochs: int) -> Comparison:
  clients = case.clients(epochs)
  in_float64 = case.make_problem(cohorts, clients)
  expected = case.reference(in_float64)
  method, state = case.method, case.method.initial_state([0, 1])
  for cohort in case.cohorts(cohorts):
    if not method.trains:
      break
    state, states, _ = method.next(state, [clients[k] for k in cohort])
    for k, client_state in zip(cohort, states):
      clients[k] = clients[k]._replace(state=client_state)
  if not method.personalizes_new_clients:
    clients = clients[:-1]
  bound = functions.bind(method.trainer)
  message = bound.message(functions.convert(state.server))
  pack, largest = in_float64.model.pack, 0.0
  for k, client in enumerate(clients):
    start = bound.start(message, functions.convert(client))
    pairs = [(start.weights, expected.start(k))]
    if expected.shared is not None:
      pairs.append((start.shared, expected.shared))
    for found, wanted in pairs:
      away = np.abs(pack(found) - wanted).max()
      # Which is NaN, unlike `max`, if either is.
      largest = np.maximum(largest, away / max(np.abs(wanted).max(), 1))
  moved = np.abs(expected.start(0) - in_float64.w).max()
  return Comparison(largest, moved)
