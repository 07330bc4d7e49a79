"""Pretrained language models from the files in which they are distributed.

config.json beside the file of weights says which form the model has: GPT-2, or
that of Llama. Without it, it is a GPT-2. Weights of half the size are widened
to float32.
"""

import json
import pathlib

import numpy as np

from base import errors
from base.aliases import Json
from tasks.data import downloads
from tasks.data import files
from tasks.data import weight_files
from tasks.models import gpt2_files
from tasks.models import language_models
from tasks.models import llama
from tasks.models import llama_files
from tasks.models import models

_CONFIG = 'config.json'
_GPT2, _LLAMA = 'gpt2', 'llama'
_ADVICE = (
  'Replace it by that of a GPT-2, or of a model of the Llama form such as'
  ' SmolLM2. That of a GPT-2 with heads of width 64 may be removed.'
)


def _read_config(path: pathlib.Path) -> llama.Llama | int | None:
  """Reads config.json, if it is beside the file of weights.

  Returns:
    The sizes of a model of the Llama form; the number of heads of a GPT-2; None
    if there is no such file.
  """
  config = path.parent / _CONFIG
  if not config.is_file():
    return None
  with files.reading(config, 'the configuration of a language model', _ADVICE):
    found: dict[str, Json] = dict(
      json.loads(config.read_text(encoding='utf-8'))
    )
    form = found.get('model_type', _GPT2)
    if form == _LLAMA:
      return llama_files.read_sizes(found)
    if form != _GPT2:
      raise ValueError(
        f'the model_type is {form!r}; known are {_GPT2!r} and {_LLAMA!r}'
      )
    return gpt2_files.read_num_heads(found)


def _widen(name: str, array: np.ndarray) -> np.ndarray:
  """Converts weights to float32; raises a `ValueError` for others."""
  if array.dtype not in (np.float16, np.float32):
    raise ValueError(f'{name} is of {array.dtype}, not float32 or half of it')
  if not np.isfinite(array).all():
    raise ValueError(f'{name} has numbers that are not finite')
  return array.astype(np.float32, copy=False)


def load(
  path: pathlib.Path, sha256: str | None = None
) -> tuple[language_models.LanguageModel, models.Weights]:
  """Loads a language model.

  Args:
    path: The file of its weights.
    sha256: The checksum that it must have; None for any.

  Returns:
    The sizes and the weights.

  Raises:
    UserError: If the file is missing or damaged, has another checksum, or does
      not hold a language model of a known form.
  """
  if not path.is_file():
    raise errors.UserError(
      f'There is no file {path}. Name a file with the weights of a GPT-2, or of'
      ' a model of the Llama form, such as model.safetensors of DistilGPT2 or'
      ' SmolLM2, or make a small one with the program pretrain.'
    )
  if sha256 is not None and downloads.compute_sha256(path) != sha256:
    raise errors.UserError(
      f'{path} is damaged, or not the right file: its SHA-256 is not {sha256}.'
      ' Replace it, or leave out the checksum.'
    )
  found = _read_config(path)
  try:
    arrays = {
      name: _widen(name, array)
      for name, array in weight_files.read(path, gpt2_files.is_wanted).items()
    }
    if isinstance(found, llama.Llama):
      return found, llama_files.take_weights(arrays, found)
    arrays = gpt2_files.plain_names(arrays)
    sizes = gpt2_files.find_sizes(arrays, found)
    return sizes, gpt2_files.take_weights(arrays, sizes)
  except ValueError as error:
    is_llama = isinstance(found, llama.Llama)
    form = 'a model of the Llama form' if is_llama else 'a GPT-2'
    raise errors.UserError(
      f'{path} does not hold the weights of {form}: {error}.'
    ) from error
