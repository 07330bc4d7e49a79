"""Privacy at the client level: all data of one client are protected.

Neighboring data sets differ in one client, whose update is there or zero; the
server is trusted, and the model of every round is public. Personalization uses
only a client's own data, which costs the others no privacy; the personal model
is not private.

The accountant counts how clients are really sampled (`client_sampling`):

  poisson         add or remove a client, amplified by q = n / N
  cyclic_poisson  the same in each b-th round, by q = b n / N
  fixed_size      replace a client; two sums then differ by twice the clip, so
                  that the noise counts half
  passes, cycles  a client takes part once a pass; not amplified

If all clients are in all rounds, nothing is amplified, either. `make_tree` and
`make_matrix` hide sums over rounds; in `make_local` the server is not trusted,
and in `make_distributed` it sees only sums.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import TypeAlias

import dp_accounting

from algorithms import aggregation
from algorithms import methods
from algorithms.privacy import distributed_noise
from algorithms.privacy import private_aggregation
from base import errors
from base import words
from personalization.privacy import accounting
from personalization.privacy import matrix_noise
from personalization.privacy import ways
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks

UNIT = 'client'
# The noise of a part that is summed separately, over the noise of all parts of
# a record together.
_SUMS_SHARE = 5.0

# The order of passes, in words.
_PASSES = {'passes': 'random', 'cycles': 'the same'}
_POISSON = ('poisson', 'cyclic_poisson')
_TRUSTED = 'the server is trusted, and every model that it sends is public'

_NOT_COVERED = (
  'the metrics of each round, such as the loss and the number of clients',
  'who took part in which round',
  'choices on validation clients, of candidates and of settings',
  'per_client.csv, and personal models and client states in checkpoints',
  'what the task derived from training data, such as vocabularies and scales',
  'how many updates were dropped, which clients were left out, and whether'
  ' training was stopped because it diverged',
)


@dataclasses.dataclass(frozen=True)
class Participation:
  """The clients that take part in a training, and how often.

  Attributes:
    num_clients: N, the clients that could take part.
    per_round: n, the clients that a round is expected to have.
    rounds: T.
    sampling: How clients are drawn, as `TrainingSettings` has it, or 'all'.
    parts: b, the parts of the clients that take turns.
  """

  num_clients: int
  per_round: int
  rounds: int
  sampling: str
  parts: int = 1

  @property
  def rounds_per_pass(self) -> int:
    """The number of rounds of a pass, if there are passes."""
    return -(-self.num_clients // self.per_round)

  @property
  def fewest(self) -> int:
    """The fewest clients of a round, such as the last round of a pass."""
    if self.sampling in _POISSON:
      return 0
    if self.sampling in _PASSES:
      return self.num_clients - (self.rounds_per_pass - 1) * self.per_round
    return self.per_round

  @property
  def max_participations(self) -> int:
    """The largest number of rounds that a client takes part in."""
    if self.sampling in _PASSES:
      return -(-self.rounds // self.rounds_per_pass)
    return -(-self.rounds // self.parts)

  @property
  def rate(self) -> float:
    """The probability q of a client of the part whose turn it is."""
    return min(1.0, self.per_round * self.parts / self.num_clients)

  def central_event(
    self, noise: float, replaces: bool
  ) -> dp_accounting.DpEvent:
    """Makes the event of noise z on the sum of each round.

    Args:
      noise: z.
      replaces: Whether neighbors replace a client, as with a fixed size.
    """
    if self.sampling in _POISSON:
      return accounting.poisson(noise, self.rate, self.max_participations)
    if self.sampling == 'fixed_size':
      return accounting.fixed_size(
        noise, self.per_round, self.num_clients, self.rounds
      )
    noise = noise / 2 if replaces else noise
    return accounting.gaussian(noise, self.max_participations)

  def __str__(self) -> str:
    n = self.per_round
    total = words.count(self.num_clients, 'clients')
    rounds = words.count(self.rounds, 'rounds')
    if self.sampling == 'all':
      return f'all {total} in each of {rounds}'
    if self.sampling in _PASSES:
      order = _PASSES[self.sampling]
      return (
        f'{n} of {total} a round, {rounds} in passes in {order} order: each'
        f' client at most {words.count(self.max_participations, "times")}'
      )
    if self.sampling in _POISSON:
      turns = f', in {self.parts} parts that take turns' * (self.parts > 1)
      return (
        f'Poisson, each of {total} with q = {self.rate:.4g} in each of'
        f' {words.count(self.max_participations, "rounds")}{turns}'
      )
    return f'{n} of {total} without replacement in each of {rounds}'


@dataclasses.dataclass(frozen=True)
class Trainings:
  """A method's trainings: those that it starts from, and its own.

  Attributes:
    num_clients: N, the clients of all groups.
    per_round: n, the clients that a round is expected to have; smaller groups
      have fewer.
    paths: For each group that a client may be in, its part in each training.
    kinds: The names of these groups.
    simulated: The clients that a round is expected to have as it is run, if ε
      is extrapolated to rounds of more clients.
  """

  num_clients: int
  per_round: int
  paths: tuple[tuple[Participation, ...], ...]
  kinds: tuple[str, ...]
  simulated: int | None = None

  @property
  def share_simulated(self) -> float:
    """The clients of a round as it is run, over those that ε is of."""
    return 1.0 if self.simulated is None else self.simulated / self.per_round

  @property
  def only(self) -> Participation:
    """The part of a client, if there is only one training and no groups."""
    ((who,),) = self.paths
    return who

  @property
  def replaces(self) -> bool:
    """Whether neighbors replace a client, for all of its trainings."""
    return any(
      who.sampling == 'fixed_size' for path in self.paths for who in path
    )

  @property
  def neighbors(self) -> str:
    """The difference between neighboring data sets, in words."""
    of_group = ' of its group' if len(self.paths) > 1 else ''
    if self.replaces:
      return f"one client's data are replaced by another's{of_group}"
    return "one client's data are there or not (its update becomes 0)"

  def central_event(
    self, noise: float, path: Sequence[Participation]
  ) -> dp_accounting.DpEvent:
    """Makes the event of trainings with noise z on the sum of each round."""
    return dp_accounting.ComposedDpEvent(
      [who.central_event(noise, self.replaces) for who in path]
    )


def trainings(
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> Trainings:
  """Finds the clients that take part in a method's trainings, and how often."""
  schedule = training.make_schedule(method, task, training_settings)
  num_clients = len(schedule.clients)
  total = schedule.num_rounds(training_settings, method.trainer.num_epochs)
  turns = schedule.rounds_per_epoch
  epochs = -(-total // sum(turns.values()))
  attribute = method.trainer.cohort_attribute
  of_groups = []
  for group, size in schedule.group_sizes.items():
    per_round = min(training_settings.clients_per_round or size, size)
    sampling = 'all' if per_round == size else training_settings.client_sampling
    rounds = min(total, epochs * turns[group])
    kind = '' if attribute is None else f'{attribute} {group}'
    parts = 1
    if sampling != 'all':
      parts = schedules.count_parts(training_settings, size)
    who = Participation(size, per_round, rounds, sampling, parts)
    of_groups.append((kind, who))
  paths: dict[str, tuple[Participation, ...]] = {'': ()}
  if method.predecessor is not None:
    earlier = trainings(method.predecessor, task, training_settings)
    paths = dict(zip(earlier.kinds, earlier.paths))
  paths = {
    f'{before} {kind}'.strip(): (*path, who)
    for before, path in paths.items()
    for kind, who in of_groups
  }
  return Trainings(
    num_clients,
    training_settings.clients_per_round or num_clients,
    tuple(paths.values()),
    tuple(paths),
  )


# Makes the event of noise z and of a client's part in trainings.
_MakeEvent: TypeAlias = Callable[
  [float, Sequence[Participation]], dp_accounting.DpEvent
]


def _num_sums(method: methods.Method) -> int:
  """Counts the parts that are summed separately, with separate noise."""
  parts = method.trainer.parts.values()
  return sum(isinstance(part, aggregation.Sums) for part in parts)


def _refuse_sums(method: methods.Method) -> None:
  """Raises a `UserError` if parts need separate noise."""
  if _num_sums(method):
    raise errors.UserError(
      'Its sums beside the updates, such as the counts of clusters, can have'
      ' noise only with privacy gaussian or adaptive.'
    )


def _check(
  settings: ways.PrivacySettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> Trainings:
  """Checks that a method can be private; returns who takes part.

  Raises:
    UserError: If the method or δ cannot be private at the client level.
  """
  trainer = method.trainer
  if trainer.why_not_private is not None:
    raise errors.UserError(f'It cannot be private: {trainer.why_not_private}.')
  if getattr(trainer.settings, 'client_weighting', 'uniform') != 'uniform':
    raise errors.UserError(
      "client_weighting must be uniform: a client's number of examples is"
      ' private, too, and no client may count more than another.'
    )
  found = trainings(method, task, training_settings)
  accounting.check_delta(_delta(settings, found), found.num_clients, 'clients')
  return found


def _delta(settings: ways.PrivacySettings, whole: Trainings) -> float:
  return settings.delta or accounting.default_delta(whole.num_clients)


def _find_noise(
  settings: ways.PrivacySettings,
  make_event: _MakeEvent,
  path: Sequence[Participation],
  delta: float,
) -> float:
  """Returns the noise of the settings, or the least one for their ε."""
  if settings.noise is not None:
    return settings.noise
  assert settings.epsilon is not None  # The settings have one of the two.
  return accounting.calibrate(
    lambda z: make_event(z, path), settings.epsilon, delta
  )


def _split_noise(
  noise: float, method: methods.Method, *others: float
) -> tuple[float, float]:
  """Splits z between the updates and parts that are summed separately.

  Args:
    noise: z, of all parts of a record together.
    method: The method.
    *others: The noises of further parts.

  Returns:
    The noise of the updates, and of each separate part; 0 if there is none.
  """
  num_sums = _num_sums(method)
  of_sums = _SUMS_SHARE * noise if num_sums else 0.0
  parts = [*[of_sums] * num_sums, *others]
  if not (noise and parts):
    return noise, 0.0
  return accounting.remaining_noise(noise, parts), of_sums


def _make(
  settings: ways.PrivacySettings,
  method: methods.Method,
  whole: Trainings,
  make_event: _MakeEvent,
  mechanism: str,
  make_aggregator: Callable[..., private_aggregation.Private],
  *,
  count_noise: float | None = None,
  neighbors: str | None = None,
  clip: str | None = None,
  assumptions: tuple[str, ...] = (_TRUSTED,),
) -> methods.Method:
  """Makes a method private: finds the noise and the guarantee of a mechanism.

  Args:
    settings: The settings.
    method: The method.
    whole: The trainings.
    make_event: Makes the event of noise z and of a client's part in them.
    mechanism: The name of the mechanism.
    make_aggregator: Makes its aggregator from the fields of `Private`.
    count_noise: The noise on the count of clients that are not clipped; None if
      they are not counted.
    neighbors: The neighbors, if they are not those of the trainings.
    clip: The clipping norm in words, if it is not that of the settings.
    assumptions: The assumptions.
  """
  delta = _delta(settings, whole)
  paths = list(dict.fromkeys(whole.paths))  # Groups may be of one size.
  noise = max(_find_noise(settings, make_event, p, delta) for p in paths)
  # For clients of the group about which most is revealed.
  epsilon, accountant, path = max(
    (
      (*accounting.epsilon(make_event(noise, path), delta), path)
      for path in paths
    ),
    key=lambda found: found[0],
  )
  if count_noise is not None and noise >= count_noise:
    raise errors.UserError(
      f'The noise, {noise:.4g}, must be below a tenth of the'
      f' {whole.per_round} clients of a round, as the count of clients that are'
      ' not clipped reveals more than that. Set more clients in a round, or'
      ' privacy gaussian.'
    )
  beside = () if count_noise is None else (count_noise,)
  of_updates, of_sums = _split_noise(noise, method, *beside)
  if whole.simulated is not None:
    assumptions += (
      f'ε is extrapolated: rounds have {whole.simulated} clients here, and the'
      f' noise on their mean that {whole.per_round} would have',
    )
  return dataclasses.replace(
    method,
    aggregator=make_aggregator(
      noise=of_updates * whole.share_simulated,
      clip=settings.clip,
      clients=float(whole.simulated or whole.per_round),
      sums_noise=of_sums * whole.share_simulated,
    ),
    guarantee=accounting.Guarantee(
      unit=UNIT,
      neighbors=neighbors or whole.neighbors,
      epsilon=epsilon,
      delta=delta,
      mechanism=mechanism,
      noise=noise,
      clip=clip or settings.clip,
      sampling='; and then '.join(map(str, path)),
      accountant=accountant,
      seed=settings.seed,
      is_extrapolated=whole.simulated is not None,
      assumptions=(*assumptions, accounting.KEPT[settings.seed]),
      not_covered=_NOT_COVERED,
      stages=tuple(
        {
          kind: make_event(noise, path[stage : stage + 1])
          for kind, path in zip(whole.kinds, whole.paths)
        }
        for stage in range(len(path))
      ),
    ),
  )


def _extrapolate(settings: ways.CentralSettings, whole: Trainings) -> Trainings:
  """Returns trainings as they are, or with rounds of `noise_cohort` clients.

  The noise on the mean of a round is then that of the larger round.

  Raises:
    UserError: If they have no such rounds.
  """
  if not settings.noise_cohort:
    return whole
  of_round = settings.noise_cohort / whole.per_round
  of_all = settings.noise_population / whole.num_clients or of_round

  def grow(who: Participation) -> Participation:
    per_round = round(who.per_round * of_round)
    num_clients = max(round(who.num_clients * of_all), per_round)
    if who.sampling == 'all' and per_round < num_clients:
      raise errors.UserError(
        'privacy.noise_population must be left out where all clients are in'
        ' each round, or clients_per_round be fewer than all.'
      )
    return dataclasses.replace(
      who, num_clients=num_clients, per_round=per_round
    )

  grown = dataclasses.replace(
    whole,
    num_clients=round(whole.num_clients * of_all),
    per_round=settings.noise_cohort,
    paths=tuple(tuple(map(grow, path)) for path in whole.paths),
    simulated=whole.per_round,
  )
  accounting.check_delta(_delta(settings, grown), grown.num_clients, 'clients')
  return grown


def make_gaussian(
  settings: ways.CentralSettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private by noise on the sum of each round."""
  whole = _check(settings, method, task, training_settings)
  whole = _extrapolate(settings, whole)
  return _make(
    settings,
    method,
    whole,
    whole.central_event,
    'Gaussian, central',
    private_aggregation.Gaussian,
  )


def make_adaptive(
  settings: ways.CentralSettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private by noise, and clips to the median norm.

  The count of clients that are not clipped, to which each adds 1/2 or -1/2, has
  noise of deviation n / 20 (Andrew et al. 2021) and is one more part of a
  record. The update has more noise for it, so that a round costs z.
  """
  whole = _check(settings, method, task, training_settings)
  whole = _extrapolate(settings, whole)
  stddev = whole.per_round / 20
  return _make(
    settings,
    method,
    whole,
    whole.central_event,
    'Gaussian, central, adaptive clip',
    functools.partial(
      private_aggregation.Adaptive,
      quantile_stddev=stddev * whole.share_simulated,
    ),
    count_noise=2 * stddev,
    clip=f'the median norm, from {settings.clip:g} on',
  )


def make_tree(
  settings: ways.TreeSettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private by tree aggregation.

  Each pass has a new tree, in which a client takes part once; or all rounds
  have one tree, in which it takes part once in each pass.
  """
  whole = _check(settings, method, task, training_settings)
  _refuse_sums(method)
  who = whole.only
  if who.sampling not in _PASSES:
    raise errors.UserError(
      'A client must take part once in a pass. Set client_sampling to passes or'
      ' cycles, and clients_per_round to fewer than all.'
    )
  a_pass = who.rounds_per_pass
  if settings.restarts:
    mechanism = f'tree aggregation, restarted every {a_pass} rounds'
    complete, rest = divmod(who.rounds, a_pass)
    sensitivity = accounting.tree_restarts_sensitivity(
      [a_pass] * complete + [rest]
    )
  else:
    mechanism = 'tree aggregation, one tree'
    find = {
      'passes': accounting.tree_sensitivity_of_passes,
      'cycles': accounting.tree_sensitivity_of_cycles,
    }[who.sampling]
    sensitivity = find(who.rounds, a_pass)
  return _make(
    settings,
    method,
    whole,
    lambda z, _: accounting.correlated(z, sensitivity),
    mechanism,
    functools.partial(
      private_aggregation.Tree,
      rounds_per_tree=a_pass if settings.restarts else max(who.rounds, 1),
    ),
  )


def make_matrix(
  settings: ways.PrivacySettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private by noise that is correlated over rounds."""
  whole = _check(settings, method, task, training_settings)
  _refuse_sums(method)
  who = whole.only
  make_aggregator = private_aggregation.Matrix
  if who.sampling == 'cyclic_poisson':
    bands = max(min(who.parts, who.rounds), 1)
    column = matrix_noise.find_bands(max(who.rounds, 1), bands)
    norm = math.hypot(*column)
    return _make(
      settings,
      method,
      whole,
      lambda z, _: who.central_event(z / norm, replaces=False),
      f'matrix mechanism, of {words.count(len(column), "bands")}',
      functools.partial(
        make_aggregator, decays=(), scales=column[1:] or (0.0,)
      ),
    )
  if who.sampling not in ('cycles', 'all'):
    raise errors.UserError(
      'A client must take part at fixed distances. Set client_sampling to'
      ' cycles or cyclic_poisson.'
    )
  separation = 1 if who.sampling == 'all' else who.rounds_per_pass
  buffers = matrix_noise.find_buffers(max(who.rounds, 1), separation)
  sensitivity = matrix_noise.sensitivity(buffers.column(who.rounds), separation)
  decays = ' and '.join(f'{decay:.3g}' for decay in buffers.decays)
  return _make(
    settings,
    method,
    whole,
    lambda z, _: accounting.correlated(z, sensitivity),
    f'matrix mechanism, with buffers of decays {decays}',
    functools.partial(make_aggregator, **buffers._asdict()),
  )


def make_local(
  settings: ways.PrivacySettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private by noise that each client adds itself.

  Any two updates are neighbors, twice the clip apart, and the server sees all
  that a client sends: its noise counts half, and sampling does not amplify.
  """
  whole = _check(settings, method, task, training_settings)
  _refuse_sums(method)
  who = whole.only
  return _make(
    settings,
    method,
    whole,
    lambda z, _: accounting.gaussian(z / 2, who.max_participations),
    'Gaussian, local',
    private_aggregation.Local,
    neighbors="one client's update is replaced by any other",
    assumptions=(),
  )


def make_distributed(
  settings: ways.DistributedSettings,
  method: methods.Method,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> methods.Method:
  """Makes a method private by noise that its clients add together.

  A secure sum hides what each client sends. As it is known who takes part,
  sampling does not amplify. The noise is that of the smallest number of clients
  that a round has.
  """
  whole = _check(settings, method, task, training_settings)
  _refuse_sums(method)
  who = whole.only
  if not who.fewest:
    raise errors.UserError(
      'A round might have no client that adds noise. Set client_sampling to'
      ' fixed_size, passes or cycles.'
    )
  dimension, n = method.parameters_up, whole.per_round
  if not distributed_noise.has_room(settings.bits, n):
    raise errors.UserError(
      f'The sum over {n} clients does not fit into {settings.bits} bits. Set'
      ' more privacy.bits, or fewer clients in a round.'
    )

  def make_event(
    noise: float, path: Sequence[Participation]
  ) -> dp_accounting.DpEvent:
    del path  # There is only one.
    of_one = distributed_noise.sensitivity(
      noise, settings.clip, n, dimension, settings.bits
    )
    event = accounting.SkellamDpEvent(
      of_one.l1, of_one.l2, who.fewest * of_one.variance
    )
    return accounting.repeated(noise, event, who.max_participations)

  return _make(
    settings,
    method,
    whole,
    make_event,
    f'Skellam, distributed, secure sums of {settings.bits} bits',
    functools.partial(distributed_noise.Distributed, bits=settings.bits),
    neighbors="one client's data are there or not (its update becomes 0)",
    assumptions=(
      'the server sees only secure sums; here they are simulated',
      f'{who.fewest} of {n} clients of a round, or more, add their share of the'
      ' noise, and keep it to themselves',
    ),
  )
