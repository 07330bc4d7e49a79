"""Checkpoints: the state of a federated program, one .npz file a version.

TFF's own `tff.program.FileProgramStateManager` writes SavedModels, and loading
a SavedModel runs the program that it holds. But people download checkpoints and
pass them around, so a file here holds arrays and nothing else, and is never
unpickled: nothing that is read can run.

A file is a .npz as NumPy writes it, and `np.load` shows its contents. Each leaf
of the state is an array with the name of its place,

  array/global_model_weights/trainable/0

or 'bytes/…' or 'text/…' if it holds strings, as the state of TFF's
differentially private aggregators does. NumPy drops the zero bytes at the end
of a string, so each string is stored with a full stop at its end.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import os
import re
from typing import Any, BinaryIO
import zipfile

from absl import logging
import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors

_Path = tuple[str | int, ...]


class CheckpointError(errors.UserError):
  """The error for a file that is damaged or holds another state."""


class DamagedCheckpointError(CheckpointError):
  """The error for a file that is damaged.

  Attributes:
    fault: What is wrong with it, without the advice to whoever resumes.
  """

  def __init__(self, fault: str):
    super().__init__(f'{fault} Delete it to resume from the version before it.')
    self.fault = fault


def _map_leaves(
  fn: Callable[[str, Any], Any], node: Any, path: _Path = ()
) -> Any:
  """Replaces each leaf of a structure by `fn(name, leaf)`.

  `tree.map_structure_with_path` would treat a `tff.structure.Struct` or a
  dataclass as a leaf, and would sort the keys of a dictionary.
  """

  def mapped(key: str | int, child: Any) -> Any:
    return _map_leaves(fn, child, (*path, key))

  if isinstance(node, tff.FederatedType):
    node = node.member
  if isinstance(node, tff.StructType):  # To its containers of `tff.TensorType`.
    node = tff.types.structure_from_tensor_type_tree(lambda leaf: leaf, node)
  if isinstance(node, tff.structure.Struct):
    return tff.structure.Struct(
      (key, mapped(index if key is None else key, child))
      for index, (key, child) in enumerate(tff.structure.to_elements(node))
    )
  if isinstance(node, tuple) and hasattr(node, '_fields'):  # A named tuple.
    return type(node)(*map(mapped, node._fields, node))
  if isinstance(node, (list, tuple)):
    return type(node)(mapped(*item) for item in enumerate(node))
  if isinstance(node, Mapping):
    container: Any = type(node)
    return container((key, mapped(key, child)) for key, child in node.items())
  if attrs.has(type(node)):
    return attrs.evolve(
      node,
      **{
        field.alias: mapped(field.name, getattr(node, field.name))
        for field in attrs.fields(type(node))
      },
    )
  if dataclasses.is_dataclass(node) and not isinstance(node, type):
    return dataclasses.replace(
      node,
      **{
        field.name: mapped(field.name, getattr(node, field.name))
        for field in dataclasses.fields(node)
      },
    )
  return fn('/'.join(map(str, path)), node)


def _leaves(structure: Any) -> dict[str, Any]:
  """Returns the leaves of a structure by the name of their place."""
  leaves: dict[str, Any] = {}

  def add(name: str, leaf: Any) -> Any:
    if name in leaves:
      raise ValueError(f'Two leaves of the state are both named {name!r}.')
    leaves[name] = leaf
    return leaf  # A class may check its fields, and refuse a None.

  _map_leaves(add, structure)
  return leaves


@dataclasses.dataclass(frozen=True)
class _Spec:
  """The kind of a leaf and, if it is known, its shape."""

  kind: str  # The name of a numeric dtype, or 'bytes', or 'text'.
  shape: tuple[int | None, ...] | None

  def __str__(self) -> str:
    if self.shape is None:
      return f'{self.kind}[...]'
    sizes = ('?' if size is None else str(size) for size in self.shape)
    return f'{self.kind}[{",".join(sizes)}]'

  def fits(self, array: np.ndarray) -> bool:
    """Returns whether an array is of that kind and shape."""
    return self.kind == _array_kind(array) and (
      self.shape is None
      or (
        len(self.shape) == array.ndim
        and all(a in (None, b) for a, b in zip(self.shape, array.shape))
      )
    )


def _to_array(leaf: Any) -> np.ndarray:
  """Converts a leaf to an array of numbers, or of string objects."""
  if isinstance(leaf, (tf.Tensor, tf.Variable)):
    leaf = leaf.numpy()
  is_string = isinstance(leaf, (bytes, str))
  array = np.asarray(leaf, dtype=object if is_string else None)
  return array.astype(object) if array.dtype.kind in 'SU' else array


def _array_kind(array: np.ndarray) -> str:
  """Returns the name of a numeric dtype, or 'bytes', or 'text'."""
  if array.dtype.kind in 'biufc':
    return array.dtype.name
  if array.dtype == object:
    for kind, string_type in (('bytes', bytes), ('text', str)):
      if all(isinstance(element, string_type) for element in array.flat):
        return kind
  raise TypeError('neither numbers nor strings')


def _spec(leaf: Any) -> _Spec:
  """Returns the spec of a leaf, or of the type of a leaf."""
  if isinstance(leaf, tff.program.MaterializableValueReference):
    leaf = leaf.type_signature
  if isinstance(leaf, tff.TensorType):
    dtype = np.dtype(leaf.dtype)
    return _Spec('bytes' if dtype.kind == 'U' else dtype.name, leaf.shape)
  array = _to_array(leaf)
  return _Spec(_array_kind(array), array.shape)


def _restore(leaf: Any, array: np.ndarray) -> Any:
  """Converts an array to the Python type that `leaf` has."""
  if isinstance(leaf, np.ndarray):
    kind = leaf.dtype.kind
    return array.astype(kind) if kind in 'SU' else array
  if isinstance(leaf, (bool, int, float, complex)) and not isinstance(
    leaf, np.generic
  ):
    return array.item()
  return array[()]  # TFF's values without axes are scalars, not arrays.


def _write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a .npz file; the same arrays give the same bytes."""
  with zipfile.ZipFile(file, 'w') as archive:
    for name, array in arrays.items():
      kind = 'array'
      if array.dtype == object:
        kind = _array_kind(array)
        full_stop, dtype = (b'.', 'S') if kind == 'bytes' else ('.', 'U')
        strings = [string + full_stop for string in array.flat]
        array = np.array(strings, dtype).reshape(array.shape)
      member = zipfile.ZipInfo(f'{kind}/{name}.npy')
      with archive.open(member, 'w', force_zip64=True) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def _read(file: BinaryIO) -> dict[str, np.ndarray]:
  """Reads what `_write` wrote; raises an exception if it is damaged."""
  arrays: dict[str, np.ndarray] = {}
  with zipfile.ZipFile(file) as archive:
    # NumPy may stop reading a member before its checksum is compared.
    damaged = archive.testzip()
    if damaged is not None:
      raise ValueError(f'{damaged} is damaged')
    for member in archive.namelist():
      kind, _, name = member.removesuffix('.npy').partition('/')
      with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
      if kind != 'array':
        strings = [string[:-1] for string in array.ravel().tolist()]
        array = np.array(strings, dtype=object).reshape(array.shape)
      _array_kind(array)  # Raises an exception if `_write` cannot write it.
      arrays[name] = array
  return arrays


