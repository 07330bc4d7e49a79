"""Trained models as files, for use without this project.

saved_model/   the model for `tf.saved_model.load`; its signature
               'serving_default' maps features of examples to predictions
weights.npz    the weights, for `numpy.load`
model.json     a description: features, predictions, weights, classes, and how
               the data of its task became features
README.md      how to load it
"""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
import secrets
import shutil
import types

import numpy as np
import tensorflow as tf

from base import errors
from base import names
from base.aliases import Json
from experiments.reporting import folders
from tasks.models import models

_README = """\
# {title}

    import numpy as np
    import tensorflow as tf

    model = tf.saved_model.load('saved_model')
    predict = model.signatures['serving_default']
    predictions = predict({arguments})

This needs only TensorFlow. `model.json` has the shapes and types of features,
predictions and weights, the settings of the task and, if it was learned from
the data, how they became features (`encoding`). `numpy.load` reads
`weights.npz`.
{notes}"""
_TABLE_NOTES = """
How a row of a table becomes `x`: `encoding.inputs` names the inputs in their
order, and `encoding.columns` describes the columns that they come from.

- The input of a number is (value - mean) / deviation, or 0 if the deviation is
  0. A missing number is replaced by `missing`; an input "… is missing", if it
  exists, is then 1, and otherwise 0. If `task.standardize` is "client", the
  number is afterwards standardized by the client's own training rows.
- A category has one input for each known value: 1 for the row's value, and 0
  for the others. For an unknown value, all are 0.
- The inputs of a text are its word counts by scikit-learn: by CountVectorizer
  with the vocabulary `words` or, if there is none, by HashingVectorizer with
  `inputs` features.
- A predicted class is an index into `encoding.target.classes`, from 0. The
  predicted value of a number is prediction * target.deviation + target.mean.
"""


@dataclasses.dataclass(frozen=True)
class Exported:
  """A model to export.

  Attributes:
    model: The model.
    weights: Its weights.
    facts: Further entries of model.json.
  """

  model: models.Model
  weights: models.Weights
  facts: Mapping[str, Json]


class _Module(tf.Module):
  """A model with its weights as variables.

  Attributes:
    weights: The weights that were trained, by their names.
  """

  def __init__(self, model: models.Model, weights: models.Weights):
    super().__init__()
    self.weights = {n: tf.Variable(w, name=n) for n, w in weights.items()}
    self._frozen = {
      n: tf.Variable(w, trainable=False, name=n)
      for n, w in model.frozen.items()
    }
    self._model = model

  def features(self) -> dict[str, tf.TensorSpec]:
    """Returns the features of examples, without the label."""
    return {
      name: tf.TensorSpec([None, *spec.shape], spec.dtype, name)
      for name, spec in self._model.example_spec.items()
      if name != 'y'
    }

  def predict(self, **features: tf.Tensor) -> dict[str, tf.Tensor]:
    """Predicts the number or class of each entry of each example."""
    model = dataclasses.replace(
      self._model, frozen=type(self._model.frozen)(self._frozen)
    )
    size = tf.shape(next(iter(features.values())))[0]
    label = model.example_spec['y']
    # Predictions do not depend on labels, but language models find padding by
    # them.
    batch = {**features, 'y': tf.ones([size, *label.shape], label.dtype)}
    scores = model.scores(type(model.frozen)(self.weights), batch)
    predictions = {'prediction': model.predict(scores)}
    if predictions['prediction'].dtype.is_integer:
      predictions['probabilities'] = model.predict_softly(scores)
    entries = model.entry_mask(batch).shape[1]
    if entries == 1:
      return predictions
    return {
      name: tf.reshape(found, [size, entries, *found.shape[1:]])
      for name, found in predictions.items()
    }


def _describe(specs: Mapping[str, Json]) -> dict[str, Json]:
  """Describes shapes and types for JSON; None is the number of examples."""
  return {
    name: {'shape': list(spec.shape), 'dtype': tf.as_dtype(spec.dtype).name}
    for name, spec in specs.items()
  }


def _write(folder: pathlib.Path, exported: Exported) -> None:
  """Writes the files of a model into an existing folder."""
  module = _Module(exported.model, exported.weights)
  specs = module.features()
  predict = tf.function(module.predict).get_concrete_function(**specs)
  with errors.writing(folder):
    try:
      tf.saved_model.save(module, str(folder / 'saved_model'), predict)
    except tf.errors.OpError as error:
      raise OSError(error.message) from error
    np.savez(folder / 'weights.npz', **exported.weights)
  facts = {
    **exported.facts,
    'features': _describe(specs),
    'predictions': _describe(predict.structured_outputs),
    'weights': _describe(
      {n: np.asarray(w) for n, w in exported.weights.items()}
    ),
  }
  folders.write_json(folder / 'model.json', facts, ensure_ascii=False)
  arguments = ', '.join(
    f'{name}=np.zeros({[1, *spec.shape[1:]]}, np.{spec.dtype.name})'
    for name, spec in specs.items()
  )
  readme = _README.format(
    title=names.to_markdown(exported.facts['title']),
    arguments=arguments,
    notes=_TABLE_NOTES if 'columns' in exported.facts['encoding'] else '',
  )
  folders.write(folder / 'README.md', readme)


def write(
  path: pathlib.Path,
  exported: Mapping[str, Exported],
  texts: Mapping[str, str] = types.MappingProxyType({}),
) -> None:
  """Writes models to a new folder, which appears only once it is complete.

  Args:
    path: The folder.
    exported: The models, by the name of their subfolder; '' for `path` itself.
    texts: The contents of further files, by name.

  Raises:
    UserError: If it cannot be written.
  """
  folders.check_empty('output_dir', path)
  # A unique name, as several programs may export to the same folder.
  temporary = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.tmp')
  try:
    with errors.writing(path):
      temporary.mkdir(parents=True)
    for name, model in exported.items():
      folder = temporary / name
      with errors.writing(path):
        folder.mkdir(parents=True, exist_ok=True)
      _write(folder, model)
    for name, text in texts.items():
      folders.write(temporary / name, text)
    with errors.writing(path):
      os.replace(temporary, path)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
