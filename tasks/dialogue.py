"""Makes FedPC's tasks from the utterances of users under contexts.

Silva, Tambwekar and Gombolay 2022. An utterance is a sentence of at least three
tokens, in one of several contexts. A frozen language model predicts its tokens,
with a prompt, a head or adapters that are trained (`task.trained`). The metric
is the perplexity of the tokens after the first three, pooled over utterances.
Further metrics are over the words after the first three, whatever their tokens:
the perplexity of words, and the bits for a byte. A sentence ends
after a full stop, an exclamation mark, a question mark or an ellipsis, and in
posts also after a bracket or quotation mark that follows these. It is cut after
`task.utterance_length` tokens.

Known users are all in training, with 60 % of their utterances; 20 % are for
validation. Of the last 20 %, half is the personalization set and half the test
set. Withheld users are never trained on: 15 % of the users are for validation
and 15 % for the test; each adapts to half of its utterances and is evaluated on
the others.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
import re
from typing import Any

import numpy as np
import tensorflow as tf

from base import errors
from base import seeds
from base import settings
from tasks import task
from tasks.data import bpe
from tasks.data import devices
from tasks.data import downloads
from tasks.data import populations
from tasks.models import adapters
from tasks.models import frozen_models
from tasks.models import generated_prompts
from tasks.models import language_model_files
from tasks.models import language_models
from tasks.models import models
from tasks.models import prompted

_MIN_TOKENS = 3
_FRACTIONS = 0.6, 0.2  # Training and validation.
_WITHHELD = 0.15  # The share of validation users, and of test users.
# In speech, a sentence goes on after a quotation, as in: "Ay!" he said.
_SPOKEN_ENDS = re.compile(r'(?<=[.!?…])\s+')
# In writing, it also ends after a closing bracket or quotation mark.
_WRITTEN_ENDS = re.compile(r'(?:(?<=[.!?…])|(?<=[.!?…]["”’\')\]]))\s+')
_ADVICE = (
  'Save the weights of a GPT-2 or of a model of the Llama form there, such as'
  ' model.safetensors of DistilGPT2 or SmolLM2, or make a small one with the'
  ' program pretrain; or name another file as task.weights.'
)
_MODELS: Mapping[str, Callable[..., frozen_models.FrozenModel]] = {
  'prompt': prompted.PromptedModel,
  'generated': generated_prompts.ModelWithGeneratedPrompts,
  'generated_once': functools.partial(
    generated_prompts.ModelWithGeneratedPrompts, once=True
  ),
  'head': prompted.ModelWithHead,
  'two_heads': prompted.ModelWithTwoHeads,
  'adapters': adapters.AdaptedModel,
  'adapters_up': functools.partial(adapters.AdaptedModel, trains_down=False),
  'two_adapters': functools.partial(adapters.AdaptedModel, has_own=True),
}


@dataclasses.dataclass(frozen=True)
class DialogueSettings(devices.HeldOutSettings):
  """The settings of a task of utterances."""

  weights: str = settings.field(
    'gpt2/model.safetensors',
    'The file of the weights of the language model in the data folder:'
    ' safetensors, h5 or npz. config.json beside it says which form it has.',
  )
  weights_sha256: str | None = settings.field(
    None, 'The checksum that this file must have; none for any.'
  )
  tokenizer: str | None = settings.field(
    None,
    'The folder of tokenizer.json, or of vocab.json and merges.txt, in the data'
    ' folder; none for the folder of the weights.',
  )
  trained: str = settings.field(
    'prompt',
    'What is trained: a prompt before the words, made from a vector of the'
    ' user and one of the context; networks that generate such a prompt, for'
    ' each word or once for all words after the first three; the head; a head'
    ' of the user and one of the context, whose scores are averaged; adapters'
    ' of matrices of all blocks (LoRA); only their second factors; or adapters'
    ' of all users and those of each user, whose changes are added.',
    choices=tuple(_MODELS),
  )
  first_word: int | None = settings.field(
    None,
    'The number of the token before each utterance, as whose embedding prompts'
    ' start: 0 in SmolLM2, which begins a text. None for nothing, and prompts'
    ' that start at random as in the paper.',
    minimum=0,
  )
  adapted: tuple[str, ...] = settings.field(
    ('q', 'v'),
    "The matrices of each block that have adapters: the attention's q, k, v and"
    " o; the network's up and down and, in the Llama form, gate.",
    choices=('q', 'k', 'v', 'o', 'gate', 'up', 'down'),
  )
  rank: int = settings.field(4, 'The rank of the adapters.', minimum=1)
  alpha: float = settings.field(
    8.0, 'The factor of the changes by adapters, times their rank.', above=0
  )
  hold_out: str = settings.field(
    'examples',
    'Whether utterances of known users are held out, or users, whose numbers'
    ' are num_validation_clients and num_test_clients.',
    choices=('examples', 'clients'),
  )
  min_utterances: int = settings.field(
    25,
    'The smallest number of utterances of a user; other users are left out.',
    minimum=10,
  )
  max_utterances: int | None = settings.field(
    None,
    'The largest number of utterances of a user, drawn among all of them; none'
    ' for all.',
    minimum=10,
  )
  utterance_length: int = settings.field(
    32, 'The number of tokens after which utterances are cut.', minimum=4
  )


@dataclasses.dataclass(frozen=True)
class Utterances:
  """The texts of a user, each with the number of its context."""

  texts: list[str] = dataclasses.field(default_factory=list)
  contexts: list[int] = dataclasses.field(default_factory=list)

  def add(self, text: str, context: int, written: bool = False) -> None:
    """Adds the sentences of a text, which is spoken or written."""
    sentences = split_sentences(text, written)
    self.texts.extend(sentences)
    self.contexts.extend([context] * len(sentences))


def collect(
  texts: Iterable[tuple[str, str, str]], written: bool = False
) -> tuple[dict[str, Utterances], tuple[str, ...]]:
  """Collects the utterances of users.

  Args:
    texts: The user, the context and the words of each text.
    written: Whether the texts are written rather than spoken.

  Returns:
    The utterances of each user, and the names of the contexts, both in the
    order in which they first occur.
  """
  said: dict[str, Utterances] = {}
  contexts: dict[str, int] = {}
  for user, context, text in texts:
    number = contexts.setdefault(context, len(contexts))
    said.setdefault(user, Utterances()).add(text, number, written)
  return said, tuple(contexts)


def split_sentences(text: str, written: bool = False) -> list[str]:
  """Splits a text into sentences; the ends of lines count as spaces."""
  ends = _WRITTEN_ENDS if written else _SPOKEN_ENDS
  found = ends.split(' '.join(text.split()))
  return [sentence for sentence in found if sentence]


def _examples(
  dialogue_settings: DialogueSettings, encoding: bpe.Encoding, said: Utterances
) -> populations.Examples:
  """Makes the examples of a user, in the order of the utterances."""
  length = dialogue_settings.utterance_length
  rows, contexts = [], []
  for text, context in zip(said.texts, said.contexts):
    tokens = encoding.encode(text)[:length]
    if len(tokens) >= _MIN_TOKENS:
      row = np.zeros(length, np.int32)
      row[: len(tokens)] = np.array(tokens) + 1  # 0 is padding.
      rows.append(row)
      contexts.append(context)
  words = np.array(rows, np.int32).reshape(-1, length)
  return frozen_models.make_examples(
    words, np.array(contexts, np.int32), *_count_text(encoding, words)
  )


def _count_text(
  encoding: bpe.Encoding, words: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Counts what is judged of each token of utterances, `[utterances, tokens]`.

  Returns:
    The bytes of the token, and 1 if it begins a word of the text, else 0; both
    are 0 for padding and in the first words.
  """
  # The number 0 is padding.
  sizes = np.array([0, *map(len, encoding.tokens)], np.int32)
  begins = np.array(
    [False, *(token.startswith('Ġ') for token in encoding.tokens)]
  )[words]
  begins[:, :1] = True
  is_judged = np.cumsum(begins, axis=1) > _MIN_TOKENS
  return sizes[words] * is_judged, (begins & is_judged).astype(np.int32)


