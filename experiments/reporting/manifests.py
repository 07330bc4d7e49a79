"""The manifest of a folder of results: the SHA-256 of each of its files.

  manifest.json   {"files": {PATH: [SHA-256, …], …},
                   "modules": {NAME: {"file": PATH, "sha256": SHA-256}, …}}

Whoever reads the folder checks it first: a file that was changed, a checkpoint
that was renamed, or one of another run is named and refused. What was there
before manifests were written is read, and that is said.

A program may be killed at any time. So a file is listed before it takes its
place, beside the contents that are there until then, and files that grow with
each round are listed when their method is finished. A file that is not there is
no error to who goes on with a run, as it is made again.

Several programs may add to a grid at the same time. Its records have a checksum
in each line instead (`grid_records`); the manifest lists what is made of them,
by one program at a time.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import hashlib
import json
import os
import pathlib
import re

from base import errors
from base import inputs
from experiments.command_line import own_modules
from experiments.command_line import terminal
from experiments.reporting import folders

NAME = 'manifest.json'
# What is listed once a method is finished. A new kind of file is added here.
_LISTED = (
  'config.toml',
  'encoding.json',
  'results.json',
  'per_client.csv',
  'privacy.json',
  'secret_seed.txt',
  'groups/*.json',
  'metrics/*.csv',
  'validation/*.csv',
  'checkpoints/*/client_states.sqlite',
  'checkpoints/*/program_state_*.npz',
  'checkpoints/program_state_*.npz',
)
_CHECKPOINT = re.compile(r'checkpoints/([^/]+/)?program_state_\d+\.npz')
# How whoever goes on with a run has a file made again, by how its path begins.
_ADVICE = {
  'checkpoints/': 'delete it to resume from the checkpoint before it',
  'encoding.json': 'delete it',
  'groups/': 'delete it',
  'metrics/': 'delete it and the checkpoints of its training to train again',
  'per_client.csv': 'delete it and results.json',
  'privacy.json': 'delete it',
  'results.json': 'delete it and per_client.csv',
}
# A file that a run is replacing is read again.
_ATTEMPTS = 5

# What the user was told.
_told: set[str] = set()


def _digest(path: pathlib.Path) -> str:
  with inputs.open_bytes(path) as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


@dataclasses.dataclass(frozen=True)
class Fault:
  """A file that is not as it was written.

  Attributes:
    name: Its path in the folder.
    what: What is wrong with it, as a sentence.
  """

  name: str
  what: str

  @property
  def advice(self) -> str:
    """A sentence on what is wrong, and one on what the user can do."""
    ways = ['restore it from a copy', 'name another output_dir']
    ways += [way for part, way in _ADVICE.items() if self.name.startswith(part)]
    return f'{self.what} {", or ".join(ways).capitalize()}.'


class Manifest:
  """The manifest of a folder that a program writes to.

  Attributes:
    modules: The user's modules that the run began with, by their names.
  """

  def __init__(self, folder: pathlib.Path):
    """Reads the manifest; it is empty if there is none.

    Args:
      folder: The folder.

    Raises:
      UserError: If it is damaged.
    """
    self._folder = folder
    self._path = folder / NAME
    self._files: dict[str, list[str]] = {}
    self.modules: dict[str, dict[str, str]] = {}
    # What was computed of a file while it had this size and time.
    self._known: dict[pathlib.Path, tuple[os.stat_result, str]] = {}
    try:
      found = json.loads(inputs.read_text(self._path))
      for path, digests in found['files'].items():
        self._files[str(path)] = [*map(str, digests)]
      for name, module in found['modules'].items():
        self.modules[str(name)] = {k: str(v) for k, v in module.items()}
    except FileNotFoundError:
      pass
    except folders.DAMAGE as error:
      raise errors.UserError(
        f'{self._path} is damaged ({folders.fault(error)}). Restore it from a'
        ' copy. Without it, changes of other files would not be noticed.'
      ) from error

  @property
  def is_there(self) -> bool:
    """Whether the folder has a manifest."""
    return self._path.exists()

  def check_own(self) -> None:
    """Checks the files of a folder that is written to again.

    Raises:
      UserError: If one is not as it was written.
    """
    if not self.is_there:
      tell_of_none(self._folder)
      self.adopt()
    elif fault := self.find_fault(is_whole=False):
      raise errors.UserError(fault.advice)

  def begin(self) -> None:
    """Writes the manifest of a folder in which there is nothing to list yet."""
    if not self.is_there:
      self._write()

  def write(self, texts: Mapping[str, str]) -> None:
    """Writes files, if they are not there already, and lists them before.

    Args:
      texts: What they contain, by their names, in the order to write them in.
    """
    changed = {
      name: text for name, text in texts.items() if not self.holds(name, text)
    }
    if changed:
      self.note(changed)
    for name, text in changed.items():
      folders.write(self._folder / name, text)

  def move(self, paths: Iterable[pathlib.Path]) -> None:
    """Moves complete files into the folder, and lists them before."""
    paths = list(paths)
    for path in paths:
      self._add(path.name, _digest(path))
    self._write()
    for path in paths:
      with errors.writing(self._folder / path.name):
        path.replace(self._folder / path.name)

  def note(self, texts: Mapping[str, str | bytes]) -> None:
    """Lists what files will contain, beside what they contain now."""
    for name, text in texts.items():
      data = text.encode() if isinstance(text, str) else text
      self._add(name, hashlib.sha256(data).hexdigest())
    self._write()

  def note_checkpoint(self, path: pathlib.Path, digest: str) -> None:
    """Lists a checkpoint that will be written, and no longer those removed."""
    for name in [*self._files]:
      if _CHECKPOINT.fullmatch(name) and not (self._folder / name).exists():
        del self._files[name]
    self._add(path.relative_to(self._folder).as_posix(), digest)
    self._write()

  def _add(self, name: str, digest: str) -> None:
    before = [known for known in self._files.get(name, []) if known != digest]
    self._files[name] = [*before[-1:], digest]

  def holds(self, name: str, text: str) -> bool:
    """Tells whether a file has these contents, and is listed with them."""
    path, data = self._folder / name, text.encode()
    return (
      self._files.get(name) == [hashlib.sha256(data).hexdigest()]
      and path.exists()
      and path.read_bytes() == data
    )

  def adopt(self) -> None:
    """Takes all files for what they should be; lists them at the next write."""
    self._files = {
      name: [self._find_digest(self._folder / name)] for name in self._find()
    }

  def seal(self) -> None:
    """Lists all files as they are now."""
    self.adopt()
    self._write()

  def unseal(self, names: Iterable[str]) -> None:
    """Lists files no longer, as they grow again."""
    found = [name for name in names if self._files.pop(name, None)]
    if found:
      self._write()

  def _find(self) -> Iterator[str]:
    for pattern in _LISTED:
      for path in sorted(self._folder.glob(pattern)):
        yield path.relative_to(self._folder).as_posix()

  def _find_digest(self, path: pathlib.Path) -> str:
    now = path.stat()
    before, digest = self._known.get(path, (None, ''))
    if before is None or (
      (now.st_size, now.st_mtime_ns, now.st_ino)
      != (before.st_size, before.st_mtime_ns, before.st_ino)
    ):
      digest = _digest(path)
      self._known[path] = now, digest
    return digest

  def _write(self) -> None:
    found = {'files': self._files, 'modules': self.modules}
    folders.write_json(self._path, found, ensure_ascii=False, sort_keys=True)

  def find_fault(self, is_whole: bool) -> Fault | None:
    """Finds the first file that is not as it was written; None if all are.

    Args:
      is_whole: Whether all files have to be there.
    """
    of_digests = {
      digest: name
      for name, digests in self._files.items()
      for digest in digests
    }
    # Those that are not listed grow, or are no part of the results.
    names = dict.fromkeys(self._files)
    names |= dict.fromkeys(filter(_CHECKPOINT.fullmatch, self._find()))
    for name in names:
      path = self._folder / name
      if not path.exists():
        continue
      digest = _digest(path)
      if digest not in self._files.get(name, ()):
        was = of_digests.get(digest)
        but = f', but its {was}' if was else ''
        return Fault(name, f'{path} is not as it was written{but}.')
    for name in self._files if is_whole else ():
      path = self._folder / name
      if not path.exists() and not _CHECKPOINT.fullmatch(name):
        return Fault(name, f'{path} is gone.')
    return None

  def lists_as(self, other: 'Manifest') -> bool:
    """Tells whether another manifest lists the same."""
    return self._files == other._files

  def differing_modules(self) -> list[str]:
    """Says which of the modules are no longer those that the run began with."""
    lines = []
    for name, then in self.modules.items():
      file = own_modules.find_file(name) or ''
      if own_modules.digest(file) != then.get('sha256'):
        lines.append(
          f'{self._folder}: the module {name} is no longer what the run began'
          f' with: it was {then.get("file")}, SHA-256'
          f' {then.get("sha256", "")[:16]}…, and is'
          f' {own_modules.describe_file(name).partition(": ")[2]}.'
        )
    return lines


def describe_modules(names: Iterable[str]) -> dict[str, dict[str, str]]:
  """Describes the user's modules by their files, for a manifest."""
  found = ((name, own_modules.find_file(name) or '') for name in names)
  return {
    name: {'file': file, 'sha256': own_modules.digest(file)}
    for name, file in found
  }


