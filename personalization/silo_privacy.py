"""Privacy of each example of a silo: its settings, noise and guarantee."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from algorithms import methods
from base import errors
from base import settings
from personalization import accounting
from personalization import schedules
from personalization import silo_accounting
from tasks import task as tasks
from tasks.models import protections


@dataclasses.dataclass(frozen=True)
class ExampleSettings(settings.Settings):
  """The settings of privacy of each example within its silo."""

  epsilon: float | None = settings.field(
    None, 'The ε of each silo, which gets the noise for it.', above=0
  )
  delta: float = settings.field(
    1e-3, 'The δ of each silo, below 1 over its examples.', above=0, maximum=1
  )
  noise: float | None = settings.field(
    None,
    'z, the deviation of the noise on a sum of gradients over the clipping'
    ' norm, of all silos, instead of epsilon.',
    above=0,
  )
  clip: float = settings.field(
    1.0, "S, the largest norm of an example's gradient.", above=0
  )
  choice_epsilon: float = settings.field(
    0.1, 'The ε of each choice of a cluster.', above=0
  )
  most_loss: float = settings.field(
    0.1, 'The largest loss of an example in the choice of a cluster.', above=0
  )
  counted_as_poisson: bool = settings.field(
    False,
    'Whether the noise is what batches would need if each were a Poisson'
    ' sample, though they are parts of shuffled passes, as in Liu et al. 2022.'
    ' The guarantee is that of what is run.',
  )


@dataclasses.dataclass(frozen=True)
class SiloProtections:
  """Gives each silo its noise, see `methods.Protections`.

  Attributes:
    own: The settings.
    uses: How often the method uses all examples.
    batch_size: The number of examples in a batch.
    drop_partial: Whether a last batch that is not full is left out.
    is_poisson: Whether each batch is a Poisson sample.
    most_times: How often an example may be in the batches of a choice.
  """

  own: ExampleSettings
  uses: silo_accounting.Uses
  batch_size: int
  drop_partial: bool
  is_poisson: bool
  most_times: int

  def _silo(self, size: int, is_poisson: bool) -> silo_accounting.Silo:
    return silo_accounting.silo(
      size,
      self.batch_size,
      self.drop_partial,
      self.uses,
      self.own.choice_epsilon,
      is_poisson,
    )

  def noise(self, size: int) -> float:
    """Finds the noise z_k of a silo of some size."""
    if self.own.noise is not None:
      return self.own.noise
    counted = self._silo(size, self.is_poisson or self.own.counted_as_poisson)
    return silo_accounting.noise(counted, self.own.epsilon, self.own.delta)

  def of_sizes(self, sizes: np.ndarray) -> np.ndarray:
    own = self.own
    choice_noise = 2 * own.most_loss * self.most_times / own.choice_epsilon
    return np.array(
      [
        (
          own.clip,
          self.noise(int(size)),
          min(self.batch_size, max(size, 1)),
          own.most_loss,
          choice_noise,
        )
        for size in np.asarray(sizes)
      ],
      np.float32,
    )

  def guarantee(self, sizes: Sequence[int]) -> accounting.Guarantee:
    """Tells what silos of these sizes are guaranteed."""
    own, distinct = self.own, sorted(set(map(int, sizes)))
    found = {
      size: silo_accounting.epsilon(
        self._silo(size, self.is_poisson), self.noise(size), own.delta
      )
      for size in distinct
    }
    largest = max(found, key=lambda size: found[size][0])
    noises = [self.noise(size) for size in distinct]
    assumptions = [
      'the sizes of silos are public',
      'the randomness is secret, which a seed in the results is not: simulated',
    ]
    if own.counted_as_poisson and not self.is_poisson:
      assumptions.append(
        f'ε would be {own.epsilon:g} if batches were Poisson samples, as Liu et'
        ' al. 2022 count them; they are parts of shuffled passes'
      )
    choices = f', and {self.uses.choices} choices among models'
    return accounting.Guarantee(
      unit='an example of a silo',
      neighbours='one example of one silo is there or not',
      epsilon=found[largest][0],
      delta=own.delta,
      mechanism='Gaussian noise on clipped gradients of examples (DP-SGD)',
      noise=min(noises),
      clip=own.clip,
      sampling=(
        f'{self.uses.passes} passes'
        + (choices if self.uses.choices else '')
        + (
          ' in Poisson batches'
          if self.is_poisson
          else ' in shuffled batches, not amplified'
        )
      ),
      accountant=found[largest][1],
      assumptions=tuple(assumptions),
      not_covered=(
        'losses and counts of a round',
        'metrics of clients, and choices by validation',
        'standardization and vocabularies from training examples',
      ),
    )


def _check(
  method: methods.Method,
  own: ExampleSettings,
  task: tasks.Task,
  how: schedules.TrainingSettings,
  name: str,
) -> None:
  """Raises a `UserError` if a method cannot be protected like this."""
  if not task.cross_silo:
    raise errors.UserError(
      f'The clients of {task.name} are not silos: those that it is judged by'
      ' are not trained on. Protect whole clients, or take a task such as'
      ' school.'
    )
  if (own.epsilon is None) == (own.noise is None):
    raise errors.UserError(
      'Set one of privacy.epsilon, which finds the noise, and privacy.noise.'
    )
  if own.counted_as_poisson and own.epsilon is None:
    raise errors.UserError(
      'privacy.counted_as_poisson says how epsilon finds the noise. Set'
      ' privacy.epsilon instead of privacy.noise, or leave it out.'
    )
  largest = int(max(task.train.count_examples()['train']))
  accounting.check_delta(own.delta, largest, 'examples of the largest silo')
  for setting in ('total_epochs', 'client_steps'):
    if getattr(how, setting):
      raise errors.UserError(
        f'{setting} must be 0 where silos protect their examples: the passes'
        ' over them are counted by total_rounds and client_epochs.'
      )
  if not how.poisson_batches:
    return
  if getattr(method.trainer.settings, 'client_weighting', '') == 'examples':
    raise errors.UserError(
      f'{name}: client_weighting must be uniform or size with'
      ' poisson_batches: the number of examples in these batches is not public.'
    )
  if method.takes_steps and not method.shuffled_epochs:
    raise errors.UserError(
      f'{name}: set finetuning_shuffle with poisson_batches, so that each epoch'
      ' of fine-tuning draws its own, or leave the method out.'
    )


def protect(
  method: methods.Method,
  own: ExampleSettings,
  task: tasks.Task,
  how: schedules.TrainingSettings,
  name: str,
) -> methods.Method:
  """Returns a method whose silos protect their examples.

  Args:
    method: The method.
    own: The settings of privacy.
    task: The task.
    how: How to train.
    name: The name of the method, for errors.

  Raises:
    UserError: If the method, the task or the settings do not go with it.
  """
  _check(method, own, task, how, name)
  rounds = how.total_rounds if method.trains else 0
  uses = silo_accounting.uses(method, rounds, how.client_epochs, name)
  batch_size = how.batch_size or task.batch_size
  most_times = max(how.client_epochs, method.shuffled_epochs)
  sizes = task.train.count_examples()['train']
  if how.poisson_batches:
    # An example can be in all batches.
    most_times *= max(1, -(-int(max(sizes)) // batch_size))
  of_silos = SiloProtections(
    own,
    uses,
    batch_size,
    how.drop_partial_batches,
    how.poisson_batches,
    most_times,
  )
  trainer = method.trainer
  trainer = dataclasses.replace(
    trainer,
    model=dataclasses.replace(
      trainer.model, protection=protections.Protection()
    ),
  )
  personalizer = dataclasses.replace(method.personalizer, trainer=trainer)
  return dataclasses.replace(
    method, personalizer=personalizer, protections=of_silos
  )
