"""Names for types that TensorFlow's values share, so that signatures tell.

TensorFlow and TensorFlow Federated come without types, so that the type checker
sees `Any` in all of them; the names are for readers.
"""

from typing import Any, Protocol, TypeAlias

# Tensors, arrays or scalars, nested in dictionaries, sequences and tuples.
Structure: TypeAlias = Any
# What a client keeps from round to round, as its trainer defines it; or the
# states of several clients, stacked.
ClientState: TypeAlias = Structure
# A tensor of one number, or the number.
Scalar: TypeAlias = Any
# Two int32, from which all that is random follows.
Seed: TypeAlias = Any
# What a text of JSON or TOML has: objects, arrays, texts, numbers, true, null.
Json: TypeAlias = Any


class Number(Protocol):
  """A float of the settings: a tensor inside the functions of a method.

  A program is compiled once for all its values, so that no `if` can ask for it.
  So it has no comparisons: the type checker refuses `if rate > 0.5`, and a
  tensor is compared by `tf.greater` and its like. Outside of these functions it
  is a float, which `float(rate)` says.
  """

  def __float__(self) -> float: ...
  def __neg__(self) -> 'Number': ...
  def __add__(self, other: Any, /) -> 'Number': ...
  def __radd__(self, other: Any, /) -> 'Number': ...
  def __sub__(self, other: Any, /) -> 'Number': ...
  def __rsub__(self, other: Any, /) -> 'Number': ...
  def __mul__(self, other: Any, /) -> 'Number': ...
  def __rmul__(self, other: Any, /) -> 'Number': ...
  def __truediv__(self, other: Any, /) -> 'Number': ...
  def __rtruediv__(self, other: Any, /) -> 'Number': ...
  def __pow__(self, other: Any, /) -> 'Number': ...
