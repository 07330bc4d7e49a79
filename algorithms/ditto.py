"""Ditto: personal models that are pulled towards the global one.

Li et al. 2021, algorithm 1. The global model w is trained as by FedAvg, as if
there were no personal ones. Beside it, client k solves, its equation (Ditto),

  min_v  h_k(v; w) = F_k(v) + lambda / 2 ||v - w||^2

by steps of its own learning rate on its own model v_k, which it keeps:

  client k:  w_k <- w;  for each batch b: w_k <- w_k - eta_g grad F_k(w_k; b)
             for each batch b:
               v_k <- v_k - eta_l (grad F_k(v_k; b) + lambda (v_k - w))
             sends w_k - w
  server:    as in FedAvg

The w that pulls is the one the client received. (The paper's algorithm says so;
to pull to the new one, the client would have to wait for the server.)

v_k starts as the w of the client's first round. A client that was never trained
starts at the last w and takes the same steps on its personalization set, for
some epochs.
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
from algorithms import fedavg
from algorithms import process
from base import settings
from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class Hyperparameters(fedavg.Hyperparameters):
  """Those of FedAvg for the global model, and those of the personal ones."""

  personal_learning_rate: float = settings.field(
    0.1, 'The learning rate of the personal models.', minimum=0
  )
  regularization: float = settings.field(
    0.1,
    'lambda, how strongly personal models are pulled to the global one.',
    minimum=0,
  )
  personal_epochs: int = settings.field(
    0,
    'The most epochs on the personalization set before the evaluation; 0 to'
    ' this are tried. Only clients that are held out need any.',
    minimum=0,
  )


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds Ditto; its baseline is the global model."""
  global_model = fedavg.training_functions(model, hyperparameters)

  def initialize_client(seed: tf.Tensor) -> Any:
    # Of the right shape; a client begins with the w of its first round.
    return collections.OrderedDict(
      personal=tf.nest.map_structure(tf.zeros_like, model.init(seed)),
      rounds=0,
    )

  def personal_model(state: Any, w: model_lib.Weights) -> model_lib.Weights:
    return process.choose(state['rounds'] > 0, state['personal'], w)

  def train_personal(
    v: model_lib.Weights,
    w: model_lib.Weights,
    data: Any,
    numbers: process.Numbers,
  ) -> model_lib.Weights:
    """Minimizes h_k(v; w)."""

    def pull(v: model_lib.Weights) -> tf.Tensor:
      difference = client_work.difference(v, w)
      # l2_loss is half the square.
      return numbers['regularization'] * sum(
        map(tf.nn.l2_loss, difference.values())
      )

    step = client_work.sgd(numbers['personal_learning_rate'])
    return client_work.train(model, v, data, step, pull)[0]

  def client(
    w: model_lib.Weights,
    numbers: process.Numbers,
    data: Any,
    state: Any,
    seed: tf.Tensor,
  ) -> process.ClientResult:
    v = train_personal(personal_model(state, w), w, data, numbers)
    return dataclasses.replace(
      global_model['client'](w, numbers, data, state, seed),
      state=collections.OrderedDict(personal=v, rounds=state['rounds'] + 1),
    )

  def personalize(w, numbers, state, personalization, evaluation, seed):
    del seed
    of_global = client_work.evaluate_sets(model, w, evaluation)
    of_personal = client_work.evaluate_epochs(
      model,
      personal_model(state, w),
      evaluation,
      lambda epoch, v: train_personal(v, w, personalization, numbers),
      hyperparameters.personal_epochs,
    )
    return tf.nest.map_structure(
      lambda one, others: tf.concat([one[tf.newaxis], others], 0),
      of_global,
      of_personal,
    )

  return process.build(
    process.Method(
      **global_model
      | dict(
        initialize_client=initialize_client,
        client=client,
        personalize=personalize,
      )
    ),
    model=model,
    hyperparameters=hyperparameters,
    aggregator=aggregator,
    evaluation_sets=evaluation_sets,
    candidates=(
      candidates.Candidate(text='global model'),
      *(
        candidates.Candidate(
          value=epoch,
          unit='epochs',
          label='personal model',
          text=f'personal model, {epoch} epochs',
        )
        for epoch in range(hyperparameters.personal_epochs + 1)
      ),
    ),
    baseline=0,
    training=f'ditto {hyperparameters}',
  )
