"""Local training: each client trains a model of its own, from the start.

Motley, section 3.1 and appendix C.2.1: no rounds, and fine-tuning of the model
as it was initialized.
"""

from collections.abc import Sequence
import dataclasses

import tensorflow_federated as tff

from algorithms import algorithm
from algorithms import finetuning
from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class Hyperparameters(finetuning.FinetuningHyperparameters):
  """Those of the clients' training."""


def build(
  model: model_lib.Model,
  hyperparameters: Hyperparameters,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
) -> algorithm.Algorithm:
  """Builds local training."""
  method = finetuning.build(
    model,
    finetuning.Hyperparameters(**dataclasses.asdict(hyperparameters)),
    aggregator,
    evaluation_sets,
  )
  # The model before the first epoch is no model that anybody would use.
  return dataclasses.replace(
    method, baseline=None, training='none', trains=False, models=()
  )
