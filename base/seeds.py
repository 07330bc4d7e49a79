"""Random numbers that depend only on a key: a purpose, a seed, a round."""

import hashlib

import numpy as np


def generator(*key: int | str) -> np.random.Generator:
  """Makes a generator that depends only on `key`: ('batches', seed, round).

  Args:
    *key: Texts and integers. The first names the purpose: otherwise two
      purposes with the same seed and round would draw the same numbers.

  Returns:
    A generator that is unrelated to those of other keys.
  """
  # Hashed, because (1,) and (1, 0) are the same seed for NumPy.
  key = tuple(part if isinstance(part, str) else int(part) for part in key)
  digest = hashlib.sha256(repr(list(key)).encode()).digest()
  return np.random.default_rng(int.from_bytes(digest[:16], 'little'))


def pairs(rng: np.random.Generator, size: int) -> np.ndarray:
  """Draws seeds for TensorFlow's stateless randomness, `[size, 2]` int32."""
  return rng.integers(2**31, size=(size, 2), dtype=np.int32)


def pair(*key: int | str) -> np.ndarray:
  """Makes one seed for TensorFlow's stateless random numbers, `[2]` int32."""
  return pairs(generator(*key), 1)[0]
