"""Group-personalized federated learning (Liu, Hui and Peng 2022).

The global model is trained first (algorithm 1), and then a copy of it within
each group of clients (algorithm 2):

  for each group g:  Theta_g <- Theta, the trained global model
    for each round of the group:
      client i of g:  theta <- Theta_g, trains K epochs, sends Theta_g - theta
      the server:     Theta_g <- FedAdam(Theta_g, mean of these updates)

with a new server optimizer for each group. Fine-tuning from there (algorithm 3)
is a personalizer like any other: with `fedadam` trained once,

  FL = fedadam, PerFL = fedadam+finetuning, GroupFL = group,
  GroupPerFL = group+finetuning

Where the paper leaves it open: T_g counts epochs over the clients of a group,
each of ceil(its clients / cohort) rounds (section 5.2 calls them epochs,
algorithm 2 rounds). Each round draws a new cohort from the group's clients, as
FLSim does by default; of a smaller group, all clients take part. Groups take
turns within an epoch, which changes nothing for any of them. A group without
clients keeps the global model.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from algorithms import clusters
from algorithms import fedavg
from algorithms import hypcluster
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from base import aliases
from base import settings
from tasks import task
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class GroupSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, for the global model and the groups."""

  group_epochs: int = settings.field(
    10, 'The passes over the clients of each group, T_g.', minimum=0
  )
  group_learning_rate: float | None = settings.field(
    None,
    'The learning rate of the server in the groups; none for the'
    ' server_learning_rate.',
    minimum=0,
  )
  groups: str = settings.field(
    'column',
    'Whether the groups are those that the task knows (column), the clusters'
    " that HypCluster finds, or inferred from clients' updates.",
    choices=('column', 'hypcluster', 'inferred'),
  )
  num_groups: int = settings.field(
    0,
    'The number of groups to find; 0 for the groups that the task knows.',
    minimum=0,
    maximum=1000,
  )
  linkage: str = settings.field(
    'complete',
    'How groups are inferred: complete as in the code of Sattler et al., or'
    ' single as in their paper.',
    choices=('complete', 'single'),
  )
  warmstart_rounds: aliases.Number = settings.field(
    0.0,
    'The rounds of the warm start of the HypCluster that finds the groups.',
    minimum=0,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.groups != 'column' and not self.num_groups:
      raise settings.SettingError(
        f'num_groups must be set if groups is {self.groups}.', 'num_groups'
      )


@dataclasses.dataclass(frozen=True)
class Group(clusters.ClusterTrainer):
  """Goes on training the global model within each group."""

  settings: GroupSettings
  needs = (task.GROUP,)
  cohort_attribute = task.GROUP
  start_name = 'group'
  cluster_name = 'group'

  def _shared_settings(self) -> dict[str, Any]:
    """Returns the settings that FedAvg has as well."""
    return {
      field.name: getattr(self.settings, field.name)
      for field in dataclasses.fields(fedavg.FedAvgSettings)
    }

  @property
  def predecessor(self) -> trainers.Trainer | None:
    return fedavg.FedAvg(
      self.model, fedavg.FedAvgSettings(**self._shared_settings())
    )

  @property
  def hypcluster(self) -> trainers.Trainer:
    """The HypCluster that finds the groups, if `groups` is hypcluster."""
    return hypcluster.HypCluster(
      self.model,
      hypcluster.HypClusterSettings(
        **self._shared_settings(),
        num_clusters=self.num_models,
        warmstart_rounds=self.settings.warmstart_rounds,
      ),
    )

  @property
  def why_examples_not_private(self) -> str | None:
    return (
      'group trains a global model, and then goes on within groups that may be'
      ' found from the data of silos'
    )

  @property
  def why_not_private(self) -> str | None:
    if self.settings.groups == 'column':
      return None
    return (
      "its groups are found from clients' data, which is not accounted for;"
      ' set groups=column'
    )

  @property
  def found_attributes(self) -> Sequence[str]:
    return () if self.settings.groups == 'column' else self.needs

  @property
  def num_epochs(self) -> int | None:
    return self.settings.group_epochs

  @property
  def num_models(self) -> int:
    return self.settings.num_groups

  @property
  def server_steps(self) -> optimizers.Optimizer:
    """The optimizer of the server in the groups, FedAdam with eta_g."""
    steps, rate = self.settings.server_steps, self.settings.group_learning_rate
    if rate is None:
      return steps
    return dataclasses.replace(steps, learning_rate=rate)

  def initialize(self, seed: aliases.Seed) -> clusters.ClustersState:
    return self._begin([self.model.init(seed)] * self.num_models)

  def client(
    self, message: clusters.ClustersMessage, client: trainers.Client
  ) -> trainers.ClientResult:
    result = super().client(message, client)
    # A client does not use the models of other groups.
    share = tf.constant(1.0 / self.num_models)
    measured = {**result.measured, 'share_received': share}
    return result._replace(measured=measured)

  def cluster_of(self, w: models.Weights, client: trainers.Client) -> tf.Tensor:
    del w
    return client.attributes[task.GROUP]


registry.register_trainer(
  'group',
  Group,
  title='Group',
  paper='Liu et al. 2022',
  does=(
    'a model for each known group of clients, which starts from the global'
    ' model of fedadam'
  ),
  sends=(
    "the update of its group's model, with zeros for the others, and which one"
    ' it is. The global training before is as private and is accounted for; a'
    ' client is in one group'
  ),
  defaults={'server_optimizer': 'adam', 'server_learning_rate': 0.03},
  small={'group_epochs': 2},
)
