"""References of FedEmbed on `toys.TypedModel`: embeddings, and several heads.

Silva et al. 2022, algorithm 1. The weights are the vectors theta, nu, gamma and
phi_0, phi_1, …, by name; an assignment says which head is a user's.
"""

from collections.abc import Sequence

import numpy as np
from scipy import optimize

from tests.reference import problem
from tests.reference import split_models


class OneHead:
  """All users have the same head, or each user keeps its own."""

  def __init__(self, p: problem.Problem, embeddings: list[problem.Vector]):
    self.p, self.e = p, embeddings

  def begin(self, k: int) -> None:
    """Prepares a user's embedding for a round."""

  def approach(self, k: int, step: int) -> None:
    """Moves a user's embedding before a step."""

  def head_of(self, k: int) -> int:
    """Returns j, the head of a user."""
    return 0

  def end(self, cohort: Sequence[int]) -> list[int] | None:
    """Ends a round; returns the old number of each head if that changes."""


class Type(OneHead):
  """Each user has the head of the type that it likes."""

  def head_of(self, k: int) -> int:
    examples = self.p.clients[k].examples
    return int(np.bincount(examples['type'][examples['y'] == 1]).argmax())


class Prototype(Type):
  """Section 3.3.2: the head of the nearest prototype."""

  def __init__(self, p: problem.Problem, embeddings: list[problem.Vector]):
    super().__init__(p, embeddings)
    self.rows = np.float64(p.first.clusters)
    self.begun: set[int] = set()
    rate = p.s.embedding_learning_rate
    self.steps = [problem.client_steps(p.s, rate) for _ in p.clients]

  def begin(self, k: int) -> None:
    if self._is_prototypical(k) and k not in self.begun:
      self.e[k] = self.rows[k]
    self.begun.add(k)

  def _is_prototypical(self, k: int) -> bool:
    return k == super().head_of(k)

  def approach(self, k: int, step: int) -> None:
    if self._is_prototypical(k):
      return
    own = super().head_of(k)
    n = self.p.clients[k].draws[step]
    p_k, p_n = self.rows[own], self.rows[n + (n >= own)]

    def loss(e: problem.Vector) -> complex:  # (1)
      return max(
        np.sum((e - p_k) ** 2) - np.sum((e - p_n) ** 2) + 1,
        0,
        key=lambda value: value.real,
      )

    self.e[k] = self.steps[k](self.e[k], problem.gradient(loss, self.e[k]))

  def head_of(self, k: int) -> int:
    return int(np.argmin(np.sum((self.rows - self.e[k]) ** 2, axis=1)))

  def end(self, cohort: Sequence[int]) -> None:
    if self.p.s.moving_prototypes:
      for k in filter(self._is_prototypical, cohort):
        self.rows[k] = self.e[k]


class Som(OneHead):
  """Section 3.3.1: the head of the nearest node of a map."""

  def __init__(self, p: problem.Problem, embeddings: list[problem.Vector]):
    super().__init__(p, embeddings)
    self.map = self.next_map = np.float64(p.first.clusters.w)
    self.round = 0

  def _nearest(self, points: np.ndarray, k: int) -> int:
    return int(np.argmin(np.sum((points - self.e[k]) ** 2, axis=1)))

  def head_of(self, k: int) -> int:
    return self._nearest(self.map, k)

  def end(self, cohort: Sequence[int]) -> list[int]:
    decay, size = 1 + 2 * self.round / self.p.s.som_rounds, len(self.map)
    sigma = max(self.p.s.som_radius / decay, 1e-6)
    eta, nodes = self.p.s.som_rate / decay, np.arange(size)
    away = {k: self.e[k] - self.next_map for k in cohort}
    after = {k: self._nearest(self.next_map, k) for k in cohort}
    h = {
      k: np.exp(-((nodes - j) ** 2) / (2 * sigma**2))[:, np.newaxis]
      for k, j in after.items()
    }
    distances = np.array([np.linalg.norm(away[k], axis=1) for k in cohort])
    if self.p.s.som_winner == 'mean':
      total = sum(h[k] * away[k] for k in cohort)
      moved = eta * total / sum(h.values())
    elif self.p.s.som_winner == 'all':
      winner = cohort[int(np.argmin(distances.min(axis=1)))]
      moved = eta * h[winner] * away[winner]
    else:
      winners = [cohort[i] for i in np.argmin(distances, axis=0)]
      moved = eta * np.array(
        [h[k][i] * away[k][i] for i, k in enumerate(winners)]
      )
    # Heads move to the nodes that have most of their users.
    overlaps = np.eye(size) / (size + 1)
    for k, j in after.items():
      overlaps[self.head_of(k), j] += 1
    rows, columns = optimize.linear_sum_assignment(overlaps, maximize=True)
    self.map, self.next_map = self.next_map, self.next_map + moved
    self.round += 1
    return [int(rows[columns == j][0]) for j in nodes]