def _limit(
  name: str,
  dialogue_settings: DialogueSettings,
  user: str,
  examples: populations.Examples,
) -> populations.Examples:
  """Draws at most `max_utterances` of a user, which stay in their order."""
  most = dialogue_settings.max_utterances
  number = populations.num_examples(examples)
  if most is None or number <= most:
    return examples
  rng = seeds.generator(name, 'limit', dialogue_settings.split_seed, user)
  return populations.take(examples, np.sort(rng.permutation(number)[:most]))


def _known(
  name: str,
  dialogue_settings: DialogueSettings,
  users: Mapping[str, populations.Examples],
) -> populations.Populations:
  """Makes the populations, if utterances are held out."""
  parts: dict[str, dict[str, np.ndarray]] = {}
  for user, examples in users.items():
    rng = seeds.generator(name, dialogue_settings.split_seed, user)
    order = rng.permutation(populations.num_examples(examples))
    ends = np.cumsum([int(len(order) * share) for share in _FRACTIONS])
    train, validation, test = np.split(order, ends)
    middle = len(test) // 2
    parts[user] = dict(
      train=train,
      validation=validation,
      adaptation=test[:middle],
      test=test[middle:],
    )
  ids = tuple(users)

  def population(**sets: str) -> populations.Population:
    """Makes a population from the part of the utterances that is each set."""

    def loader(part: str) -> populations.Load:
      return lambda user: populations.take(users[user], parts[user][part])

    return populations.Population(
      ids,
      {name: loader(part) for name, part in sets.items()},
      {
        name: np.array([len(parts[user][part]) for user in ids])
        for name, part in sets.items()
      },
    )

  return populations.Populations(
    train=population(train='train'),
    validation=population(
      personalization='adaptation', evaluation='validation'
    ),
    test=population(personalization='adaptation', evaluation='test'),
    cross_silo=True,
  )


