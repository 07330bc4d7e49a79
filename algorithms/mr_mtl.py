"""MR-MTL: a model for each client, pulled to the mean of all of them.

Liu et al. 2022 ("On privacy and personalization in cross-silo federated
learning"): mean-regularized multi-task learning,

  min_(w_1 … w_K)  sum_k F_k(w_k) + lambda / 2 ||w_k - w_bar||^2,
  w_bar = sum_k w_k / K

In a round, with the w_bar of the round before:

  client k:    for each batch b:
                 w_k <- w_k - eta (grad F_k(w_k; b) + lambda (w_k - w_bar))
               keeps w_k, and sends its change of w_k
  the server:  w_bar <- w_bar + mean of these changes

All clients start at the same w_bar. With lambda = 0 each trains by itself. The
server has FedAvg's settings: at a learning rate of one, and with all clients in
each round, w_bar is always the mean of their models. All clients count the
same, as in the paper, or by the number of their examples, n_k / N, as in its
authors' code (a `client_weighting` of 'size').

The paper has no clients that were never trained on; here they start at w_bar.
"""

import dataclasses

from algorithms import client_work
from algorithms import fedavg
from algorithms import personal_models
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class MrMtlSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and the pull."""

  client_weighting: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_weighting', 'uniform'
  )
  regularization: aliases.Number = settings.field(
    0.1, 'lambda, how strongly models are pulled to their mean.', minimum=0
  )


@dataclasses.dataclass(frozen=True)
class MrMtl(personal_models.PersonalModels):
  """Trains a model for each client, and their mean."""

  settings: MrMtlSettings
  shared_name = 'mean model'

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    w_bar, state = message, client.state
    before = self.personal_model(w_bar, state)
    w_k, loss, shared = self.descend(
      before,
      client._replace(state=state.shared),
      client_work.pull(w_bar, self.settings.regularization),
    )
    return self.result(before, w_k, loss, state.advance(w_k, shared), client)


registry.register_trainer(
  'mr_mtl',
  MrMtl,
  title='MR-MTL',
  paper='Liu et al. 2022',
  does='a model for each client, pulled to the mean of all',
  sends='the update of its personal model, for the mean of all',
  keeps='its personal model',
)
