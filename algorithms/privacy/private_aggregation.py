"""Private aggregation: sums of clipped updates, with noise.

The parts of an update are one record, which is clipped as a whole, and

  the result = (sum over clients of clip(record, S) + noise) / n

where n is the number of clients that a round is expected to have: all clients
count the same, and the number that took part is not revealed. The noise depends
on the mechanism. The queries are TensorFlow Privacy's, or have the same form.
TFF's factory for such queries has no seed for the noise, so that a resumed run
would differ, and has strings in its state, which XLA cannot compile. Accounting
is done before training, in `personalization/privacy/accounting`.

Whoever has the seed of a run can subtract the noise: this is a simulation.
"""

import abc
import collections
from collections.abc import Hashable, Mapping, Sequence
import dataclasses
from typing import NamedTuple, NoReturn, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from algorithms import aggregation
from algorithms import runtime_inputs
from algorithms import vectors
from algorithms.privacy import keys
from base import aliases
from base import errors
from base import settings

# Clips records, and adds noise to their sum.
Query: TypeAlias = tfp.SumAggregationDPQuery
# The parts of a client's update that are clipped as one, or their noised sum.
Record: TypeAlias = aliases.Structure
# The shapes and types of the tensors of a record.
Specs: TypeAlias = aliases.Structure
# What a query keeps from round to round.
QueryState: TypeAlias = aliases.Structure
# What a query has the server send to the clients.
Params: TypeAlias = aliases.Structure
# What a client sends, as a query makes it of a record.
Sent: TypeAlias = aliases.Structure
# The sum of the squares of entries up to this one is finite.
_LARGEST = 1e12
# Makes the seed of a client's noise differ from its other seeds.
_LOCAL = 0x10CA1


def scale_down(record: Record) -> Record:
  """Scales a record down if its norm would be infinite.

  With entries of 1e30 the norm would be infinite, and the clipped record NaN.
  Entries that are not finite become zero.
  """
  record = tf.nest.map_structure(
    lambda leaf: tf.where(tf.math.is_finite(leaf), leaf, tf.zeros_like(leaf)),
    record,
  )
  largest = tf.reduce_max(
    [tf.reduce_max(tf.abs(leaf)) for leaf in tf.nest.flatten(record)]
  )
  scale = _LARGEST / tf.maximum(largest, _LARGEST)
  return tf.nest.map_structure(lambda leaf: scale * leaf, record)


def normal(like: Record, seed: aliases.Seed, stddev: aliases.Scalar) -> Record:
  """Draws noise for all leaves of a structure at once, which is faster."""
  leaves = tf.nest.flatten(like)
  drawn = stddev * tf.random.stateless_normal([vectors.count(leaves)], seed)
  return tf.nest.pack_sequence_as(like, vectors.split(drawn, leaves))


class GaussianQuery(tfp.GaussianSumQuery):
  """Clips records, and adds seeded noise to their sum."""

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'stddev', 'seed', 'round']
  )

  def __init__(
    self,
    clip: aliases.Number,
    stddev: aliases.Number,
    seed: aliases.Seed,
  ):
    """Makes the query.

    Args:
      clip: The clipping norm, S.
      stddev: The deviation of the noise.
      seed: Two int32.
    """
    super().__init__(clip, stddev)
    self._seed = seed

  def _further_state(self) -> tuple[aliases.Structure, ...]:
    """Returns what the state of a subclass has beside these four."""
    return ()

  def make_global_state(
    self, l2_norm_clip: aliases.Number, stddev: aliases.Number
  ) -> QueryState:
    return self._GlobalState(
      tf.cast(l2_norm_clip, tf.float32),
      tf.cast(stddev, tf.float32),
      tf.cast(self._seed, tf.int32),
      tf.constant(0),
      *self._further_state(),
    )

  def get_noised_result(
    self, sample_state: Record, global_state: QueryState
  ) -> tuple[Record, QueryState, None]:
    state = global_state
    seed = keys.derive(state.seed, state.round)
    noise = normal(sample_state, seed, state.stddev)
    result = tf.nest.map_structure(tf.add, sample_state, noise)
    return result, state._replace(round=state.round + 1), None


