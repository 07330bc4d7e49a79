"""The methods by name.

Nothing heavy is imported before a method is asked for, so that the names can be
listed, and a wrong one answered, without the seconds TensorFlow Federated takes
to import.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import importlib
import types
from typing import TYPE_CHECKING, Any

from base import errors
from base import settings

if TYPE_CHECKING:
  import tensorflow_federated as tff

  from algorithms import algorithm
  from tasks.models import model as model_lib


@dataclasses.dataclass(frozen=True)
class _Method:
  """A module, and what it has to be told to be the method of a name.

  Attributes:
    module: A module with its settings, `Hyperparameters`, and
      `build(model, hyperparameters, aggregator, evaluation_sets) -> Algorithm`.
    defaults: The hyperparameters that are not the module's own defaults.
  """

  module: str
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_METHODS = {
  'ditto': _Method('algorithms.ditto'),
  'ensemble': _Method(
    'algorithms.hypcluster',
    dict(warmstart_rounds=1e9),  # All rounds.
  ),
  'fedadam': _Method(
    'algorithms.fedavg',
    dict(server_optimizer='adam', server_learning_rate=0.03),
  ),
  'fedavg': _Method('algorithms.fedavg'),
  # TFF's form, whose steps add up to 1 / (1 - momentum) of FedAvg's; Motley's
  # is the server_optimizer 'damped_momentum', with ten times the rate.
  'fedavgm': _Method(
    'algorithms.fedavg',
    dict(server_optimizer='momentum', server_learning_rate=0.1),
  ),
  'finetuning': _Method('algorithms.finetuning'),
  'hypcluster': _Method('algorithms.hypcluster'),
  'knn_per': _Method('algorithms.knn_per'),
  'local': _Method('algorithms.local'),
  'mocha': _Method('algorithms.mocha'),
}


# The computations of the methods that were built last.
_traces: collections.OrderedDict[Any, Any] = collections.OrderedDict()
_MOST_TRACES = 32


def algorithm_names() -> tuple[str, ...]:
  """The names of all methods."""
  return tuple(sorted(_METHODS))


def check(name: str) -> None:
  """Raises a `UserError` if there is no such method."""
  if name not in _METHODS:
    raise errors.unknown('algorithm', name, _METHODS)


def _module(name: str) -> types.ModuleType:
  check(name)
  return importlib.import_module(_METHODS[name].module)


def hyperparameter_names(name: str) -> tuple[str, ...]:
  """The names of a method's hyperparameters."""
  fields = dataclasses.fields(_module(name).Hyperparameters)
  return tuple(field.name for field in fields)


def hyperparameters(name: str, values: Mapping[str, Any]) -> settings.Settings:
  """A method's hyperparameters.

  Args:
    name: The name of the method.
    values: Those that are not to be the method's defaults, as text or with
      their types.

  Returns:
    All of them.

  Raises:
    UserError: If there is no such method, hyperparameter or value.
  """
  return settings.from_dict(
    _module(name).Hyperparameters, {**_METHODS[name].defaults, **values}, name
  )


def build(
  name: str,
  model: model_lib.Model,
  hyperparameters: settings.Settings,
  aggregator: tff.aggregators.AggregationFactory,
  evaluation_sets: Sequence[str],
  num_clients: int = 0,
) -> algorithm.Algorithm:
  """Builds a method.

  Args:
    name: The name of the method.
    model: The model to learn.
    hyperparameters: The method's, as `hyperparameters` makes them.
    aggregator: Makes the mean of the clients' updates.
    evaluation_sets: The names of the sets that clients are evaluated on.
    num_clients: The number of clients to train on, for a method that must know
      it and whose hyperparameters leave it open.

  Returns:
    The method for that model. Methods for the same model and aggregator that
    differ only in numbers share their computations.
  """
  if getattr(hyperparameters, 'num_clients', None) == 0:
    hyperparameters = dataclasses.replace(
      hyperparameters, num_clients=num_clients
    )
  algorithm = _module(name).build(
    model, hyperparameters, aggregator, evaluation_sets
  )
  key = (
    _METHODS[name].module,
    algorithm.structure,
    model,
    aggregator,
    tuple(evaluation_sets),
  )
  trace = _traces.setdefault(key, algorithm.trace)
  _traces.move_to_end(key)
  if len(_traces) > _MOST_TRACES:
    _traces.popitem(last=False)
  return dataclasses.replace(algorithm, trace=trace)
