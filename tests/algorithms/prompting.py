"""A small frozen GPT-2 with a prefix, and utterances under contexts."""

import collections
import dataclasses

import numpy as np

from tasks.data import batches
from tasks.models import prompted
from tests.algorithms import helpers
from tests.tasks.models import gpt2_source

CONTEXTS, LENGTH = 3, 5
# One block, which is traced in half the time.
_SIZES = dataclasses.replace(gpt2_source.SIZES, num_blocks=1)
MODEL = prompted.PromptedGpt2(
  _SIZES, CONTEXTS, sequence_length=LENGTH, frozen=gpt2_source.weights()
)
WITH_HEAD = prompted.Gpt2WithHead(
  _SIZES, CONTEXTS, sequence_length=LENGTH, frozen=gpt2_source.weights()
)
WITH_TWO_HEADS = prompted.Gpt2WithTwoHeads(
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
  return helpers.as_data(
    collections.OrderedDict(
      x=words[:, :-1],
      y=words[:, 1:],
      context=np.resize(np.array(contexts, np.int32), num_examples),
    ),
    batch_size,
  )
