"""Files of data sets: found, or downloaded once, and checked."""

import hashlib
import http.client
import os
import pathlib
import sys
import tempfile
import urllib.request

from base import errors

_CHUNK = 1 << 20


def cache_dir() -> pathlib.Path:
  """Finds the folder that downloads are kept in."""
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(base) / 'pfl'


def compute_sha256(path: pathlib.Path) -> str:
  """Computes the SHA-256 of a file."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _download(url: str, path: pathlib.Path) -> None:
  """Downloads `url` to `path` and shows its progress."""
  print(f'Downloading {url}', file=sys.stderr)
  with urllib.request.urlopen(url, timeout=60) as source, path.open('wb') as f:
    total = source.headers.get('Content-Length')
    while chunk := source.read(_CHUNK):
      f.write(chunk)
      if sys.stderr.isatty():
        of_total = f' of {int(total) / 1e6:.1f}' if total else ''
        print(f'\r{f.tell() / 1e6:.1f}{of_total} MB', end='', file=sys.stderr)
  if sys.stderr.isatty():
    print(file=sys.stderr)


def existing_folder(data_dir: str) -> pathlib.Path:
  """Checks that the folder of the user's data exists, and returns its path."""
  folder = pathlib.Path(data_dir).expanduser()
  if not folder.is_dir():
    raise errors.UserError(
      f'The data folder {folder} does not exist. Make it or name another.'
    )
  return folder


def places(name: str, data_dir: str | None) -> list[pathlib.Path]:
  """Lists the places in which to look for a file, the cache last.

  Args:
    name: The file's name under the folder of its task: 'school/school.mat'.
    data_dir: The folder of the user's data, with or without a folder for each
      task; None to look in the cache only.

  Returns:
    The paths.

  Raises:
    UserError: If the folder of the user's data does not exist.
  """
  cached = cache_dir() / name
  if data_dir is None:
    return [cached]
  folder = existing_folder(data_dir)
  return [folder / name, folder / cached.name, cached]


def find(
  name: str, data_dir: str | None, advice: str, installed: str | None = None
) -> pathlib.Path:
  """Finds a file or folder of a data set that cannot be downloaded.

  Args:
    name: As in `places`.
    data_dir: As in `places`.
    advice: How the user can get it.
    installed: The folder in which a package of the system installs it.

  Returns:
    Its path.

  Raises:
    UserError: If it is in none of the places.
  """
  candidates = places(name, data_dir)
  if installed is not None:
    candidates.append(pathlib.Path(installed, candidates[0].name))
  for path in candidates:
    if path.exists():
      return path
  raise errors.UserError(
    f'{candidates[0].name} is in none of {", ".join(map(str, candidates))},'
    f' and cannot be downloaded. {advice}'
  )


def fetch(
  name: str, url: str, sha256: str, data_dir: str | None
) -> pathlib.Path:
  """Finds a file of a data set, and downloads it if it is in no place.

  Args:
    name: As in `places`.
    url: The URL from which to download it.
    sha256: Its checksum.
    data_dir: As in `places`.

  Returns:
    The path of the file, whose checksum is right.

  Raises:
    UserError: If the file cannot be downloaded, or is not the right one.
  """
  candidates = places(name, data_dir)
  cached = candidates[-1]
  for path in candidates:
    if path.is_file():
      if compute_sha256(path) != sha256:
        raise errors.UserError(
          f'{path} is damaged, or not the right file: its SHA-256 is not'
          f' {sha256}. Remove it to have it downloaded again, or replace it'
          f' with {url}'
        )
      return path

  # The file is renamed when it is complete and checked: an interrupted download
  # leaves nothing behind, and two processes may download it at once.
  try:
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
      path = pathlib.Path(folder) / cached.name
      _download(url, path)
      if compute_sha256(path) != sha256:
        raise errors.UserError(
          f'The file at {url} is not the right one: its SHA-256 is not'
          f' {sha256}. Get the right file elsewhere and save it as'
          f' {candidates[0]}'
        )
      path.rename(cached)
  except (OSError, http.client.HTTPException) as error:
    raise errors.UserError(
      f'{cached.name} is in none of {", ".join(map(str, candidates))}, and'
      f' cannot be downloaded ({error}). Download {url} where there is a'
      f' network and save it as {candidates[0]}'
    ) from error
  return cached
