"""PerFedAvg: a global model that one step personalizes well.

Fallah, Mokhtari and Ozdaglar 2020, algorithm 1. The model w is trained to
minimize the clients' losses after a step of rate alpha (their equation 3),

  min_w  sum_i F_i(w) / n,  F_i(w) = f_i(w - alpha grad f_i(w))

  client i:    w_i <- w;  for each batch D, and the next one D':
                 w~  <- w_i - alpha grad f_i(w_i; D)
                 w_i <- w_i - beta (I - alpha hess f_i(w_i; D)) grad f_i(w~; D')
  the server:  w <- sum_i w_i / S

The first-order form leaves out the Hessian. The other form computes the product
of the Hessian and the gradient without the Hessian itself; its step is exactly
the gradient of F_i if D' is D, as for a client with one batch.

beta is the clients' `client_learning_rate`. The algorithm draws three batches
for each step. Here a batch is D and D'' of its own step, and D' of the step
before; the first batch is D' of the last step. With `separate_batches`, as in
public code, the first two batches are D and D' of the first step, the next two
those of the second, and so on: there are half as many steps. A batch that is
left over is not used, and one that is alone is both.

All clients count the same, unless `client_weighting` says otherwise. A client
is evaluated after one step of rate alpha on its whole personalization set; the
baseline is w.
"""

import dataclasses

import tensorflow as tf

from algorithms import aggregation
from algorithms import client_work
from algorithms import example_uses
from algorithms import fedavg
from algorithms import optimizers
from algorithms import registry
from algorithms import trainers
from algorithms.privacy import private_steps
from base import aliases
from base import errors
from base import settings
from tasks.models import models

# Examples and their mask.
_Batch = tuple[models.Batch, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class PerFedAvgSettings(fedavg.FedAvgSettings):
  """The settings of PerFedAvg."""

  client_weighting: str = settings.redefine(
    fedavg.FedAvgSettings, 'client_weighting', 'uniform'
  )
  inner_rate: aliases.Number = settings.field(
    0.01, 'alpha, the rate of the step that personalizes.', minimum=0
  )
  form: str = settings.field(
    'first_order',
    'Whether steps leave out the Hessian, or use its product with a vector.',
    choices=('first_order', 'hessian_vector'),
  )
  separate_batches: bool = settings.field(
    False,
    "Whether a batch is D or D' of one step only, not D' of one and D of the"
    ' next; there are half as many steps then.',
  )


@dataclasses.dataclass(frozen=True)
class PerFedAvg(fedavg.FedAvg):
  """Trains a global model that one step of a client personalizes."""

  settings: PerFedAvgSettings
  start_name = 'after a step'
  start_is_shared = False
  shared_name = 'global model'

  def __post_init__(self) -> None:
    self.settings.refuse_kept_slots('perfedavg')

  def _descend(
    self, w: models.Weights, slopes: models.Weights
  ) -> models.Weights:
    """Takes the step of rate alpha."""
    return tf.nest.map_structure(
      lambda weight, slope: weight - self.settings.inner_rate * slope, w, slopes
    )

  def _slopes(
    self, w: models.Weights, first: _Batch, second: _Batch, number: tf.Tensor
  ) -> tuple[models.Weights, tf.Tensor]:
    """Differentiates the loss on D' after a step on D, by w.

    Args:
      w: The weights.
      first: D, examples and their mask.
      second: D'.
      number: The number of the step.

    Returns:
      The gradient, without the Hessian in the first-order form; and the loss.
    """
    if self.settings.form == 'first_order':
      of_each = [
        private_steps.mark(self.model, part=part, step=number)
        for part in range(2)
      ]
      slopes, _ = client_work.gradient(of_each[0], w, *first)
      return client_work.gradient(of_each[1], self._descend(w, slopes), *second)
    with tf.GradientTape() as tape:
      tape.watch(w)
      slopes, _ = client_work.gradient(self.model, w, *first)
      loss = self.model.mean_loss(self._descend(w, slopes), *second)
    return client_work.slopes(tape, loss, w), loss

  def passes(self, rounds: int) -> trainers.Passes:
    # On D and on D', and of the gradient on D for its product with a vector.
    of_step = 2 if self.settings.form == 'first_order' else 3
    batches_of_step = 2 if self.settings.separate_batches else 1
    return trainers.Passes(of_step / batches_of_step * rounds)

  @property
  def start_passes(self) -> trainers.Passes:
    return trainers.Passes(gradients=1)

  def example_uses(self, rounds: int) -> example_uses.Uses:
    if self.settings.form != 'first_order':
      raise errors.UserError(
        "An example's share of the product of a Hessian and a gradient cannot"
        ' be clipped. Set form=first_order.'
      )
    # A batch is D of its own step, and D' of the step before. With
    # separate_batches it is both only in a silo of one batch.
    return example_uses.Uses((example_uses.Walk(rounds, gradients=2),))

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    data, optimizer = client.data, self.settings.client_steps
    places, number = client_work.places_of_batches(data)
    stride = 2 if self.settings.separate_batches else 1

    def batch(i: tf.Tensor) -> _Batch:
      return client_work.batch(data, tf.gather(places, i % number))

    def step(
      i: tf.Tensor,
      learner: optimizers.Learner,
      total: tf.Tensor,
      used: tf.Tensor,
    ) -> tuple[tf.Tensor, optimizers.Learner, tf.Tensor, tf.Tensor]:
      first, second = batch(stride * i), batch(stride * i + 1)
      slopes, loss = self._slopes(learner.weights, first, second, i)
      size = tf.reduce_sum(second[1])
      learner = optimizer.step(learner, slopes)
      return i + 1, learner, total + loss * size, used + size

    steps = tf.maximum(number // stride, tf.minimum(number, 1))
    _, learner, loss, used = tf.while_loop(
      lambda i, *_: i < steps,
      step,
      (0, optimizer.start(message), tf.constant(0.0), tf.constant(0.0)),
    )
    if self.settings.separate_batches:
      # The sum is that of all examples, if the others' losses are like these.
      loss *= tf.math.divide_no_nan(client_work.num_examples(data), used)
    update = aggregation.Update(
      client_work.difference(message, learner.weights),
      self.settings.client_weight(client),
    )
    return trainers.ClientResult({'model': update}, loss)

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    def add(
      carry: tuple[models.Weights, tf.Tensor],
      examples: models.Batch,
      mask: tf.Tensor,
    ) -> tuple[models.Weights, tf.Tensor]:
      total, number = carry
      model = private_steps.mark(
        self.model, part=private_steps.START, step=number
      )
      slopes, _ = client_work.gradient(model, message, examples, mask)
      size = private_steps.batch_size(model, mask)
      total = tf.nest.map_structure(
        lambda leaf, slope: leaf + size * slope, total, slopes
      )
      return total, number + 1

    zeros = tf.nest.map_structure(tf.zeros_like, message)
    slopes, _ = client_work.fold_batches(client.data, add, (zeros, 0))
    size = client_work.num_examples(client.data)
    slopes = tf.nest.map_structure(
      lambda slope: tf.math.divide_no_nan(slope, size), slopes
    )
    return trainers.Start(self._descend(message, slopes), shared=message)


registry.register_trainer(
  'perfedavg',
  PerFedAvg,
  title='Per-FedAvg',
  paper='Fallah et al. 2020',
  does=(
    'a global model that one step personalizes well; form=hessian_vector for'
    ' the full gradient'
  ),
  sends='the update of the model',
)