def _losses(
  p: problem.Problem, z: problem.Vectors, batch: problem.Batch
) -> list[complex]:
  """Computes a, b and c; a head that does not exist has the loss 0."""
  kernel = p.model.shapes['hidden_kernel']
  size = int(np.prod(kernel))
  layer = {
    'vector': z['e'],
    'hidden_kernel': z['theta'][:size].reshape(kernel),
    'hidden_bias': z['theta'][size:],
  }
  features = split_models.encode(layer, batch)
  e = np.tile(z['e'], (len(features), 1))
  features = np.concatenate([features, e], axis=1)

  def loss(name: str, labels: np.ndarray) -> complex:
    if name not in z:
      return 0.0
    head = z[name].reshape(features.shape[1] + 1, -1)
    return problem.cross_entropy(features @ head[:-1] + head[-1], labels)

  return [
    loss('phi', batch['y']),
    loss('gamma', batch['type']),
    loss('nu', batch['y']),
  ]


def _slopes(
  p: problem.Problem, z: problem.Vectors, batch: problem.Batch
) -> problem.Vectors:
  """Differentiates a, b and c by what each of them moves."""
  of_each = problem.gradients(lambda at: _losses(p, at, batch), z)
  of_e = {'all': [0, 1, 2], 'global': [2], 'own': [0]}[p.s.embedding_loss]
  losses = {'theta': [0, 1], 'e': of_e}
  return {
    name: slopes[:, losses.get(name, [0, 1, 2])].sum(axis=1)
    for name, slopes in of_each.items()
  }


def _vector(weights: problem.Weights, prefix: str) -> problem.Vector:
  leaves = [
    np.ravel(np.float64(weights[prefix + name])) for name in ('kernel', 'bias')
  ]
  return np.concatenate(leaves)


def fedembed(p: problem.Problem, assign: type[OneHead]) -> problem.Trained:
  """Trains an encoder with several heads; users keep embeddings."""
  model, w = p.first.model, {'theta': _vector(p.first.model, 'hidden_')}
  for name in ('nu', 'gamma'):
    if f'{name}_kernel' in model:
      w[name] = _vector(model, f'{name}_')
  for j, kernel in enumerate(model.get('phi_kernel', ())):
    head = {'kernel': kernel, 'bias': model['phi_bias'][j]}
    w[f'phi_{j}'] = _vector(head, '')
  num_heads = sum(name.startswith('phi_') for name in w)
  e = [np.float64(c.state.e['vector']) for c in p.clients]
  own = []
  if not num_heads:  # Users keep their heads.
    own = [_vector(c.state.head, 'phi_') for c in p.clients]
  assigned = assign(p, e)
  rate = p.s.embedding_learning_rate
  e_steps = [problem.client_steps(p.s, rate) for _ in p.clients]
  servers = {name: problem.server_steps(p.s) for name in w}
  seen: set[int] = set()

  def train(k: int) -> problem.Vectors:
    after = dict(w)
    steps = {name: problem.client_steps(p.s) for name in (*w, 'own')}
    assigned.begin(k)
    for number, batch in enumerate(p.clients[k].batches):
      assigned.approach(k, number)
      phi = f'phi_{assigned.head_of(k)}'
      z = {name: after[name] for name in w if not name.startswith('phi_')}
      z |= {'phi': own[k] if own else after[phi], 'e': e[k]}
      slopes = _slopes(p, z, batch)
      for name in w:  # A step with no gradient may still have momentum.
        slope = slopes['phi'] * (name == phi)
        slope = slopes[name] if name in slopes else slope
        after[name] = steps[name](after[name], slope)
      if own:
        own[k] = steps['own'](own[k], slopes['phi'])
      e[k] = e_steps[k](e[k], slopes['e'])
    return after

  for cohort in p.cohorts:
    done = {k: train(k) for k in cohort}
    seen |= set(cohort)
    for name, before in w.items():
      away = p.mean({k: before - after[name] for k, after in done.items()})
      w[name] = servers[name](before, away)
    order = assigned.end(cohort)
    if order is not None:
      for heads in (w, servers):
        old = dict(heads)
        heads |= {f'phi_{j}': old[f'phi_{i}'] for j, i in enumerate(order)}

  def put_together(k: int, head: problem.Vector) -> problem.Vector:
    size = int(np.prod(p.model.shapes['hidden_kernel']))
    classes = p.model.shapes['bias'][0]
    pieces = {
      'vector': e[k],
      'hidden_kernel': w['theta'][:size],
      'hidden_bias': w['theta'][size:],
      'kernel': head[:-classes],
      'bias': head[-classes:],
    }
    return np.concatenate([pieces[name] for name in p.model.shapes])

  def start(k: int) -> problem.Vector:
    if k not in seen:
      assigned.begin(k)
    head = own[k] if own else w[f'phi_{assigned.head_of(k)}']
    return put_together(k, head)

  return problem.Trained(start)


def fedembed_type(p: problem.Problem) -> problem.Trained:
  """Gives each user the head of the type that it likes."""
  return fedembed(p, Type)


def fedembed_prototype(p: problem.Problem) -> problem.Trained:
  """Gives each user the head of the nearest prototype (section 3.3.2)."""
  return fedembed(p, Prototype)


def fedembed_som(p: problem.Problem) -> problem.Trained:
  """Gives each user the head of the nearest node (section 3.3.1)."""
  return fedembed(p, Som)


def one_head(p: problem.Problem) -> problem.Trained:
  """Gives all users one head, or lets each user keep its own."""
  return fedembed(p, OneHead)
