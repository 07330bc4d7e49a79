"""The constant predictor: a client's own mean, or its most frequent class.

It has seen no feature of any example. Where clients have few classes each it is
hard to beat: on PFLlib's clients of CIFAR-10 it is right for .745 of the test
examples, more than FedAvg as published there. What a personalized method adds
to it is what the method has learned.

A client predicts the mean of its numbers or, of classes, the most frequent one,
the first on a tie. The probability of class c is (n_c + 1) / (n + C) for n_c
examples of it among n, with C classes (Laplace), so that none is impossible.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import tensorflow as tf

from algorithms import candidates
from algorithms import client_work
from algorithms import personalizers
from algorithms import registry
from algorithms import trainers
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class ConstantSettings(settings.Settings):
  """No settings."""


@dataclasses.dataclass(frozen=True)
class Constant(personalizers.Personalizer):
  """Predicts the same for all examples of a client."""

  settings: ConstantSettings
  takes_steps = False
  makes_models = False

  @property
  def candidates(self) -> Sequence[candidates.Candidate]:
    return (candidates.Candidate(text='own constant'),)

  @property
  def baseline(self) -> int | None:
    return None

  @property
  def why_examples_not_private(self) -> str | None:
    return 'constant counts the examples of a client without noise'

  def personalize(
    self,
    start: trainers.Start,
    client: trainers.Client,
    evaluation: Mapping[str, batches.ClientData],
  ) -> client_work.Metrics:
    model = self.trainer.model
    # Only the shape is used.
    blank = model.predict_softly(
      model.scores(start.weights, model.blank_example())
    )
    num_classes = blank.shape[1] if blank.shape.rank > 1 else None

    def count(examples: models.Batch, mask: tf.Tensor) -> tf.Tensor:
      target = model.target(examples)
      weight = tf.reshape(
        mask[:, tf.newaxis] * model.entry_mask(examples), [-1]
      )
      if num_classes is None:
        return tf.stack([tf.reduce_sum(weight * target), tf.reduce_sum(weight)])
      return tf.math.unsorted_segment_sum(weight, target, num_classes)

    counts = client_work.sum_over_batches(client.data, count)

    def measure(examples: models.Batch, mask: tf.Tensor) -> models.Statistics:
      target = model.target(examples)
      if num_classes is None:
        constant = tf.math.divide_no_nan(counts[0], counts[1])
      else:
        constant = tf.argmax(counts, output_type=target.dtype)
      predicted = tf.fill(tf.shape(target), constant)
      statistics = model.prediction_statistics(predicted, examples)
      if num_classes is not None:
        shares = (counts + 1) / (tf.reduce_sum(counts) + num_classes)
        likelihood = tf.gather(tf.math.log(shares), target)
        statistics.update(model.likelihood_statistics(likelihood, examples))
      sums = client_work.sum_statistics(statistics, tf.zeros_like(mask), mask)
      return client_work.stack([sums])

    return client_work.sum_over_sets(evaluation, measure)


registry.register_personalizer(
  'constant',
  Constant,
  title='constant',
  does=(
    'predicts the mean of its own numbers, or its own most frequent class,'
    ' whatever the features'
  ),
  trainer='local',
  method_title='Constant',
)
