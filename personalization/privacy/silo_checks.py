"""Checks, by running it, that a method uses examples as it says.

The ε of a silo rests on what a method says about its use of examples. So a
client of it works for two rounds, and is personalized, on two data sets of the
same sizes, with a clipping norm so small that of each gradient only noise is
left. What it sends and keeps must then be the same for both, as anything else
would reveal examples; and its private gradients, which are counted, must be no
more than it says, each with noise of its own.
"""

import collections
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from algorithms import example_uses
from algorithms import methods
from algorithms import process
from algorithms import runtime_inputs
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from base import settings
from personalization.privacy import silo_accounting
from tasks import task as tasks
from tasks.data import batches
from tasks.models import protections

_BATCH_SIZE = 2
_BATCHES = 2
_SIZE = _BATCHES * _BATCH_SIZE
_ROUNDS = 2
# The deviation of the noise on gradients is 1; clipped to 1e-20, gradients add
# nothing to it in float32. Choices, too, are made by noise alone.
_ONLY_NOISE = protections.Protection(
  clip=1e-20,
  noise=1e20,
  batch_size=_BATCH_SIZE,
  most_loss=1e-20,
  choice_noise=1.0,
)
_TOLERANCE = 1e-5

# The part and the step of each private gradient, in each round, and when the
# client is personalized.
_Gradients = list[list[tuple[int, int]]]


class _Work(NamedTuple):
  """A client's work, on some examples.

  Attributes:
    results: What it sends and keeps, and the metrics of its models.
    gradients: Its private gradients.
  """

  results: Mapping[str, aliases.Structure]
  gradients: _Gradients


def _make_examples(
  spec: Mapping[str, tf.TensorSpec], seed: int
) -> batches.ClientData:
  """Makes examples, whose whole numbers are 0 or 1."""
  rng = np.random.default_rng(seed)

  def make(feature: tf.TensorSpec) -> tf.Tensor:
    shape = [_SIZE, *(size or 1 for size in feature.shape)]
    values = rng.normal(size=shape)
    dtype = feature.dtype.as_numpy_dtype
    is_number = feature.dtype.is_floating
    return tf.constant((values if is_number else values > 0).astype(dtype))

  indices, mask = batches.index_batches(_SIZE, _BATCH_SIZE)
  return batches.ClientData(
    collections.OrderedDict((name, make(f)) for name, f in spec.items()),
    tf.constant(indices),
    tf.constant(mask),
  )


def _numbers(given: settings.Settings) -> Mapping[str, tf.Tensor]:
  """Returns the floats of settings as tensors, as in a computation."""
  return {
    name: tf.constant(value)
    for name, value in runtime_inputs.numbers(given).items()
  }


def _work(method: methods.Method, seed: int) -> _Work:
  """Has a client train and personalize on the examples of a seed."""
  trainer = method.trainer.bind(
    _numbers(method.trainer.settings), method.trainer.model.frozen
  )
  message = trainer.message(trainer.initialize(tf.constant([0, 1])))
  protection = [getattr(_ONLY_NOISE, name) for name in protections.NUMBERS]
  attributes: dict[str, object] = {
    **dict.fromkeys(process.attribute_names(method.personalizer), 0),
    tasks.SIZE: _SIZE,
    tasks.PROTECTION: protection,
  }
  client = trainers.Client(
    _make_examples(trainer.model.example_spec, seed),
    trainer.initialize_client(tf.constant([0, 0])),
    tf.constant([1, 0]),
    {name: tf.constant(value) for name, value in attributes.items()},
  )
  results: dict[str, aliases.Structure] = {}
  gradients: _Gradients = []
  for k in range(_ROUNDS if trainer.trains else 0):
    client = client._replace(seed=tf.constant([1, k]))
    with private_steps.count_gradients() as counted:
      result = trainer.protect(client).client(message, client)
    if result.state is not None:
      client = client._replace(state=result.state)
    results[f'round {k}'] = result.updates, client.state
    gradients.append(counted)
  client = client._replace(seed=tf.constant([2, 0]))
  evaluation = {'evaluation': _make_examples(trainer.model.example_spec, 0)}
  with private_steps.count_gradients() as counted:
    protected = trainer.protect(client)
    start = protected.start(message, client)
    personalizer = method.personalizer.bind(
      protected, _numbers(method.personalizer.settings)
    )
    results['personalization'] = personalizer.personalize(
      start, client, evaluation
    )
  gradients.append(counted)
  return _Work(results, gradients)


def _count(uses: example_uses.Uses) -> int:
  """Counts the private gradients that a silo may take at most."""
  return sum(
    walk.times * walk.steps(_BATCHES) * walk.gradients for walk in uses.walks
  )


def _differ(first: aliases.Structure, second: aliases.Structure) -> bool:
  return not all(
    np.allclose(a, b, _TOLERANCE, _TOLERANCE, equal_nan=True)
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second))
  )


def check(method: methods.Method) -> None:
  """Checks that a method uses examples as it says.

  Args:
    method: The method, whose model is protected.

  Raises:
    UserError: If it does not.
  """
  first, second = _work(method, 0), _work(method, 1)
  for what, result in first.results.items():
    if _differ(result, second.results[what]):
      raise errors.UserError(
        f'The examples of silos cannot be protected: in {what}, what a client'
        ' sends, keeps or measures depends on them by more than private'
        ' gradients and choices. Give the method a why_examples_not_private.'
      )
  if any(len(set(noted)) < len(noted) for noted in first.gradients):
    raise errors.UserError(
      'Two private gradients of a client have the same noise. Give them'
      ' separate parts or steps with private_steps.mark.'
    )
  at_end, in_first, in_all = (
    _count(silo_accounting.uses(method, rounds, client_epochs=1))
    for rounds in (0, 1, _ROUNDS)
  )
  *in_rounds, in_personalization = map(len, first.gradients)
  # The client goes on from round to round, but to the server each is the first.
  most = max(in_all - at_end, _ROUNDS * (in_first - at_end))
  for what, taken, counted in (
    (f'{_ROUNDS} rounds', sum(in_rounds), most),
    ('personalization', in_personalization, at_end),
  ):
    if taken > counted:
      raise errors.UserError(
        f'In {what}, a client took {taken} private gradients where the method'
        f' counts {counted}, on {_BATCHES} batches. Correct its passes or'
        ' example_uses.'
      )
