"""What a method is: a TFF iterative process, and personalization of clients."""

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from algorithms import candidates
from tasks.models import model as model_lib

SEED_TYPE = tff.TensorType(np.int32, [2])


def numbers(hyperparameters: Any) -> collections.OrderedDict[str, np.ndarray]:
  """The hyperparameters that live in the server's state: all floats."""
  values = (
    (field.name, getattr(hyperparameters, field.name))
    for field in dataclasses.fields(hyperparameters)
  )
  return collections.OrderedDict(
    (name, np.asarray(value, np.float32))
    for name, value in values
    if isinstance(value, float)
    or (isinstance(value, tuple) and value and isinstance(value[0], float))
  )


def structure(hyperparameters: Any) -> Hashable:
  """What of the hyperparameters shapes computations: all but the numbers."""
  of_numbers = numbers(hyperparameters)
  return type(hyperparameters), tuple(
    (
      field.name,
      of_numbers[field.name].shape
      if field.name in of_numbers
      else getattr(hyperparameters, field.name),
    )
    for field in dataclasses.fields(hyperparameters)
  )


@dataclasses.dataclass(frozen=True)
class Computations:
  """What a method computes.

  S is the server's state, C what a client keeps from round to round (an empty
  struct if it keeps nothing). Numeric hyperparameters are in S, so that one
  compiled `next` serves every value of them.

  Attributes:
    initialize: `(<seed, hyperparameters>@SERVER -> S@SERVER)`.
    initialize_client: `(seed -> C)`, where the seed is the seed of the run and
      the number of the client: 0, 1, … for those to train on, and on from there
      for those that are held out.
    next: `(<S@SERVER, {<data, state=C, seed>}@CLIENTS> -> <S@SERVER,
      {C}@CLIENTS, training metrics@SERVER>)`; data as in
      `tasks.data.client_data`.
    personalize: `(<S@SERVER, {<state=C, personalization=data, evaluation=<set:
      data, ...>, seed>}@CLIENTS> ->
      {<set: <metric: <total, weight>>>}@CLIENTS)`
      where each total and weight is a vector over the candidates.
    parameters_down: How many parameters a client is sent in a round, in the
      form in which `next` has them.
    parameters_up: How many it sends. Where a part of either is another client's
      or zero by design, as the updates of other clusters, the method measures
      the share that is not: 'share_received', 'share_sent'.
  """

  initialize: tff.Computation
  initialize_client: tff.Computation
  next: tff.Computation
  personalize: tff.Computation
  parameters_down: int
  parameters_up: int


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """A personalized federated learning method for one model.

  Attributes:
    trace: Makes its computations, once.
    structure: All that they depend on beside the numbers.
    candidates: What the entries of the metrics of `personalize` stand for.
    baseline: Which candidate is the model without personalization, that clients
      can be hurt in comparison with; None if there is none.
    hyperparameters: The values that `initialize` puts into S.
    training: Describes all that `next` depends on: two algorithms of the same
      description train the same.
    trains: Whether `next` learns anything; local training does without.
    shuffled_epochs: How often, each time in a new order, `personalize` wants to
      be given a client's personalization set; 0 for once, in its own order.
    steps_to_personalize: Whether `personalize` takes a step for each batch of
      the personalization set. If not, it is to see all of it, though training
      may drop batches that are not full.
    personalizes_new_clients: Whether clients that were never trained on can be
      personalized.
    models: The places in S, each the names on the way to it, of the models that
      a training can begin with; none if no model is everybody's.
    first_models: The models that `initial_state` has there; without, those of
      `initialize`.
  """

  trace: Callable[[], Computations]
  structure: Hashable
  candidates: Sequence[candidates.Candidate]
  baseline: int | None
  hyperparameters: Mapping[str, np.ndarray]
  training: str
  trains: bool = True
  shuffled_epochs: int = 0
  steps_to_personalize: bool = True
  personalizes_new_clients: bool = True
  models: Sequence[tuple[str | int, ...]] = ()
  first_models: Sequence[model_lib.Weights] = ()

  @property
  def initialize(self) -> tff.Computation:
    return self.trace().initialize

  @property
  def initialize_client(self) -> tff.Computation:
    return self.trace().initialize_client

  @property
  def next(self) -> tff.Computation:
    return self.trace().next

  @property
  def personalize(self) -> tff.Computation:
    return self.trace().personalize

  @property
  def parameters_down(self) -> int:
    return self.trace().parameters_down

  @property
  def parameters_up(self) -> int:
    return self.trace().parameters_up

  def initial_state(self, seed: Sequence[int]) -> Any:
    """The server's state before the first round."""
    state = self.initialize((np.asarray(seed, np.int32), self.hyperparameters))
    first = {
      (*place, name): weight
      for place, weights in zip(self.models, self.first_models)
      for name, weight in weights.items()
    }
    return tree.map_structure_with_path(
      lambda path, leaf: first.get(path, leaf), state
    )

  def iterative_process(
    self, seed: Sequence[int]
  ) -> tff.templates.IterativeProcess:
    """The method in TFF's own form, with the seed fixed."""

    @tff.tensorflow.computation
    def arguments():
      return tf.constant(seed, tf.int32), collections.OrderedDict(
        (name, tf.constant(value, tf.float32))
        for name, value in self.hyperparameters.items()
      )

    @tff.federated_computation
    def initialize():
      return self.initialize(tff.federated_eval(arguments, tff.SERVER))

    return tff.templates.IterativeProcess(initialize, self.next)
