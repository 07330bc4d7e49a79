"""Holds the cohort runtime to what TFF's own runtime gives.

The rule: what runs on the native runtime gives the same result on the cohort
runtime, up to rounding, or an error that names the reason; never a different
number, and never a hang.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import threading
from typing import Any
import weakref

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tests.tff_runtimes import helpers
from tff_runtimes import cohort

# So long may a call take before it counts as a hang.
_TIMEOUT_SECONDS = 30.0
# The threads of calls that hung.
hung: list[threading.Thread] = []

# The errors that say why an argument or a computation is refused.
_REASONED = (TypeError, ValueError, NotImplementedError)

# How much two results may differ, by their type: relatively and absolutely.
_TOLERANCES = {
  'float16': (4e-3, 1e-4),
  'bfloat16': (3e-2, 1e-3),
  'float32': (1e-5, 1e-6),
  'float64': (1e-9, 1e-12),
  'complex64': (1e-5, 1e-6),
  'complex128': (1e-9, 1e-12),
}


def _of_leaves(
  actual: Any,
  expected: Any,
  path: str,
  exact: bool,
  rtol: float | None,
  atol: float | None,
) -> Iterator[str]:
  """Yields how two arrays, scalars or strings differ."""
  if type(actual) is not type(expected):
    yield f'{path}: {type(actual).__name__}, not {type(expected).__name__}'
  one, other = np.asarray(actual), np.asarray(expected)
  if (one.dtype, one.shape) != (other.dtype, other.shape):
    yield (
      f'{path}: {one.dtype}{list(one.shape)}, not'
      f' {other.dtype}{list(other.shape)}'
    )
    return
  name = other.dtype.name
  if exact or name not in _TOLERANCES:
    same = one == other
    if name in _TOLERANCES:
      same |= (one != one) & (other != other)
  else:
    defaults = _TOLERANCES[name]
    if name == 'bfloat16':
      one, other = one.astype(np.float32), other.astype(np.float32)
    with np.errstate(all='ignore'):
      same = np.isclose(
        one,
        other,
        rtol=defaults[0] if rtol is None else rtol,
        atol=defaults[1] if atol is None else atol,
        equal_nan=True,
      )
  if not np.all(same):
    wrong = np.logical_not(same)
    yield f'{path}: {one[wrong]!r}, not {other[wrong]!r}'


# The elements of data sets that were read.
_read: weakref.WeakKeyDictionary[tf.data.Dataset, list[Any]] = (
  weakref.WeakKeyDictionary()
)


def _of_datasets(
  actual: Any, expected: tf.data.Dataset, path: str, how: Any
) -> Iterator[str]:
  """Yields how two data sets differ."""
  if not isinstance(actual, tf.data.Dataset):
    yield f'{path}: {type(actual).__name__}, not a data set'
    return
  if actual.element_spec != expected.element_spec:
    yield f'{path}: {actual.element_spec}, not {expected.element_spec}'
  ones = list(actual.as_numpy_iterator())
  # Once, as the next time a shuffled one has another order.
  if expected not in _read:
    _read[expected] = list(expected.as_numpy_iterator())
  others = _read[expected]
  if len(ones) != len(others):
    yield f'{path}: {len(ones)} elements, not {len(others)}'
  for k, (one, other) in enumerate(zip(ones, others)):
    yield from differences(one, other, f'{path}, element {k}', **how)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
  """Lists the parts of a container with their names; None if it is none."""
  if isinstance(value, tff.structure.Struct):
    return list(tff.structure.iter_elements(value))
  if isinstance(value, Mapping):
    return list(value.items())
  if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
    return list(enumerate(value))
  if hasattr(value, '__attrs_attrs__'):
    names = [field.name for field in value.__attrs_attrs__]
    return [(name, getattr(value, name)) for name in names]
  return None


def differences(
  actual: Any,
  expected: Any,
  path: str = 'result',
  *,
  exact: bool = False,
  rtol: float | None = None,
  atol: float | None = None,
) -> Iterator[str]:
  """Yields how two results differ.

  Equal ones have the same containers, types and shapes, and the same numbers up
  to rounding. NaN is the same as NaN; a data set is the same as one that has
  the same elements.

  Args:
    actual: What a runtime gives.
    expected: What it should give.
    path: What they are called in messages.
    exact: Whether no number may differ at all.
    rtol: By how much numbers may differ relatively; by default it depends on
      their type.
    atol: By how much they may differ absolutely.
  """
  how = dict(exact=exact, rtol=rtol, atol=atol)
  if isinstance(expected, tf.data.Dataset):
    yield from _of_datasets(actual, expected, path, how)
    return
  children = _children(expected)
  if children is None:
    yield from _of_leaves(actual, expected, path, **how)
    return
  if type(actual) is not type(expected):
    yield f'{path}: {type(actual).__name__}, not {type(expected).__name__}'
  actual_children = _children(actual)
  names = [name for name, _ in children]
  if actual_children is None or [name for name, _ in actual_children] != names:
    yield f'{path}: {actual!r}, not {expected!r}'
    return
  for (_, one), (name, other) in zip(actual_children, children):
    yield from differences(one, other, f'{path}[{name}]', **how)


def assert_same(actual: Any, expected: Any, **how: Any) -> None:
  """Asserts that two results are the same; see `differences`."""
  found = list(itertools.islice(differences(actual, expected, **how), 4))
  assert not found, '; '.join(found)


def within_time(
  function: Callable[[], Any], seconds: float = _TIMEOUT_SECONDS
) -> Any:
  """Calls a function; raises an error if it hangs.

  Args:
    function: The function. It is called in a thread of its own.
    seconds: How long it may take.

  Returns:
    What it returns.

  Raises:
    TimeoutError: If it takes longer.
  """
  outcome: dict[str, Any] = {}

  def call() -> None:
    try:
      outcome['result'] = function()
    except BaseException as error:  # pylint: disable=broad-except
      outcome['error'] = error

  thread = threading.Thread(target=call, daemon=True)
  thread.start()
  thread.join(seconds)
  if thread.is_alive():
    hung.append(thread)
    raise TimeoutError(f'It hangs: no result after {seconds:g} seconds.')
  if 'error' in outcome:
    raise outcome['error']
  return outcome['result']


def _one_line(error: BaseException) -> str:
  return f'{type(error).__name__}: {" ".join(str(error).split())[:400]}'


def _may_stack(
  context: cohort.CohortContext, computation: tff.Computation
) -> bool:
  try:
    return 'clients are stacked' in context.explain(computation)
  except Exception:  # pylint: disable=broad-except
    return True  # It is refused, or has no type until it is called.


@dataclasses.dataclass(frozen=True)
class Parity:
  """Runs computations on the native runtime and in the cohort contexts.

  Attributes:
    native: The native runtime.
    cohorts: The cohort contexts, by name: that which stacks clients where it
      can, and that which never does.
  """

  native: tff.framework.SyncContext
  cohorts: Mapping[str, cohort.CohortContext]

  def contexts(
    self, computation: tff.Computation
  ) -> Iterator[tuple[str, cohort.CohortContext]]:
    """Yields the cohort contexts in which a computation should run.

    The second one is left out if the first one did not stack the clients, when
    it was used: both do the same then.

    Args:
      computation: The computation.
    """
    (name, stacking), other = self.cohorts.items()
    yield name, stacking
    if _may_stack(stacking, computation):
      yield other

  def __call__(
    self, computation: tff.Computation, *args: Any, **how: Any
  ) -> Any:
    """Asserts that all give the same.

    Args:
      computation: The computation.
      *args: Its arguments.
      **how: How much they may differ; see `differences`.

    Returns:
      What the native runtime gives.
    """
    expected = helpers.run(self.native, computation, *args)
    self.gives(expected, computation, *args, **how)
    return expected

  def gives(
    self, expected: Any, computation: tff.Computation, *args: Any, **how: Any
  ) -> None:
    """Asserts that all cohort contexts give an expected result."""
    wrong = {}
    for name, context in self.contexts(computation):
      try:
        actual = run_once(context, computation, *args)
        assert_same(actual, expected, **how)
      except Exception as error:  # pylint: disable=broad-except
        wrong[name] = _one_line(error)
    assert not wrong, '\n'.join(f'{name}: {wrong[name]}' for name in wrong)

  def agrees(
    self,
    computation: tff.Computation,
    make_args: Callable[[], tuple[Any, ...]],
    **how: Any,
  ) -> None:
    """Asserts that all give the same, or all raise an error.

    Where TFF's own Python code fails around the native runtime, as it does with
    some data sets, the cohort contexts may do better.

    Args:
      computation: The computation.
      make_args: Makes its arguments, which may be used up by a call.
      **how: How much results may differ; see `differences`.
    """
    try:
      expected = helpers.run(self.native, computation, *make_args())
    except grpc.RpcError:
      self.cohorts_raise(computation, make_args)
    except Exception:  # pylint: disable=broad-except
      return
    else:
      self.gives(expected, computation, *make_args(), **how)

  def at_least(self, computation: tff.Computation, *args: Any) -> None:
    """Asserts the same where the native runtime gives a result."""
    try:
      expected = helpers.run(self.native, computation, *args)
    except Exception:  # pylint: disable=broad-except
      return
    self.gives(expected, computation, *args)

  def agrees_or_refuses(self, computation: tff.Computation, *args: Any) -> None:
    """Asserts that no cohort context gives another result, if one at all."""
    self.never_differs(computation, lambda: args)

  def never_differs(
    self,
    computation: tff.Computation,
    make_args: Callable[[], tuple[Any, ...]],
  ) -> None:
    """Asserts that each cohort context gives the same, or says why not.

    Args:
      computation: The computation.
      make_args: Makes its arguments, which may be used up by a call.
    """
    try:
      expected = helpers.run(self.native, computation, *make_args())
    except Exception:  # pylint: disable=broad-except
      expected = None
    wrong = {}
    for name, context in self.contexts(computation):
      try:
        actual = run_once(context, computation, *make_args())
        if expected is None:
          wrong[name] = f'gave {actual!r}, and the native runtime nothing'
        else:
          assert_same(actual, expected)
      except _REASONED:
        pass
      except Exception as error:  # pylint: disable=broad-except
        wrong[name] = _one_line(error)
    assert not wrong, '\n'.join(f'{name}: {wrong[name]}' for name in wrong)

  def takes_or_refuses(
    self,
    computation: tff.Computation,
    make_args: Callable[[], tuple[Any, ...]],
  ) -> None:
    """Asserts that all take an argument, with one result, or all refuse it.

    Args:
      computation: The computation.
      make_args: Makes its arguments, which may be used up by a call.
    """
    try:
      expected = helpers.run(self.native, computation, *make_args())
    except Exception:  # pylint: disable=broad-except
      self.cohorts_raise(computation, make_args, _REASONED)
      return
    self.gives(expected, computation, *make_args())

  def raises(
    self,
    computation: tff.Computation,
    make_args: Callable[[], tuple[Any, ...]],
    kinds: type[Exception] | tuple[type[Exception], ...] = Exception,
  ) -> dict[str, Exception]:
    """Asserts that all raise an error.

    Args:
      computation: The computation.
      make_args: Makes the arguments, which may be used up by a call.
      kinds: The kinds of errors that the cohort contexts may raise.

    Returns:
      The errors of the cohort contexts, by their names.
    """
    try:
      result = helpers.run(self.native, computation, *make_args())
    except Exception:  # pylint: disable=broad-except
      pass
    else:
      raise AssertionError(f'The native runtime gave {result!r}.')
    return self.cohorts_raise(computation, make_args, kinds)

  def cohorts_raise(
    self,
    computation: tff.Computation,
    make_args: Callable[[], tuple[Any, ...]],
    kinds: type[Exception] | tuple[type[Exception], ...] = Exception,
  ) -> dict[str, Exception]:
    """Asserts that all cohort contexts raise an error, and returns these."""
    wrong, errors = {}, {}
    for name, context in self.contexts(computation):
      try:
        result = run_once(context, computation, *make_args())
        wrong[name] = f'gave {result!r}'
      except TimeoutError as error:
        wrong[name] = str(error)
      except kinds as error:
        errors[name] = error
      except Exception as error:  # pylint: disable=broad-except
        wrong[name] = _one_line(error)
    assert not wrong, '\n'.join(f'{name}: {wrong[name]}' for name in wrong)
    return errors


def run_once(context: Any, computation: tff.Computation, *args: Any) -> Any:
  """Runs a computation in a context; raises an error if it hangs."""
  return within_time(lambda: helpers.run(context, computation, *args))


def first(number: int, names: Iterable[Any]) -> list[Any]:
  """Marks all but the first parameters of a test as slow."""
  return [
    name if k < number else pytest.param(name, marks=pytest.mark.slow)
    for k, name in enumerate(names)
  ]


def at_clients(type_spec: Any) -> tff.FederatedType:
  return tff.FederatedType(type_spec, tff.CLIENTS)


def at_server(type_spec: Any) -> tff.FederatedType:
  return tff.FederatedType(type_spec, tff.SERVER)


def tensor_type(value: Any) -> tff.TensorType:
  """Returns the type of an array or a scalar."""
  array = np.asarray(value)
  dtype = np.str_ if array.dtype.kind in 'OSU' else array.dtype.type
  return tff.TensorType(dtype, array.shape)


def type_of(value: Any) -> tff.Type:
  """Returns the type of a structure of arrays."""
  return tff.to_type(tree.map_structure(tensor_type, value))


def mapped(work: Callable[..., Any], type_spec: Any) -> tff.Computation:
  """Makes the computation that does some work on each client's value."""
  block = tff.tensorflow.computation(lambda x: work(x), type_spec)

  @tff.federated_computation(at_clients(block.type_signature.parameter))
  def run(clients):
    return tff.federated_map(block, clients)

  return run


def everywhere(work: Callable[..., Any], type_spec: Any) -> tff.Computation:
  """Makes the computation that does some work at each client and the server."""
  block = tff.tensorflow.computation(lambda x: work(x), type_spec)
  parameter = block.type_signature.parameter

  @tff.federated_computation(at_clients(parameter), at_server(parameter))
  def run(clients, server):
    return tff.federated_map(block, clients), tff.federated_map(block, server)

  return run