def tell_of_none(folder: pathlib.Path) -> None:
  """Says, once, that the files of a folder cannot be checked."""
  line = (
    f'{folder} has no {NAME}, as it was written by an older version: changes of'
    ' its files cannot be noticed.'
  )
  if line not in _told:
    _told.add(line)
    terminal.say(line)


def tell_of_modules(folder: pathlib.Path) -> None:
  """Says, once, which of the user's modules are others than those of a run."""
  for line in Manifest(folder).differing_modules():
    if line not in _told:
      _told.add(line)
      terminal.say(line)


def check(folder: pathlib.Path, is_whole: bool = True) -> None:
  """Checks that the files of a folder are as they were written.

  Args:
    folder: The folder.
    is_whole: Whether all files have to be there, as those of a finished run.

  Raises:
    UserError: If a file was changed, renamed or added.
  """
  for _ in range(_ATTEMPTS):
    manifest = Manifest(folder)
    if not manifest.is_there:
      tell_of_none(folder)
      return
    try:
      fault = manifest.find_fault(is_whole)
    except FileNotFoundError:  # A run has just removed an old checkpoint.
      continue
    if fault is None:
      return
    if Manifest(folder).lists_as(manifest):
      raise errors.UserError(
        f'{fault.what} Restore it from a copy, or do the work again in another'
        ' folder.'
      )
  raise errors.UserError(
    f'{folder} is being written to. Wait until the run in it is finished.'
  )