def _first_difference(
  templates: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
  is_part: bool,
) -> str | None:
  """Says where the arrays of a file first differ from a structure."""
  for name, template in templates.items():
    if name not in arrays:
      return f'{name!r} is not in it'
    wanted = _spec(template)
    if not wanted.fits(arrays[name]):
      return f'{name!r} is {_spec(arrays[name])} in it, not {wanted}'
  for name in arrays:
    if name not in templates and not is_part:
      return f'{name!r} is in it, and not in the state that is asked for'
  return None


class NpzProgramStateManager(tff.program.ProgramStateManager):
  """Keeps the state of a program in a folder, one .npz file a version.

  Whenever the program or the machine stops, a version is complete or absent.
  Only one program may write to a folder at a time; any number may read.

  Use it in a `tff.program`, or as `asyncio.run(manager.save(state, version))`.
  """

  def __init__(
    self,
    root_dir: str | os.PathLike[str],
    prefix: str = 'program_state_',
    keep_total: int = 5,
  ):
    """Makes a manager of the versions in a folder.

    Args:
      root_dir: The folder. It is made when something is saved.
      prefix: The beginning of the files' names.
      keep_total: The number of latest versions to keep; all if zero or less.
    """
    self._root_dir = os.fspath(root_dir)
    self._prefix = prefix
    self._keep_total = keep_total

  def _path(self, version: int) -> str:
    return os.path.join(self._root_dir, f'{self._prefix}{version}.npz')

  def _find(self, pattern: str) -> Iterator[re.Match[str]]:
    """Yields matches of the names in the folder, without their prefix."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      for name in os.listdir(self._root_dir):
        match = re.fullmatch(re.escape(self._prefix) + pattern, name)
        if match:
          yield match

  async def get_versions(self) -> list[int] | None:
    """Returns the saved versions, ascending, or None if there are none."""
    return sorted(int(match[1]) for match in self._find(r'(\d+)\.npz')) or None

  async def load(
    self, version: int, structure: Any, is_part: bool = False
  ) -> Any:
    """Returns the state of a version, in the form of `structure`.

    Args:
      version: The version.
      structure: A state with the same containers, and with leaves of the same
        names, shapes and types. A `tff.Type` may stand for all of it or for a
        part: `process.initialize.type_signature.result` allows for shapes that
        change from round to round, as in the state of tree aggregation.
      is_part: Whether the file may hold more, which is not returned.

    Raises:
      tff.program.ProgramStateNotFoundError: If there is no such version.
      DamagedCheckpointError: If the file is damaged.
      CheckpointError: If it holds another kind of state.
    """
    path = self._path(version)
    try:
      with open(path, 'rb') as file:
        arrays = _read(file)
    except FileNotFoundError as error:
      raise tff.program.ProgramStateNotFoundError(version) from error
    except Exception as error:  # Damage shows in many ways.
      raise DamagedCheckpointError(
        f'{path} cannot be read: {error}.'
      ) from error

    templates = _leaves(structure)
    difference = _first_difference(templates, arrays, is_part)
    if difference:
      raise CheckpointError(
        f'{path} holds the state of another program: {difference}. Use the'
        ' model, the method and the settings that it was saved with, or another'
        ' folder.'
      )
    logging.info('Program state loaded: %s', path)
    return _map_leaves(
      lambda name, leaf: _restore(leaf, arrays[name]), structure
    )

  async def save(self, program_state: Any, version: int) -> None:
    """Saves a state, and removes old versions.

    Args:
      program_state: Numbers, strings, arrays and tensors, or references to
        them, in any nesting of lists, tuples, named tuples, mappings, attrs
        classes, dataclasses and `tff.structure.Struct`.
      version: A number, zero or more, that grows from one call to the next.

    Raises:
      tff.program.ProgramStateExistsError: If the version is saved already.
      TypeError: If the state holds anything else.
    """
    path = self._path(version)
    if os.path.exists(path):
      raise tff.program.ProgramStateExistsError(version=version, path=path)
    leaves = _leaves(program_state)
    values = await tff.program.materialize_value(list(leaves.values()))
    arrays = {name: _to_array(value) for name, value in zip(leaves, values)}
    for name, array in arrays.items():
      try:
        _array_kind(array)
      except TypeError as error:
        raise TypeError(
          f'A checkpoint cannot hold {name!r}, a {type(leaves[name])} of '
          f'{array.dtype}: {error}.'
        ) from error

    with errors.writing(path):
      os.makedirs(self._root_dir, exist_ok=True)
      self._remove_partial()
      temporary = f'{path}.{os.getpid()}.tmp'
      try:
        with open(temporary, 'wb') as file:
          _write(file, arrays)
          file.flush()
          os.fsync(file.fileno())
        os.replace(temporary, path)
      except OSError:
        self._remove_partial()  # To make room.
        raise
      self._sync_folder()
    logging.info('Program state saved: %s', path)
    await self._remove_old()

  def _sync_folder(self) -> None:
    """Makes the names in the folder survive a power failure."""
    folder = os.open(self._root_dir, os.O_RDONLY)
    try:
      os.fsync(folder)
    finally:
      os.close(folder)

  def _remove_partial(self) -> None:
    """Removes files that killed programs left half written."""
    for match in self._find(r'\d+\.npz\.\d+\.tmp'):
      os.remove(os.path.join(self._root_dir, match[0]))

  async def _remove_old(self) -> None:
    if self._keep_total > 0:
      for version in (await self.get_versions() or [])[: -self._keep_total]:
        os.remove(self._path(version))
