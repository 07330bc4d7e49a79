"""Starts the program that starts a worker."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import pathlib
import subprocess
import sys
import tempfile

import psutil


@dataclasses.dataclass(frozen=True)
class WorkerProgram:
  """A running program.

  Attributes:
    process: The process.
    address: Where it listens.
    log: What it and its worker write to stderr.
  """

  process: subprocess.Popen[str]
  address: str
  log: pathlib.Path

  @property
  def worker(self) -> psutil.Process:
    """TFF's worker."""
    (child,) = psutil.Process(self.process.pid).children()
    return child


@contextlib.contextmanager
def started(*flags: str, within: Sequence[str] = ()) -> Iterator[WorkerProgram]:
  """Starts the program, on a free port by default, and kills it in the end.

  Args:
    *flags: Its flags.
    within: A program that starts it, with its arguments.

  Yields:
    The program.
  """
  command = [sys.executable, '-m', 'tff_runtimes.worker', '--port=0']
  with tempfile.NamedTemporaryFile() as log:
    with subprocess.Popen(
      [*within, *command, '--allow_exposed', *flags],
      stdout=subprocess.PIPE,
      stderr=log,
      text=True,
    ) as process:
      assert process.stdout is not None
      try:
        line = process.stdout.readline()
        path = pathlib.Path(log.name)
        assert line.startswith('Ready: '), path.read_text()
        yield WorkerProgram(process, line.split()[1], path)
      finally:
        process.kill()
