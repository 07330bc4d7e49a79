"""Checks that the examples of clients fit the model.

Examples that do not fit would not always fail: with infinity or NaN the updates
of a client are dropped, and a label beyond the classes has some loss or none,
depending on the device. So each client's examples are checked once, when they
are first loaded; in lazy populations, this is just before they are used.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from base import errors
from tasks import task
from tasks.data import populations
from tasks.models import models


def _problem(
  values: np.ndarray, spec: tf.TensorSpec, num_values: int | None
) -> str | None:
  """Says how a feature does not fit the model; None if it fits."""
  dtype = np.dtype(spec.dtype.as_numpy_dtype)
  if values.dtype != dtype:
    return f'is {values.dtype}, but the model takes {dtype}'
  shape = tuple(spec.shape)
  if values.shape[1:] != shape:
    return f'has the shape {values.shape[1:]}, but the model takes {shape}'
  wrong, what = ~np.isfinite(values), 'finite numbers'
  if num_values is not None:
    wrong = (values < 0) | (values >= num_values)
    what = f'0 to {num_values - 1}'
  if not wrong.any():
    return None
  place = tuple(int(i) for i in np.argwhere(wrong)[0])
  return (
    f'is {values[place]} in example {place[0]} (from 0 on), but must be {what}'
  )


@dataclasses.dataclass(frozen=True)
class CheckedLoad:
  """Loads the examples of a client, and checks them the first time.

  Attributes:
    load: Loads them.
    model: The model that takes them.
    where: The task and the set that they are in, for errors.
    checked: The clients that were checked.
  """

  load: populations.Load
  model: models.Model
  where: str
  checked: set[str] = dataclasses.field(default_factory=set)

  def __call__(self, client_id: str) -> populations.Examples:
    """Returns the examples; raises a `UserError` if they do not fit."""
    examples = self.load(client_id)
    if client_id not in self.checked:
      self._check(client_id, examples)
      self.checked.add(client_id)
    return examples

  def _check(self, client_id: str, examples: populations.Examples) -> None:
    where = f'{self.where}: client {client_id}'
    spec = self.model.example_spec
    if set(examples) != set(spec):
      raise errors.UserError(
        f'{where} has the features {", ".join(sorted(examples))}, but the model'
        f' takes {", ".join(sorted(spec))}.'
      )
    if len({len(values) for values in examples.values()}) > 1:
      raise errors.UserError(
        f'{where} has features of different numbers of examples.'
      )
    for name, values in examples.items():
      problem = _problem(values, spec[name], self.model.num_values.get(name))
      if problem:
        raise errors.UserError(
          f'{where}: {name} {problem}. Mend the data, or leave the client out.'
        )


def checked(unchecked: task.Task) -> task.Task:
  """Returns a task whose examples are checked when they are first loaded."""

  def population(name: str) -> populations.Population:
    original: populations.Population = getattr(unchecked, name)
    where = f'{unchecked.name}, clients of {name}'
    sets = {
      of_set: CheckedLoad(load, unchecked.model, f'{where}, set {of_set}')
      for of_set, load in original.sets.items()
    }
    return dataclasses.replace(original, sets=sets)

  return dataclasses.replace(
    unchecked,
    train=population('train'),
    validation=population('validation'),
    test=population('test'),
  )
