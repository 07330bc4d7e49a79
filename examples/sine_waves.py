r"""A task of one's own: sine waves, each client with a phase of its own.

Client k has points x ~ U(-pi, pi) and y = sin(x + phase_k) + noise, where its
phase is drawn from one of two groups. The model is a network with one hidden
layer, the metric the squared error, and the clients know their group.

  ./bazelw run //experiments:run -- --set modules=examples.sine_waves \
      --task=sine_waves --algorithm=fedavg,local
"""

import collections
from collections.abc import Mapping
import dataclasses

import numpy as np
import tensorflow as tf

from base import seeds
from base import settings
from tasks import registry
from tasks import task
from tasks.data import devices
from tasks.data import populations
from tasks.models import layers
from tasks.models import models

_PHASES = 0.0, np.pi / 2


@dataclasses.dataclass(frozen=True)
class SineWavesSettings(settings.Settings):
  """The settings of the task."""

  num_clients: int = settings.field(
    100, 'The number of clients to train on; half as many are held out.'
  )
  num_examples: int = settings.field(
    40, 'The number of examples of each client.', minimum=2
  )
  noise: float = settings.field(0.1, 'The deviation of the noise.', minimum=0)


@dataclasses.dataclass(frozen=True)
class SineNetwork(models.Regressor):
  """A hidden layer and a linear one, of examples {'x': [1], 'y': []}."""

  width: int = 40

  @property
  def example_spec(self) -> Mapping[str, tf.TensorSpec]:
    return collections.OrderedDict(x=tf.TensorSpec([1]), y=tf.TensorSpec([]))

  @property
  def parts(self) -> Mapping[str, tuple[str, ...]]:
    return {
      models.ENCODER: ('hidden_kernel', 'hidden_bias'),
      models.HEAD: ('output_kernel', 'output_bias'),
    }

  def init(self, seed: tf.Tensor) -> models.Weights:
    hidden, output = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    return collections.OrderedDict(
      hidden_kernel=layers.glorot_uniform(hidden, [1, self.width]),
      hidden_bias=tf.zeros([self.width]),
      output_kernel=layers.glorot_uniform(output, [self.width, 1]),
      output_bias=tf.zeros([1]),
    )

  def encode(self, weights: models.Weights, batch: models.Batch) -> tf.Tensor:
    return tf.tanh(layers.dense(weights, 'hidden', batch['x']))

  def decide(self, weights: models.Weights, features: tf.Tensor) -> tf.Tensor:
    return layers.dense(weights, 'output', features)[:, 0]


def load(
  sine_waves_settings: SineWavesSettings, data_dir: str | None, seed: int
) -> task.Task:
  """Makes the task; nothing is read from `data_dir`."""
  del data_dir
  ids = [f'client_{k:04d}' for k in range(2 * sine_waves_settings.num_clients)]
  groups = {client_id: k % 2 for k, client_id in enumerate(ids)}

  def draw(client_id: str, limit: int | None) -> populations.Examples:
    rng = seeds.generator('sine waves', seed, client_id)
    phase = rng.normal(_PHASES[groups[client_id]], 0.3)
    x = rng.uniform(-np.pi, np.pi, sine_waves_settings.num_examples)
    y = np.sin(x + phase) + rng.normal(
      0, sine_waves_settings.noise, sine_waves_settings.num_examples
    )
    examples = {'x': x[:, np.newaxis], 'y': y}
    return {name: v[:limit].astype('f4') for name, v in examples.items()}

  def some(start: int, stop: int) -> devices.Devices:
    sizes = np.full(stop - start, sine_waves_settings.num_examples)
    return devices.Devices(ids[start:stop], draw, sizes)

  n = sine_waves_settings.num_clients
  return task.Task(
    name='sine_waves',
    model=SineNetwork(),
    metric='squared_error',
    higher_is_better=False,
    batch_size=10,
    padded=True,
    attributes={task.GROUP: task.Attribute(('sine', 'cosine'), groups)},
    **devices.make_populations(
      train=some(0, n),
      validation=some(n, n + n // 2),
      test=some(n + n // 2, 2 * n),
    ),
  )


registry.register_task('sine_waves', SineWavesSettings)
