"""The passes that methods say they take, beside those that they do take."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from algorithms import blup
from algorithms import client_work
from algorithms import prototypes
from algorithms import registry
from algorithms import trainers
from tasks.models import models
from tests.algorithms import functions
from tests.algorithms import helpers

_BATCH_SIZE = 4
_SETTINGS = {
  'fedrep': dict(head_epochs=3),
  'hypcluster': dict(num_clusters=3, warmstart_rounds=1.0),
  'pfedme': dict(proximal_steps=4, personal_passes=2),
  'self_fl': dict(augmented_steps=3),
}


class _Counts(collections.Counter):
  """Counts gradients, and losses that are computed alone, in eager mode.

  A pass that finds prototypes, or effects, takes as long as one that computes
  losses.
  """

  def __init__(self, patch):
    super().__init__()
    counts, loss, open_tapes = self, models.Model.loss, []
    find, find_effects = prototypes.find, blup.Blup.find_effects

    class Tape(tf.GradientTape):
      def __enter__(self):
        open_tapes.append(self)
        # What is in another tape is differentiated once more.
        counts['gradients'] += len(open_tapes)
        return super().__enter__()

      def __exit__(self, *error):
        open_tapes.pop()
        super().__exit__(*error)

    def counted_loss(*args):
      counts['losses'] += not open_tapes
      return loss(*args)

    patch.setattr(tf, 'GradientTape', Tape)

    def counted_find(model, w, data):
      counts['losses'] += len(data.mask)
      return find(model, w, data)

    def counted_effects(trainer, message, data):
      counts['losses'] += len(data.mask)
      return find_effects(trainer, message, data)

    patch.setattr(models.Model, 'loss', counted_loss)
    patch.setattr(prototypes, 'find', counted_find)
    patch.setattr(blup.Blup, 'find_effects', counted_effects)


def _build(name, **values):
  values = {
    **helpers.small(name),
    **_SETTINGS.get(name.partition('+')[0], {}),
    **values,
  }
  return helpers.build(
    name,
    helpers.model_for(name),
    num_clients=len(helpers.SIZES) + 1,
    **values,
  )


class _Functions:
  """The functions of a method, and what they are given, without TFF."""

  def __init__(self, method, num_batches):
    self.trainer = functions.bind(method.trainer)
    self.personalizer = functions.bind(method.personalizer, self.trainer)
    self.message = self.trainer.message(
      self.trainer.initialize(tf.constant([0, 1]))
    )
    self.client = tf.nest.map_structure(
      tf.convert_to_tensor,
      trainers.Client(
        helpers.data(0, num_batches * _BATCH_SIZE, _BATCH_SIZE),
        self.trainer.initialize_client(tf.constant([0, 0])),
        np.array([1, 0], np.int32),
        collections.OrderedDict.fromkeys(method.needs, 0),
      ),
    )

  def personalize(self):
    evaluation = tf.nest.map_structure(tf.constant, helpers.data(1, 6))
    start = self.trainer.start(self.message, self.client)
    self.personalizer.personalize(start, self.client, {'test': evaluation})


def _count(method, work, monkeypatch):
  """Counts the passes of work, from what it does with five and two batches."""
  found = []
  for num_batches in (5, 2):
    functions = _Functions(method, num_batches)
    with monkeypatch.context() as patch:
      counts = _Counts(patch)
      work(functions)
    found.append(counts)
  five, two = found
  # Other losses are of other examples, or computed only for their shapes.
  return five['gradients'] / 5, (five['losses'] - two['losses']) / 3


@pytest.mark.parametrize(
  'name, values',
  [
    *((name, {}) for name in registry.TRAINERS if name != 'local'),
    ('perfedavg', dict(form='hessian_vector')),
  ],
)
def test_a_round_takes_the_passes_of_its_trainer(name, values, monkeypatch):
  method = _build(f'{name}+as_trained', **values)
  multiples = []

  def work(functions):
    result = functions.trainer.client(functions.message, functions.client)
    multiples.append(float(result.measured.get('passes', 1)))

  counted = _count(method, work, monkeypatch)
  expected = np.array(method.trainer.passes(1)) * multiples[0]
  np.testing.assert_allclose(counted, expected, rtol=1e-6)


def test_after_the_warm_start_a_client_trains_one_of_k_models(monkeypatch):
  method = _build('hypcluster')

  def work(functions):
    message = functions.message._replace(round=tf.constant(1))
    functions.trainer.client(message, functions.client)

  later = np.subtract(method.trainer.passes(2), method.trainer.passes(1))
  assert _count(method, work, monkeypatch) == tuple(later) == (1, 3)


def test_parts_that_are_not_proximal_take_a_pass_beside_them(monkeypatch):
  method = helpers.build(
    'pfedme', helpers.VECTOR_MODEL, proximal_steps=2, proximal_parts=('head',)
  )
  counted = _count(
    method, lambda f: f.trainer.client(f.message, f.client), monkeypatch
  )
  assert counted == method.trainer.passes(1) == (3, 0)


@pytest.mark.parametrize(
  'name, values',
  [
    ('fedavg', {}),
    ('knn_per', {}),
    ('pfedme', {}),
    ('pfedkm', {}),
    ('ditto', dict(personal_epochs=2)),
    (
      'finetuning',
      dict(finetuning_epochs=3, finetuning_layers=('all', 'last')),
    ),
    ('perfedavg+finetuning', dict(finetuning_epochs=3)),
    ('hypcluster+finetuning', dict(finetuning_epochs=2)),
    ('fedembed_personal+embedding_finetuning', dict(embedding_epochs=2)),
    ('fedpc_generated', {}),
  ],
)
def test_personalization_takes_its_passes(name, values, monkeypatch):
  method = _build(name, **values)
  counted = _count(method, _Functions.personalize, monkeypatch)
  assert counted == method.personalizer.passes(5 * _BATCH_SIZE, _BATCH_SIZE)


def test_updates_are_the_parts_of_passes_that_they_use(monkeypatch):
  method = _build('fedpc', adaptation_updates=3, adaptation_examples=(1, 6, 0))
  functions, used = _Functions(method, 5), []
  gradient = client_work._gradient_and_statistics

  def counted(model, weights, examples, mask, *others):
    used.append(float(tf.reduce_sum(mask)))
    return gradient(model, weights, examples, mask, *others)

  monkeypatch.setattr(client_work, '_gradient_and_statistics', counted)
  functions.personalize()
  # One example; four, two and four of six; and four of all.
  assert used == [1, 1, 1, 4, 2, 4, 4, 4, 4]
  passes = method.personalizer.passes(20, _BATCH_SIZE).gradients
  # In the mean, the batches of six have three.
  assert passes == pytest.approx((3 * 1 + 3 * 3 + 3 * 4) / 20)
