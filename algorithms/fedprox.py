"""FedProx: FedAvg whose clients are pulled to the model they received.

Li et al. 2020 ("Federated optimization in heterogeneous networks"), algorithm
2. In a round, client k seeks, inexactly, its equation (2),

  w_k ~ argmin_w  h_k(w; w^t) = F_k(w) + mu / 2 ||w - w^t||^2

by its steps from w^t on:

  client k:    w_k <- w^t;  for each batch b:
                 w_k <- w_k - eta (grad F_k(w_k; b) + mu (w_k - w^t))
  the server:  as in FedAvg

The paper samples clients with probabilities by their sizes, and all count the
same. Here all have the same probability, and count by `client_weighting`, as in
FedAvg. With mu = 0 this is FedAvg.
"""

import dataclasses

from algorithms import client_work
from algorithms import fedavg
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedProxSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and the pull."""

  proximal: aliases.Number = settings.field(
    0.1,
    "mu, how strongly a client's model is pulled to the one it received.",
    minimum=0,
  )


@dataclasses.dataclass(frozen=True)
class FedProx(fedavg.FedAvg):
  """Trains one global model, to which the clients' models are pulled."""

  settings: FedProxSettings

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    pull = client_work.pull(message, self.settings.proximal)
    return self.result(message, *self.descend(message, client, pull), client)


registry.register_trainer(
  'fedprox',
  FedProx,
  title='FedProx',
  paper='Li et al. 2020',
  does=(
    "one global model; in a round, a client's model is pulled to the one it"
    ' received'
  ),
  sends='the update of the model',
)
