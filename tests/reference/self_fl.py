"""References of Self-FL (Chen et al. 2022), with each model kept.

Variances are those of all models together, not running ones.
"""

import collections
from collections.abc import Sequence

import numpy as np

from tests.reference import problem


def _variance(models: Sequence[problem.Vector]) -> float:
  """Returns the sum of the entries' variances; 0 for fewer than two models."""
  return float(np.var(models, axis=0).sum()) if len(models) > 1 else 0.0


class _SelfFl:
  """Algorithms 1 and 2; what follows from whom is asked of a subclass."""

  def __init__(self, p: problem.Problem):
    self.p, self.s, self.theta = p, p.s, p.w
    self.server = problem.server_steps(p.s)
    # Of each client: its models, those that its variance is of, and how it
    # counted last.
    self.own: dict[int, problem.Vector] = {}
    self.history = collections.defaultdict(list)
    self.sigma_0 = self.mean_variance = 0.0  # sigma_0^2, the mean sigma_m^2
    self.last: dict[int, float] = {}  # The sigma_m^2 of the last round.
    self.is_known = p.s.variances == 'known'

  def variance(self, k: int) -> float:
    """Returns sigma_m^2 (13); 0 if it is undefined."""
    if self.is_known:
      return self.s.example_variance / len(self.p.clients[k].examples['y'])
    return _variance(self.history[k])

  def precision(self, variance: float) -> float:
    """Returns w_m; an undefined variance is replaced by the mean."""
    sigma_0 = self.s.inter_variance if self.is_known else self.sigma_0
    return 1 / max(sigma_0 + (variance or self.mean_variance), 1e-20)

  def others(self, k: int) -> float | None:
    """Returns S_m; None if it is undefined."""
    raise NotImplementedError

  def train(self, k: int) -> tuple[problem.Vector, problem.Vector]:
    """Returns theta_m and the model that counts as converged."""
    s, client = self.s, self.p.clients[k]
    variance, others = self.variance(k), self.others(k)
    theta_m, steps = self.own.get(k, self.theta), len(client.batches)
    is_defined = variance > 0 and others is not None
    start = self.theta
    if is_defined and s.initialization:  # (10)
      share = self.p.num_trained / len(self.last) if s.all_others else 1
      pushed = self.precision(variance) / (others * share)
      start = self.theta - pushed * (theta_m - self.theta)
    if is_defined and s.adaptive_steps:
      steps = self.num_steps(k, variance, others)
    optimizer = problem.client_steps(s)

    def descend(w: problem.Vector, number: int) -> problem.Vector:
      for i in range(number):
        batch = client.batches[i % len(client.batches)]
        w = optimizer(w, self.p.gradient(w, batch))
      return w

    theta_m = descend(start, steps)
    return theta_m, descend(theta_m, s.augmented_steps)

  def num_steps(self, k: int, variance: float, others: float) -> int:
    """Solves (8), or the same for the hierarchical posterior."""
    rate, wanted = self.s.client_learning_rate, 1 / others
    if self.s.per_example:
      rate /= len(self.p.clients[k].examples['y'])
    if self.s.posterior == 'hierarchical':
      wanted += self.s.inter_variance if self.is_known else self.sigma_0
    if rate >= variance:
      return 1
    steps = np.log1p(wanted / variance) / -np.log1p(-rate / variance)
    return int(np.round(np.clip(steps, 1, self.s.most_steps)))

  def move(self, target: problem.Vector, num_clients: int) -> None:
    """Moves theta to the mean (11), or a part of the way."""
    part = num_clients / self.p.num_trained if self.s.smoothed else 1
    self.theta = self.server(self.theta, part * (self.theta - target))


class SelfFl(_SelfFl):
  """Aggregates over the clients of a round."""

  def others(self, k: int) -> float | None:
    weights = [self.precision(v) for i, v in self.last.items() if i != k]
    is_defined = self.is_known or len(self.last) > 1
    return sum(weights) if weights and is_defined else None

  def run(self) -> problem.Trained:
    for cohort in self.p.cohorts:
      variances = {k: self.variance(k) for k in cohort}
      done = {k: self.train(k) for k in cohort}
      for k, (theta_m, converged) in done.items():
        self.own[k] = theta_m
        self.history[k].append(converged)
      self.sigma_0 = _variance([converged for _, converged in done.values()])
      defined = [v for v in variances.values() if v > 0]
      self.mean_variance = float(np.mean(defined)) if defined else 0.0
      self.last = variances
      weights = [self.precision(v) for v in variances.values()]
      if not self.s.precision_weights:
        weights = [self.p.weight(k) for k in cohort]
      thetas = [theta_m for theta_m, _ in done.values()]
      self.move(np.average(thetas, axis=0, weights=weights), len(cohort))
    return problem.Trained(lambda k: self.own.get(k, self.theta), self.theta)


class ClusterSelfFl(_SelfFl):
  """Aggregates over all clusters that have a model (appendix G.4)."""

  def __init__(self, p: problem.Problem):
    super().__init__(p)
    self.models: dict[int, problem.Vector] = {}
    self.variances: dict[int, float] = {}

  def others(self, k: int) -> float | None:
    group = self.p.clients[k].group
    weights = [
      self.precision(v) for j, v in self.variances.items() if j != group
    ]
    is_defined = self.is_known or len(self.models) > 1
    return sum(weights) if weights and is_defined else None

  def run(self) -> problem.Trained:
    for cohort in self.p.cohorts:
      variances = {k: self.variance(k) for k in cohort}
      done = {k: self.train(k)[0] for k in cohort}
      for k, theta_m in done.items():
        self.own[k] = theta_m
        self.history[k].append(theta_m)
      for j in {self.p.clients[k].group for k in cohort}:
        members = [k for k in cohort if self.p.clients[k].group == j]
        self.models[j] = self.p.mean({k: done[k] for k in members})
        defined = [variances[k] for k in members if variances[k] > 0]
        self.variances[j] = float(np.mean(defined)) if defined else 0.0
      self.sigma_0 = _variance(list(self.models.values()))
      defined = [v for v in self.variances.values() if v > 0]
      self.mean_variance = float(np.mean(defined)) if defined else 0.0
      weights = [self.precision(self.variances[j]) for j in self.models]
      if not self.s.precision_weights:
        weights = [1.0] * len(self.models)
      target = np.average(list(self.models.values()), axis=0, weights=weights)
      self.move(target, len(cohort))
    return problem.Trained(lambda k: self.own.get(k, self.theta), self.theta)


def self_fl(p: problem.Problem) -> problem.Trained:
  """Algorithms 1 and 2."""
  return SelfFl(p).run()


def self_fl_clusters(p: problem.Problem) -> problem.Trained:
  """The variant of appendix G.4."""
  return ClusterSelfFl(p).run()
