"""Files of named weights: safetensors, HDF5 (Keras) and NumPy's .npz.

Such files come from unknown sources, so nothing in them is run or trusted: a
file holds arrays and no code, the sizes in its header are compared with the
size of the file before anything is allocated, and no other file that it points
to is opened.

A file in the format safetensors has 8 bytes with the length of the header; the
header, JSON of {name: {"dtype", "shape", "data_offsets"}}; and the numbers, one
array after the other in any order.
"""

import collections
from collections.abc import Callable, Mapping
import json
import math
import pathlib
from typing import Any
import zipfile

import h5py
import numpy as np

from base import errors
from base import whole_files
from tasks.data import files

_LENGTH = 8  # The bytes of the length of a header.
_ALIGNMENT = 8  # The alignment of the first array.
_MAX_HEADER = 100_000_000  # As in the package safetensors.
# bfloat16, which NumPy does not have: the upper half of a float32.
_BF16 = 'BF16'
_DTYPES = {
  'F64': '<f8',
  'F32': '<f4',
  'F16': '<f2',
  'I64': '<i8',
  'I32': '<i4',
  'I16': '<i2',
  'I8': 'i1',
  'U8': 'u1',
  'BOOL': '?',
}
_NAMES_OF_DTYPES = {np.dtype(d): name for name, d in _DTYPES.items()}

# Tells whether an array is wanted, given its name.
Wanted = Callable[[str], bool]


def _require(holds: bool, message: str) -> None:
  if not holds:
    raise ValueError(message)


def _is_natural(number: object) -> bool:
  return type(number) is int and number >= 0


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Makes a dictionary of pairs, of which no two have the same name."""
  found = dict(pairs)
  for name, number in collections.Counter(name for name, _ in pairs).items():
    _require(number == 1, f'its header has {name} more than once')
  return found


def _check_places(places: Mapping[str, tuple[int, int]]) -> None:
  """Checks that each array begins where another one ends."""
  end, before = 0, 'the header'
  for name, (first, last) in sorted(places.items(), key=lambda item: item[1]):
    _require(first >= end, f'{name} overlaps {before}')
    _require(first <= end, f'there is a hole between {before} and {name}')
    end, before = last, name


def _read_safetensors(
  path: pathlib.Path, wanted: Wanted
) -> dict[str, np.ndarray]:
  size = path.stat().st_size
  with path.open('rb') as file:
    length = int.from_bytes(file.read(_LENGTH), 'little')
    begin = _LENGTH + length
    _require(
      length <= _MAX_HEADER and begin <= size, 'its header is not complete'
    )
    header = json.loads(file.read(length), object_pairs_hook=_once)
    _require(isinstance(header, dict), 'its header is not a JSON object')
    header.pop('__metadata__', None)
    entries: dict[str, tuple[str, list[int], int, int]] = {}
    for name, entry in header.items():
      try:
        shape, (first, last) = entry['shape'], entry['data_offsets']
        kind = entry['dtype']
      except (TypeError, KeyError, ValueError):
        raise ValueError(f'the entry of {name} is not complete') from None
      _require(
        isinstance(shape, list)
        and all(map(_is_natural, [*shape, first, last])),
        f'the shape or the place of {name} is invalid',
      )
      _require(
        first <= last and begin + last <= size,
        f'{name} is outside of the file, which may be incomplete',
      )
      entries[name] = kind, shape, first, last
    _check_places({name: entry[2:] for name, entry in entries.items()})
    end = max((last for *_, last in entries.values()), default=0)
    _require(begin + end == size, 'it has more data than its header says')
    found = {}
    for name, (kind, shape, first, last) in entries.items():
      if not wanted(name):
        continue
      _require(kind in (*_DTYPES, _BF16), f'{name} has the type {kind}')
      dtype = np.dtype(_DTYPES.get(kind, '<u2'))
      number = math.prod(shape)
      _require(
        last - first == number * dtype.itemsize,
        f'{name} has {last - first} bytes for the shape {shape}',
      )
      file.seek(begin + first)
      array = np.fromfile(file, dtype, number).reshape(shape)
      if kind == _BF16:
        array = (array.astype('<u4') << 16).view('<f4')
      found[name] = array
  return found


def _read_h5(path: pathlib.Path, wanted: Wanted) -> dict[str, np.ndarray]:
  found: dict[str, np.ndarray] = {}
  left = path.stat().st_size

  def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
    nonlocal left
    if not isinstance(item, h5py.Dataset) or not wanted(name):
      return
    # Numbers of another file, or a few bytes that unpack to a huge array, or to
    # many.
    left -= item.nbytes
    _require(
      not item.external and not item.is_virtual and left >= 0,
      f'{name} is not in the file, or is compressed',
    )
    found[name] = np.asarray(item)

  with h5py.File(path, 'r') as file:
    file.visititems(add)  # This follows no links.
  return found


def _read_npz(path: pathlib.Path, wanted: Wanted) -> dict[str, np.ndarray]:
  with zipfile.ZipFile(path) as archive:
    unpacked = sum(entry.file_size for entry in archive.infolist())
  # Weights can hardly be compressed.
  _require(unpacked <= 20 * path.stat().st_size, 'it unpacks to far more data')
  with np.load(path, allow_pickle=False) as file:
    return {name: file[name] for name in file.files if wanted(name)}


_READERS = {
  '.safetensors': _read_safetensors,
  '.h5': _read_h5,
  '.npz': _read_npz,
}
FORMATS = tuple(_READERS)


def read(
  path: pathlib.Path, wanted: Wanted = lambda name: True
) -> dict[str, np.ndarray]:
  """Reads the arrays of a file.

  Args:
    path: The file, whose ending is one of `FORMATS`.
    wanted: Tells which arrays to read, by their names.

  Returns:
    The arrays by their names, which are paths in an HDF5 file.

  Raises:
    UserError: If the file cannot be read.
  """
  if path.suffix not in _READERS:
    raise errors.UserError(
      f'{path} is not a file of weights: its name must end in'
      f' {", ".join(FORMATS)}.'
    )
  if not path.exists():
    raise errors.UserError(f'There is no file {path}.')
  with files.reading(path, path.suffix[1:], 'Replace it.'):
    return _READERS[path.suffix](path, wanted)


def _header(arrays: Mapping[str, np.ndarray]) -> bytes:
  """Makes the header of a safetensors file, with the arrays sorted by name."""
  header: dict[str, object] = {'__metadata__': {'format': 'pt'}}
  end = 0
  for name, array in sorted(arrays.items()):
    first, end = end, end + array.nbytes
    header[name] = dict(
      dtype=_NAMES_OF_DTYPES[array.dtype],
      shape=list(array.shape),
      data_offsets=[first, end],
    )
  return json.dumps(header, separators=(',', ':')).encode()


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a safetensors file, which appears only when it is complete.

  Args:
    path: The file.
    arrays: The arrays by their names.
  """
  header = _header(arrays)
  header += b' ' * (-len(header) % _ALIGNMENT)
  with whole_files.writing(path) as temporary, temporary.open('wb') as file:
    file.write(len(header).to_bytes(_LENGTH, 'little') + header)
    for _, array in sorted(arrays.items()):
      file.write(np.ascontiguousarray(array).data)
