"""Privacy of the examples of each silo: refused methods, and the guarantee.

`silo_accounting` counts how often methods use the examples.
"""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from algorithms import example_uses
from algorithms import methods
from base import errors
from base import words
from personalization.privacy import accounting
from personalization.privacy import silo_accounting
from personalization.privacy import silo_checks
from personalization.privacy import ways
from personalization.rounds import schedules
from tasks import task as tasks
from tasks.models import protections

# The ε of a choice over that of a training, in Liu et al. 2022.
_SHARE_OF_CHOICE = 0.03


@dataclasses.dataclass(frozen=True)
class SiloProtections:
  """Gives each silo its noise, see `methods.Protections`.

  Attributes:
    settings: The settings.
    delta: The δ of each silo.
    uses: How often the method uses the examples.
    batch_size: The number of examples in a batch.
    drop_partial: Whether a last batch that is not full is left out.
    is_poisson: Whether each batch is a Poisson sample.
    max_uses: How often an example may be in the batches of a choice.
  """

  settings: ways.ExampleSettings
  delta: float
  uses: example_uses.Uses
  batch_size: int
  drop_partial: bool
  is_poisson: bool
  max_uses: int

  @property
  def choice_epsilon(self) -> float:
    """The ε of each choice, which is not used if there are no choices."""
    return self.settings.choice_epsilon or _SHARE_OF_CHOICE * (
      self.settings.epsilon or 1.0
    )

  def _silo(self, size: int, is_poisson: bool) -> silo_accounting.Silo:
    # Shuffled batches that count as Poisson samples are counted as published.
    places = self.max_uses if self.is_poisson else 0
    return silo_accounting.silo(
      size,
      self.batch_size,
      self.drop_partial,
      self.uses,
      self.choice_epsilon,
      is_poisson,
      places,
    )

  def gradients(self, size: int) -> int:
    """Returns the largest number of gradients of an example, see `Silo`."""
    return self._silo(size, self.is_poisson).gradients

  def noise(self, size: int) -> float:
    """Finds the noise z_k of a silo of some size."""
    if self.settings.epsilon is None:
      # The settings have one of the two.
      assert self.settings.noise is not None
      return self.settings.noise
    counted = self._silo(
      size, self.is_poisson or self.settings.counted_as_poisson
    )
    return silo_accounting.noise(counted, self.settings.epsilon, self.delta)

  def numbers(self, sizes: np.ndarray) -> np.ndarray:
    choice_noise = (
      2 * self.settings.most_loss * self.max_uses / self.choice_epsilon
    )
    return np.array(
      [
        (
          self.settings.clip,
          self.noise(int(size)),
          min(self.batch_size, size),
          self.settings.most_loss,
          choice_noise,
        )
        for size in sizes
      ],
      np.float32,
    )

  def _epsilon(self, sizes: Sequence[int]) -> tuple[float, str]:
    """Finds the largest ε_k of silos of these sizes, and its accountant."""
    if not self.is_poisson:
      # Then ε_k depends only on the noise of all gradients together.
      sizes = [
        min(
          sizes, key=lambda k: self.noise(k) * max(self.gradients(k), 1) ** -0.5
        )
      ]
    return max(
      silo_accounting.epsilon(
        self._silo(size, self.is_poisson), self.noise(size), self.delta
      )
      for size in sizes
    )

  # Cached, as grids ask for the same guarantee again and again.
  @functools.cache  # noqa: B019
  def guarantee(self, sizes: frozenset[int]) -> accounting.Guarantee:
    """Returns the guarantee of silos of these sizes."""
    epsilon, accountant = self._epsilon(sorted(sizes))
    noises = [self.noise(size) for size in sizes]
    gradients = sorted({self.gradients(size) for size in sizes})
    passes = words.count(gradients[-1], 'passes')
    if len(gradients) > 1:
      passes = f'{gradients[0]} to {passes}'
    sampling = f'{passes} over all examples'
    if self.uses.choices:
      choices = words.count(self.uses.choices, 'choices')
      sampling += f' and {choices} by their losses'
    if self.is_poisson:
      sampling += ', in batches that are Poisson samples'
    else:
      sampling += ', in shuffled batches, which are not amplified'
    assumptions = [
      'the number of examples of each silo is public',
      accounting.KEPT[self.settings.seed],
      f'each silo has its own noise, from {min(noises):.4g} to'
      f' {max(noises):.4g}; ε is that of the silo with the largest',
    ]
    if self.settings.counted_as_poisson and not self.is_poisson:
      assumptions.append(
        f'ε would be {self.settings.epsilon:g} if batches were Poisson samples,'
        ' as Liu et al. 2022 count them'
      )
    return accounting.Guarantee(
      unit='an example of a silo',
      neighbors='one example of one silo is there or not',
      epsilon=epsilon,
      delta=self.delta,
      mechanism='Gaussian, on clipped gradients of examples',
      noise=min(noises),
      clip=self.settings.clip,
      sampling=sampling,
      accountant=accountant,
      seed=self.settings.seed,
      assumptions=tuple(assumptions),
      not_covered=(
        'the metrics of each round: loss, examples, clients',
        'the metrics of silos',
        'validation examples, and the candidates and settings chosen by them',
        'what the task derived from training data: means and deviations',
        'how many updates were dropped, which silos were left out, and whether'
        ' training was stopped because it diverged',
      ),
      stages=(
        {
          f'{size} examples': self._silo(size, self.is_poisson).event(
            self.noise(size)
          )
          for size in sorted(sizes)
        },
      ),
    )


