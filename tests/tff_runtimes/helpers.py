"""Helpers of the tests of the runtimes."""

from collections.abc import Callable
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_runtimes import values


def run(
  context: tff.framework.SyncContext, computation: tff.Computation, *args: Any
) -> Any:
  """Runs a computation in a context."""
  with tff.framework.get_context_stack().install(context):
    return computation(*args)


def leaves(value: Any) -> list[np.ndarray]:
  """Lists all arrays in a result, whatever containers they are in."""
  if isinstance(value, (values.StackedClients, list, tuple)):
    return [leaf for element in value for leaf in leaves(element)]
  if isinstance(value, dict):
    return [leaf for element in value.values() for leaf in leaves(element)]
  if hasattr(value, '__attrs_attrs__'):
    return [
      leaf
      for field in value.__attrs_attrs__
      for leaf in leaves(getattr(value, field.name))
    ]
  return [np.asarray(value)]


def assert_same(first: Any, second: Any, **tolerance: float) -> None:
  """Asserts that two results are equal up to rounding."""
  ones, others = leaves(first), leaves(second)
  assert len(ones) == len(others)
  for a, b in zip(ones, others):
    if a.dtype.kind in 'OSU':
      assert a.tolist() == b.tolist()
    else:
      assert a.shape == b.shape
      np.testing.assert_allclose(
        a, b, **(dict(rtol=1e-5, atol=1e-6) | tolerance)
      )


def containers(value: Any) -> Any:
  """Returns the types of all containers in a value, in its structure."""
  if isinstance(value, dict):
    inner = [(name, containers(element)) for name, element in value.items()]
  elif isinstance(value, (list, tuple)):
    inner = [containers(element) for element in value]
  else:
    return None
  return type(value), inner


def _memory(field: str) -> int:
  """Returns a field of this process's status, in bytes."""
  status = pathlib.Path('/proc/self/status').read_text()
  (line,) = (li for li in status.splitlines() if li.startswith(f'{field}:'))
  return int(line.split()[1]) * 1024


def peak_memory(function: Callable[[], Any]) -> int:
  """Returns by how many bytes this process's memory grows at most in a call."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # Resets the peak.
  before = _memory('VmRSS')
  function()
  return _memory('VmHWM') - before
