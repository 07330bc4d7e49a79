"""The methods by name.

A method is named by a trainer and a personalizer, such as
`hypcluster+finetuning`. Some pairs have short names.

Nothing heavy is imported before a method is built, so that names can be listed,
and wrong ones refused, without the seconds that TensorFlow Federated takes to
import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import importlib
import typing
from typing import TYPE_CHECKING, Any

from base import errors
from base import settings

if TYPE_CHECKING:
  from algorithms import aggregation
  from algorithms import methods
  from algorithms import personalizers
  from tasks.models import models


@dataclasses.dataclass(frozen=True)
class Entry:
  """A trainer or a personalizer.

  Attributes:
    path: Its module and its class, which names the class of its settings.
    defaults: The settings whose default is not that of their class.
  """

  path: str
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def load(self) -> Any:
    """Returns the class."""
    module, _, class_name = self.path.partition(':')
    return getattr(importlib.import_module(module), class_name)

  def settings_class(self) -> type[settings.Settings]:
    """Returns the class of its settings."""
    return typing.get_type_hints(self.load())['settings']


# The optimizers of FedEmbed's paper.
_FEDEMBED = {
  'client_learning_rate': 0.001,
  'client_optimizer': 'adam',
  'client_epsilon': 1e-8,
  'server_optimizer': 'adam',
  'server_beta_2': 0.999,
  'server_epsilon': 1e-8,
  'client_weighting': 'uniform',
}
# The optimizers of FedPC's paper, whose server averages.
_FEDPC = {
  'client_optimizer': 'adam',
  'client_learning_rate': 0.001,
  'client_epsilon': 1e-8,
  'client_weighting': 'uniform',
}

TRAINERS = {
  'apfl': Entry('algorithms.apfl:Apfl'),
  'ditto': Entry('algorithms.ditto:Ditto'),
  'ensemble': Entry(
    'algorithms.hypcluster:HypCluster',
    {'warmstart_rounds': 1e9},  # All rounds.
  ),
  'fedadam': Entry(
    'algorithms.fedavg:FedAvg',
    {'server_optimizer': 'adam', 'server_learning_rate': 0.03},
  ),
  'fedavg': Entry('algorithms.fedavg:FedAvg'),
  # TFF's form, whose steps add up to 1 / (1 - momentum) of FedAvg's; Motley's
  # is the server_optimizer 'damped_momentum', with ten times the rate.
  'fedavgm': Entry(
    'algorithms.fedavg:FedAvg',
    {'server_optimizer': 'momentum', 'server_learning_rate': 0.1},
  ),
  'fedbabu': Entry('algorithms.split:FedBabu'),
  'fedembed_personal': Entry('algorithms.fedembed:PersonalFedEmbed', _FEDEMBED),
  'fedembed_prototype': Entry(
    'algorithms.fedembed_prototype:PrototypeFedEmbed', _FEDEMBED
  ),
  'fedembed_som': Entry('algorithms.fedembed_som:SomFedEmbed', _FEDEMBED),
  'fedembed_type': Entry('algorithms.fedembed:TypeFedEmbed', _FEDEMBED),
  'fedpc': Entry('algorithms.fedpc:FedPc', _FEDPC),
  'fedpc_generated': Entry('algorithms.fedpc_generated:FedPcGenerated', _FEDPC),
  'fedper': Entry('algorithms.split:Split'),
  'fedprox': Entry('algorithms.fedprox:FedProx'),
  'fedrep': Entry('algorithms.split:FedRep'),
  'fedrod': Entry('algorithms.split:FedRod'),
  # FedAvg with embeddings.
  'global_plus': Entry(
    'algorithms.fedembed:OneHeadFedEmbed',
    {
      **_FEDEMBED,
      'embedding_loss': 'own',
      'type_loss': False,
      'global_loss': False,
    },
  ),
  'group': Entry(
    'algorithms.group:Group',
    {'server_optimizer': 'adam', 'server_learning_rate': 0.03},  # As fedadam.
  ),
  'hypcluster': Entry('algorithms.hypcluster:HypCluster'),
  'lg_fedavg': Entry(
    'algorithms.split:Split', {'personal_parts': ('encoder',)}
  ),
  'local': Entry('algorithms.local:Local'),
  'mocha': Entry('algorithms.mocha:Mocha'),
  'mr_mtl': Entry('algorithms.mr_mtl:MrMtl', {'client_weighting': 'uniform'}),
  'perfedavg': Entry(
    'algorithms.perfedavg:PerFedAvg', {'client_weighting': 'uniform'}
  ),
  'pfedkm': Entry('algorithms.pfedkm:PFedKm', {'client_weighting': 'uniform'}),
  'pfedme': Entry('algorithms.pfedme:PFedMe', {'client_weighting': 'uniform'}),
  'scaffold': Entry('algorithms.scaffold:Scaffold'),
  'self_fl': Entry('algorithms.self_fl:SelfFl'),
  'self_fl_clusters': Entry('algorithms.self_fl_clusters:ClusterSelfFl'),
}
PERSONALIZERS = {
  'adaptation': Entry('algorithms.adaptation:Adaptation'),
  'as_trained': Entry('algorithms.as_trained:AsTrained'),
  'ditto': Entry('algorithms.ditto:DittoPersonalizer'),
  'embedding_finetuning': Entry(
    'algorithms.embedding_finetuning:EmbeddingFinetuning'
  ),
  'fedpc_generated': Entry(
    'algorithms.fedpc_generated:FedPcGeneratedPersonalizer'
  ),
  'finetuning': Entry('algorithms.finetuning:Finetuning'),
  'head_finetuning': Entry(
    'algorithms.finetuning:Finetuning', {'finetuning_layers': ('last',)}
  ),
  'knn_per': Entry('algorithms.knn_per:KnnPer'),
}
# The pairs that have a short name; any other trainer's name stands for the
# trainer without personalization.
_PAIRS = {
  'ditto': ('ditto', 'ditto'),
  'fedbabu': ('fedbabu', 'finetuning'),
  'fedpc': ('fedpc', 'adaptation'),
  'fedpc_generated': ('fedpc_generated', 'fedpc_generated'),
  'fedrep': ('fedrep', 'head_finetuning'),
  'finetuning': ('fedavg', 'finetuning'),
  'knn_per': ('fedavg', 'knn_per'),
  'local': ('local', 'finetuning'),
}


def _pairs() -> dict[str, tuple[str, str]]:
  return {name: (name, 'as_trained') for name in TRAINERS} | _PAIRS


def short_names() -> tuple[str, ...]:
  """Returns the short names of methods."""
  return tuple(sorted(_pairs()))


def canonical_name(name: str) -> str:
  """Returns the name of a method, which is the short one if there is one.

  Args:
    name: A short name, or `trainer+personalizer`.

  Raises:
    UserError: If there is no such method.
  """
  if name in _pairs():
    return name
  trainer, plus, personalizer = name.partition('+')
  if not plus:
    raise errors.unknown('algorithm', name, short_names())
  for kind, part, known in (
    ('trainer', trainer, TRAINERS),
    ('personalizer', personalizer, PERSONALIZERS),
  ):
    if part not in known:
      raise errors.UserError(f'{name}: {errors.unknown(kind, part, known)}')
  if personalizer in TRAINERS and personalizer != trainer:
    raise errors.UserError(
      f'{name}: {personalizer} personalizes only what {personalizer} trained.'
    )
  for short, pair in _pairs().items():
    if pair == (trainer, personalizer):
      return short
  return name


def halves(name: str) -> tuple[str, str]:
  """Returns the names of the trainer and the personalizer of a method."""
  name = canonical_name(name)
  trainer, personalizer = _pairs().get(name) or name.split('+')
  return trainer, personalizer


def personalizer_class(name: str) -> type[personalizers.Personalizer]:
  """Returns the class of the personalizer of a method."""
  found: type[personalizers.Personalizer] = _entries(name)[1].load()
  return found


def _entries(name: str) -> tuple[Entry, Entry]:
  """Returns the trainer and the personalizer of a method."""
  trainer, personalizer = halves(name)
  return TRAINERS[trainer], PERSONALIZERS[personalizer]


@dataclasses.dataclass(frozen=True)
class MethodSettings:
  """The settings of a trainer and a personalizer, which share no names."""

  trainer: Any
  personalizer: Any

  def to_dict(self) -> dict[str, Any]:
    """Returns all settings by their names."""
    return {
      **dataclasses.asdict(self.trainer),
      **dataclasses.asdict(self.personalizer),
    }


def _names(settings_class: type[settings.Settings]) -> tuple[str, ...]:
  return tuple(field.name for field in dataclasses.fields(settings_class))


@functools.cache  # Looking up the types of settings is slow.
def settings_names(name: str) -> tuple[str, ...]:
  """Returns the names of a method's settings."""
  return tuple(
    setting
    for entry in _entries(name)
    for setting in _names(entry.settings_class())
  )


