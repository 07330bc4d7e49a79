"""References of trainers of a global model, and of personal ones beside it."""

import numpy as np

from tests.reference import problem


def fedavg(p: problem.Problem) -> problem.Trained:
  """McMahan et al. 2017; Reddi et al. 2021; with `proximal`, FedProx."""
  w, server = p.w, problem.server_steps(p.s)
  mu = getattr(p.s, 'proximal', 0.0)
  for cohort in p.cohorts:
    updates = {k: w - p.descend(k, w, lambda v: mu * (v - w)) for k in cohort}  # noqa: B023
    w = server(w, p.mean(updates))
  return problem.Trained(lambda k: w)


def local(p: problem.Problem) -> problem.Trained:
  """Trains nothing in rounds."""
  return problem.Trained(lambda k: p.w)


def scaffold(p: problem.Problem) -> problem.Trained:
  """Karimireddy et al. 2020, with option II."""
  x, server = p.w, problem.server_steps(p.s)
  rate, num_clients = p.s.client_learning_rate, p.num_trained
  controls, counts = {k: 0 * x for k in range(num_clients)}, {}
  if p.s.client_weighting == 'uniform':
    counts = dict.fromkeys(range(num_clients), 1)
  for cohort in p.cohorts:
    c, moved, after = 0 * x, {}, {}
    if counts:  # Clients whose n_i is not known have the mean of the others.
      total = num_clients * np.mean(list(counts.values()))
      c = sum(n * controls[i] for i, n in counts.items()) / total
    for i in cohort:
      y = p.descend(i, x, lambda w: c - controls[i])  # noqa: B023
      num_steps = len(p.clients[i].batches)
      after[i] = controls[i] - c + (x - y) / (num_steps * rate)
      moved[i] = x - y
    x = server(x, p.mean(moved))
    controls.update(after)
    counts.update({i: p.weight(i) for i in cohort})
  return problem.Trained(lambda k: x)


def ditto(p: problem.Problem) -> problem.Trained:
  """Li et al. 2021: v_k is pulled to the w that was received."""
  w, server, v = p.w, problem.server_steps(p.s), {}
  for cohort in p.cohorts:
    for k in cohort:
      v[k] = p.descend(
        k,
        v.get(k, w),
        lambda own: p.s.regularization * (own - w),  # noqa: B023
        rate=p.s.personal_learning_rate,
      )
    w = server(w, p.mean({k: w - p.descend(k, w) for k in cohort}))
  return problem.Trained(lambda k: v.get(k, w), w)


def mr_mtl(p: problem.Problem) -> problem.Trained:
  """Liu et al. 2022: w_k is pulled to the mean of all."""
  w_bar, server, own = p.w, problem.server_steps(p.s), {}
  for cohort in p.cohorts:
    before = {k: own.get(k, w_bar) for k in cohort}
    for k in cohort:
      own[k] = p.descend(
        k,
        before[k],
        lambda w: p.s.regularization * (w - w_bar),  # noqa: B023
      )
    w_bar = server(w_bar, p.mean({k: before[k] - own[k] for k in cohort}))
  return problem.Trained(lambda k: own.get(k, w_bar), w_bar)


def apfl(p: problem.Problem) -> problem.Trained:
  """Deng et al. 2020: each client mixes v_i with w by its alpha_i."""
  w, server, own = p.w, problem.server_steps(p.s), {}
  for cohort in p.cohorts:
    updates = {}
    for i in cohort:
      v, alpha = own.get(i, (w, p.s.mixture))
      w_i, of_w, of_v = w, *(problem.client_steps(p.s) for _ in range(2))
      for number, batch in enumerate(p.clients[i].batches):
        slope = p.gradient(alpha * v + (1 - alpha) * w_i, batch)
        of_alpha = (v - w_i) @ slope + p.s.mixture_decay * alpha
        v, w_i = of_v(v, alpha * slope), of_w(w_i, p.gradient(w_i, batch))
        if p.s.mixture_batches == 'all' or number == 0:
          alpha = np.clip(alpha - p.s.mixture_learning_rate * of_alpha, 0, 1)
      own[i], updates[i] = (v, alpha), w - w_i
    w = server(w, p.mean(updates))

  def start(k: int) -> problem.Vector:
    v, alpha = own.get(k, (w, p.s.mixture))
    return alpha * v + (1 - alpha) * w

  return problem.Trained(start, w)


