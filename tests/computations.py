"""Methods whose computations are exchanged for what a test can look into."""

import dataclasses
from typing import Any

from algorithms import algorithm as algorithm_lib


def exchange(
  algorithm: algorithm_lib.Algorithm, **computations: Any
) -> algorithm_lib.Algorithm:
  """`algorithm` with some of its computations exchanged."""
  changed = dataclasses.replace(algorithm.trace(), **computations)
  return dataclasses.replace(algorithm, trace=lambda: changed)
