"""Methods whose computations are exchanged for what a test can look into."""

import dataclasses
from typing import Any

from algorithms import methods


def exchange(method: methods.Method, **exchanged: Any) -> methods.Method:
  """Returns a method with some of its computations exchanged.

  Args:
    method: The method.
    **exchanged: The new computations by name: `personalize`, or those of
      `process.Training`, such as `next`.
  """

  def trace(original: methods.Method) -> methods.Computations:
    computations = method.trace(original)
    training = dict(exchanged)
    personalize = training.pop('personalize', computations.personalize)
    return methods.Computations(
      dataclasses.replace(computations.training, **training), personalize
    )

  return dataclasses.replace(method, trace=trace)
