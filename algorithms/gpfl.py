"""GPFL: representations are split into what all clients know and one's own.

Zhang et al. 2023c ("GPFL: Simultaneously learning global and personalized
feature information for personalized federated learning"), algorithm 1. Clients
share the encoder f, an embedding C_u of each class u, and a "conditional valve"
V, two small networks that make gamma and beta of a condition c, a vector:

  gamma(c), beta(c) = LayerNorm(ReLU(linear(c))), each of its own weights
  z_c = ReLU((gamma(c) + 1) * z + beta(c)), for z = f(x)

Each client i keeps its head h. In a round, with Chat as the C that it received,

  client i:    g <- mean of Chat_u;  p_i <- sum_u (share of class u) Chat_u
               for each batch: steps on all at once down
                 mean of CE(h(z_p), y) + CE(cos(z_g, C), y)
                         + lambda ||z_g - Chat_y||_2, over the batch,
                   + mu (||V|| + ||C||)
               sends f, V and C, and keeps h
  the server:  f, V and C as the model in FedAvg

A client predicts by h(z_p), with the p_i of the last C. The paper divides p_i
by the number of classes, too. Without V (`conditional=false`), and with lambda,
mu and the weight of the cosines zero, this is FedPer.

In the authors' code,

- V and C have weight decay in the place of mu (`decay=square`);
- lambda is of one norm of all z_g - Chat_y of a batch;
- g and p_i are of the client's own last C, and zero in its first round.

A client that was never trained on starts at the initial head, and trains it:
`head_finetuning`.
"""

import collections
from collections.abc import Mapping
import dataclasses

import tensorflow as tf

from algorithms import client_work
from algorithms import fedavg
from algorithms import personal_models
from algorithms import prototypes
from algorithms import registry
from algorithms import split
from algorithms import trainers
from algorithms import vectors
from base import aliases
from base import settings
from tasks.models import layers
from tasks.models import models

# The parts of V and C, and of p; the latter two are one weight each.
_VALVE, _CLASSES, _CONDITION = 'valve', 'classes', 'condition'
_NETS = 'gamma', 'beta'
# PyTorch's.
_EPSILON = 1e-5
# The least square of a norm, whose gradient would be infinite at zero.
_LEAST_SQUARE = 1e-12


@dataclasses.dataclass(frozen=True)
class GpflSettings(fedavg.FedAvgSettings):
  """The settings of FedAvg, and of GPFL's terms."""

  angle: aliases.Number = settings.field(
    1.0,
    'How much the cross-entropy of the cosines with the embeddings of classes'
    ' counts; 1 in the paper.',
    minimum=0,
  )
  magnitude: aliases.Number = settings.field(
    0.01,
    'lambda, how strongly representations are pulled to the embeddings of their'
    ' classes.',
    minimum=0,
  )
  decay: aliases.Number = settings.field(
    0.1, 'mu, how much the norms of V and C count.', minimum=0
  )
  decay_form: str = settings.field(
    'norm',
    "Whether mu is of the norms, or of half their squares, as in the authors'"
    ' code (square).',
    choices=('norm', 'square'),
  )
  conditional: bool = settings.field(
    True, 'Whether there is V; if not, z_c is z for any condition.'
  )


