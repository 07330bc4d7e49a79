"""Settings in the form that compiled programs take.

The floats of a method's settings are runtime inputs: they are part of the
server's state, and one compiled program serves all of their values. Everything
else is compiled in.
"""

import collections
from collections.abc import Hashable, Mapping
import copy
import dataclasses
from typing import TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import settings

_S = TypeVar('_S', bound=settings.Settings)
Numbers = collections.OrderedDict[str, np.ndarray]


def _is_float(value: object) -> bool:
  return isinstance(value, float) or (
    isinstance(value, tuple) and bool(value) and isinstance(value[0], float)
  )


def numbers(all_settings: settings.Settings) -> Numbers:
  """Returns the settings that are floats, or tuples of floats, as arrays."""
  return collections.OrderedDict(
    (field.name, np.asarray(getattr(all_settings, field.name), np.float32))
    for field in dataclasses.fields(all_settings)
    if _is_float(getattr(all_settings, field.name))
  )


def type_of(values: Numbers) -> tff.Type:
  """Returns the TFF type of numbers."""
  return tff.to_type(
    collections.OrderedDict(
      (name, tff.TensorType(np.float32, value.shape))
      for name, value in values.items()
    )
  )


def structure(all_settings: settings.Settings) -> Hashable:
  """Returns what a program depends on: everything but the values of floats."""
  shapes = {
    name: number.shape for name, number in numbers(all_settings).items()
  }
  return type(all_settings), tuple(
    (field.name, shapes.get(field.name, getattr(all_settings, field.name)))
    for field in dataclasses.fields(all_settings)
  )


def pack(values: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """Returns numbers as one vector, which is faster to send than many."""
  return tf.concat(
    [tf.zeros([0]), *(tf.reshape(value, [-1]) for value in values.values())], 0
  )


def unpack(
  vector: tf.Tensor, like: Mapping[str, np.ndarray]
) -> dict[str, tf.Tensor]:
  """Returns the numbers of a vector, with the names and shapes of `like`."""
  sizes = np.array([value.size for value in like.values()], np.int32)
  parts = tf.split(vector, sizes) if len(sizes) else []
  return {
    name: tf.reshape(part, value.shape)
    for part, (name, value) in zip(parts, like.items())
  }


def bind(all_settings: _S, values: Mapping[str, tf.Tensor]) -> _S:
  """Returns the settings with tensors instead of floats."""
  bound = copy.copy(all_settings)
  for name, value in values.items():
    if isinstance(getattr(all_settings, name), tuple):
      value = tuple(tf.unstack(value))
    # Not by `replace`, which would check the values: a tensor has none yet.
    object.__setattr__(bound, name, value)
  return bound
