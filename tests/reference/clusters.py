"""References of trainers with a model, or a head, for each cluster."""

import numpy as np

from tests.reference import problem


def _members(of_clients: dict[int, int], j: int) -> list[int]:
  return [k for k, cluster in of_clients.items() if cluster == j]


def hypcluster(p: problem.Problem) -> problem.Trained:
  """Mansour et al. 2020; Ghosh et al. 2020; with Motley's warm start."""
  w = [p.model.pack(first) for first in p.first.models]
  clusters = range(len(w))
  servers = [problem.server_steps(p.s) for _ in clusters]

  def pick(k: int) -> int:
    return int(np.argmin([p.model.loss(v, p.clients[k].examples) for v in w]))

  for round_num, cohort in enumerate(p.cohorts):
    if round_num == p.s.warmstart_rounds:
      servers = [problem.server_steps(p.s) for _ in clusters]
    picked = {k: pick(k) for k in cohort}
    after = list(w)
    for j in clusters:
      is_warm = round_num < p.s.warmstart_rounds
      members = cohort if is_warm else _members(picked, j)
      if members:
        updates = {k: w[j] - p.descend(k, w[j]) for k in members}
        after[j] = servers[j](w[j], p.mean(updates))
    w = after
  return problem.Trained(lambda k: w[pick(k)])


def group(p: problem.Problem) -> problem.Trained:
  """Liu et al. 2022: the global model goes on within each group."""
  w = [p.model.pack(first) for first in p.first.models]
  servers = [problem.server_steps(p.s, p.s.group_learning_rate) for _ in w]
  for cohort in p.cohorts:
    groups = {k: p.clients[k].group for k in cohort}
    for j, model in enumerate(w):
      members = _members(groups, j)
      if members:
        updates = {k: model - p.descend(k, model) for k in members}
        w[j] = servers[j](model, p.mean(updates))
  return problem.Trained(lambda k: w[p.clients[k].group])


def pfedkm(p: problem.Problem) -> problem.Trained:
  """Tang et al. 2021: k-means of updates, a head for each cluster."""
  head, names = p.model.has('head'), range(p.s.num_groups)
  w, server = p.w, problem.server_steps(p.s)
  heads = [w] * p.s.num_groups
  servers = [problem.server_steps(p.s) for _ in names]
  centers, cluster = [0 * w] * p.s.num_groups, {}

  def work(k: int) -> tuple[problem.Vector, int]:
    start = heads[cluster[k]] if k in cluster else np.mean(heads, axis=0)
    w_k = np.where(head, start, w)
    after = p.descend(k, w_k)
    away = [np.sum((w_k - after - c) ** 2) for c in centers]
    return w_k, after, int(np.argmin(away))

  for round_num, cohort in enumerate(p.cohorts):
    done = {k: work(k) for k in cohort}
    for k, (_, _, nearest) in done.items():
      cluster[k] = nearest if round_num else p.clients[k].draws[0]
    moved = {k: before - after for k, (before, after, _) in done.items()}
    picked = {k: cluster[k] for k in cohort}
    for j in names:
      members = _members(picked, j)
      if members:
        away = p.mean({k: heads[j] - done[k][1] for k in members})
        heads[j] = servers[j](heads[j], away)
        centers[j] = p.mean({k: moved[k] for k in members})
    w = server(w, p.mean(moved))

  def start(k: int) -> problem.Vector:
    j = cluster[k] if k in cluster else work(k)[2]
    return np.where(head, heads[j], w)

  return problem.Trained(start)
