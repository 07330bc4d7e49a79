"""Metrics of validation clients during training, to see when to stop."""

from collections.abc import Mapping
import time

import numpy as np
import tensorflow_federated as tff

from algorithms import methods
from experiments.configuration import configs
from experiments.reporting import results_folder
from experiments.reporting import round_metrics
from experiments.runs import execution
from personalization.judgement import evaluation
from personalization.judgement import outcomes
from personalization.rounds import training
from tasks import task as tasks


def _numbers(outcome: outcomes.Outcome) -> dict[str, float]:
  """Summarizes validation clients, with the names of per_client.csv."""
  test, before = outcome.test.summary, outcome.test.before
  numbers = {'metric': test.mean}
  if before is not None and test.hurt is not None:
    numbers |= {'before': before.summary.mean, 'hurt': test.hurt}
  # The index of the candidate that most clients have.
  return numbers | {'candidate': float(np.bincount(outcome.chosen).argmax())}


class Curves:
  """Evaluates the methods that share a training while it runs.

  Attributes:
    last: The last mean of each method's metric over clients, by its name.
    seconds: How long all evaluations took.
  """

  def __init__(
    self,
    built: Mapping[str, methods.Method],
    task: tasks.Task,
    populations: evaluation.Populations,
    config: configs.Config,
    folder: results_folder.RunFolder,
  ):
    """Prepares the files.

    Args:
      built: The methods, by their names.
      task: The task.
      populations: The result of `evaluation.prepare`.
      config: The configuration of the run.
      folder: Its folder.
    """
    self.last: dict[str, float] = {}
    self.seconds = 0.0
    self._built = built
    self._task = task
    self._populations = populations
    self._config = config
    self._managers: dict[str, tuple[tff.program.ReleaseManager, ...]] = {
      name: (
        round_metrics.CsvReleaseManager(
          folder.validation_file(name), config.training.rounds_per_evaluation
        ),
        round_metrics.TensorBoardReleaseManager(
          folder.tensorboard_dir(f'validation/{name}')
        ),
      )
      for name in built
    }

  async def evaluate(self, trained: training.Trained) -> None:
    """Evaluates the validation clients after a round and writes the metrics."""
    start = time.monotonic()
    for name, method in self._built.items():
      evaluated = evaluation.validate(
        method,
        trained,
        self._task,
        self._config.training,
        lambda _: None,
        self._populations,
      )
      numbers = _numbers(
        outcomes.Outcome(
          evaluated, self._task, choice=execution.choice(self._config.run)
        )
      )
      self.last[name] = numbers['metric']
      for manager in self._managers[name]:
        await manager.release(numbers, trained.round)
    self.seconds += time.monotonic() - start
