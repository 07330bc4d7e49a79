"""The training of a small GPT-2 on texts, on one machine.

The texts are cut into pieces of 64 tokens, each of which is predicted from
those before it in the piece. The first token of a span of text (`corpora`) is
not predicted, as what came before it is missing. Adam takes a step for each 32
pieces, with a rate that rises in the first tenth of the steps and falls to zero
in the rest.
"""

import asyncio
import collections
from collections.abc import Iterator, Sequence
import dataclasses
import json
import math
import pathlib
import tempfile
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from algorithms import client_work
from algorithms import optimizers
from base import errors
from base import inputs
from base import seeds
from base.aliases import Structure
from experiments.command_line import stopping
from experiments.command_line import terminal
from experiments.language_models import corpora
from experiments.reporting import folders
from experiments.reporting import manifests
from personalization.rounds import checkpoints
from tasks.data import bpe
from tasks.data import downloads
from tasks.models import gpt2
from tasks.models import gpt2_files
from tasks.models import models
from tasks.models import next_word

LEARNED = 'learned'
WEIGHTS = 'model.safetensors'

_NUM_POSITIONS = 128
_LENGTH, _BATCH_SIZE = 64, 32
_HELD_OUT = 50  # One of so many pieces.
_RATE, _WARMUP = 2e-3, 0.1
_SECONDS_PER_CHECKPOINT = 20.0
_SETTINGS, _CONFIG = 'pretraining.json', 'config.json'
_ADVICE_ON_TOKENIZER = (
  'Save vocab.json and merges.txt of GPT-2 in a folder there and name it as'
  f' --tokenizer, or take --tokenizer={LEARNED}.'
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a pre-training; `experiments.pretrain` explains each."""

  sources: tuple[str, ...]
  tokenizer: str
  epochs: int
  vocabulary_size: int
  width: int
  num_blocks: int
  seed: int
  join_tokens: bool = True
  text_field: str = 'text'
  left_out: corpora.LeftOut = dataclasses.field(default_factory=dict)

  @property
  def sizes(self) -> gpt2.Gpt2:
    """The sizes of the model."""
    return gpt2.Gpt2.create(
      self.vocabulary_size, _NUM_POSITIONS, self.width, self.num_blocks
    )


class State(NamedTuple):
  """The state of a training.

  Attributes:
    weights: The weights of the model.
    slots: The slots of the optimizer.
  """

  weights: models.Weights
  slots: Structure


@dataclasses.dataclass(frozen=True)
class LanguageModel:
  """The objective of the training."""

  sizes: gpt2.Gpt2

  def mean_loss(
    self, weights: models.Weights, batch: models.Batch, mask: tf.Tensor
  ) -> tf.Tensor:
    """The mean of -log p of the tokens that are predicted."""
    pieces = batch['pieces']
    features = self.sizes.encode(weights, pieces[:, :-1])
    last = next_word.LastLayer(
      tf.reshape(features, [-1, self.sizes.width]),
      tf.transpose(weights['wte']),
      tf.zeros([self.sizes.vocabulary_size]),
    )
    loss = -last.log_likelihood(tf.reshape(pieces[:, 1:], [-1]))
    return models.mean(loss, tf.reshape(mask, [-1]))


def _encoding(
  settings: Settings, data_dir: str | None, spans: list[str]
) -> bpe.Encoding:
  """Reads the tokenizer, or learns it."""
  size = settings.vocabulary_size
  if settings.tokenizer != LEARNED:
    folder = downloads.find(settings.tokenizer, data_dir, _ADVICE_ON_TOKENIZER)
    return bpe.read(folder, size)
  terminal.say(f'Learning {size:,} tokens …')
  encoding = bpe.learn(spans, size)
  if len(encoding) < size:
    raise errors.UserError(
      f'The texts in {", ".join(settings.sources)} have {len(encoding)} tokens,'
      f' but --vocabulary_size is {size}. Set a smaller one.'
    )
  return encoding


class Pieces(NamedTuple):
  """Pieces of texts.

  Attributes:
    tokens: The tokens of each piece, `[pieces, _LENGTH + 1]`.
    mask: 1 for each token after the first that is predicted, 0 for others,
      `[pieces, _LENGTH]`.
  """

  tokens: np.ndarray
  mask: np.ndarray

  def take(self, rows: np.ndarray | slice) -> 'Pieces':
    """Returns some of the pieces."""
    return Pieces(self.tokens[rows], self.mask[rows])


def _cut(spans: Sequence[Sequence[int]]) -> tuple[Pieces, Pieces]:
  """Cuts the tokens of spans into pieces to train on, and those held out."""
  tokens = np.array([token for span in spans for token in span], np.int32)
  is_predicted = np.ones(len(tokens), np.float32)
  is_predicted[np.cumsum([0, *map(len, spans)])[:-1]] = 0
  # The last token of a piece is the first of the next one.
  count = max(len(tokens) - 1, 0) // _LENGTH
  starts = _LENGTH * np.arange(count)[:, np.newaxis]
  places = starts + np.arange(_LENGTH + 1)
  pieces = Pieces(tokens[places], is_predicted[places[:, 1:]])
  is_held_out = np.arange(count) % _HELD_OUT == _HELD_OUT - 1
  return pieces.take(~is_held_out), pieces.take(is_held_out)


def _batches(pieces: Pieces) -> Iterator[Pieces]:
  """Yields batches of pieces; the last one is padded."""
  for first in range(0, len(pieces.tokens), _BATCH_SIZE):
    batch = pieces.take(slice(first, first + _BATCH_SIZE))
    padding = [(0, _BATCH_SIZE - len(batch.tokens)), (0, 0)]
    yield Pieces(*(np.pad(part, padding) for part in batch))


def _rate(step: int, total: int) -> float:
  """The rate of a step, from 0 on."""
  done = (step + 1) / (total + 1)
  return _RATE * min(done / _WARMUP, (1 - done) / (1 - _WARMUP))


def _adam(rate: tf.Tensor) -> optimizers.Optimizer:
  # TFF wants tensors for all numbers where it is given one.
  return optimizers.Optimizer(
    'adam',
    rate,
    beta_1=tf.constant(0.9),
    beta_2=tf.constant(0.999),
    epsilon=tf.constant(1e-8),
  )


class Training:
  """A training that goes on where it was stopped."""

  def __init__(self, settings: Settings, spans: Sequence[Sequence[int]]):
    self._settings = settings
    self._pieces, self._held_out = _cut(spans)
    if not len(self._held_out.tokens):
      raise errors.UserError(
        f'The texts in {", ".join(settings.sources)} have'
        f' {sum(map(len, spans))} tokens, fewer than {_HELD_OUT} pieces of'
        f' {_LENGTH}. Name longer ones.'
      )
    self._steps_per_epoch = math.ceil(len(self._pieces.tokens) / _BATCH_SIZE)
    self.total = settings.epochs * self._steps_per_epoch
    self._objective = LanguageModel(settings.sizes)
    self._step = tf.function(self._take_step)
    self._loss = tf.function(
      lambda weights, tokens, mask: self._objective.mean_loss(
        weights, {'pieces': tokens}, mask
      )
    )

  def start(self) -> State:
    """The state before the first step."""
    seed = seeds.pair('pretraining', self._settings.seed)
    weights = self._settings.sizes.init(tf.constant(seed))
    slots = _adam(tf.constant(_RATE)).slots(weights)
    return tf.nest.map_structure(tf.convert_to_tensor, State(weights, slots))

  def _take_step(
    self, state: State, tokens: tf.Tensor, mask: tf.Tensor, rate: tf.Tensor
  ) -> tuple[State, tf.Tensor]:
    slopes, loss = client_work.gradient(
      self._objective, state.weights, {'pieces': tokens}, mask
    )
    adam = _adam(rate)
    slots = adam.set_numbers(state.slots)
    after = adam.step(optimizers.Learner(state.weights, slots), slopes)
    return State(after.weights, after.slots), loss

  def run(self, start: State, first: int) -> Iterator[tuple[int, State, float]]:
    """Takes the steps that are left.

    Args:
      start: The state to go on from.
      first: The number of steps that led to it.

    Yields:
      The number of steps, the state and the loss, step by step.
    """
    state, done = start, first
    while done < self.total:
      epoch, skipped = divmod(done, self._steps_per_epoch)
      rng = seeds.generator('pretraining', self._settings.seed, epoch)
      order = rng.permutation(len(self._pieces.tokens))
      left = self._pieces.take(order[skipped * _BATCH_SIZE :])
      for batch in _batches(left):
        rate = tf.constant(_rate(done, self.total), tf.float32)
        state, loss = self._step(state, *batch, rate)
        done += 1
        yield done, state, float(loss)

  def perplexity(self, state: State) -> float:
    """The perplexity of what is held out."""
    total = sum(
      float(self._loss(state.weights, *batch)) * batch.mask.sum()
      for batch in _batches(self._held_out)
    )
    return math.exp(total / self._held_out.mask.sum())


def _check_folder(
  settings: Settings, folder: pathlib.Path
) -> manifests.Manifest:
  """Writes the settings, or holds them against those of the start.

  Args:
    settings: The settings.
    folder: The folder.

  Returns:
    The manifest of the folder, whose files are as they were written.

  Raises:
    UserError: If the folder is of another model, or a file was changed.
  """
  path = folder / _SETTINGS
  asked = dataclasses.asdict(settings)
  manifest = manifests.Manifest(folder)
  if not path.exists():
    manifest.write({_SETTINGS: folders.to_json(asked)})
    return manifest
  try:
    known = json.loads(inputs.read_text(path))
  except folders.DAMAGE:
    known = None
  if known != json.loads(json.dumps(asked)):
    raise errors.UserError(
      f'{path} has the settings of another model. Name another --output_dir, or'
      ' remove that one.'
    )
  manifest.check_own()
  return manifest


def _save(
  settings: Settings,
  weights: models.Weights,
  encoding: bpe.Encoding,
  folder: pathlib.Path,
  manifest: manifests.Manifest,
) -> None:
  """Saves everything that the folder of a GPT-2 has, the weights last."""
  sizes = settings.sizes
  config = {
    'model_type': 'gpt2',
    'vocab_size': sizes.vocabulary_size,
    'n_positions': sizes.num_positions,
    'n_embd': sizes.width,
    'n_layer': sizes.num_blocks,
    'n_head': sizes.num_heads,
  }
  with (
    errors.writing(folder),
    tempfile.TemporaryDirectory(prefix='.', dir=folder) as name,
  ):
    complete = pathlib.Path(name)
    folders.write_json(complete / _CONFIG, config)
    encoding.save(complete)
    gpt2_files.save(complete / WEIGHTS, weights)
    files = _CONFIG, bpe.VOCABULARY, bpe.MERGES, WEIGHTS
    manifest.move(complete / file for file in files)


def _say_outlook(saved: int, total: int) -> None:
  stopping.say_outlook(
    f'The same command goes on with step {saved + 1} of {total}.'
  )


def main(
  settings: Settings, data_dir: str | None, output_dir: pathlib.Path
) -> int:
  """Trains and saves the model; returns the exit status.

  Args:
    settings: What to train, and how.
    data_dir: The folder of the data sets.
    output_dir: The folder to write to.
  """
  spans = corpora.read(
    settings.sources,
    data_dir,
    settings.join_tokens,
    settings.text_field,
    settings.left_out,
  )
  with folders.locked(output_dir, folders.PRETRAINING):
    return _train(settings, spans, data_dir, output_dir)


def _train(
  settings: Settings,
  spans: list[str],
  data_dir: str | None,
  output_dir: pathlib.Path,
) -> int:
  """Trains on texts, see `main`."""
  manifest = _check_folder(settings, output_dir)
  path = output_dir / WEIGHTS
  if path.exists():
    print(f'{path} is finished.')
    return 0
  encoding = _encoding(settings, data_dir, spans)
  training = Training(settings, [encoding.encode(span) for span in spans])
  manager = checkpoints.NpzProgramStateManager(
    output_dir / 'checkpoints',
    keep_total=2,
    on_file=manifest.note_checkpoint,
  )
  begun = training.start()
  saved, done = asyncio.run(manager.load_latest(begun))
  state = saved if done else begun
  if done:
    terminal.say(f'Going on with step {done + 1} of {training.total}.')
  _say_outlook(done, training.total)
  saved_at = time.monotonic()
  recent: collections.deque[float] = collections.deque(maxlen=50)
  with (
    terminal.progress('pre-training', training.total, 'steps') as show,
    stopping.finishing('this step') as should_stop,
  ):
    for step in training.run(state, done):
      done, state, loss = step
      recent.append(loss)
      show(done, f'perplexity {math.exp(sum(recent) / len(recent)):.1f}')
      stops = should_stop()
      if stops or time.monotonic() > saved_at + _SECONDS_PER_CHECKPOINT:
        asyncio.run(manager.save(state, done))
        _say_outlook(done, training.total)
        saved_at = time.monotonic()
      if stops:
        break
  _save(settings, state.weights, encoding, output_dir, manifest)
  perplexity = training.perplexity(state)
  print(f'{path}: perplexity {perplexity:.1f} of what was held out')
  return 0
