"""Probabilities of sentences under the personal models of a run's clients.

Runs do not keep the personal models of clients that adapt to their examples. So
each client adapts again, as it did in the evaluation, and is then evaluated on
its sentences.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any, cast

import numpy as np
import tensorflow as tf

from base import errors
from experiments.runs import finished_methods
from experiments.runs import sources
from personalization.judgement import evaluation
from tasks import task as tasks
from tasks.data import populations
from tasks.data import texts
from tasks.models import models
from tasks.models import next_word

_SENTENCES = 'sentences'
# The feature of an example that has the index of its sentence.
PLACE = 'place'


def _judge_sentences(
  model: next_word.NextWordModel, num_sentences: int
) -> next_word.NextWordModel:
  """Returns the model with -log p of each sentence as another statistic."""
  kind: Any = type(model)

  @dataclasses.dataclass(frozen=True)
  class BySentence(kind):
    """The model; its examples have the index of their sentence."""

    num_sentences: int = dataclasses.field(kw_only=True)

    @property
    def example_spec(self) -> Mapping[str, tf.TensorSpec]:
      return {**super().example_spec, PLACE: tf.TensorSpec([], tf.int32)}

    def likelihood_statistics(
      self, log_likelihood: tf.Tensor, batch: models.Batch
    ) -> models.Statistics:
      judged = super().likelihood_statistics(log_likelihood, batch)
      total, _ = judged['perplexity']
      place = tf.one_hot(batch[PLACE], self.num_sentences)
      judged[_SENTENCES] = (total[:, tf.newaxis] * place,)
      return judged

  fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
  return cast(
    next_word.NextWordModel, BySentence(**fields, num_sentences=num_sentences)
  )


def _add_place(population: populations.Population) -> populations.Population:
  """Adds the feature to a task's examples, where its value is not used."""

  def load(load_set: populations.Load, client_id: str) -> populations.Examples:
    examples = load_set(client_id)
    size = populations.num_examples(examples)
    return {**examples, PLACE: np.zeros(size, np.int32)}

  sets = {
    name: functools.partial(load, load_set)
    for name, load_set in population.sets.items()
  }
  return dataclasses.replace(population, sets=sets)


def cut(
  sentences: Sequence[str], vocabulary: Sequence[str], length: int
) -> populations.Examples:
  """Makes examples from sentences, with the index of their sentence.

  Args:
    sentences: The sentences. A long one becomes several examples.
    vocabulary: The words.
    length: The number of words in an example.
  """
  numbered = texts.number_words(map(str.split, sentences), vocabulary)
  sizes = texts.count_pieces(np.array(list(map(len, numbered)), int), length)
  place = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
  return {**texts.cut(numbered, len(vocabulary), length), PLACE: place}


def log_probabilities(
  source: sources.Source,
  name: str,
  task: tasks.Task,
  sentences: Mapping[str, Sequence[str]],
) -> dict[str, np.ndarray]:
  """Computes log p(words, end) of sentences under their client's model.

  Returns:
    The logarithms, for each client in the order of its sentences.

  Raises:
    UserError: If the run has not evaluated one of the clients.
  """
  run = source.run
  chosen = {row['client']: row['candidate'] for row in run.clients[name]}
  unknown = [client for client in sentences if client not in chosen]
  if unknown:
    raise errors.UserError(
      f'{run.path} has evaluated no client {unknown[0]}, so that it has no'
      f' model of {name} there. Clients are, for instance,'
      f' {", ".join(list(chosen)[:3])}.'
    )
  model = cast(next_word.NextWordModel, task.model)
  task = dataclasses.replace(
    task,
    model=_judge_sentences(model, max(map(len, sentences.values()))),
    train=_add_place(task.train),
    validation=_add_place(task.validation),
    test=_add_place(task.test),
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
  finished = finished_methods.restore(source, task, [name])[name]
  method = finished.method
  client_ids, measured = evaluation.measure(
    method,
    finished.training.ended,
    clients,
    finished.training.stage.task,
    source.config.training,
    measured_on=_SENTENCES,
  )
  names = [str(candidate) for candidate in method.candidates]
  (totals,) = measured[_SENTENCES]
  found = {}
  for client, of_candidates in zip(client_ids, totals):
    scores = of_candidates[names.index(chosen[client])]
    found[client] = -scores[: len(sentences[client])]
  return found