def _withheld(
  name: str,
  dialogue_settings: DialogueSettings,
  users: Mapping[str, populations.Examples],
) -> populations.Populations:
  """Makes the populations, if users are held out."""
  validation, test, train = dialogue_settings.split(
    dialogue_settings.permuted(tuple(users)), _WITHHELD, _WITHHELD
  )

  def make_devices(ids: Sequence[str]) -> devices.Devices:
    return devices.Devices(
      tuple(ids),
      lambda user, limit: populations.take(users[user], slice(limit)),
      np.array([populations.num_examples(users[user]) for user in ids]),
    )

  return devices.make_populations(
    train=make_devices(train),
    validation=make_devices(validation),
    test=make_devices(test),
    shuffle_key=(name, dialogue_settings.split_seed),
  )


def _drop_rare_contexts(
  users: Mapping[str, populations.Examples],
  contexts: Sequence[str],
  min_of_user: int,
  min_of_context: int,
) -> tuple[dict[str, populations.Examples], list[str]]:
  """Leaves out contexts with few utterances, and then users with few.

  Args:
    users: The examples of each user.
    contexts: The names of the contexts.
    min_of_user: The smallest number of utterances of a user.
    min_of_context: The smallest number of utterances of a context.

  Returns:
    The remaining users and contexts, with new numbers of the contexts.
  """
  counts = sum(
    np.bincount(examples['context'], minlength=len(contexts))
    for examples in users.values()
  )
  kept = np.broadcast_to(counts, len(contexts)) >= min_of_context
  numbers = np.cumsum(kept, dtype=np.int32) - 1
  left: dict[str, populations.Examples] = {}
  for user, examples in users.items():
    remaining = populations.take(
      examples, np.flatnonzero(kept[examples['context']])
    )
    if populations.num_examples(remaining) >= min_of_user:
      left[user] = {**remaining, 'context': numbers[remaining['context']]}
  return left, list(itertools.compress(contexts, kept))


