"""Names for types that TensorFlow's values share, so that signatures tell.

TensorFlow and TensorFlow Federated come without types, so that the type checker
sees `Any` in all of them; the names are for readers.
"""

from typing import Any, TypeAlias

# Tensors, arrays or scalars, nested in dictionaries, sequences and tuples.
Structure: TypeAlias = Any
# What a client keeps from round to round, as its trainer defines it; or the
# states of several clients, stacked.
ClientState: TypeAlias = Structure
# Two int32, from which all that is random follows.
Seed: TypeAlias = Any
# What a text of JSON or TOML has: objects, arrays, texts, numbers, true, null.
Json: TypeAlias = Any
