"""Numbers of users' data as arrays of the types that models take.

NumPy makes 0 of the label 2^32 and of 0.5, infinity of 1e39, and a real number
of a complex one, and says nothing. What is read from a file is made an array
here, where it is refused instead.
"""

from collections.abc import Collection, Mapping
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

# The kinds of NumPy's types that are numbers, or truth values.
_NUMBERS = 'biuf'


def convert(values: Any, dtype: npt.DTypeLike, name: str) -> np.ndarray:
  """Makes an array of numbers, each of which stays what it is.

  A fraction may lose digits.

  Args:
    values: The numbers: an array, or lists of numbers in lists.
    dtype: The type of the array, integers or floats.
    name: What the numbers are, for the errors.

  Returns:
    The array.

  Raises:
    ValueError: If a number is not finite or not of this type, or there is
      something else than numbers.
  """
  found = np.asarray(values)
  if found.dtype.kind not in _NUMBERS:
    raise ValueError(f'{name} is {found.dtype}, no numbers')
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
    optional: Those that need not be there.

  Returns:
    The arrays by their names.

  Raises:
    ValueError: If an array is of other numbers or axes. What else may be raised
      of a damaged file is NumPy's.
  """
  columns = {}
  with np.load(path, allow_pickle=False) as file:
    for name, dtype in dtypes.items():
      if name in file.files or name not in optional:
        columns[name] = convert(file[name], dtype, name)
        if columns[name].ndim != 1:
          raise ValueError(f'{name} has the shape {columns[name].shape}')
  return columns
