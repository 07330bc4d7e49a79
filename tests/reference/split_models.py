"""References of the split family: shared parts, and parts that clients keep."""

import numpy as np

from tests.reference import problem


def split(p: problem.Problem) -> problem.Trained:
  """FedPer, LG-FedAvg; with `head_epochs` FedRep (Collins et al. 2021)."""
  own = p.model.has(*p.s.personal_parts)
  w, server, kept = p.w, problem.server_steps(p.s), {}

  def merge_own(k: int) -> problem.Vector:
    return np.where(own, kept.get(k, w), w)

  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      w_k = merge_own(k)
      if hasattr(p.s, 'head_epochs'):
        steps = problem.client_steps(p.s)
        for batch in p.clients[k].batches * p.s.head_epochs:
          w_k = steps(w_k, own * p.gradient(w_k, batch))
        w_k = p.descend(k, w_k, only=~own)
      else:
        w_k = p.descend(k, w_k)
      kept[k], updates[k] = w_k, np.where(own, 0, w - w_k)
    w = server(w, p.mean(updates))
  return problem.Trained(merge_own)


def fedbabu(p: problem.Problem) -> problem.Trained:
  """Oh et al. 2022: the head stays as it is."""
  shared = ~p.model.has(*p.s.personal_parts)
  w, server = p.w, problem.server_steps(p.s)
  for cohort in p.cohorts:
    updates = {k: w - p.descend(k, w, only=shared) for k in cohort}
    w = server(w, p.mean(updates))
  return problem.Trained(lambda k: w)


def fedrod(p: problem.Problem) -> problem.Trained:
  """Chen and Chao 2022, on classes: heads by balanced and by plain risks."""
  head, num_classes = p.model.has('head'), p.model.shapes['bias'][0]
  w, server, phi = p.w, problem.server_steps(p.s), {}

  def own(k: int) -> problem.Vector:
    return phi.get(k, head * w if p.s.personal_head == 'copy' else 0 * w)

  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      w_k, phi_k = w, own(k)
      of_w, of_phi = (problem.client_steps(p.s) for _ in range(2))
      labels = np.concatenate([b['y'] for b in p.clients[k].batches])
      counts = np.bincount(labels, minlength=num_classes)
      prior = p.model.pack(
        {name: np.zeros(shape) for name, shape in p.model.shapes.items()}
        | {'bias': p.s.balance * np.log(np.maximum(counts, 1e-6))}
      )
      for batch in p.clients[k].batches:
        slope = p.gradient(w_k + prior, batch)
        of_both = head * p.gradient(w_k + phi_k, batch)
        w_k, phi_k = of_w(w_k, slope), of_phi(phi_k, of_both)
      updates[k], phi[k] = w - w_k, phi_k
    w = server(w, p.mean(updates))
  return problem.Trained(lambda k: w + own(k), w)


def _own_starts(p: problem.Problem) -> dict[int, problem.Vector]:
  """Returns models with the parts of their own that clients start with."""
  first = p.model.unpack(p.w)
  return {
    k: p.model.pack({**first, **client.state.personal})
    for k, client in enumerate(p.clients)
  }


def fedpc(p: problem.Problem) -> problem.Trained:
  """Silva et al. 2022: own parts start at random; shared ones are pulled."""
  own = p.model.has(*p.s.personal_parts)
  w, server = p.w, problem.server_steps(p.s)
  kept = _own_starts(p)
  trained, mean = set(), w
  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      kept[k] = p.descend(
        k,
        np.where(own, kept[k], w),
        lambda v: ~own * p.s.proximal * (v - w),  # noqa: B023
      )
      updates[k] = np.where(own, 0, w - kept[k])
    w = server(w, p.mean(updates))
    mean = p.mean({k: kept[k] for k in cohort})
    trained |= set(cohort)

  def start(k: int) -> problem.Vector:
    goes_on = k in trained or not p.s.average_personal
    return np.where(own, kept[k] if goes_on else mean, w)

  return problem.Trained(start)


def fedpc_generated(p: problem.Problem) -> problem.Trained:
  """Algorithm 2 on `toys.VectorModel`: psi is made, and not descended."""
  own = p.model.has('client')
  w, server = p.w, problem.server_steps(p.s)
  psi = _own_starts(p)
  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      steps, w_k = problem.client_steps(p.s), np.where(own, psi[k], w)
      for batch in p.clients[k].batches:
        slope = p.gradient(w_k, batch) + p.s.proximal * (w_k - w)
        made = encode(p.model.unpack(w_k), batch)[:, :2].mean(axis=0)
        w_k = np.where(own, 0, steps(w_k, ~own * slope))
        w_k[own] = made
        psi[k] = w_k
      updates[k] = np.where(own, 0, w - w_k)
    w = server(w, p.mean(updates))
  return problem.Trained(lambda k: np.where(own, psi[k], w))


def encode(weights: dict[str, np.ndarray], batch: problem.Batch) -> np.ndarray:
  """Computes the layer of a model with a vector, or without one."""
  x = batch['x']
  if 'vector' in weights:
    vectors = np.tile(weights['vector'], (len(x), 1))
    x = np.concatenate([x, vectors], axis=1)
  return np.tanh(x @ weights['hidden_kernel'] + weights['hidden_bias'])
