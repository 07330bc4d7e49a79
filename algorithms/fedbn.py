"""FedBN: normalization layers stay at the clients.

Li et al. 2021, algorithm 1. Client k keeps the scales, the offsets and the
running statistics of its normalization layers, b_k, and shares all other
weights theta by FedAvg:

  client k:    (theta_k, b_k) <- steps from (theta, b_k) on F_k
               sends theta_k - theta, and keeps b_k
  the server:  theta as the model in FedAvg

With group normalization there are no statistics, and without normalization it
is FedAvg. SiloBN (Andreux et al. 2020) keeps the statistics alone:
personal_parts=statistics. A client that was never trained on has the initial
scales and offsets, and statistics that are recomputed from its personalization
set. The authors' code gives all clients the same weight
(client_weighting=uniform), and leaves out layers whose names do not have 'bn'.
"""

from collections.abc import Sequence
import dataclasses

from algorithms import registry
from algorithms import split
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedBn(split.Split):
  """Trains all that is no normalization, and each client's normalization."""

  @property
  def _personal_parts(self) -> Sequence[str]:
    """The personal parts, without those of layers that the model lacks."""
    lacking = {models.NORM, models.STATISTICS} - {*self.model.parts}
    return [p for p in self.settings.personal_parts if p not in lacking]

  def __post_init__(self) -> None:
    if self._personal_parts:
      self.partition.check()
    self.settings.refuse_kept_slots('fedbn')

  @property
  def partition(self) -> split.Partition:
    return split.Partition(self.model, self._personal_parts)


registry.register_trainer(
  'fedbn',
  FedBn,
  title='FedBN',
  paper='Li et al. 2021',
  does=(
    'a shared model, but for the normalization layers, which each client has;'
    ' personal_parts=statistics is SiloBN'
  ),
  sends='the update of all weights that are not of normalization layers',
  keeps='the weights and the statistics of its normalization layers',
  defaults={'personal_parts': ('norm', 'statistics')},
)