@dataclasses.dataclass(frozen=True)
class Conditional(models.Extended):
  """A model with V, C, and a condition p, which has no gradient.

  `encode` returns z, and `decide` makes z_p of it.

  Attributes:
    has_valve: Whether z_p is made by V.
  """

  has_valve: bool = True

  @property
  def encodes_by_head(self) -> bool:
    return self.model.encodes_by_head

  @property
  def decision_names(self) -> tuple[str, ...]:
    return *self.model.decision_names, *self.parts[_VALVE], _CONDITION

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    of_nets = ('kernel', 'bias', 'scale', 'offset')
    return {
      **self.model.parts,
      _VALVE: tuple(f'{net}_{of}' for net in _NETS for of in of_nets),
      _CLASSES: (_CLASSES,),
      _CONDITION: (_CONDITION,),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    """Makes V and C as PyTorch does, and a condition of zeros."""
    w = self.inner.init(seed)
    # Only the shape of the representation is used.
    width = self.inner.encode(w, self.blank_example()).shape[1]
    fold = tf.random.experimental.stateless_fold_in
    for i, net in enumerate(_NETS):
      seeds = tf.random.experimental.stateless_split(fold(seed, 1 + i), 2)
      w.update(layers.fan_in_layers(seeds, {net: [width, width]}))
      w[f'{net}_scale'] = tf.ones([width])
      w[f'{net}_offset'] = tf.zeros([width])
    shape = [prototypes.num_classes(self.model), width]
    w[_CLASSES] = tf.random.stateless_normal(shape, fold(seed, 0))
    w[_CONDITION] = tf.zeros([width])
    return w

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return self.inner.encode(weights, batch)

  def under(
    self, weights: models.Weights, c: tf.Tensor, z: tf.Tensor
  ) -> tf.Tensor:
    """Returns z_c."""
    if not self.has_valve:
      return z
    gamma, beta = (
      layers.layer_norm(
        weights,
        net,
        tf.nn.relu(layers.dense(weights, net, c[tf.newaxis])),
        _EPSILON,
      )
      for net in _NETS
    )
    return tf.nn.relu((gamma + 1) * z + beta)

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    condition = tf.stop_gradient(weights[_CONDITION])
    return self.inner.decide(weights, self.under(weights, condition, features))


@dataclasses.dataclass(frozen=True)
class Gpfl(split.SharesParts, personal_models.PersonalModels):
  """Trains an encoder with V and C, and each client's own head."""

  settings: GpflSettings
  start_name = 'own head'
  shared_name = None

  def __post_init__(self) -> None:
    if not isinstance(self.model, Conditional):
      prototypes.check(self.model, 'gpfl')
      extended = Conditional(self.model, self.settings.conditional)
      object.__setattr__(self, 'model', extended)
    self.settings.refuse_kept_slots('gpfl')

  @property
  def why_examples_not_private(self) -> str | None:
    return (
      'how frequent classes are, which gpfl makes a condition of, would be'
      ' revealed'
    )

  @property
  def partition(self) -> split.Partition:
    return split.Partition(self.model, (models.HEAD,), (_CONDITION,))

  @property
  def personal_names(self) -> tuple[str, ...]:
    return self.partition.personal_names

  def _received(
    self, message: models.Weights, client: trainers.Client
  ) -> models.Weights:
    """Returns the model with the client's head and its p_i."""

    def count(examples: models.Batch, mask: tf.Tensor) -> tf.Tensor:
      size = prototypes.num_classes(self.conditional.model)
      of_class = tf.one_hot(self.model.target(examples), size)
      return tf.linalg.matvec(of_class, mask, transpose_a=True)

    counts = client_work.sum_over_batches(client.data, count)
    shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
    p = tf.linalg.matvec(message[_CLASSES], shares, transpose_a=True)
    return client_work.merge(
      self.personal_model(message, client.state),
      collections.OrderedDict(condition=p),
    )

  @property
  def conditional(self) -> Conditional:
    """The model, with V and C."""
    assert isinstance(self.model, Conditional)
    return self.model

  def client(
    self, message: models.Weights, client: trainers.Client
  ) -> trainers.ClientResult:
    model, parts = self.conditional, self.partition
    # Untraced, it is the same tensor as the C that is about to be trained.
    received = tf.stop_gradient(message[_CLASSES])
    g = tf.reduce_mean(received, axis=0)

    def added(
      w: models.Weights, examples: models.Batch, z: tf.Tensor
    ) -> tf.Tensor:
      y, z_g = model.target(examples), model.under(w, g, z)
      cosines = tf.matmul(
        tf.math.l2_normalize(z_g, 1, _LEAST_SQUARE),
        tf.math.l2_normalize(w[_CLASSES], 1, _LEAST_SQUARE),
        transpose_b=True,
      )
      angle = tf.nn.sparse_softmax_cross_entropy_with_logits(y, cosines)
      away = tf.reduce_sum(tf.square(z_g - tf.gather(received, y)), axis=1)
      magnitude = tf.sqrt(tf.maximum(away, _LEAST_SQUARE))
      return self.settings.angle * angle + self.settings.magnitude * magnitude

    def decay(w: models.Weights) -> tf.Tensor:
      halves = [
        client_work.half_square(client_work.select(w, model.parts[part]))
        for part in (_VALVE, _CLASSES)
      ]
      if self.settings.decay_form == 'norm':
        halves = [
          tf.sqrt(tf.maximum(2 * half, _LEAST_SQUARE)) for half in halves
        ]
      return self.settings.decay * tf.add_n(halves)

    w = self._received(message, client)
    after, loss, _ = self.descend(
      w, client._replace(state=client.state.shared), decay, added=added
    )
    result = self.result(
      parts.select_shared(w),
      parts.select_shared(after),
      loss,
      client.state.advance(parts.select_personal(after)),
      client,
    )
    # The head of the message is that of new clients, and nobody needs its p.
    shared = parts.select_shared(w)
    share = vectors.count(shared.values()) / vectors.count(w.values())
    return result._replace(measured={'share_received': tf.constant(share)})

  def start(
    self, message: trainers.Message, client: trainers.Client
  ) -> trainers.Start:
    return trainers.Start(self._received(message, client))


registry.register_trainer(
  'gpfl',
  Gpfl,
  title='GPFL',
  paper='Zhang et al. 2023c',
  does=(
    'a shared encoder with an embedding of each class, and networks that make'
    ' of its representations what all clients know and what is of one client,'
    ' for a head of its own (classes only)'
  ),
  sends='the updates of the encoder, these networks and the embeddings',
  keeps='its head',
  personalizer='head_finetuning',
)