def make_task(
  name: str,
  dialogue_settings: DialogueSettings,
  data_dir: str | None,
  said: Mapping[str, Utterances],
  contexts: Sequence[str],
  min_of_context: int = 0,
) -> task.Task:
  """Makes the task.

  Args:
    name: Its name.
    dialogue_settings: Its settings.
    data_dir: The folder of the user's data.
    said: The utterances of each user.
    contexts: The names of the contexts.
    min_of_context: The smallest number of utterances of a context; others are
      left out, and so are users who then have too few.

  Returns:
    The task. If each user has only one context, it is the user's group.

  Raises:
    UserError: If the GPT-2 or its tokenizer cannot be read, or no user has
      enough utterances.
  """
  path = downloads.find(dialogue_settings.weights, data_dir, _ADVICE)
  sizes, weights = language_model_files.load(
    path, dialogue_settings.weights_sha256
  )
  if dialogue_settings.utterance_length > sizes.num_positions:
    raise settings.SettingError(
      f'task.utterance_length must be at most {sizes.num_positions}, the number'
      f' of positions of {path}.',
      'utterance_length',
    )
  # Tensors, which all methods share; each would copy an array.
  for name, weight in weights.items():
    weights[name] = tf.constant(weight)
  encoding = read_encoding(dialogue_settings, data_dir, sizes.vocabulary_size)
  min_of_user = dialogue_settings.min_utterances
  users: dict[str, populations.Examples] = {}
  for user, utterances in said.items():
    if len(utterances.texts) < min_of_user:
      continue
    examples = _examples(dialogue_settings, encoding, utterances)
    if populations.num_examples(examples) >= min_of_user:
      users[user] = _limit(name, dialogue_settings, user, examples)
  if min_of_context:
    users, contexts = _drop_rare_contexts(
      users, contexts, min_of_user, min_of_context
    )
  if not users:
    raise errors.UserError(
      f'No client of {name} has task.min_utterances={min_of_user} utterances.'
      ' Set a smaller number, or replace the data.'
    )
  attributes = {}
  of_users = {
    user: np.unique(examples['context']) for user, examples in users.items()
  }
  if all(len(numbers) == 1 for numbers in of_users.values()):
    groups = {user: int(numbers[0]) for user, numbers in of_users.items()}
    attributes[task.GROUP] = task.Attribute(tuple(contexts), groups)
  make = _known if dialogue_settings.hold_out == 'examples' else _withheld
  return task.Task(
    name=name,
    model=_make_model(
      dialogue_settings,
      sizes,
      weights,
      len(contexts),
      max(map(len, of_users.values())),
    ),
    metric='perplexity',
    higher_is_better=False,
    batch_size=15,
    padded=False,
    attributes=attributes,
    vocabulary=encoding.tokens,
    contexts=tuple(contexts),
    **make(name, dialogue_settings, users),
  )


def _make_model(
  dialogue_settings: DialogueSettings,
  sizes: language_models.LanguageModel,
  weights: models.Weights,
  num_contexts: int,
  most_contexts: int,
) -> frozen_models.FrozenModel:
  """Makes the model; may raise a `SettingError`."""
  first_word = dialogue_settings.first_word
  if first_word is not None and first_word >= sizes.vocabulary_size:
    raise settings.SettingError(
      f'task.first_word must be below {sizes.vocabulary_size}, the number of'
      ' tokens of the language model.',
      'first_word',
    )
  cls = _MODELS[dialogue_settings.trained]
  chosen: dict[str, Any] = {}
  if dialogue_settings.trained == 'prompt' and first_word is not None:
    row = weights[sizes.embedding][first_word]
    chosen = dict(first_prompt=tuple(map(float, row.numpy())))
  elif 'adapters' in dialogue_settings.trained:
    for matrix in dialogue_settings.adapted:
      if matrix not in sizes.matrices:
        raise errors.unknown('matrix in task.adapted', matrix, sizes.matrices)
    chosen = dict(
      matrices=dialogue_settings.adapted,
      rank=dialogue_settings.rank,
      scale=dialogue_settings.alpha / dialogue_settings.rank,
    )
  model = cls(
    sizes,
    num_contexts,
    sequence_length=dialogue_settings.utterance_length - 1,
    prompt_length=_MIN_TOKENS,
    first_word=first_word,
    most_contexts=most_contexts,
    frozen=weights,
    **chosen,
  )
  if isinstance(model, adapters.AdaptedModel) and not model.trains_down:
    rng = seeds.generator('adapters', dialogue_settings.split_seed)
    down = tf.nest.map_structure(tf.constant, model.frozen_down(rng))
    frozen = collections.OrderedDict(weights, **down)
    return dataclasses.replace(model, frozen=frozen)
  return model


def read_encoding(
  dialogue_settings: DialogueSettings, data_dir: str | None, size: int
) -> bpe.Encoding:
  """Reads a task's tokenizer of `size` tokens; may raise a `UserError`."""
  if dialogue_settings.tokenizer is None:
    folder = downloads.find(dialogue_settings.weights, data_dir, _ADVICE).parent
  else:
    advice = 'Name its folder as task.tokenizer.'
    folder = downloads.find(dialogue_settings.tokenizer, data_dir, advice)
  return bpe.read(folder, size)


def choose_longest(
  said: Mapping[str, Utterances], number: int
) -> Iterable[str]:
  """Returns the users with the most utterances; the first win a tie."""
  order = sorted(said, key=lambda user: -len(said[user].texts))
  return order[:number]
