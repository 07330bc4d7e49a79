"""Mocha: a model for each client, and how the clients' tasks are related.

Smith et al. 2017, in the primal, as in Motley (appendix C.4.1). With the models
as the rows of W, `[K, d]`, and the relationship Sigma of the K clients' tasks,

  min_(W, Sigma)  sum_k F_k(w_k) + lambda / 2 tr(W^T Sigma W)

is solved in turns. In a pass, which is a round here, all clients step at once,
each on its own row and with the others' rows as they were before the pass:

  client k:    for each batch b:
                 w_k <- w_k - eta (grad F_k(w_k; b)
                                   + lambda sum_j Sigma_kj w_j)
               sends its row
  the server:  after every `outer` passes,
                 Sigma <- (W W^T)^(1/2) / tr((W W^T)^(1/2))

from Sigma = I / K on. Eigenvalues of W W^T below 1e-8 are raised to it.

Where Motley has Sigma in the objective, Smith et al. have its inverse, Omega,
which draws related models together rather than apart. Both can be had; Motley's
numbers come from Sigma.

There is no model for a client that was never trained.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from algorithms import algorithm
from algorithms import candidates
from algorithms import client_work
from algorithms import process
from base import errors
from base import settings
from tasks.models import model as model_lib

_SMALLEST_EIGENVALUE = 1e-8


@dataclasses.dataclass(frozen=True)
class Hyperparameters(settings.Settings):
  """The defaults are Motley's."""

  client_learning_rate: float = settings.field(
    0.01, "The learning rate of the clients' SGD.", minimum=0
  )
  regularization: float = settings.field(
    1e-3, 'lambda, how much the relationship counts.', minimum=0
  )
  outer: int = settings.field(
    1,
    'The rounds from one update of the relationship to the next.',
    minimum=1,
  )
  relationship: str = settings.field(
    'sigma',
    'What is between the models in the objective: Sigma as in Motley, or its'
    ' inverse as in the paper.',
    choices=('sigma', 'inverse'),
  )
  num_clients: int = settings.field(
    0,
    "K, the number of clients to train on; 0 for that of the task's.",
    minimum=0,
  )


def flatten(weights: model_lib.Weights) -> tf.Tensor:
  """A model's weights as a vector."""
  return tf.concat([tf.reshape(leaf, [-1]) for leaf in weights.values()], 0)


def unflatten(vector: tf.Tensor, like: model_lib.Weights) -> model_lib.Weights:
  """The weights of a vector, in the shapes that those of `like` have."""
  sizes = [leaf.shape.num_elements() for leaf in like.values()]
  return collections.OrderedDict(
    (name, tf.reshape(part, leaf.shape))
    for part, (name, leaf) in zip(tf.split(vector, sizes), like.items())
  )


