"""Probabilities of sentences by the models that a run gave to its clients.

No run keeps the personal models of clients that adapt to their examples. So a
client adapts once more, as it did in the evaluation, and its sentences are a
set that it is evaluated on.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any, cast

import numpy as np
import tensorflow as tf

from base import errors
from experiments.configuration import configs
from experiments.reporting import results_folder
from experiments.runs import execution
from experiments.runs import single_run
from personalization import evaluation
from tasks import task as tasks
from tasks.data import populations
from tasks.data import texts
from tasks.models import models
from tasks.models import next_word

_SENTENCES = 'sentences'
# The feature of an example that tells which sentence it is of.
PLACE = 'place'


def _by_sentence(
  model: next_word.NextWordModel, num_sentences: int
) -> next_word.NextWordModel:
  """Returns the model that also has -log p of each of a client's sentences."""
  kind: Any = type(model)

  @dataclasses.dataclass(frozen=True)
  class BySentence(kind):
    """The model, whose examples tell which sentence they are of."""

    num_sentences: int = dataclasses.field(kw_only=True)

    @property
    def example_spec(self) -> Mapping[str, tf.TensorSpec]:
      return {**super().example_spec, PLACE: tf.TensorSpec([], tf.int32)}

    def judge_likelihood(
      self, log_likelihood: tf.Tensor, batch: models.Batch
    ) -> models.Statistics:
      judged = super().judge_likelihood(log_likelihood, batch)
      total, _ = judged['perplexity']
      place = tf.one_hot(batch[PLACE], self.num_sentences)
      judged[_SENTENCES] = (total[:, tf.newaxis] * place,)
      return judged

  own = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
  return cast(
    next_word.NextWordModel, BySentence(**own, num_sentences=num_sentences)
  )


def _with_place(population: populations.Population) -> populations.Population:
  """Adds the feature to the examples of a task, which are of no sentence."""

  def load(own: populations.Load, client_id: str) -> populations.Examples:
    examples = own(client_id)
    size = populations.num_examples(examples)
    return {**examples, PLACE: np.zeros(size, np.int32)}

  sets = {
    name: functools.partial(load, own) for name, own in population.sets.items()
  }
  return dataclasses.replace(population, sets=sets)


def cut(
  sentences: Sequence[str], vocabulary: Sequence[str], length: int
) -> populations.Examples:
  """Makes the examples of sentences, which tell the place of their sentence.

  Args:
    sentences: The sentences, of which each may be several examples.
    vocabulary: The words.
    length: The number of words in an example.
  """
  numbered = texts.number_words(map(str.split, sentences), vocabulary)
  sizes = texts.count_pieces(np.array(list(map(len, numbered)), int), length)
  place = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
  return {**texts.cut(numbered, len(vocabulary), length), PLACE: place}


def log_probabilities(
  folder: pathlib.Path,
  name: str,
  task: tasks.Task,
  sentences: Mapping[str, Sequence[str]],
) -> dict[str, np.ndarray]:
  """Computes log p(words, end) of sentences, each by its client's model.

  Args:
    folder: The folder of the run.
    name: The method.
    task: The task of the run.
    sentences: Those of each client.

  Returns:
    The logarithms, for each client in the order of its sentences.

  Raises:
    UserError: If the run has not evaluated one of the clients.
  """
  config = configs.from_file(folder / results_folder.CONFIG)
  chosen = {
    row['client']: row['candidate']
    for row in results_folder.read(folder).clients[name]
  }
  unknown = [client for client in sentences if client not in chosen]
  if unknown:
    raise errors.UserError(
      f'{folder} has evaluated no client {unknown[0]}, so that it has no model'
      f' of {name} there. Clients are, for instance,'
      f' {", ".join(list(chosen)[:3])}.'
    )
  model = cast(next_word.NextWordModel, task.model)
  task = dataclasses.replace(
    task,
    model=_by_sentence(model, max(map(len, sentences.values()))),
    train=_with_place(task.train),
    validation=_with_place(task.validation),
    test=_with_place(task.test),
  )
  vocabulary = task.vocabulary or ()
  clients = populations.Population(
    tuple(sentences),
    {
      **task.test.sets,
      _SENTENCES: lambda client_id: cut(
        sentences[client_id], vocabulary, model.sequence_length
      ),
    },
  )
  execution.set_runtime(config.run.runtime)
  built = execution.build_methods(config, task)
  with results_folder.open_folder(folder, config) as run_folder:
    trainings = single_run.Trainings(built, task, config, run_folder)
    training = trainings.get(built[name])
    method = dataclasses.replace(built[name], evaluation_sets=(_SENTENCES,))
    measured = evaluation.measure(
      method,
      training.ended,
      clients,
      training.stage.task,
      config.training,
      measured_on=_SENTENCES,
    )
  names = [str(candidate) for candidate in method.candidates]
  (totals,) = measured[_SENTENCES]
  found = {}
  for client, of_candidates in zip(measured['client_ids'], totals):
    own = of_candidates[names.index(chosen[client])]
    found[client] = -own[: len(sentences[client])]
  return found
