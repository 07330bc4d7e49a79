"""FedPC (Generated): personal and context embeddings without backpropagation.

Silva, Tambwekar and Gombolay 2022, algorithm 2. The shared networks Gamma and
nu generate the prompt of an example from phi_c, of its context c, and psi_d,
which client d keeps. In a round,
from the words (`tasks.models.generated_prompts`). In a round,

  client d:    Gamma_d, nu_d <- Gamma, nu
               for each batch b:
                 Gamma_d, nu_d <- a step down the gradient of
                   L(Gamma_d, nu_d; psi_d, phi, b)
                     + mu / 2 ||(Gamma_d, nu_d) - (Gamma, nu)||^2
                 psi_d <- the mean over b of the last psi of each example
               sends (Gamma, nu) - (Gamma_d, nu_d), and keeps psi_d
  the server:  Gamma, nu <- ServerOptimizer(…, the mean of what was sent)

Where the paper is silent, or contradicts itself: line 4 calls the context's
generator Gamma and the client's nu, and lines 12 and 13 the other way round, as
here. Every example of a batch starts at the psi_d from before the batch, also
for the gradient. A generated phi is not kept, and phi stays as it starts; the
server's last line adds a gradient of phi that nobody computed.

At test no gradient is taken. A client passes once over the first k of its
examples, for k = 1, 5, 15 and all of them, in batches of the size of training.
Each evaluation example starts at the psi_d that this leads to. A client that
was never trained on starts at a random psi_d (section 3.2.1).
"""

import dataclasses

import tensorflow as tf

from algorithms import adaptation
from algorithms import client_work
from algorithms import fedpc
from algorithms import optimizers
from algorithms import registry
from algorithms import split
from algorithms import trainers
from base import errors
from base import settings
from tasks.data import batches
from tasks.models import models


@dataclasses.dataclass(frozen=True)
class FedPcGenerated(fedpc.Prompts):
  """Trains the networks that generate each client's embedding."""

  settings: fedpc.PromptSettings
  start_name = 'own generated embedding'

  def __post_init__(self) -> None:
    if not isinstance(self.model, models.GeneratingModel):
      raise errors.UserError(
        'fedpc_generated needs a model that generates embeddings. Set'
        ' task.trained to generated or generated_once on a task of dialogue.'
      )
    if self.settings.personal_parts != (models.CLIENT,):
      raise settings.SettingError(
        f'personal_parts must be {models.CLIENT}, the part that is generated.',
        'personal_parts',
      )
    super().__post_init__()

  @property
  def why_examples_not_private(self) -> str | None:
    return 'fedpc_generated makes vectors of the words themselves'

  @property
  def partition(self) -> split.Partition:
    return dataclasses.replace(super().partition, fixed_parts=(models.FIXED,))

  def generate(
    self,
    w: models.Weights,
    psi: models.Weights,
    examples: models.Batch,
    mask: tf.Tensor,
  ) -> models.Weights:
    """Returns psi after a batch; unchanged if the batch has no examples."""
    assert isinstance(self.model, models.GeneratingModel)
    last = self.model.generate(client_work.merge(w, psi), examples)
    mean = tf.nest.map_structure(
      lambda leaf: tf.math.divide_no_nan(
        tf.linalg.matvec(leaf, mask, transpose_a=True), tf.reduce_sum(mask)
      ),
      last,
    )
    return client_work.choose(tf.reduce_any(mask > 0), mean, psi)

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    before = self.partition.select_shared(message)
    pull = client_work.pull(before, self.settings.proximal)

    def step(
      carry: tuple[optimizers.Learner, models.Weights, tf.Tensor],
      examples: models.Batch,
      mask: tf.Tensor,
    ) -> tuple[optimizers.Learner, models.Weights, tf.Tensor]:
      learner, psi, loss = carry
      w = client_work.merge(message, learner.weights)
      slopes, mean_loss = client_work.gradient(
        self.model,
        client_work.merge(w, psi),
        examples,
        mask,
        pull,
        self.partition.shared_names,
      )
      return (
        client_work.take_step(
          self.settings.client_steps, learner, slopes, mask
        ),
        self.generate(w, psi, examples, mask),
        loss + mean_loss * tf.reduce_sum(mask),
      )

    learner, psi, loss = client_work.fold_batches(
      client.data,
      step,
      (
        self.settings.client_steps.start(before),
        client.state.personal,
        tf.constant(0.0),
      ),
    )
    state = client.state.advance(psi)
    result = self.result(before, learner.weights, loss, state, client)
    return result._replace(
      measured={'share_received': self.partition.used_share(message)}
    )

  def start(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.Start:
    return trainers.Start(client_work.merge(message, client.state.personal))


@dataclasses.dataclass(frozen=True)
class FedPcGeneratedPersonalizer(adaptation.FewExamples):
  """Generates the client's embedding from some of its examples."""

  trainer: FedPcGenerated
  takes_steps = False

  def adapt(
    self, weights: models.Weights, data: batches.ClientData
  ) -> models.Weights:
    psi = self.trainer.partition.select_personal(weights)
    after = client_work.fold_batches(
      data, lambda psi, *batch: self.trainer.generate(weights, psi, *batch), psi
    )
    return client_work.merge(weights, after)


registry.register_trainer(
  'fedpc_generated',
  FedPcGenerated,
  title='FedPC (Generated)',
  paper='Silva et al. 2022',
  does=(
    'two networks that generate the prompts of a frozen GPT-2 from the words,'
    " and with them each client's vector, without gradients"
  ),
  sends='the update of the two networks that generate prompts',
  keeps='its vector',
  personalizer='fedpc_generated',
)
registry.register_personalizer(
  'fedpc_generated',
  FedPcGeneratedPersonalizer,
  title='generated',
  paper='Silva et al. 2022',
  does=(
    'passes once over the first adaptation_examples examples to generate the'
    " client's vector; each of these numbers is a candidate, and so is the"
    ' pretrained model'
  ),
  small={'adaptation_examples': (1, 0)},
)
