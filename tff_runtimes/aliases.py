"""Names for the values that runtimes handle, so that signatures tell.

TensorFlow and TensorFlow Federated come without types, so that the type checker
sees `Any` in most of them; the names are for readers.
"""

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

# A tensor, of a graph or with a value, or an array.
Leaf: TypeAlias = tf.Tensor | np.ndarray
Leaves: TypeAlias = list[Leaf]
# Leaves or their specs in lists, tuples and dictionaries, as in `tf.nest`.
Structure: TypeAlias = Any
# A value of a TFF type: leaves, numbers and texts in Python's containers, in
# those of TFF, or in sequences with an element for each client.
Value: TypeAlias = Any
# What a building block has for a value, for one party: tensors in TFF's
# `Struct`, or a function of such.
BlockValue: TypeAlias = Any