class _QuantileQuery(tfp.QuantileEstimatorQuery):
  """Finds the median of norms, with seeded noise."""

  def __init__(
    self,
    clip: aliases.Number,
    stddev: aliases.Number,
    clients: aliases.Number,
    seed: aliases.Seed,
  ):
    self._seed = seed
    super().__init__(
      clip,
      target_quantile=0.5,
      learning_rate=0.2,
      below_estimate_stddev=stddev,
      expected_num_records=clients,
      geometric_update=True,
    )

  def _construct_below_estimate_query(
    self, stddev: aliases.Number, clients: aliases.Number
  ) -> Query:
    # A client adds 1/2 or -1/2.
    return tfp.NormalizedQuery(GaussianQuery(0.5, stddev, self._seed), clients)


class AdaptiveQuery(tfp.QuantileAdaptiveClipSumQuery):
  """Clips to the median norm of records (Andrew et al. 2021).

  After a round S <- S exp(-.2 (b - .5)), where b is the share of records that
  were not clipped, with separate noise.
  """

  def __init__(
    self,
    clip: aliases.Number,
    noise: aliases.Number,
    clients: aliases.Number,
    stddev: aliases.Number,
    seed: aliases.Seed,
  ):
    """Makes the query.

    Args:
      clip: The clipping norm of the first round.
      noise: The deviation of the noise over the clipping norm.
      clients: The number of clients that a round is expected to have.
      stddev: The deviation of the noise on the count of records that were not
        clipped, minus half of all records.
      seed: Two int32.
    """
    seeds = [keys.derive(seed, k) for k in range(2)]
    self._noise_multiplier = noise
    self._quantile_estimator_query = _QuantileQuery(
      clip, stddev, clients, seeds[0]
    )
    self._sum_query = GaussianQuery(clip, noise * clip, seeds[1])

  def get_noised_result(
    self, sample_state: Record, global_state: QueryState
  ) -> tuple[Record, QueryState, None]:
    result, new, _ = super().get_noised_result(sample_state, global_state)
    old = global_state.sum_state
    sum_state = new.sum_state._replace(seed=old.seed, round=old.round + 1)
    return result, new._replace(sum_state=sum_state), None


