"""Generates a user's text under any context with the model of a finished run.

As in FedPC (Silva et al. 2022), table 4: the user's weights are combined with
those of a context, for which the user need not have examples, and each next
word is drawn among the 50 most likely ones.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np
from scipy import special
import tensorflow as tf
import tree

from algorithms import trainers
from base import errors
from base import seeds
from experiments.command_line import terminal
from experiments.runs import execution
from experiments.runs import finished_methods
from experiments.runs import sources
from tasks import dialogue
from tasks import task as tasks
from tasks.data import batches
from tasks.data import bpe
from tasks.data import populations
from tasks.models import frozen_models
from tasks.models import models


def _populations(task: tasks.Task) -> list[populations.Population]:
  """Returns the populations of a task, in the order of a search."""
  return [task.train, task.validation, task.test]


def known_clients(task: tasks.Task) -> list[str]:
  """Lists all clients of a task."""
  ids = [population.client_ids for population in _populations(task)]
  return list(dict.fromkeys(client for some in ids for client in some))


def own_contexts(task: tasks.Task, client: str) -> list[str]:
  """Lists the contexts that a client has utterances under."""
  numbers = {
    int(number)
    for population in _populations(task)
    if client in population.client_ids
    for load in population.sets.values()
    for number in load(client)['context']
  }
  return [task.contexts[number] for number in sorted(numbers)]


@dataclasses.dataclass(frozen=True)
class DialogueRun:
  """A finished run of a task of dialogue.

  Attributes:
    source: The run.
    task: Its task.
    model: The model of the task.
    encoding: The tokens of the model.
  """

  source: sources.Source
  task: tasks.Task
  model: frozen_models.FrozenModel
  encoding: bpe.Encoding

  @classmethod
  def load(cls, run_name: str, data_dir: str | None) -> 'DialogueRun':
    """Loads a run; raises a `UserError` if its task is not a dialogue task."""
    source = sources.read(run_name)
    source.training()
    config = source.config
    settings = config.task_settings
    if not isinstance(settings, dialogue.DialogueSettings):
      raise errors.UserError(
        f'{run_name} is of the task {config.task}, which generates no text.'
        ' Name a run of a task of dialogue.'
      )
    task = execution.load_task(config, data_dir)
    assert isinstance(task.model, frozen_models.FrozenModel)
    size = task.model.language_model.vocabulary_size
    encoding = dialogue.read_encoding(settings, data_dir, size)
    return cls(source, task, task.model, encoding)

  def start_weights(self, client: str) -> models.Weights:
    """Returns the weights that a client starts to adapt from.

    Args:
      client: One of `known_clients`.

    Returns:
      All weights, including those that the client keeps or would start with.
    """
    name, _ = self.source.training()
    self.source.check_frozen_weights(name, self.task)
    finished = finished_methods.restore(self.source, self.task, [name])
    method, training = finished[name]
    population = next(
      some
      for some in reversed(_populations(self.task))
      if client in some.client_ids
    )
    row = population.client_ids.index(client)
    load = population.sets.get('personalization') or population.sets['train']
    trainer, known = method.trainer, training.stage.task.attributes
    start = trainer.start(
      trainer.message(training.ended.server_state.server),
      trainers.Client(
        data=_make_batch(load(client)),
        state=tree.map_structure(
          lambda leaf: leaf[0], training.ended.read_states([client], [row])
        ),
        seed=tf.constant(seeds.pair('generate', client)),
        attributes={
          attribute: tf.constant(known[attribute].values[client])
          for attribute in trainer.attributes
          if attribute in known
        },
      ),
    )
    weights: models.Weights = start.weights
    return weights


def _make_batch(examples: populations.Examples) -> batches.ClientData:
  """Puts all examples of a client into one batch."""
  size = populations.num_examples(examples)
  indices, mask = batches.index_batches(size, size)
  tensors = {name: tf.constant(leaf) for name, leaf in examples.items()}
  return batches.ClientData(collections.OrderedDict(tensors), indices, mask)


def generate(
  model: frozen_models.FrozenModel,
  weights: models.Weights,
  encoding: bpe.Encoding,
  prompt: str,
  generators: Mapping[int, np.random.Generator],
  length: int,
  top: int,
) -> list[str]:
  """Continues a prompt by drawing one token after another.

  Args:
    model: The model.
    weights: Its weights.
    encoding: Its tokens.
    prompt: The beginning of the text.
    generators: The random generator of each context, by the context's number.
      One text is generated for each.
    length: The number of tokens to draw.
    top: How many of the likeliest tokens to draw among.

  Returns:
    The text under each context, with the prompt.

  Raises:
    UserError: If the prompt is empty, or the text would be too long.
  """
  first = encoding.encode(prompt)
  most = model.language_model.num_positions
  if not first:
    raise errors.UserError('A prompt must have at least one word.')
  if len(first) + length > most:
    raise errors.UserError(
      f'A text has at most {most} tokens with its prompt, which has'
      f' {len(first)}. Set --length to {max(most - len(first), 0)} at most.'
    )
  # The last word is predicted, and predicts nothing.
  time = len(first) + length - 1
  model = dataclasses.replace(model, sequence_length=time)
  is_special = [token in encoding.specials for token in encoding.tokens]

  @tf.function
  def predict(words: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    batch = {
      'x': words[:, :-1],
      # The next words are unknown; 1 only tells that they are not padding.
      'y': tf.fill([len(generators), time], 1),
      'context': tf.constant(list(generators), tf.int32),
    }
    logits = model.scores(weights, batch).logits()
    by_word = tf.reshape(logits, [len(generators), time, -1])
    # Special tokens are never drawn.
    logits = tf.gather(by_word, place, axis=1)
    return tf.where(is_special, -np.inf, logits)

  # Tokens are numbered from 1, as 0 is padding.
  words = np.zeros([len(generators), time + 1], np.int32)
  words[:, : len(first)] = np.array(first) + 1
  for place in range(len(first), time + 1):
    logits = predict(tf.constant(words), tf.constant(place - 1)).numpy()
    for row, scores, rng in zip(words, logits, generators.values()):
      likeliest = np.argsort(-scores, kind='stable')[:top]
      chances = special.softmax(scores[likeliest].astype(float))
      row[place] = 1 + rng.choice(likeliest, p=chances)
  return [encoding.decode(row - 1) for row in words]


def show_known(source: str, data_dir: str | None) -> int:
  """Shows the clients and contexts of a run; returns the exit status."""
  task = DialogueRun.load(source, data_dir).task
  clients = terminal.make_table('clients', 'client', 'contexts of its own')
  for client in known_clients(task):
    clients.add_row(client, ', '.join(own_contexts(task, client)))
  contexts = terminal.make_table('contexts', 'context')
  for context in task.contexts:
    contexts.add_row(context)
  terminal.print_table(clients)
  terminal.print_table(contexts)
  return 0


def main(
  source: str,
  client: str,
  contexts: Sequence[str],
  prompts: Sequence[str],
  length: int,
  top: int,
  seed: int,
  data_dir: str | None,
) -> int:
  """Generates the requested texts and shows them; returns the exit status."""
  run = DialogueRun.load(source, data_dir)
  clients = known_clients(run.task)
  if client not in clients:
    raise errors.unknown('client', client, clients)
  for context in contexts:
    if context not in run.task.contexts:
      raise errors.unknown('context', context, run.task.contexts)
  contexts = list(dict.fromkeys(contexts)) or own_contexts(run.task, client)
  weights = run.start_weights(client)
  of_prompts = []
  for prompt in prompts:
    generators = {
      run.task.contexts.index(context): seeds.generator(
        'generate', seed, client, context, prompt
      )
      for context in contexts
    }
    of_prompts.append(
      generate(
        run.model, weights, run.encoding, prompt, generators, length, top
      )
    )
  table = terminal.make_table(client, 'context', *prompts)
  for context, *generated in zip(contexts, *of_prompts):
    table.add_row(context, *generated)
  terminal.print_table(table)
  return 0
