"""Methods, each of which is a trainer and a personalizer."""

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import aggregation
from algorithms import as_trained
from algorithms import candidates
from algorithms import personalizers
from algorithms import process
from algorithms import runtime_inputs
from algorithms import trainers
from algorithms.privacy import private_aggregation
from base import aliases
from tasks import task
from tasks.models import models

_T = TypeVar('_T')
# The number of traced computations to keep, the last ones.
_MOST_TRACED = 32
_traced: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()


def _trace_once(key: Hashable, trace: Callable[[], _T]) -> _T:
  """Returns `trace()`, or its earlier result for an equal key."""
  if key not in _traced:
    _traced[key] = trace()
    if len(_traced) > _MOST_TRACED:
      _traced.popitem(last=False)
  _traced.move_to_end(key)
  return _traced[key]


def _structure(half: trainers.Trainer | personalizers.Personalizer) -> Hashable:
  """Returns a key of a trainer or personalizer without its floats' values."""
  fields = {f.name: getattr(half, f.name) for f in dataclasses.fields(half)}
  fields['settings'] = runtime_inputs.structure(half.settings)
  fields.pop('trainer', None)  # Has a separate structure.
  return type(half), tuple(fields.items())


class Protections(Hashable, Protocol):
  """Says how clients protect their examples."""

  def numbers(self, sizes: np.ndarray) -> np.ndarray:
    """Returns the numbers by which clients protect their examples.

    Args:
      sizes: The number of examples of each client, `[clients]`.

    Returns:
      `protections.NUMBERS` of each client, `[clients, numbers]` float32.
    """


@dataclasses.dataclass(frozen=True)
class Computations:
  """The computations of a method, see `process`."""

  training: process.Training
  personalize: tff.Computation


