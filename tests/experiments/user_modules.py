"""Modules of a user, for tests."""

from collections.abc import Iterator
import contextlib
import pathlib
import sys

import pytest

from algorithms import registry

# It has the class of another method.
REGISTERS_OWN = """
from algorithms import fedavg
from algorithms import registry

registry.register_trainer(
  'own', fedavg.FedAvg, title='Own', does='nothing new', sends='the update'
)
"""


@contextlib.contextmanager
def written(folder: pathlib.Path, name: str, text: str) -> Iterator[None]:
  """Writes a module into the folder of a user, and forgets it in the end."""
  (folder / f'{name}.py').write_text(text)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('BUILD_WORKING_DIRECTORY', str(folder))
    patch.setattr(sys, 'path', [*sys.path])
    patch.setattr(registry, 'TRAINERS', {**registry.TRAINERS})
    yield
  sys.modules.pop(name, None)