def relate(models: tf.Tensor, relationship: str) -> tf.Tensor:
  """Sigma = (W W^T)^(1/2) / trace, or its inverse.

  Args:
    models: W, `[K, d]`.
    relationship: 'sigma', or 'inverse'.

  Returns:
    `[K, K]`.
  """
  num_clients, size = models.shape
  # In float32, the eigenvalues that are zero would come out larger than 1e-8.
  w = tf.cast(models, tf.float64)
  # W W^T and W^T W have the same eigenvalues but for zeros, so that the smaller
  # one tells all that is not below the limit, the square of `least`.
  least = tf.constant(_SMALLEST_EIGENVALUE**0.5, tf.float64)
  if num_clients <= size:
    eigenvalues, vectors = tf.linalg.eigh(tf.matmul(w, w, transpose_b=True))
    roots = tf.sqrt(tf.maximum(eigenvalues, _SMALLEST_EIGENVALUE))
  else:
    eigenvalues, vectors = tf.linalg.eigh(tf.matmul(w, w, transpose_a=True))
    roots = tf.sqrt(tf.maximum(eigenvalues, _SMALLEST_EIGENVALUE))
    vectors = tf.matmul(w, vectors) / roots
  trace = tf.reduce_sum(roots - least) + num_clients * least

  def with_eigenvalues(some: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Those of `vectors` are `some`, those of what is orthogonal `others`."""
    return others * tf.eye(num_clients, dtype=tf.float64) + tf.matmul(
      vectors * (some - others), vectors, transpose_b=True
    )

  if relationship == 'sigma':
    result = with_eigenvalues(roots, least) / trace
  else:
    result = with_eigenvalues(1 / roots, 1 / least) * trace
  return tf.cast(result, tf.float32)


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds Mocha; each client is evaluated at its own model."""
  num_clients = hyperparameters.num_clients
  if not num_clients:
    raise errors.UserError(
      'mocha needs the number of clients to train on, num_clients.'
    )

  def initialize(seed: tf.Tensor, numbers: process.Numbers) -> Any:
    del numbers
    one_for_all = flatten(model.init(seed))
    is_sigma = hyperparameters.relationship == 'sigma'
    scale = 1 / num_clients if is_sigma else num_clients
    return collections.OrderedDict(
      models=tf.tile(one_for_all[tf.newaxis], [num_clients, 1]),
      relationship=scale * tf.eye(num_clients),
      round=0,
    )

  def message(server: Any) -> Any:
    models, sigma = server['models'], server['relationship']
    own = tf.linalg.diag_part(sigma)
    return collections.OrderedDict(
      models=models,
      own=own,
      others=tf.matmul(sigma, models) - own[:, tf.newaxis] * models,
    )

  def own_model(message: Any, state: Any) -> tf.Tensor:
    return tf.gather(message['models'], state['row'])

  like = model.init(tf.constant([0, 0]))  # For the shapes of the weights.

  def client(
    message: Any,
    numbers: process.Numbers,
    data: Any,
    state: Any,
    seed: tf.Tensor,
  ) -> process.ClientResult:
    del seed  # Nothing here is random.
    row = state['row']
    before = own_model(message, state)
    sigma_kk = tf.gather(message['own'], row)
    others = tf.gather(message['others'], row)

    def regularizer(weights: model_lib.Weights) -> tf.Tensor:
      """What of lambda / 2 tr(W^T Sigma W) depends on w_k."""
      w = flatten(weights)
      return numbers['regularization'] * (
        sigma_kk * tf.nn.l2_loss(w) + tf.reduce_sum(others * w)
      )

    trained, loss = client_work.train(
      model,
      unflatten(before, like),
      data,
      client_work.sgd(numbers['client_learning_rate']),
      regularizer,
    )
    update = before - flatten(trained)
    return process.ClientResult(
      # Its own row among zeros, so that the mean of all is of all rows.
      update=tf.one_hot(row, num_clients)[:, tf.newaxis] * update,
      weight=tf.constant(1.0),
      state=state,
      loss=loss,
      num_examples=client_work.num_examples(data),
      # Its own rows of what all clients are sent and send.
      measured=dict(
        share_received=tf.constant(1 / num_clients),
        share_sent=tf.constant(1 / num_clients),
      ),
    )

  def server(
    server: Any, numbers: process.Numbers, update: Any, sums: Any
  ) -> Any:
    del numbers  # All are the clients'.
    # The mean of the clients', of which only one has something in each row.
    models = server['models'] - sums['num_clients'] * update
    round_num = server['round'] + 1
    relationship = tf.cond(
      tf.equal(round_num % hyperparameters.outer, 0),
      lambda: relate(models, hyperparameters.relationship),
      lambda: server['relationship'],
    )
    return collections.OrderedDict(
      models=models, relationship=relationship, round=round_num
    )

  def personalize(message, numbers, state, personalization, evaluation, seed):
    del numbers, personalization, seed
    metrics = client_work.evaluate_sets(
      model, unflatten(own_model(message, state), like), evaluation
    )
    return client_work.only_candidate(metrics)

  return process.build(
    process.Method(
      initialize=initialize,
      initialize_client=lambda seed: collections.OrderedDict(row=seed[1]),
      message=message,
      client=client,
      server=server,
      personalize=personalize,
    ),
    model=model,
    hyperparameters=hyperparameters,
    aggregator=aggregator,
    evaluation_sets=evaluation_sets,
    candidates=(candidates.Candidate(text='own model'),),
    baseline=None,
    training=f'mocha {hyperparameters}',
    steps_to_personalize=False,
    personalizes_new_clients=False,
  )
