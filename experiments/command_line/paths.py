"""Paths as a user gives them."""

import os
import pathlib


def user_path(path: str) -> pathlib.Path:
  """Returns a path as the user means it.

  `bazel run` starts programs in another folder than the user's.
  """
  base = os.environ.get('BUILD_WORKING_DIRECTORY', '')
  return pathlib.Path(base, pathlib.Path(path).expanduser())


def folder(path: str | None) -> str | None:
  """Returns the folder that a flag names; None if it names none."""
  return None if path is None else str(user_path(path))
