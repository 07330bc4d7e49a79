"""Lanes in which clients run side by side: the CPU's cores, or other devices.

On the CPU each core takes the next client. Of other devices, such as GPUs, each
has one client at a time, and client k always runs on device k modulo their
number. So a client finds what it kept on its own device, and gives the same
results each time even if the devices are of different kinds.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
import itertools
import os
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tff_runtimes import aliases

_T = TypeVar('_T')

# Runs on the device that it is given, None for the CPU.
Job: TypeAlias = Callable[[str | None], _T]


def use_device(device: str | None) -> contextlib.AbstractContextManager[object]:
  """Returns a context in which TensorFlow runs on a device."""
  return contextlib.nullcontext() if device is None else tf.device(device)


def copy_to(
  device: str | None, leaves: Sequence[aliases.Leaf]
) -> aliases.Leaves:
  """Copies tensors of numbers to a device; others stay where they are."""
  if device is None:
    return list(leaves)
  with use_device(device):
    return [
      tf.identity(leaf)
      if tf.as_dtype(leaf.dtype) not in (tf.variant, tf.string)
      else leaf
      for leaf in leaves
    ]


class Lanes:
  """Threads that run clients, each on one core or one device.

  Attributes:
    first_device: The device for the server's work; None for the default one.
  """

  def __init__(self, devices: Sequence[str] | None):
    """Starts no thread yet.

    Args:
      devices: The devices; by default all GPUs. If there are none, the clients
        run on the CPU.
    """
    if devices is None:
      found = tf.config.list_logical_devices('GPU')
      devices = [device.name for device in found]
    self._devices = list(devices)
    self.first_device = self._devices[0] if self._devices else None
    self.restart()

  def restart(self) -> None:
    """Makes new threads."""
    num_cores = len(os.sched_getaffinity(0))
    self._window = 2 * (len(self._devices) or num_cores)
    self._lanes: list[tuple[str | None, concurrent.futures.Executor]] = [
      (device, concurrent.futures.ThreadPoolExecutor(1))
      for device in self._devices
    ] or [(None, concurrent.futures.ThreadPoolExecutor(num_cores))]

  def shut_down(self) -> None:
    """Ends the threads as soon as their jobs end."""
    for _, threads in self._lanes:
      threads.shutdown(wait=False, cancel_futures=True)

  def run_in_order(self, jobs: Iterator[Job[_T]]) -> Iterator[_T]:
    """Yields the jobs' results in the jobs' order, with few jobs under way."""
    pending: collections.deque[concurrent.futures.Future[_T]] = (
      collections.deque()
    )
    try:
      for job, (device, threads) in zip(jobs, itertools.cycle(self._lanes)):
        pending.append(threads.submit(job, device))
        if len(pending) == self._window:
          yield pending.popleft().result()
      while pending:
        yield pending.popleft().result()
    finally:
      for future in pending:
        future.cancel()
