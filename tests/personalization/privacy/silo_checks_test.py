"""Methods use the examples of silos as they say, which is found by running."""

import collections
import dataclasses

import pytest
import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms.privacy import private_steps
from base import errors
from personalization.privacy import silo_checks
from tasks.models import protections
from tests.algorithms import helpers


def _protected(method):
  model = dataclasses.replace(
    method.trainer.model, protection=protections.Protection()
  )
  trainer = dataclasses.replace(method.trainer, model=model)
  personalizer = dataclasses.replace(method.personalizer, trainer=trainer)
  return dataclasses.replace(method, personalizer=personalizer)


def _check(method):
  method = _protected(method)
  silo_checks.check(method)


@pytest.mark.parametrize(
  'name', ['ditto', 'fedala', 'hypcluster', 'perfedavg+finetuning', 'self_fl']
)
def test_a_method_that_says_what_it_does_passes(name):
  _check(helpers.build(name, num_clients=5, **helpers.small(name)))


class _Clipless(fedavg.FedAvg):
  """Sends, in the place of one weight, the mean of a feature."""

  def client(self, message, client):
    result = super().client(message, client)
    update = result.updates['model']
    mean = tf.reduce_mean(client.data.examples['x'], 0)
    value = collections.OrderedDict(update.value, kernel=mean[:, tf.newaxis])
    return result._replace(updates={'model': update._replace(value=value)})


class _Again(fedavg.FedAvg):
  """Walks over its examples twice, which it does not say."""

  def client(self, message, client):
    first = super().client(message, client)
    return super().client(first.updates['model'].value, client)


class _MoreGradients(fedavg.FedAvg):
  """Takes one more gradient, with noise of its own."""

  def client(self, message, client):
    client_work.gradient(
      private_steps.mark(self.model, part=7),
      message,
      *client_work.batch(client.data, tf.constant(0)),
    )
    return super().client(message, client)


@pytest.mark.parametrize(
  'trainer, message',
  [
    (_Clipless, 'round 0, what a client sends'),
    (_Again, 'the same noise'),
    (_MoreGradients, 'In 2 rounds, a client took 6 .* the method counts 4'),
  ],
)
def test_what_a_method_does_not_say_is_found(trainer, message):
  method = helpers.build('fedavg')
  lying = dataclasses.replace(
    method.personalizer,
    trainer=trainer(method.trainer.model, method.trainer.settings),
  )
  with pytest.raises(errors.UserError, match=message):
    _check(dataclasses.replace(method, personalizer=lying))
