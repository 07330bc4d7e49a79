"""Weights of a GPT-2 from the files in which they are distributed.

A file has the weights in float32 by their published names, such as
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
import json
import pathlib
import re

import numpy as np

from base import errors
from tasks.data import downloads
from tasks.data import files
from tasks.data import weight_files
from tasks.models import gpt2
from tasks.models import models

_IGNORED = re.compile(r'h\.\d+\.attn\.(bias|masked_bias)')
_HEAD = 'lm_head.weight'
_CONFIG = 'config.json'
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


def _is_wanted(name: str) -> bool:
  return not _IGNORED.fullmatch(_plain_name(name))


def _read_num_heads(path: pathlib.Path) -> int | None:
  """Reads the number of heads from config.json, if it is beside the file."""
  config = path.parent / _CONFIG
  if not config.is_file():
    return None
  advice = 'Replace it, or remove it if heads are as wide as published, 64.'
  with files.reading(config, 'the configuration of a GPT-2', advice):
    number = json.loads(config.read_text(encoding='utf-8'))['n_head']
    if type(number) is not int or number < 1:
      raise ValueError(f'n_head is {number!r}')
  return number


def _sizes(
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


def _check(arrays: dict[str, np.ndarray], sizes: gpt2.Gpt2) -> models.Weights:
  """Returns the weights in their order; may raise a `ValueError`."""
  weights = collections.OrderedDict()
  head = arrays.pop(_HEAD, None)
  if head is not None and not np.array_equal(head, arrays['wte.weight']):
    raise ValueError(f'{_HEAD} must be equal to wte.weight in a GPT-2')
  for name, shape in sizes.shapes.items():
    published = published_name(name)
    if published not in arrays:
      raise ValueError(f'it has no {published}')
    array = arrays.pop(published)
    if array.dtype != np.float32:
      raise ValueError(f'{published} is of {array.dtype}, not float32')
    if array.shape == (1, *shape) and len(shape) == 1:
      array = array[0]  # Keras's biases have such shapes.
    if array.shape != shape:
      raise ValueError(
        f'{published} has the shape {array.shape}, not {shape}, which follows'
        ' from wte.weight and wpe.weight'
      )
    if not np.isfinite(array).all():
      raise ValueError(f'{published} has numbers that are not finite')
    weights[name] = array
  if arrays:
    raise ValueError(f'it has {min(arrays)}, which a GPT-2 does not have')
  return weights


def load(
  path: pathlib.Path, sha256: str | None = None
) -> tuple[gpt2.Gpt2, models.Weights]:
  """Loads a GPT-2.

  Args:
    path: The file.
    sha256: The checksum that it must have; None for any.

  Returns:
    The sizes and the weights.

  Raises:
    UserError: If the file is missing or damaged, has another checksum, or does
      not hold a GPT-2.
  """
  if not path.is_file():
    raise errors.UserError(
      f'There is no file {path}. Name a file with the weights of a GPT-2, such'
      ' as model.safetensors of DistilGPT2, or make a small one with the'
      ' program pretrain.'
    )
  if sha256 is not None and downloads.compute_sha256(path) != sha256:
    raise errors.UserError(
      f'{path} is damaged, or not the right file: its SHA-256 is not {sha256}.'
      ' Replace it, or leave out the checksum.'
    )
  arrays: dict[str, np.ndarray] = {}
  try:
    for name, array in weight_files.read(path, _is_wanted).items():
      plain = _plain_name(name)
      if plain in arrays:
        raise ValueError(f'it has {plain} twice')
      arrays[plain] = array
    sizes = _sizes(arrays, _read_num_heads(path))
    return sizes, _check(arrays, sizes)
  except ValueError as error:
    raise errors.UserError(
      f'{path} does not hold the weights of a GPT-2: {error}.'
    ) from error


def save(path: pathlib.Path, weights: models.Weights) -> None:
  """Saves weights as safetensors, with their published names."""
  weight_files.write(
    path,
    {
      f'transformer.{published_name(name)}': np.asarray(weight)
      for name, weight in weights.items()
    },
  )