def pfedme(p: problem.Problem) -> problem.Trained:
  """Dinh et al. 2020: theta is a minimum near w_i, which follows it."""
  s, w, server = p.s, p.w, problem.server_steps(p.s)
  near = p.model.has(*(s.proximal_parts or p.model.parts))

  def follow(
    k: int, passes: int, trains_others: bool
  ) -> tuple[problem.Vector, problem.Vector]:
    """Returns w_i and theta; the other parts, in both, step at theta."""
    w_i = theta = w
    others = problem.client_steps(s, s.shared_learning_rate)
    for batch in p.clients[k].batches * passes:
      steps = problem.client_steps(s)
      for _ in range(s.proximal_steps):
        pull = s.proximal * (theta - w_i)
        theta = steps(theta, near * (p.gradient(theta, batch) + pull))
      w_i = w_i - near * s.local_rate * s.proximal * (w_i - theta)
      if trains_others:
        after = others(theta, ~near * p.gradient(theta, batch))
        w_i, theta = np.where(near, [w_i, theta], after)
    return w_i, theta

  kept, which = {}, 0 if s.personal_model == 'local' else 1
  for cohort in p.cohorts:
    followed = {k: follow(k, 1, True) for k in cohort}
    kept |= {k: pair[which] for k, pair in followed.items()}
    w = server(w, p.mean({k: w - w_i for k, (w_i, _) in followed.items()}))

  def start(k: int) -> problem.Vector:
    if k in kept and s.personal_model != 'new':
      return np.where(near, kept[k], w)
    return follow(k, s.personal_passes, False)[which]

  return problem.Trained(start, w)


def perfedavg(p: problem.Problem) -> problem.Trained:
  """Fallah et al. 2020, with D' the next batch; quadratic losses."""
  alpha, w, server = p.s.inner_rate, p.w, problem.server_steps(p.s)
  for cohort in p.cohorts:
    updates = {}
    for k in cohort:
      steps, batches, w_k = problem.client_steps(p.s), p.clients[k].batches, w
      pairs = list(zip(batches, [*batches[1:], batches[0]]))
      if p.s.separate_batches and len(batches) > 1:
        pairs = pairs[: len(batches) // 2 * 2 : 2]
      for first, second in pairs:
        slope = p.gradient(w_k - alpha * p.gradient(w_k, first), second)
        if p.s.form == 'hessian_vector':  # Along v, gradients change by H v.
          moved = p.gradient(w_k + slope, first) - p.gradient(w_k, first)
          slope = slope - alpha * moved
        w_k = steps(w_k, slope)
      updates[k] = w - w_k
    w = server(w, p.mean(updates))
  return problem.Trained(
    lambda k: w - alpha * p.gradient(w, p.clients[k].examples), w
  )


def mocha(p: problem.Problem) -> problem.Trained:
  """Smith et al. 2017 in the primal, as in Motley."""
  num_clients = p.num_trained
  w = np.tile(p.w, (num_clients, 1))
  is_sigma = p.s.relationship == 'sigma'
  sigma = np.eye(num_clients) / num_clients
  for round_num, cohort in enumerate(p.cohorts, 1):
    omega = sigma if is_sigma else np.linalg.inv(sigma)
    rows = {}
    for k in cohort:
      others = omega[k] @ w - omega[k, k] * w[k]
      rows[k] = p.descend(
        k,
        w[k],
        lambda v: p.s.regularization * (omega[k, k] * v + others),  # noqa: B023
      )
    for k, row in rows.items():
      w[k] = row
    if round_num % p.s.outer == 0:
      values, vectors = np.linalg.eigh(w @ w.T)
      roots = np.sqrt(np.maximum(values, 1e-8))
      sigma = (vectors * roots) @ vectors.T / roots.sum()
  return problem.Trained(lambda k: w[k])
