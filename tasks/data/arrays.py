"""Converts numbers of users' data to arrays of the types that models take.

NumPy silently converts the labels 2^32 and 0.5 to 0, 1e39 to infinity, and a
complex number to a real one. Data that are read from files are converted here,
where such numbers are refused.
"""

from collections.abc import Collection, Mapping
import pathlib

import numpy as np
import numpy.typing as npt

# The kinds of NumPy's types that are numbers, or truth values.
_NUMBERS = 'biuf'


def convert(
  values: npt.ArrayLike, dtype: npt.DTypeLike, name: str
) -> np.ndarray:
  """Makes an array of numbers without changing any of them.

  Only fractions may be rounded.

  Args:
    values: The numbers: an array, or nested lists of numbers.
    dtype: The type of the array, integers or floats.
    name: The name of the numbers, for the errors.

  Returns:
    The array.

  Raises:
    ValueError: If a number is not finite or not of this type, or a value is
      not a number.
  """
  found = np.asarray(values)
  if found.dtype.kind not in _NUMBERS:
    raise ValueError(f'{name} is {found.dtype}, not numbers')
  wanted = np.dtype(dtype)
  with np.errstate(over='ignore', invalid='ignore'):
    converted = found.astype(wanted, copy=False)
  if wanted.kind == 'f':
    wrong, what = ~np.isfinite(converted), f'a finite number of {wanted}'
  else:
    wrong, what = converted != found, f'a whole number of {wanted}'
  if wrong.any():
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    raise ValueError(
      f'{name} has {found[place]} at {list(place)} (from 0 on), which is not'
      f' {what}'
    )
  return converted


def read_columns(
  path: pathlib.Path,
  dtypes: Mapping[str, npt.DTypeLike],
  optional: Collection[str] = (),
) -> dict[str, np.ndarray]:
  """Reads arrays of one axis from a NumPy file (.npz).

  Args:
    path: The file.
    dtypes: The type of each array that is read, by its name.
    optional: The arrays that may be missing.

  Returns:
    The arrays by their names.

  Raises:
    ValueError: If an array has other numbers or axes. NumPy may raise other
      errors for a damaged file.
  """
  columns = {}
  with np.load(path, allow_pickle=False) as file:
    for name, dtype in dtypes.items():
      if name in file.files or name not in optional:
        columns[name] = convert(file[name], dtype, name)
        if columns[name].ndim != 1:
          raise ValueError(f'{name} has the shape {columns[name].shape}')
  return columns
