"""Finished runs, and their methods, as a user names them."""

import dataclasses
import pathlib

from base import errors
from experiments.configuration import configs
from experiments.reporting import manifests
from experiments.reporting import results_folder
from tasks import task as tasks


@dataclasses.dataclass(frozen=True)
class Source:
  """A finished run, and maybe one of its methods.

  Attributes:
    name: FOLDER or FOLDER:METHOD.
    run: The run.
    config: Its configuration.
    chosen: The method that the user has named; None if there is none.
  """

  name: str
  run: results_folder.FinishedRun
  config: configs.Config
  chosen: str | None = None

  def method(self) -> str:
    """Returns the method that the user has chosen, or the only one."""
    methods = self.run.methods
    if self.chosen is None and len(methods) > 1:
      raise errors.UserError(
        f'{self.run.path} has the methods {", ".join(methods)}. Name one of'
        f' them, as in {self.run.path}:{next(iter(methods))}.'
      )
    name = self.chosen or next(iter(methods))
    if name not in methods:
      raise errors.unknown('method', name, methods)
    return name

  def personalized(self) -> str | None:
    """Returns the chosen method if it has personalized models."""
    result = self.run.methods.get(self.chosen or '', {})
    return self.chosen if len(result.get('candidates', ())) > 1 else None

  def training(self) -> tuple[str, int]:
    """Returns the training of the run or the method, and its last round."""
    methods = self.run.methods
    if self.chosen is not None and self.chosen not in methods:
      raise errors.unknown('method', self.chosen, methods)
    rounds = {
      result['training']: result['rounds']
      for name, result in methods.items()
      if result['training'] is not None and self.chosen in (None, name)
    }
    if not rounds:
      raise errors.UserError(f'{self.name} has trained no global model.')
    if len(rounds) > 1:
      raise errors.UserError(
        f'{self.run.path} has trained {" and ".join(rounds)}. Name one of them,'
        f' as in {self.run.path}:{next(iter(rounds))}.'
      )
    return rounds.popitem()

  def check_frozen_weights(self, method: str, task: tasks.Task) -> None:
    """Raises a `UserError` if a method had other frozen weights than a task."""
    frozen = self.run.methods[method]['frozen_weights_sha256']
    if frozen != task.model.frozen_digest:
      raise errors.UserError(
        f'{self.run.path} was trained with other frozen weights, or words, than'
        f' those of {task.name} now. Use the same data and settings of the'
        ' task.'
      )


def read(source: str) -> Source:
  """Reads a finished run, given as FOLDER or FOLDER:METHOD."""
  folder, chosen = pathlib.Path(source), None
  if ':' in folder.name and not folder.is_dir():
    path, _, chosen = source.rpartition(':')
    if not chosen:
      raise errors.UserError(f'{source} names no method after the colon.')
    folder = pathlib.Path(path)
  run = results_folder.read(folder)
  config = configs.read(folder / results_folder.CONFIG)
  manifests.tell_of_modules(folder)
  return Source(source, run, config, chosen)