def make_settings(name: str, values: Mapping[str, Any]) -> MethodSettings:
  """Makes a method's settings.

  Args:
    name: The name of the method.
    values: The settings that differ from the method's defaults, as text or with
      their types.

  Returns:
    All settings of the method.

  Raises:
    UserError: If there is no such method, setting or value.
  """
  known = settings_names(name)
  for setting in values:
    if setting not in known:
      unknown = errors.unknown('setting', setting, known)
      raise settings.SettingError(f'{name}: {unknown}', setting)
  halves = []
  for entry in _entries(name):
    settings_class = entry.settings_class()
    chosen = {
      setting: value
      for setting, value in {**entry.defaults, **values}.items()
      if setting in _names(settings_class)
    }
    halves.append(settings.parse(settings_class, chosen, name))
  return MethodSettings(*halves)


def build(
  name: str,
  model: models.Model,
  method_settings: MethodSettings,
  aggregator: aggregation.Factory,
  evaluation_sets: Sequence[str],
  num_clients: int = 0,
  num_groups: int = 0,
) -> methods.Method:
  """Builds a method.

  Args:
    name: The name of the method.
    model: The model to learn.
    method_settings: The method's settings, as `make_settings` makes them.
    aggregator: Aggregates the clients' updates.
    evaluation_sets: The names of the sets that clients are evaluated on.
    num_clients: The number of clients to train on, for trainers whose setting
      `num_clients` is 0.
    num_groups: The number of known groups, for trainers whose setting
      `num_groups` is 0.

  Returns:
    The method for that model.
  """
  known = {'num_clients': num_clients, 'num_groups': num_groups}
  left_open = [
    n for n in known if getattr(method_settings.trainer, n, None) == 0
  ]
  trainer_settings = dataclasses.replace(
    method_settings.trainer, **{n: known[n] for n in left_open}
  )
  trainer_class, personalizer_class = (e.load() for e in _entries(name))
  trainer = trainer_class(model, trainer_settings)
  return importlib.import_module('algorithms.methods').Method(
    personalizer_class(trainer, method_settings.personalizer),
    aggregator,
    tuple(evaluation_sets),
  )