@dataclasses.dataclass(frozen=True)
class Method:
  """A method of personalized federated learning for one model.

  Methods that differ only in the floats of their settings share compiled
  programs, and so do all methods of one trainer.

  Attributes:
    personalizer: The personalizer, which has the trainer.
    aggregator: Aggregates the parts of updates for which the trainer has no
      aggregator of its own.
    evaluation_sets: The names of the sets that clients are evaluated on.
    protections: Says how clients protect their examples, if the model is
      protected.
    first_models: The models that the first training starts from, one for each
      of its `model_places`; if empty, those of `initialize`.
    guarantee: The privacy that its training guarantees; None for none.
    secret: The bits that private noise follows from, if its seed is secret.
    trace: Makes the computations.
  """

  personalizer: personalizers.Personalizer
  aggregator: aggregation.Factory | private_aggregation.Private
  evaluation_sets: Sequence[str]
  protections: Protections | None = None
  first_models: Sequence[models.Weights] = dataclasses.field(
    default=(), compare=False
  )
  guarantee: Any = dataclasses.field(default=None, compare=False)
  secret: bytes | None = dataclasses.field(
    default=None, compare=False, repr=False
  )
  trace: Callable[['Method'], Computations] = dataclasses.field(
    default=lambda method: method.trace_computations(), repr=False
  )

  @property
  def trainer(self) -> Any:
    """The trainer, of any class."""
    return self.personalizer.trainer

  @property
  def training_key(self) -> Hashable:
    """A key that is equal for methods that train the same."""
    return (
      self.trainer,
      self.aggregator,
      self.trainer.model.frozen_digest,
      self.protections,
    )

  @property
  def release(self) -> Hashable:
    """All that tells a private training from others, with a stable `repr`."""
    is_private = isinstance(self.aggregator, private_aggregation.Private)
    return (
      type(self.trainer).__name__,
      self.trainer,
      self.trainer.model.frozen_digest,
      # Any other aggregator is the mean, see `privacy`.
      self.aggregator if is_private else None,
      self.protections,
    )

  def replace_trainer(self, trainer: trainers.Trainer) -> 'Method':
    """Returns the method of another trainer, without personalization."""
    personalizer = as_trained.AsTrained(trainer, as_trained.AsTrainedSettings())
    return dataclasses.replace(self, personalizer=personalizer)

  @property
  def predecessor(self) -> 'Method | None':
    """The method that is trained before, as this one starts from its model."""
    trainer = self.trainer.predecessor
    return None if trainer is None else self.replace_trainer(trainer)

  @property
  def first(self) -> 'Method':
    """The method that is trained first of all."""
    return self if self.predecessor is None else self.predecessor.first

  @property
  def structure(self) -> Hashable:
    """A key that is equal for methods that share compiled programs."""
    return (
      self._training_structure,
      _structure(self.personalizer),
      tuple(self.evaluation_sets),
    )

  @property
  def _training_structure(self) -> Hashable:
    frozen = self.trainer.model.frozen
    return (
      _structure(self.trainer),
      tuple((name, tuple(w.shape), w.dtype) for name, w in frozen.items()),
      # The floats of private aggregators are runtime inputs, too.
      getattr(self.aggregator, 'structure', self.aggregator),
    )

  def trace_computations(self) -> Computations:
    """Makes the computations; methods of equal structure share them."""
    return Computations(
      _trace_once(
        self._training_structure,
        lambda: process.trace_training(self.trainer, self.aggregator),
      ),
      _trace_once(
        self.structure,
        lambda: process.trace_personalization(
          self.personalizer, self.evaluation_sets
        ),
      ),
    )

  @functools.cached_property
  def _computations(self) -> Computations:
    return self.trace(self)

  @property
  def initialize(self) -> tff.Computation:
    return self._computations.training.initialize

  @property
  def initialize_client(self) -> tff.Computation:
    return self._computations.training.initialize_client

  @property
  def next(self) -> tff.Computation:
    return self._computations.training.next

  @property
  def parameters_down(self) -> int:
    return self._computations.training.parameters_down

  @property
  def parameters_up(self) -> int:
    return self._computations.training.parameters_up

  @property
  def model_parameters(self) -> int:
    return self._computations.training.model_parameters

  @property
  def trains(self) -> bool:
    """Whether there are rounds; local training has none."""
    return self.trainer.trains

  @property
  def personalizes_new_clients(self) -> bool:
    """Whether clients that were never trained on can be personalized."""
    return self.trainer.personalizes_new_clients

  @property
  def needs(self) -> Sequence[str]:
    """The clients' attributes that the method needs."""
    return process.attribute_names(self.personalizer)

  @property
  def attributes(self) -> Mapping[str, Protections]:
    """The attributes that the method gives to clients, beside the task's."""
    if self.protections is None:
      return {}
    return {task.PROTECTION: self.protections}

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    """The candidates for each client's personalized model."""
    return self.personalizer.candidates

  @property
  def candidates_compete(self) -> bool:
    """Whether one of the candidates is chosen."""
    return self.personalizer.candidates_compete

  @property
  def baseline(self) -> int | None:
    """The candidate without personalization, which clients can be hurt by."""
    return self.personalizer.baseline

  @property
  def shuffled_epochs(self) -> int:
    return self.personalizer.shuffled_epochs

  @property
  def takes_steps(self) -> bool:
    """Whether personalization takes a step for each batch."""
    return self.personalizer.takes_steps

  @property
  def model_places(self) -> Sequence[tuple[str | int, ...]]:
    """The places in the state of the models that a training can start from."""
    if not self.trains:
      return ()
    return tuple(('server', *place) for place in self.trainer.model_places)

  def models(self, state: process.State) -> tuple[models.Weights, ...]:
    """Returns the models in a state, in the order of `model_places`."""
    leaves = dict(tree.flatten_with_path(state))
    return tuple(
      collections.OrderedDict(
        (path[-1], leaf) for path, leaf in leaves.items() if path[:-1] == place
      )
      for place in self.model_places
    )

  @functools.cached_property
  def constants(self) -> tuple[aliases.Structure, ...]:
    """Further arguments of `next`: frozen weights, if the model has any."""
    frozen = self.trainer.model.frozen
    if not frozen:
      return ()
    return (tf.nest.map_structure(tf.constant, frozen),)

  @property
  def _numbers(self) -> tuple[runtime_inputs.Numbers, ...]:
    """The numbers of the trainer and the aggregator, for `initialize`."""
    of_trainer = runtime_inputs.numbers(self.trainer.settings)
    nothing = runtime_inputs.Numbers()
    return of_trainer, getattr(self.aggregator, 'numbers', nothing)

  def initial_state(
    self,
    seed: Sequence[int] | np.ndarray,
    noise_seed: Sequence[int] | np.ndarray | None = None,
  ) -> process.State:
    """Makes the server's state before the first round.

    Args:
      seed: Two int32, for the models.
      noise_seed: Two int32, for noise on aggregates; by default the seed.
    """
    noise_seed = seed if noise_seed is None else noise_seed
    seeds = (np.asarray(s, np.int32) for s in (seed, noise_seed))
    state = self.initialize((*seeds, *self._numbers))
    first = {
      (*place, name): weight
      for place, weights in zip(self.model_places, self.first_models)
      for name, weight in weights.items()
    }
    return tree.map_structure_with_path(
      lambda path, leaf: first.get(path, leaf), state
    )

  def personalize(
    self, state: process.State, clients: aliases.Structure
  ) -> aliases.Structure:
    """Personalizes and evaluates clients, see `process`."""
    return self._computations.personalize(
      state.server,
      state.numbers,
      runtime_inputs.numbers(self.personalizer.settings),
      clients,
      *self.constants,
    )

  def iterative_process(
    self, seed: Sequence[int]
  ) -> tff.templates.IterativeProcess:
    """Makes the method's training in TFF's own form, with the seed fixed."""

    @tff.tensorflow.computation
    def arguments() -> aliases.Structure:
      seeds = tf.constant([seed, seed], tf.int32)
      return *tf.unstack(seeds), *(
        collections.OrderedDict(
          (name, tf.constant(value, tf.float32))
          for name, value in numbers.items()
        )
        for numbers in self._numbers
      )

    @tff.federated_computation
    def initialize() -> tff.Value:
      return self.initialize(tff.federated_eval(arguments, tff.SERVER))

    return tff.templates.IterativeProcess(initialize, self.next)
