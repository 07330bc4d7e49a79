"""Tests of finding the weights of clients' models."""

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from experiments.reporting import results_folder
from experiments.runs import personal_weights
from experiments.runs import sources
from tasks.models import linear
from tasks.models import models
from tasks.models import networks
from tasks.models import preference
from tests.experiments import small_runs


@pytest.mark.parametrize(
  'model',
  [
    linear.LogisticRegression(3, num_classes=2),
    networks.NetworkRegressor((3,), hidden=(2,)).add_vector(4),
    # A field of it has a value that cannot be given.
    preference.DigitPreference(types=2, vector_size=28),
  ],
)
def test_the_weights_are_the_statistics_of_an_example(model):
  weights = model.random_init(tf.constant([1, 2]))
  revealing = models.mix_in(personal_weights._WithWeightStatistics, model)
  batch = model.blank_example()
  found = revealing.statistics(weights, batch).pop('weights')
  assert list(found) == list(weights)
  for name, weight in weights.items():
    np.testing.assert_array_equal(found[name], weight[tf.newaxis])
  assert (
    revealing.loss(weights, batch).numpy() == model.loss(weights, batch).numpy()
  )


@pytest.mark.parametrize(
  ('name', 'settings', 'message'),
  [
    ('knn_per', (), 'knn_per personalizes predictions rather than weights'),
    (
      'mr_mtl',
      ('privacy.name=example', 'privacy.noise=1'),
      'protects examples',
    ),
  ],
)
def test_clients_without_models_are_told_before_the_data_are_read(
  tmp_path, name, settings, message
):
  run = results_folder.FinishedRun(tmp_path, {}, {}, {}, {}, {})
  config = small_runs.config(*settings, algorithms=name)
  with pytest.raises(errors.UserError, match=message):
    personal_weights.check(sources.Source('', run, config), name)
  ditto = small_runs.config(algorithms='ditto')
  personal_weights.check(sources.Source('', run, ditto), 'ditto')
