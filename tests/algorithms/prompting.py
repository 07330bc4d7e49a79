"""A small frozen GPT-2 with a prefix, and utterances under contexts."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from algorithms import methods
from algorithms import process
from algorithms import trainers
from tasks.data import batches
from tasks.models import frozen_models
from tasks.models import generated_prompts
from tasks.models import models
from tasks.models import prompted
from tests.algorithms import helpers
from tests.tasks.models import gpt2_source

CONTEXTS, LENGTH = 3, 5
# The contexts of each client.
OF_CLIENTS = ((0,), (0, 2), (2,))
# One block, which is traced in half the time.
_SIZES = dataclasses.replace(gpt2_source.SIZES, num_blocks=1)
MODEL = prompted.PromptedModel(
  _SIZES, CONTEXTS, sequence_length=LENGTH, frozen=gpt2_source.weights()
)
WITH_HEAD = prompted.ModelWithHead(
  _SIZES, CONTEXTS, sequence_length=LENGTH, frozen=gpt2_source.weights()
)
WITH_TWO_HEADS = prompted.ModelWithTwoHeads(
  _SIZES, CONTEXTS, sequence_length=LENGTH, frozen=gpt2_source.weights()
)
GENERATED = generated_prompts.ModelWithGeneratedPrompts(
  _SIZES, CONTEXTS, sequence_length=LENGTH, frozen=gpt2_source.weights()
)


def data(
  seed: int, num_examples: int, contexts: tuple[int, ...], batch_size: int = 3
) -> batches.ClientData:
  """Makes a client's utterances, under these contexts in turns."""
  rng = np.random.default_rng(seed)
  words = rng.integers(1, 20, [num_examples, LENGTH + 1], np.int32)
  # Utterances of three words and more.
  lengths = rng.integers(3, LENGTH + 2, num_examples)
  words *= np.arange(LENGTH + 1) < lengths[:, np.newaxis]
  return helpers.make_batches(
    frozen_models.make_examples(
      words, np.resize(np.array(contexts, np.int32), num_examples)
    ),
    batch_size,
  )


def all_data(seed: int = 0) -> list[batches.ClientData]:
  """Makes the utterances of three clients."""
  return [
    data(10 * seed + k, 4 + k, contexts)
    for k, contexts in enumerate(OF_CLIENTS)
  ]


def batch(client_data: batches.ClientData, step: int) -> models.Batch:
  """Returns the examples of a step, without padding."""
  used = client_data.indices[step][client_data.mask[step] > 0]
  return {
    name: tf.constant(f[used]) for name, f in client_data.examples.items()
  }


def loss(
  model: models.Model, w: models.Weights, client_data: batches.ClientData
) -> float:
  """Sums -log p of all words."""
  everything = {
    name: tf.constant(f) for name, f in client_data.examples.items()
  }
  weight = model.example_weight(everything)
  return float(tf.reduce_sum(weight * model.loss(w, everything)))


def hold_out(
  clients: Sequence[trainers.Client],
  evaluation: Sequence[batches.ClientData] | None = None,
) -> list[process.EvaluatedClient]:
  """Has clients adapt to their data, and be judged by others."""
  return [
    process.EvaluatedClient(
      personalization=client.data,
      evaluation=collections.OrderedDict(evaluation=held_out),
      state=client.state,
      seed=client.seed,
      attributes=client.attributes,
    )
    for client, held_out in zip(clients, evaluation or all_data(seed=1))
  ]


def personalize(
  method: methods.Method, state: Any, clients: Sequence[trainers.Client]
) -> list[Mapping[str, Any]]:
  """Returns the metrics of clients on other data than their own."""
  results = method.personalize(state, hold_out(clients))
  return [result['evaluation'] for result in results]


def digest(method: methods.Method) -> str | None:
  """Returns the hash of the frozen weights that computations are given."""
  (frozen,) = method.constants
  return dataclasses.replace(method.trainer.model, frozen=frozen).frozen_digest