def _check(
  settings: ways.ExampleSettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> None:
  """Raises a `UserError` if a method cannot be protected like this."""
  if not task.cross_silo:
    raise errors.UserError(
      f'The clients of {task.name} are not silos: its test clients are not'
      ' trained on. Protect whole clients, or use a task such as school.'
    )
  if settings.counted_as_poisson and settings.epsilon is None:
    raise errors.UserError(
      'privacy.counted_as_poisson says how epsilon finds the noise. Set'
      ' privacy.epsilon instead of privacy.noise, or leave it out.'
    )
  for setting in ('total_epochs', 'client_steps'):
    if getattr(training_settings, setting):
      raise errors.UserError(
        f'{setting} must be 0 where silos protect their examples: the passes'
        ' over them are counted by total_rounds and client_epochs.'
      )
  if not training_settings.poisson_batches:
    return
  if getattr(method.trainer.settings, 'client_weighting', '') == 'examples':
    raise errors.UserError(
      'client_weighting must be uniform or size with poisson_batches: the'
      ' number of examples in these batches is not public.'
    )
  if method.trainer.example_uses(0).reuses_batches:
    raise errors.UserError(
      'Its steps use the same batches again, so that they would not be'
      ' independent Poisson samples. Leave poisson_batches out.'
    )
  if silo_accounting.starts_with_steps(method):
    raise errors.UserError(
      'Its clients take steps to the model that is evaluated, which do not use'
      ' Poisson batches. Leave poisson_batches out.'
    )
  of_personalization = silo_accounting.uses(
    method, 0, training_settings.client_epochs
  )
  if of_personalization.walks and not method.shuffled_epochs:
    raise errors.UserError(
      'Each epoch of personalization must draw its own batches with'
      ' poisson_batches: set finetuning_shuffle, or no epochs.'
    )


def _comes_with_the_code(half: object) -> bool:
  return type(half).__module__.startswith('algorithms.')


def make_example(
  settings: ways.ExampleSettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Has silos protect each of their examples."""
  _check(settings, method, task, training_settings)
  rounds = training_settings.total_rounds if method.trains else 0
  uses = silo_accounting.uses(method, rounds, training_settings.client_epochs)
  if (
    uses.choices
    and settings.epsilon is None
    and settings.choice_epsilon is None
  ):
    raise errors.UserError(
      'Set privacy.choice_epsilon, the ε of each choice of a cluster. Its'
      ' default is a share of privacy.epsilon, which is not set.'
    )
  sizes = frozenset(map(int, task.train.count_examples()['train'])) - {0}
  largest = max(sizes)
  delta = settings.delta or accounting.default_delta(largest)
  accounting.check_delta(delta, largest, 'examples of the largest silo')
  batch_size = training_settings.batch_size or task.batch_size
  max_uses = max(training_settings.client_epochs, method.shuffled_epochs)
  if training_settings.poisson_batches:
    # An example can be in all batches.
    max_uses *= -(-largest // batch_size)
  of_silos = SiloProtections(
    settings,
    delta,
    uses,
    batch_size,
    training_settings.drop_partial_batches,
    training_settings.poisson_batches,
    max_uses,
  )
  trainer = method.trainer
  model = dataclasses.replace(
    trainer.model, protection=protections.Protection()
  )
  trainer = dataclasses.replace(trainer, model=model)
  made = dataclasses.replace(
    method,
    personalizer=dataclasses.replace(method.personalizer, trainer=trainer),
    protections=of_silos,
    guarantee=of_silos.guarantee(sizes),
  )
  # Tests check the methods that come with the code.
  if not all(map(_comes_with_the_code, (trainer, method.personalizer))):
    silo_checks.check(made)
  return made
