"""Weights of the Llama form from the files in which they are distributed.

The folder has them by their published names, such as
model.layers.0.self_attn.q_proj.weight, with config.json, which has the sizes.
Where the last layer is the matrix of embeddings, the file may have it twice.
"""

import collections
from collections.abc import Mapping
import math
import re

import numpy as np

from base.aliases import Json
from tasks.models import llama
from tasks.models import models

_PREFIX = 'model.'
_HEAD = 'lm_head'
_NORMS = {
  'input_norm': 'input_layernorm',
  'post_norm': 'post_attention_layernorm',
}
# Settings of which only one value is known here, and that value.
_ONLY = {
  'hidden_act': 'silu',
  'attention_bias': False,
  'mlp_bias': False,
  'rope_scaling': None,
}


def published_name(name: str) -> str:
  """Returns the published name of a weight of `llama.Llama`."""
  if name == _HEAD:
    return f'{name}.weight'
  matched = re.match(r'h(\d+)_(.*)', name)
  if not matched:
    return f'{_PREFIX}{name}.weight'
  block, layer = matched.groups()
  if layer in _NORMS:
    layer = _NORMS[layer]
  else:
    of_attention = layer.removesuffix('_proj') in 'qkvo'
    layer = f'{"self_attn" if of_attention else "mlp"}.{layer}'
  return f'{_PREFIX}layers.{block}.{layer}.weight'


def _natural(config: Mapping[str, Json], name: str) -> int:
  number = config.get(name)
  if type(number) is not int or number < 1:
    raise ValueError(f'{name} is {number!r}')
  return number


def _positive(config: Mapping[str, Json], name: str) -> float:
  number = config.get(name)
  if not isinstance(number, int | float) or not 0 < number < math.inf:
    raise ValueError(f'{name} is {number!r}')
  return float(number)


def read_sizes(config: Mapping[str, Json]) -> llama.Llama:
  """Finds the sizes in config.json; raises a `ValueError` for another form."""
  for name, known in _ONLY.items():
    value = config.get(name, known)
    if value != known:
      raise ValueError(f'{name} is {value!r}, of which only {known!r} is known')
  turns = config.get('rope_parameters') or config
  kind = turns.get('rope_type', 'default')
  if kind != 'default':
    raise ValueError(f"rope_type is {kind!r}, of which only 'default' is known")
  width = _natural(config, 'hidden_size')
  num_heads = _natural(config, 'num_attention_heads')
  num_key_heads = _natural(
    {'num_key_value_heads': num_heads, **config}, 'num_key_value_heads'
  )
  if config.get('head_dim') is not None:
    head_width = _natural(config, 'head_dim')
  elif width % num_heads:
    raise ValueError(f'{num_heads} heads do not divide its width {width}')
  else:
    head_width = width // num_heads
  if num_heads % num_key_heads or head_width % 2:
    raise ValueError(
      f'{num_heads} heads of width {head_width} cannot share {num_key_heads}'
      ' heads of keys, or be turned in two halves'
    )
  return llama.Llama(
    _natural(config, 'vocab_size'),
    _natural(config, 'max_position_embeddings'),
    width,
    _natural(config, 'num_hidden_layers'),
    num_heads,
    num_key_heads=num_key_heads,
    head_width=head_width,
    hidden_width=_natural(config, 'intermediate_size'),
    theta=_positive(turns, 'rope_theta'),
    epsilon=_positive(config, 'rms_norm_eps'),
    tied=bool(config.get('tie_word_embeddings', False)),
  )


def take_weights(
  arrays: dict[str, np.ndarray], sizes: llama.Llama
) -> models.Weights:
  """Takes the weights in their order; raises a `ValueError` for others."""
  embedding = published_name(sizes.embedding)
  if sizes.tied and embedding in arrays:
    head = arrays.pop(published_name(_HEAD), arrays[embedding])
    if not np.array_equal(head, arrays[embedding]):
      raise ValueError(
        f'{published_name(_HEAD)} is not {embedding}, as config.json says'
      )
  weights = collections.OrderedDict()
  for name, shape in sizes.shapes.items():
    published = published_name(name)
    if published not in arrays:
      raise ValueError(f'it has no {published}')
    weights[name] = arrays.pop(published)
    if weights[name].shape != shape:
      raise ValueError(
        f'{published} has the shape {weights[name].shape}, not {shape}, which'
        ' follows from config.json'
      )
  if arrays:
    raise ValueError(f'it has {min(arrays)}, which this form does not have')
  return weights
