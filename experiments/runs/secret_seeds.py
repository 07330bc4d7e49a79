"""Secret seeds, from which the noise of private runs follows.

A guarantee holds only against those who cannot compute the noise. So a run with
`privacy.seed=secret` draws 128 bits from the operating system. They are in a
file of their own, which only its owner may read, away from all results; the
folder of the run has only their hash, by which the file is named.
"""

import hashlib
import os
import pathlib
import secrets

from base import errors
from base import inputs
from experiments.command_line import terminal
from experiments.reporting import folders

# The file in the folder of a run that names the secret.
RECORD = 'secret_seed.txt'
# The variable that names the folder of the secrets.
VARIABLE = 'PFL_SECRETS_DIR'
_BYTES = 16


def secrets_folder() -> pathlib.Path:
  """Returns the folder of the secrets of this user."""
  chosen = os.environ.get(VARIABLE)
  if chosen:
    return pathlib.Path(chosen).expanduser()
  base = (
    os.environ.get('XDG_STATE_HOME') or pathlib.Path.home() / '.local/state'
  )
  return pathlib.Path(base, 'tff-personalization', 'secret-seeds')


def _file(digest: str) -> pathlib.Path:
  return secrets_folder() / digest


def _draw(output_dir: pathlib.Path) -> bytes:
  """Draws the secret of a run, and keeps it before anything depends on it."""
  if secrets_folder().resolve().is_relative_to(output_dir.resolve()):
    raise errors.UserError(
      f'${VARIABLE} is {secrets_folder()}, in the folder of the results, with'
      ' which the secret seed might be published. Name another folder.'
    )
  secret = secrets.token_bytes(_BYTES)
  digest = hashlib.sha256(secret).hexdigest()
  path = _file(digest)
  with errors.writing(path):
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, 'wb') as file:
      file.write(secret)
      os.fsync(file.fileno())
  folders.write(output_dir / RECORD, f'{digest}\n')
  terminal.say(
    f'The secret seed of the noise is in {path}. Keep it to yourself: only with'
    ' it can the run go on if it is stopped.'
  )
  return secret


def obtain(output_dir: pathlib.Path) -> bytes:
  """Returns the secret of the run in a folder, which is drawn if it is new.

  Raises:
    UserError: If the run has started, and its secret is not there.
  """
  record = output_dir / RECORD
  if not record.exists():
    if (output_dir / 'checkpoints').exists():
      raise errors.UserError(
        f'{output_dir} has checkpoints of a run with a secret seed, but no'
        f' {RECORD} to tell of which. Name another output_dir.'
      )
    return _draw(output_dir)
  try:
    digest = inputs.read_text(record).strip()
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'{record} is damaged ({folders.fault(error)}), which names the secret'
      ' seed of this run. Do the run again in another output_dir.'
    ) from error
  try:
    secret = inputs.read_bytes(_file(digest))
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'The run in {output_dir} can go on only with its secret seed, the file'
      f' {_file(digest)}, which cannot be read. Bring it back, set ${VARIABLE}'
      ' to its folder, or do the run again in another output_dir.'
    ) from error
  if hashlib.sha256(secret).hexdigest() != digest:
    raise errors.UserError(
      f'{_file(digest)} is not the secret seed of the run in {output_dir}: it'
      ' is damaged. Bring it back, or do the run again in another output_dir.'
    )
  return secret
