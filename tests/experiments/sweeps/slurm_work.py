"""Does the work of Slurm jobs in tests, without any slow import."""

import pathlib
import time


def work(folder: pathlib.Path, num_workers: int) -> int:
  """Says that it works; when it is first started, it does not end by itself."""
  is_first = not started(folder)
  (folder / f'{time.monotonic_ns()}').write_text(f'{num_workers} workers')
  time.sleep(600 if is_first else 0)
  return 0


def started(folder: pathlib.Path) -> list[str]:
  """Returns what was said each time that it was started."""
  return [path.read_text() for path in sorted(folder.glob('[0-9]*'))]
