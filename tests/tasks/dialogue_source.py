"""A folder with a small GPT-2 and its tokenizer, for tasks of utterances."""

import json
import pathlib

import numpy as np

from tasks.data import bpe
from tasks.models import gpt2
from tasks.models import gpt2_files

SIZES = gpt2.Gpt2(258, 16, 8, 1, 2)


def write(folder: pathlib.Path, sizes: gpt2.Gpt2 = SIZES) -> None:
  """Writes the GPT-2 where tasks look for it."""
  gpt2_folder = folder / 'gpt2'
  gpt2_folder.mkdir(parents=True)
  rng = np.random.default_rng(0)
  weights = {
    name: rng.normal(scale=0.1, size=shape).astype(np.float32)
    for name, shape in sizes.shapes.items()
  }
  gpt2_files.save(gpt2_folder / 'model.safetensors', weights)
  config = json.dumps({'n_head': sizes.num_heads})
  (gpt2_folder / 'config.json').write_text(config, encoding='utf-8')
  bpe.Encoding([('Ġ', 't'), ('h', 'e')]).save(gpt2_folder)
