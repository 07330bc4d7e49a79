"""Weights of a GPT-2 from the files in which they are distributed.

A file has the weights by their published names, such as
transformer.h.0.attn.c_attn.weight, with or without 'transformer.'. Files of
PyTorch may also have the causal mask, which is left out, and lm_head.weight,
which must be wte.weight again. Keras's HDF5 files have the names of TensorFlow:
…/transformer/h_._0/attn/c_attn/weight:0, with gamma and beta in the layer
normalizations. The sizes follow from the shapes, and the number of heads from
config.json beside the file, or else from the width.
"""

import collections
from collections.abc import Mapping
import dataclasses
import pathlib
import re

import numpy as np

from base.aliases import Json
from tasks.data import weight_files
from tasks.models import gpt2
from tasks.models import models

_IGNORED = re.compile(r'h\.\d+\.attn\.(bias|masked_bias)')
_HEAD = 'lm_head.weight'
_OF_KERAS = {'gamma': 'weight', 'beta': 'bias', 'embeddings': 'weight'}


def published_name(name: str) -> str:
  """Returns the published name of a weight of `gpt2.Gpt2`."""
  if name in ('wte', 'wpe'):
    return f'{name}.weight'
  layer, _, kind = name.rpartition('_')
  layer = re.sub(r'^h(\d+)_(attn_|mlp_)?', _place_dots, layer)
  return f'{layer}.{"weight" if kind in ("kernel", "scale") else "bias"}'


def _place_dots(matched: re.Match[str]) -> str:
  return f'h.{matched[1]}.{(matched[2] or "").replace("_", ".")}'


def _plain_name(name: str) -> str:
  """Converts a name in a file to the form that all files share."""
  if name.endswith(':0'):  # In a file of Keras.
    *layers, kind = name.rpartition('transformer/')[2][:-2].split('/')
    layers = [layer.replace('h_._', 'h.') for layer in layers]
    return '.'.join([*layers, _OF_KERAS.get(kind, kind)])
  return name.removeprefix('transformer.')


def is_wanted(name: str) -> bool:
  """Tells whether an array of a file is a weight."""
  return not _IGNORED.fullmatch(_plain_name(name))


def read_num_heads(config: Mapping[str, Json]) -> int:
  """Reads the number of heads; raises a `ValueError` if it is not there."""
  number = config.get('n_head')
  if type(number) is not int or number < 1:
    raise ValueError(f'n_head is {number!r}')
  return number


def plain_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Names arrays alike in all files; raises a `ValueError` if two are one."""
  plain: dict[str, np.ndarray] = {}
  for name, array in arrays.items():
    if _plain_name(name) in plain:
      raise ValueError(f'it has {_plain_name(name)} twice')
    plain[_plain_name(name)] = array
  return plain


def find_sizes(
  arrays: Mapping[str, np.ndarray], num_heads: int | None
) -> gpt2.Gpt2:
  """Finds the sizes from the shapes; may raise a `ValueError`."""
  shapes = []
  for name in ('wte.weight', 'wpe.weight'):
    if name not in arrays:
      raise ValueError(f'it has no {name}')
    shapes.append(arrays[name].shape)
    if len(shapes[-1]) != 2 or not all(shapes[-1]):
      raise ValueError(f'{name} has the shape {shapes[-1]}')
  (words, width), (positions, _) = shapes
  blocks = {int(m[1]) for n in arrays if (m := re.match(r'h\.(\d+)\.', n))}
  sizes = gpt2.Gpt2.create(words, positions, width, len(blocks))
  if num_heads is not None:
    sizes = dataclasses.replace(sizes, num_heads=num_heads)
  if width % sizes.num_heads:
    raise ValueError(f'{sizes.num_heads} heads do not divide its width {width}')
  return sizes


def take_weights(
  arrays: dict[str, np.ndarray], sizes: gpt2.Gpt2
) -> models.Weights:
  """Takes the weights in their order; raises a `ValueError` for others."""
  weights = collections.OrderedDict()
  head = arrays.pop(_HEAD, None)
  if head is not None and not np.array_equal(head, arrays['wte.weight']):
    raise ValueError(f'{_HEAD} must be equal to wte.weight in a GPT-2')
  for name, shape in sizes.shapes.items():
    published = published_name(name)
    if published not in arrays:
      raise ValueError(f'it has no {published}')
    array = arrays.pop(published)
    if array.shape == (1, *shape) and len(shape) == 1:
      array = array[0]  # Keras's biases have such shapes.
    if array.shape != shape:
      raise ValueError(
        f'{published} has the shape {array.shape}, not {shape}, which follows'
        ' from wte.weight and wpe.weight'
      )
    weights[name] = array
  if arrays:
    raise ValueError(f'it has {min(arrays)}, which a GPT-2 does not have')
  return weights


def save(path: pathlib.Path, weights: models.Weights) -> None:
  """Saves weights as safetensors, with their published names."""
  weight_files.write(
    path,
    {
      f'transformer.{published_name(name)}': np.asarray(weight)
      for name, weight in weights.items()
    },
  )
