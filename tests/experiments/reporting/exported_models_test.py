"""Tests of models as files."""

import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from experiments.reporting import exported_models
from tasks.models import lstm
from tasks.models import networks
from tasks.models import prompted
from tests import attacks
from tests.tasks.models import gpt2_source

_SEED = tf.constant([1, 2])
_NO_FACTS = {'title': 'A model', 'encoding': {}}


def _features(model):
  """Features of four examples, with no padding among words."""
  rng = np.random.default_rng(0)
  return {
    name: tf.constant(
      rng.integers(1, 3, [4, *spec.shape]), spec.dtype, name=name
    )
    for name, spec in model.example_spec.items()
    if name != 'y'
  }


def _prompted():
  return prompted.PromptedModel(
    gpt2_source.SIZES, 3, sequence_length=5, frozen=gpt2_source.weights()
  )


@pytest.mark.parametrize(
  ('model', 'entries'),
  [
    (networks.NetworkRegressor((6,), hidden=(3,)), []),
    (
      networks.NetworkClassifier((4, 4, 2), 3, filters=(2,), num_contexts=3),
      [],
    ),
    (lstm.NextWordLstm(11, sequence_length=5, embedding_size=4), [5]),
    (_prompted(), [5]),
  ],
)
def test_predictions_are_those_of_the_model(tmp_path, model, entries):
  weights = model.random_init(_SEED)
  exported = exported_models.Exported(model, weights, _NO_FACTS)
  exported_models.write(tmp_path / 'out', {'': exported})
  features = _features(model)
  loaded = tf.saved_model.load(str(tmp_path / 'out/saved_model'))
  found = loaded.signatures['serving_default'](**features)
  label = model.example_spec['y']
  batch = {**features, 'y': tf.ones([4, *label.shape], label.dtype)}
  scores = model.scores(weights, batch)
  expected = {'prediction': model.predict(scores)}
  if not isinstance(model, networks.NetworkRegressor):
    expected['probabilities'] = model.predict_softly(scores)
  assert found.keys() == expected.keys()
  for name, values in expected.items():
    assert found[name].shape[: 1 + len(entries)] == (4, *entries)
    np.testing.assert_allclose(
      np.reshape(found[name], values.shape), values, rtol=1e-5, atol=1e-6
    )
  with np.load(tmp_path / 'out/weights.npz') as arrays:
    assert list(arrays) == list(weights)
    for name, weight in weights.items():
      np.testing.assert_array_equal(arrays[name], weight)
  facts = json.loads((tmp_path / 'out/model.json').read_text())
  assert list(facts['features']) == list(features)
  assert facts['weights'].keys() == weights.keys()


def test_what_the_readme_says_works(tmp_path, monkeypatch):
  model = networks.NetworkClassifier((6,), 3, types=2)
  exported = exported_models.Exported(model, model.init(_SEED), _NO_FACTS)
  exported_models.write(tmp_path / 'out', {'': exported})
  lines = (tmp_path / 'out/README.md').read_text().splitlines()
  code = '\n'.join(line[4:] for line in lines if line.startswith('    '))
  monkeypatch.chdir(tmp_path / 'out')
  names = {}
  exec(code, names)
  assert names['predictions']['probabilities'].shape == (1, 3)


def test_a_disk_that_is_full_is_an_error_and_leaves_nothing(
  tmp_path, monkeypatch
):
  def full(*_, **__):
    raise OSError(28, os.strerror(28))

  monkeypatch.setattr(np, 'savez', full)
  model = networks.NetworkRegressor((2,))
  exported = exported_models.Exported(model, model.init(_SEED), _NO_FACTS)
  with pytest.raises(errors.ResourceError, match='No space left'):
    exported_models.write(tmp_path / 'out', {'': exported})
  assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_refused(tmp_path):
  (tmp_path / 'mine').write_text('mine')
  with pytest.raises(errors.UserError, match='what is in it might be lost'):
    exported_models.write(tmp_path, {})


def test_a_readme_has_one_heading_whatever_a_client_is_named(tmp_path):
  model = networks.NetworkClassifier((6,), 3)
  title = ' '.join(attacks.NAMES.values())
  facts = {**_NO_FACTS, 'title': f'Model of {title}'}
  exported = exported_models.Exported(model, model.init(_SEED), facts)
  exported_models.write(tmp_path / 'out', {'': exported})
  heading, empty, *_ = (tmp_path / 'out/README.md').read_text().split('\n')
  assert heading.startswith('# Model of')
  assert not empty
  assert not re.search(r'(?<!\\)(?:\\\\)*[<\[]', heading.replace('<br>', ''))