class TreeQuery(GaussianQuery):
  """Adds the noise of a binary tree over rounds to the sum of rounds so far.

  This is tree aggregation in its efficient form (Honaker 2015), as in DP-FTRL
  (Kairouz et al. 2021). The result of a round is the increase of the noised
  sum. It is the same as in TensorFlow Privacy, but the state does not grow,
  which rounds in one program need. A complete node of height h has

    value = noise + (value of the left child + value of the right child) / 2

  and the noise of the sum of t rounds is the sum of value / (2 - 2^-h) over the
  nodes that make up t. The state has the latest node of each height.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState',
    ['l2_norm_clip', 'stddev', 'seed', 'round', 'values', 'noise'],
  )

  def __init__(
    self,
    clip: aliases.Number,
    stddev: aliases.Number,
    specs: Specs,
    seed: aliases.Seed,
    rounds_per_tree: int,
  ):
    """Makes the query.

    Args:
      clip: The clipping norm, S.
      stddev: The deviation of the noise of each node.
      specs: The tensors of a record.
      seed: Two int32.
      rounds_per_tree: The rounds after which a new tree starts.
    """
    super().__init__(clip, stddev, seed)
    self._specs = specs
    self._rounds_per_tree = rounds_per_tree
    self._heights = rounds_per_tree.bit_length()

  def _further_state(self) -> tuple[aliases.Structure, ...]:
    return (
      tf.nest.map_structure(
        lambda spec: tf.zeros([self._heights, *spec.shape]), self._specs
      ),
      tf.nest.map_structure(lambda spec: tf.zeros(spec.shape), self._specs),
    )

  def get_noised_result(
    self, sample_state: Record, global_state: QueryState
  ) -> tuple[Record, QueryState, None]:
    state = global_state
    seed = keys.derive(state.seed, state.round)

    def draw(height: int | tf.Tensor) -> Record:
      node_seed = keys.derive(seed, height)
      return normal(sample_state, node_seed, state.stddev)

    def join(height: tf.Tensor, value: Record) -> tuple[tf.Tensor, Record]:
      return height + 1, tf.nest.map_structure(
        lambda left, right, drawn: (
          drawn + (tf.gather(left, height) + right) / 2
        ),
        state.values,
        value,
        draw(height + 1),
      )

    # The new leaf completes a node for each trailing 1 in the bits of `before`.
    before = state.round % self._rounds_per_tree
    height, value = tf.while_loop(
      lambda h, _: tf.equal(tf.bitwise.right_shift(before, h) % 2, 1),
      join,
      (0, draw(0)),
    )
    values = tf.nest.map_structure(
      lambda all_values, new_value: tf.tensor_scatter_nd_update(
        all_values, [[height]], [new_value]
      ),
      state.values,
      value,
    )
    heights = tf.range(self._heights)
    parts = tf.bitwise.right_shift(before + 1, heights) % 2
    shares = tf.cast(parts, tf.float32) / (
      2 - 0.5 ** tf.cast(heights, tf.float32)
    )
    noise = tf.nest.map_structure(
      lambda leaf: tf.tensordot(shares, leaf, 1), values
    )
    goes_on = tf.cast(before > 0, tf.float32)
    result = tf.nest.map_structure(
      lambda total, new, old: total + new - goes_on * old,
      sample_state,
      noise,
      state.noise,
    )
    new_state = state._replace(
      round=state.round + 1, values=values, noise=noise
    )
    return result, new_state, None


def _vector(numbers: Sequence[aliases.Number]) -> tf.Tensor:
  """Makes a vector of any number of numbers, also of none."""
  return tf.reshape([tf.cast(x, tf.float32) for x in numbers], [len(numbers)])


class MatrixQuery(GaussianQuery):
  """Adds noise, most of which the following rounds take off again.

  Each round draws one Z, and has the noise

    Y = Z - sum_i scale_i buffer_i,    then    buffer_i <- decay_i buffer_i + Y

  Without decays, the buffers are the Y of the rounds before.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState',
    ['l2_norm_clip', 'stddev', 'seed', 'round', 'decays', 'scales', 'buffers'],
  )

  def __init__(
    self,
    clip: aliases.Number,
    stddev: aliases.Number,
    specs: Specs,
    seed: aliases.Seed,
    decays: Sequence[aliases.Number],
    scales: Sequence[aliases.Number],
  ):
    """Makes the query.

    Args:
      clip: The clipping norm, S.
      stddev: The deviation of each Z.
      specs: The tensors of a record.
      seed: Two int32.
      decays: How much of each buffer remains after a round; empty for the
        rounds before.
      scales: How much of each buffer is taken off.
    """
    super().__init__(clip, stddev, seed)
    self._specs = specs
    self._decays = decays
    self._scales = scales

  def _further_state(self) -> tuple[aliases.Structure, ...]:
    return (
      _vector(self._decays),
      _vector(self._scales),
      tf.nest.map_structure(
        lambda spec: tf.zeros([len(self._scales), *spec.shape]), self._specs
      ),
    )

  def get_noised_result(
    self, sample_state: Record, global_state: QueryState
  ) -> tuple[Record, QueryState, None]:
    state = global_state
    drawn = normal(
      sample_state, keys.derive(state.seed, state.round), state.stddev
    )
    noise = tf.nest.map_structure(
      lambda new, old: new - tf.tensordot(state.scales, old, 1),
      drawn,
      state.buffers,
    )

    def remember(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
      if not self._decays:
        return tf.concat([new[tf.newaxis], old], 0)[:-1]
      decays = tf.reshape(state.decays, [-1] + [1] * new.shape.rank)
      return decays * old + new

    new_state = state._replace(
      round=state.round + 1,
      buffers=tf.nest.map_structure(remember, state.buffers, noise),
    )
    return tf.nest.map_structure(tf.add, sample_state, noise), new_state, None


class LocalQuery(tfp.GaussianSumQuery):
  """Sends clients the clip and the deviation of the noise that they add."""

  def derive_sample_params(self, global_state: QueryState) -> Params:
    return global_state.l2_norm_clip, global_state.stddev

  def preprocess_record(self, params: Params, record: Record) -> Sent:
    return super().preprocess_record(params[0], record)

  def get_noised_result(
    self, sample_state: Record, global_state: QueryState
  ) -> tuple[Record, QueryState, None]:
    return sample_state, global_state, None


@dataclasses.dataclass(frozen=True)
class Private(settings.Settings, abc.ABC):
  """Aggregates all parts of updates as one record, privately.

  The floats are runtime inputs, like those of settings.

  Attributes:
    noise: z, the deviation of the noise over the clipping norm.
    clip: S, the clipping norm.
    clients: n, the number of clients that a round is expected to have.
    sums_noise: The deviation of the noise on `aggregation.Sums`, to which a
      client adds a vector of norm one at most; 0 if the trainer has none.
  """

  noise: float
  clip: float
  clients: float
  sums_noise: float = 0.0

  @property
  def numbers(self) -> runtime_inputs.Numbers:
    """The floats, as arrays."""
    return runtime_inputs.numbers(self)

  @property
  def structure(self) -> Hashable:
    """A key that is equal for aggregators that share compiled programs."""
    return runtime_inputs.structure(self)

  @abc.abstractmethod
  def query(self, specs: Specs, seed: aliases.Seed) -> Query:
    """Makes the query of the updates.

    Args:
      specs: The tensors of a record.
      seed: Two int32.
    """

  def norm_bound(self, state: QueryState) -> tf.Tensor:
    """Returns S in a round, given the query's state."""
    return state.l2_norm_clip

  def clipped_sum(self, sent: Sent) -> Record:
    """Returns the sum of clipped records, given the sum of what is sent."""
    return sent

  def clients_stddev(
    self, state: QueryState, clients: tf.Tensor
  ) -> tf.Tensor | None:
    """Returns the deviation of the noise that clients have added to a sum.

    Args:
      state: The query's state.
      clients: The number of clients.

    Returns:
      The deviation; None if the server adds the noise.
    """
    del state, clients
    return None

  def stddev(self, state: QueryState) -> tf.Tensor:
    """Returns the deviation of the noise on a sum, given the query's state."""
    raise NotImplementedError('Its noise differs from round to round.')

  def send(
    self, query: Query, params: Params, record: Record, seed: aliases.Seed
  ) -> Sent:
    """Returns what a client sends.

    Args:
      query: The query of the updates.
      params: The parameters that the query sends to the clients.
      record: The client's record.
      seed: The client's seed of the round.
    """
    del seed
    return query.preprocess_record(params, record)

  def sum(self, sent: tff.Value) -> tff.Value:
    """Sums what clients send; the server sees only the sum."""
    return tff.federated_sum(sent)


@dataclasses.dataclass(frozen=True)
class Gaussian(Private):
  """Adds independent noise to the sum of each round."""

  def query(self, specs: Specs, seed: aliases.Seed) -> Query:
    del specs
    return GaussianQuery(self.clip, self.noise * self.clip, seed)

  def stddev(self, state: QueryState) -> tf.Tensor:
    return state.stddev


@dataclasses.dataclass(frozen=True)
class Adaptive(Private):
  """Adds independent noise, and clips to the median of the clients' norms.

  Attributes:
    clip: The clipping norm of the first round.
    quantile_stddev: The deviation of the noise on the count of clients that
      were not clipped.
  """

  quantile_stddev: float = 0.0

  def query(self, specs: Specs, seed: aliases.Seed) -> Query:
    del specs
    return AdaptiveQuery(
      self.clip, self.noise, self.clients, self.quantile_stddev, seed
    )

  def norm_bound(self, state: QueryState) -> tf.Tensor:
    return state.sum_state.l2_norm_clip

  def clipped_sum(self, sent: Sent) -> Record:
    return sent.sum_state

  def stddev(self, state: QueryState) -> tf.Tensor:
    return state.sum_state.stddev


@dataclasses.dataclass(frozen=True)
class Tree(Private):
  """Adds the noise of trees over rounds, one after another.

  Attributes:
    noise: z, for each node.
    rounds_per_tree: The rounds of each tree.
  """

  rounds_per_tree: int = 1

  def query(self, specs: Specs, seed: aliases.Seed) -> Query:
    return TreeQuery(
      self.clip, self.noise * self.clip, specs, seed, self.rounds_per_tree
    )


@dataclasses.dataclass(frozen=True)
class Matrix(Private):
  """Adds noise, most of which the following rounds take off again.

  Attributes:
    noise: z, for the noise that is drawn in each round.
    decays: As in `MatrixQuery`.
    scales: As there.
  """

  decays: tuple[float, ...] = ()
  scales: tuple[float, ...] = (0.0,)

  def query(self, specs: Specs, seed: aliases.Seed) -> Query:
    return MatrixQuery(
      self.clip,
      self.noise * self.clip,
      specs,
      seed,
      self.decays,
      self.scales,
    )


@dataclasses.dataclass(frozen=True)
class Local(Private):
  """Has each client add noise itself."""

  def query(self, specs: Specs, seed: aliases.Seed) -> Query:
    del specs, seed
    return LocalQuery(self.clip, self.noise * self.clip)

  def clients_stddev(self, state: QueryState, clients: tf.Tensor) -> tf.Tensor:
    return state.stddev * tf.sqrt(clients)

  def send(
    self, query: Query, params: Params, record: Record, seed: aliases.Seed
  ) -> Sent:
    clipped = super().send(query, params, record, seed)
    # Not the seed itself, from which the client has drawn already.
    own_seed = keys.derive(seed, _LOCAL)
    noise = normal(clipped, own_seed, params[1])
    return tf.nest.map_structure(tf.add, clipped, noise)


class State(NamedTuple):
  """The state of a private aggregation.

  Attributes:
    updates: The state of the query of the updates.
    sums: The state of the query of each part that is summed separately.
    clip: S, or the S of the first round.
    clients: n.
  """

  updates: QueryState
  sums: Mapping[str, QueryState]
  clip: tf.Tensor
  clients: tf.Tensor


class Beside(NamedTuple):
  """The values that a client sends beside its record, or their sums.

  The server uses `sums` only. The others say how much noise a round had.

  Attributes:
    sums: The parts that are summed separately.
    is_clipped: 1 if the record was clipped, otherwise 0.
    arrived: 1.
    norm: The norm of the clipped record.
  """

  sums: Mapping[str, tf.Tensor]
  is_clipped: tf.Tensor
  arrived: tf.Tensor
  norm: tf.Tensor


class Measured(NamedTuple):
  """The measurements of a round, which are among the training metrics.

  Attributes:
    clients: n, all that a private server knows of the number of clients.
    clipped: The share of the clients whose update was clipped.
    noise_to_signal: The norm of the noise, over that of the sum without it. If
      clients add the noise, it is the norm to be expected, over the sum of the
      clients' norms.
  """

  clients: tf.Tensor
  clipped: tf.Tensor
  noise_to_signal: tf.Tensor


class _PublicSums:
  """Replaces the sums over clients, of which a private server knows only n."""

  def __init__(self, num_clients: tf.Tensor):
    self.num_clients = num_clients

  def __getattr__(self, name: str) -> NoReturn:
    raise errors.UserError(
      f'The server of this method uses the exact {name} of a round, which is'
      ' not private.'
    )


def make_process(
  aggregator: Private,
  parts: Mapping[str, aggregation.Factory | None],
  updates_type: Mapping[str, tff.Type],
) -> aggregation.Process:
  """Makes the process that aggregates the parts of a trainer's updates.

  Parts that the trainer sums separately (`aggregation.Sums`) have a separate
  clip and separate noise; all others are clipped as one record.

  Args:
    aggregator: The private aggregator.
    parts: The trainer's aggregator for each part.
    updates_type: The TFF type of each part, an `aggregation.Update`.

  Returns:
    The process.

  Raises:
    UserError: If the trainer has another aggregator for a part.
  """
  summed = {
    name: factory
    for name, factory in parts.items()
    if isinstance(factory, aggregation.Sums)
  }
  names = [name for name, factory in parts.items() if factory is None]
  for name in parts:
    if name not in (*names, *summed):
      raise errors.UserError(
        f'Its {name} has a special aggregator, for which there is no noise.'
      )
  specs = tff.types.structure_from_tensor_type_tree(
    lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
    tff.to_type(
      collections.OrderedDict((name, updates_type[name][0]) for name in names)
    ),
  )

  def queries(
    bound: Private, seed: aliases.Seed
  ) -> tuple[Query, dict[str, GaussianQuery]]:
    """Returns the query of the updates, and that of each separate sum."""
    seeds = [keys.derive(seed, k) for k in range(1 + len(summed))]
    return bound.query(specs, seeds[0]), {
      name: GaussianQuery(1.0, bound.sums_noise, seeds[1 + k])
      for k, name in enumerate(summed)
    }

  # The seed is in the state, so that any seed will do here.
  def any_queries() -> tuple[Query, dict[str, GaussianQuery]]:
    return queries(aggregator, tf.constant([0, 0]))

  @tff.tensorflow.computation(
    aggregation.SEED_TYPE, runtime_inputs.type_of(aggregator.numbers)
  )
  def initialize(seed: aliases.Seed, numbers: runtime_inputs.Numbers) -> State:
    bound = runtime_inputs.bind(aggregator, numbers)
    of_updates, of_sums = queries(bound, seed)
    return State(
      of_updates.initial_global_state(),
      collections.OrderedDict(
        (name, query.initial_global_state()) for name, query in of_sums.items()
      ),
      tf.cast(bound.clip, tf.float32),
      tf.cast(bound.clients, tf.float32),
    )

  state_type = initialize.type_signature.result

  @tff.tensorflow.computation(state_type)
  def derive(state: State) -> tuple[Params, tf.Tensor, tf.Tensor]:
    params = any_queries()[0].derive_sample_params(state.updates)
    return params, state.clip, aggregator.norm_bound(state.updates)

  @tff.tensorflow.computation(
    derive.type_signature.result, updates_type, aggregation.SEED_TYPE
  )
  def send(
    params: tuple[Params, tf.Tensor, tf.Tensor],
    updates: Mapping[str, aggregation.Update],
    seed: aliases.Seed,
  ) -> tuple[Sent, Beside]:
    of_updates, of_sums = any_queries()
    record = collections.OrderedDict(
      (name, updates[name].value) for name in names
    )
    record = scale_down(record)
    sent = aggregator.send(of_updates, params[0], record, seed)
    sums = collections.OrderedDict(
      (
        name,
        query.preprocess_record(
          1.0, summed[name].measure(updates[name].value, params[1])
        ),
      )
      for name, query in of_sums.items()
    )
    norm, bound = tf.linalg.global_norm(tf.nest.flatten(record)), params[2]
    is_clipped = tf.cast(norm > bound, tf.float32)
    beside = Beside(sums, is_clipped, tf.constant(1.0), tf.minimum(norm, bound))
    return sent, beside

  @tff.tensorflow.computation(state_type, send.type_signature.result)
  def finish(
    state: State,
    totals: tuple[Sent, Beside],
  ) -> tuple[State, Record, Measured]:
    of_updates, of_sums = any_queries()
    sent, beside = totals
    total, new, _ = of_updates.get_noised_result(sent, state.updates)
    noised = tf.nest.flatten(total)
    stddev = aggregator.clients_stddev(state.updates, beside.arrived)
    if stddev is None:
      clipped = tf.nest.flatten(aggregator.clipped_sum(sent))
      signal = tf.linalg.global_norm(clipped)
      noise = tf.linalg.global_norm(
        [with_it - without for with_it, without in zip(noised, clipped)]
      )
    else:
      signal, noise = beside.norm, stddev * vectors.count(noised) ** 0.5
    measured = Measured(
      state.clients,
      tf.math.divide_no_nan(beside.is_clipped, beside.arrived),
      tf.math.divide_no_nan(noise, signal),
    )
    result = tf.nest.map_structure(lambda leaf: leaf / state.clients, total)
    new_sums = collections.OrderedDict[str, QueryState]()
    for name, query in of_sums.items():
      old = state.sums[name]
      of_part, new_sums[name], _ = query.get_noised_result(
        beside.sums[name], old
      )
      of_means = aggregator.stddev(state.updates) / state.clients
      of_part_noise = aggregation.Noise(
        old.stddev, of_means, state.clip, state.clients
      )
      result[name] = summed[name].finish(of_part, of_part_noise)
    return (
      State(new, new_sums, state.clip, state.clients),
      collections.OrderedDict((name, result[name]) for name in parts),
      measured,
    )

  @tff.federated_computation(
    tff.FederatedType(initialize.type_signature.parameter, tff.SERVER)
  )
  def initialize_at_server(arguments: tff.Value) -> tff.Value:
    return tff.federated_map(initialize, arguments)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(updates_type, tff.CLIENTS),
    tff.FederatedType(aggregation.SEED_TYPE, tff.CLIENTS),
  )
  def next_aggregate(
    state: tff.Value, updates: tff.Value, seeds: tff.Value
  ) -> tff.templates.MeasuredProcessOutput:
    params = tff.federated_broadcast(tff.federated_map(derive, state))
    sent = tff.federated_map(send, (params, updates, seeds))
    totals = aggregator.sum(sent[0]), tff.federated_sum(sent[1])
    new, result, measured = tff.federated_map(finish, (state, totals))
    return tff.templates.MeasuredProcessOutput(new, result, measured)

  return aggregation.Process(
    initialize_at_server,
    next_aggregate,
    lambda _, measured: _PublicSums(measured.clients),
    lambda measured: {
      'clipped': measured.clipped,
      'noise_to_signal': measured.noise_to_signal,
    },
  )
