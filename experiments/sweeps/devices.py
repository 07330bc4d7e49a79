"""The cores and GPUs of this machine, of which each process gets one."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib

# The driver's list of GPUs, which needs neither CUDA nor TensorFlow.
_DRIVER = pathlib.Path('/proc/driver/nvidia/gpus')


@dataclasses.dataclass(frozen=True)
class Devices:
  """The core and the GPU that a process uses.

  Attributes:
    core: The core.
    gpu: The GPU, as in CUDA_VISIBLE_DEVICES; None if the machine has none.
  """

  core: int
  gpu: str | None

  def restrict(self) -> None:
    """Restricts this process to them, before it imports TensorFlow."""
    os.sched_setaffinity(0, {self.core})
    if self.gpu is not None:
      os.environ['CUDA_VISIBLE_DEVICES'] = self.gpu


def _gpus() -> list[str]:
  """Lists the GPUs that this program may use."""
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is None:
    return [str(i) for i, _ in enumerate(_DRIVER.glob('*'))]
  # As in CUDA, the list ends at the first name that is no GPU, such as -1.
  names = (name.strip() for name in visible.split(','))
  return list(itertools.takewhile(lambda name: name not in ('', '-1'), names))


@functools.cache  # Before processes of this program keep to cores.
def _cores() -> list[int]:
  """Lists the cores that this program may use.

  Those come first that the fewest processes of other programs keep to.
  """
  kept_to: collections.Counter[int] = collections.Counter()
  for path in pathlib.Path('/proc').glob('[0-9]*'):
    with contextlib.suppress(OSError):  # It has ended.
      cores = os.sched_getaffinity(int(path.name))
      kept_to.update(cores if len(cores) == 1 else ())
  return sorted(os.sched_getaffinity(0), key=lambda core: (kept_to[core], core))


def assign(number: int) -> Devices:
  """Returns the devices of a process; the next number has the next devices."""
  cores, gpus = _cores(), _gpus()
  # Other programs on this machine begin elsewhere.
  gpu = gpus[(number + os.getpid()) % len(gpus)] if gpus else None
  return Devices(cores[number % len(cores)], gpu)
