"""Checkpoints: the state of a federated program, one .npz file a version.

TFF's own `tff.program.FileProgramStateManager` writes SavedModels, and loading
a SavedModel runs the program that it holds. But people download checkpoints and
pass them around, so a file here holds arrays of numbers and nothing else:
nothing that is read can run.

A file is a .npz as NumPy writes it. Each leaf of the state is an array with the
name of its place,

  array/global_model_weights/trainable/0
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import hashlib
import os
import pathlib
import re
import zipfile

from absl import logging
import numpy as np
import tensorflow_federated as tff
import tree

from base import aliases
from base import errors
from base import inputs
from base import whole_files

_PREFIX = 'program_state_'
_KIND = 'array/'

# Called with the path of a file and the SHA-256 of its contents.
OnFile = Callable[[pathlib.Path, str], None]


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


def _find_leaves(structure: aliases.Structure) -> dict[str, np.ndarray]:
  """Returns the leaves of a structure by the name of their place."""
  leaves: dict[str, np.ndarray] = {}
  for path, leaf in tree.flatten_with_path(structure):
    name = '/'.join(map(str, path))
    if name in leaves:
      raise ValueError(f'Two leaves of the state are both named {name!r}.')
    leaves[name] = np.asarray(leaf)
  return leaves


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the arrays of a file; raises an exception if it is damaged."""
  inputs.check(path)
  with zipfile.ZipFile(path) as archive:
    # NumPy may stop reading a member before its checksum is compared.
    damaged = archive.testzip()
    if damaged is not None:
      raise ValueError(f'{damaged} is damaged')
  with np.load(path) as arrays:
    return {name.removeprefix(_KIND): arrays[name] for name in arrays.files}


def _describe(array: np.ndarray) -> str:
  return f'{array.dtype}[{",".join(map(str, array.shape))}]'


def _find_difference(
  wanted: Mapping[str, np.ndarray],
  arrays: Mapping[str, np.ndarray],
  is_part: bool,
) -> str | None:
  """Says where the arrays of a file first differ from those of a state."""
  for name, leaf in wanted.items():
    if name not in arrays:
      return f'{name!r} is not in it'
    if _describe(leaf) != _describe(arrays[name]):
      return (
        f'{name!r} is {_describe(arrays[name])} in it, not {_describe(leaf)}'
      )
  for name in arrays:
    if name not in wanted and not is_part:
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
    keep_total: int | None = None,
    on_file: OnFile = lambda *_: None,
  ):
    """Makes a manager of the versions in a folder.

    Args:
      root_dir: The folder. It is made when something is saved.
      keep_total: The number of latest versions to keep; None for all.
      on_file: Called with the path of a file and the SHA-256 of its contents
        before the file is there.
    """
    self._folder = pathlib.Path(root_dir)
    self._keep_total = keep_total
    self._on_file = on_file

  def _path(self, version: int) -> pathlib.Path:
    return self._folder / f'{_PREFIX}{version}.npz'

  def _find(self, pattern: str) -> Iterator[re.Match[str]]:
    """Yields the names in the folder that match a pattern."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      for name in os.listdir(self._folder):
        match = re.fullmatch(pattern, name)
        if match:
          yield match

  async def get_versions(self) -> list[int] | None:
    """Returns the saved versions, ascending, or None if there are none."""
    found = self._find(rf'{_PREFIX}(\d+)\.npz')
    return sorted(int(match[1]) for match in found) or None

  async def load(
    self, version: int, structure: aliases.Structure, is_part: bool = False
  ) -> aliases.Structure:
    """Returns the state of a version, in the form of `structure`.

    Args:
      version: The version.
      structure: A state with the same containers, and with leaves of the same
        names, shapes and types.
      is_part: Whether the file may hold more, which is not returned.

    Raises:
      tff.program.ProgramStateNotFoundError: If there is no such version.
      DamagedCheckpointError: If the file is damaged.
      CheckpointError: If it holds another kind of state.
    """
    path = self._path(version)
    try:
      arrays = _read(path)
    except FileNotFoundError as error:
      raise tff.program.ProgramStateNotFoundError(version) from error
    except Exception as error:  # Damage shows in many ways.
      raise DamagedCheckpointError(
        f'{path} cannot be read: {error}.'
      ) from error

    wanted = _find_leaves(structure)
    difference = _find_difference(wanted, arrays, is_part)
    if difference:
      raise CheckpointError(
        f'{path} holds the state of another program: {difference}. Use the'
        ' model, the method and the settings that it was saved with, or another'
        ' folder.'
      )
    logging.info('Program state loaded: %s', path)
    # TFF's values without axes are scalars, not arrays.
    return tree.unflatten_as(structure, [arrays[name][()] for name in wanted])

  async def save(self, program_state: aliases.Structure, version: int) -> None:
    """Saves a state, and removes old versions.

    Args:
      program_state: Numbers, arrays and tensors, or references to them, in any
        nesting of lists, tuples, named tuples and mappings.
      version: A number, zero or more, that grows from one call to the next.

    Raises:
      tff.program.ProgramStateExistsError: If the version is saved already.
      TypeError: If the state holds anything else.
    """
    path = self._path(version)
    if path.exists():
      raise tff.program.ProgramStateExistsError(version=version, path=path)
    leaves = _find_leaves(await tff.program.materialize_value(program_state))
    for name, array in leaves.items():
      if array.dtype.kind not in 'biuf':
        raise TypeError(
          f'A checkpoint cannot hold {name!r}: its type is {array.dtype}.'
        )
    with errors.writing(path):
      self._folder.mkdir(parents=True, exist_ok=True)
      for match in self._find(rf'\.{_PREFIX}\d+\.npz\..*\.tmp'):
        (self._folder / match[0]).unlink()  # A killed program had written it.
    with whole_files.writing(path) as temporary:
      with temporary.open('w+b') as file:
        np.savez(file, **{_KIND + name: leaf for name, leaf in leaves.items()})
        file.seek(0)
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
      self._on_file(path, digest)
    with errors.writing(path):
      self._sync_folder()
    logging.info('Program state saved: %s', path)
    await self._remove_old()

  def _sync_folder(self) -> None:
    """Makes the names in the folder survive a power failure."""
    folder = os.open(self._folder, os.O_RDONLY)
    try:
      os.fsync(folder)
    finally:
      os.close(folder)

  async def _remove_old(self) -> None:
    if self._keep_total is not None:
      for version in (await self.get_versions() or [])[: -self._keep_total]:
        self._path(version).unlink()
