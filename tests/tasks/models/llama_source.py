"""A tiny model of the Llama form with random weights, and its files."""

import collections
import json
import pathlib

import numpy as np

from tasks.data import weight_files
from tasks.models import llama
from tasks.models import llama_files

SIZES = llama.Llama(
  vocabulary_size=40,
  num_positions=64,
  width=32,
  num_blocks=2,
  num_heads=4,
  num_key_heads=2,
  head_width=8,
  hidden_width=48,
  theta=1e4,
  epsilon=1e-5,
  tied=True,
)
CONFIG = dict(
  model_type='llama',
  hidden_act='silu',
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  vocab_size=40,
  rms_norm_eps=1e-5,
  rope_theta=10000,
  max_position_embeddings=64,
  tie_word_embeddings=True,
)


def published() -> dict[str, np.ndarray]:
  """Draws the weights by their published names, each from its number."""
  arrays = {}
  shapes = {llama_files.published_name(n): s for n, s in SIZES.shapes.items()}
  for i, (name, shape) in enumerate(sorted(shapes.items())):
    drawn = np.random.default_rng(i).standard_normal(shape)
    scaled = 0.2 * drawn if len(shape) > 1 else 1 + 0.1 * drawn
    arrays[name] = scaled.astype(np.float32)
  return arrays


def weights() -> collections.OrderedDict[str, np.ndarray]:
  """Returns the same weights by our names."""
  arrays = published()
  return collections.OrderedDict(
    (name, arrays[llama_files.published_name(name)]) for name in SIZES.shapes
  )


def write(
  folder: pathlib.Path,
  arrays: dict[str, np.ndarray] | None = None,
  **config: object,
) -> pathlib.Path:
  """Writes the files of the model; returns that of the weights."""
  path = folder / 'model.safetensors'
  weight_files.write(path, published() if arrays is None else arrays)
  text = json.dumps(CONFIG | config)
  (folder / 'config.json').write_text(text, encoding='utf-8')
  return path
