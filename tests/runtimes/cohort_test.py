"""The cohort runtime gives what TFF's own runtime gives."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from runtimes import cohort
from runtimes import native
from runtimes import values

_CONTEXTS = {}


def _context(name):
  """The runtimes are shared by all tests; starting one takes a while."""
  if not _CONTEXTS:
    _CONTEXTS['native'] = native.create_native_context()
    _CONTEXTS['cohort'] = cohort.create_cohort_context()
    _CONTEXTS['each'] = cohort.create_cohort_context(stack=False)
  return _CONTEXTS[name]


def _run(name, computation, *args):
  tff.framework.set_default_context(_context(name))
  return computation(*args)


def _plain(value):
  """`value` with a list for what is a sequence of clients."""
  if isinstance(value, values.StackedClients):
    return list(value)
  return value


def _leaves(value):
  """All arrays in a result, whatever containers they are in."""
  if isinstance(value, (values.StackedClients, list, tuple)):
    return [leaf for element in value for leaf in _leaves(element)]
  if isinstance(value, dict):
    return [leaf for element in value.values() for leaf in _leaves(element)]
  if hasattr(value, '__attrs_attrs__'):
    return [
      leaf
      for field in value.__attrs_attrs__
      for leaf in _leaves(getattr(value, field.name))
    ]
  return [np.asarray(value)]


class _TestCase(parameterized.TestCase):
  def assert_same(self, first, second, **tolerance):
    """Asserts that two results are equal up to rounding."""
    first, second = _leaves(first), _leaves(second)
    self.assertEqual(len(first), len(second))
    tolerance = dict(rtol=1e-5, atol=1e-6) | tolerance
    for a, b in zip(first, second):
      if a.dtype.kind in 'OSU':
        self.assertEqual(a.tolist(), b.tolist())
      else:
        self.assertEqual(a.shape, b.shape)
        np.testing.assert_allclose(a, b, **tolerance)

  def assert_parity(self, computation, *args, **tolerance):
    """Asserts that all runtimes give the same, and returns that."""
    expected = _run('native', computation, *args)
    for name in ('each', 'cohort'):
      result = _run(name, computation, *args)
      self.assert_same(result, expected, **tolerance)
    return expected


def _features(num_clients=6, num_examples=5, seed=0):
  rng = np.random.default_rng(seed)
  return [
    collections.OrderedDict(
      x=rng.normal(size=[num_examples, 3]).astype(np.float32),
      y=rng.normal(size=[num_examples, 1]).astype(np.float32),
    )
    for _ in range(num_clients)
  ]


def _datasets():
  return [
    tf.data.Dataset.from_tensor_slices(client).batch(2)
    for client in _features()
  ]


def _keras_model():
  inputs = tf.keras.Input([3])
  hidden = tf.keras.layers.Dense(4, 'relu', kernel_initializer='ones')(inputs)
  outputs = tf.keras.layers.Dense(1, kernel_initializer='ones')(hidden)
  return tf.keras.Model(inputs, outputs)


def _model():
  return tff.learning.models.from_keras_model(
    _keras_model(),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=_datasets()[0].element_spec,
    metrics=[tf.keras.metrics.MeanAbsoluteError()],
  )


def _functional_model():
  return tff.learning.models.functional_model_from_keras(
    _keras_model(),
    loss_fn=tf.keras.losses.MeanSquaredError(),
    input_spec=_datasets()[0].element_spec,
    metrics_constructor=collections.OrderedDict(
      loss=tf.keras.metrics.MeanSquaredError
    ),
  )


def _SGD():
  return tff.learning.optimizers.build_sgdm(0.05)


_PROCESSES = {
  'weighted_fed_avg': lambda: tff.learning.algorithms.build_weighted_fed_avg(
    _model, client_optimizer_fn=_SGD()
  ),
  'unweighted_fed_avg': (
    lambda: tff.learning.algorithms.build_unweighted_fed_avg(
      _model, client_optimizer_fn=_SGD()
    )
  ),
  'fed_avg_functional_model': (
    lambda: tff.learning.algorithms.build_weighted_fed_avg(
      _functional_model(),
      client_optimizer_fn=_SGD(),
      server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    )
  ),
  'fed_prox': lambda: tff.learning.algorithms.build_weighted_fed_prox(
    _model, proximal_strength=0.5, client_optimizer_fn=_SGD()
  ),
  'fed_sgd': lambda: tff.learning.algorithms.build_fed_sgd(_model),
  'mime_lite': lambda: tff.learning.algorithms.build_weighted_mime_lite(
    _model,
    base_optimizer=tff.learning.optimizers.build_sgdm(0.05, 0.9),
  ),
  'fed_avg_robust': lambda: tff.learning.algorithms.build_weighted_fed_avg(
    _model,
    client_optimizer_fn=_SGD(),
    model_aggregator=tff.learning.robust_aggregator(),
  ),
  'fed_avg_secure': lambda: tff.learning.algorithms.build_weighted_fed_avg(
    _model,
    client_optimizer_fn=_SGD(),
    model_aggregator=tff.learning.secure_aggregator(),
  ),
}


class TffLearningTest(_TestCase):
  @parameterized.named_parameters((name, name) for name in _PROCESSES)
  def test_three_rounds(self, name):
    process = _PROCESSES[name]()
    states = {}
    for runtime in ('native', 'cohort'):
      state = _run(runtime, process.initialize)
      for _ in range(3):
        output = _run(runtime, process.next, state, _datasets())
        state = output.state
      states[runtime] = state, output.metrics
    self.assert_same(states['cohort'], states['native'], rtol=1e-4)

  def test_evaluation(self):
    process = tff.learning.algorithms.build_fed_eval(_model)
    results = {}
    for runtime in ('native', 'cohort'):
      state = _run(runtime, process.initialize)
      results[runtime] = _run(runtime, process.next, state, _datasets())
    self.assert_same(results['cohort'], results['native'])

  def test_k_means(self):
    data = [
      tf.data.Dataset.from_tensor_slices(client['x']) for client in _features()
    ]
    process = tff.learning.algorithms.build_fed_kmeans(
      num_clusters=2, data_shape=(3,), random_seed=(1, 2)
    )
    results = {}
    for runtime in ('native', 'cohort'):
      state = _run(runtime, process.initialize)
      for _ in range(2):
        output = _run(runtime, process.next, state, data)
        state = output.state
      results[runtime] = output
    self.assert_same(results['cohort'], results['native'])


_VALUE = tff.to_type(collections.OrderedDict(a=(np.float32, [3]), b=np.float32))


def _tree_sum():
  return tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    noise_multiplier=0.0,
    clients_per_round=6,
    l2_norm_clip=1.0,
    record_specs=collections.OrderedDict(
      a=tf.TensorSpec([3]), b=tf.TensorSpec([])
    ),
  )


_AGGREGATORS = {
  'sum': tff.aggregators.SumFactory,
  'mean': tff.aggregators.UnweightedMeanFactory,
  'zeroing_and_clipping': lambda: tff.aggregators.zeroing_factory(
    2.0,
    tff.aggregators.clipping_factory(
      tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.2),
      tff.aggregators.UnweightedMeanFactory(),
    ),
  ),
  'dp_fixed': lambda: (
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=0.0, clients_per_round=6, clip=0.5
    )
  ),
  'dp_adaptive': lambda: (
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
      noise_multiplier=1e-3,
      clients_per_round=6,
      initial_l2_norm_clip=0.5,
    )
  ),
  'dp_tree': _tree_sum,
  'secure_sum': lambda: tff.aggregators.SecureSumFactory(8.0),
  'measured': lambda: tff.aggregators.add_measurements(
    tff.aggregators.SumFactory(),
    client_measurement_fn=lambda value: collections.OrderedDict(
      largest=tff.federated_max(
        tff.federated_map(tff.tensorflow.computation(lambda v: v['b']), value)
      )
    ),
  ),
}


class AggregatorsTest(_TestCase):
  @parameterized.named_parameters((name, name) for name in _AGGREGATORS)
  def test_two_rounds(self, name):
    process = _AGGREGATORS[name]().create(_VALUE)
    rng = np.random.default_rng(1)
    cohort_values = [
      collections.OrderedDict(
        a=rng.normal(size=3).astype(np.float32),
        b=np.float32(rng.normal()),
      )
      for _ in range(6)
    ]
    results = {}
    for runtime in ('native', 'each', 'cohort'):
      state = _run(runtime, process.initialize)
      for _ in range(2):
        output = _run(runtime, process.next, state, cohort_values)
        state = output.state
      results[runtime] = output.result, output.measurements
    # The adaptive one draws its noise from the clock.
    atol = 1e-1 if name == 'dp_adaptive' else 1e-6
    self.assert_same(results['each'], results['native'], atol=atol)
    self.assert_same(results['cohort'], results['native'], atol=atol)


class ComputationsTest(_TestCase):
  def test_tensorflow(self):
    @tff.tensorflow.computation(np.int32, tff.TensorType(np.float32, [None]))
    def scale(n, x):
      return collections.OrderedDict(y=tf.cast(n, tf.float32) * x, name='it')

    result = self.assert_parity(scale, 2, np.ones(3, np.float32))
    self.assertEqual(list(result), ['y', 'name'])

  def test_client_results(self):
    double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

    @tff.federated_computation(
      tff.FederatedType(np.int32, tff.CLIENTS),
      tff.FederatedType(np.int32, tff.SERVER),
    )
    def run(own, common):
      return tff.federated_map(double, own), own, common

    result = self.assert_parity(run, list(range(7)), 3)
    self.assertEqual(result[0], [0, 2, 4, 6, 8, 10, 12])

  def test_truth_values(self):
    negate = tff.tensorflow.computation(lambda b: tf.logical_not(b), np.bool_)

    @tff.federated_computation(tff.FederatedType(np.bool_, tff.CLIENTS))
    def run(own):
      return tff.federated_map(negate, own)

    self.assert_parity(run, [True, False, True, True, False])

  def test_aggregations_that_depend_on_each_other(self):
    subtract = tff.tensorflow.computation(
      lambda pair: (pair[0] - pair[1]) ** 2, (np.float32, np.float32)
    )

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def variance(x):
      mean = tff.federated_broadcast(tff.federated_mean(x))
      squares = tff.federated_map(subtract, (x, mean))
      return tff.federated_mean(squares), tff.federated_max(squares), squares

    numbers = [1.0, 2.0, 4.0, 8.0, 16.0]
    result = self.assert_parity(variance, numbers)
    self.assertAlmostEqual(result[0], np.var(numbers), places=4)

  @parameterized.parameters(0, 1, 2, 3, 4, 5, 9)
  def test_any_number_of_clients(self, size):
    @tff.federated_computation(
      tff.FederatedType(np.float32, tff.CLIENTS),
      tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def run(x, weight):
      return tff.federated_sum(x), tff.federated_mean(x, weight)

    x = [float(k + 1) for k in range(size)]
    weight = [1.0 + k % 2 for k in range(size)]
    result = self.assert_parity(run, x, weight)
    self.assertEqual(result[0], sum(x))

  def test_weights_and_integers(self):
    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def run(x):
      return tff.federated_sum(x), tff.federated_min(x), tff.federated_max(x)

    self.assert_parity(run, [2**40, 3, -5, 7, 11])

  def test_clients_of_different_shapes(self):
    mean = tff.tensorflow.computation(
      lambda x: tf.reduce_mean(x), tff.TensorType(np.float32, [None])
    )

    @tff.federated_computation(
      tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS)
    )
    def run(x):
      return tff.federated_sum(tff.federated_map(mean, x))

    self.assert_parity(
      run, [np.arange(k + 1, dtype=np.float32) for k in range(5)]
    )

  def test_strings(self):
    @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
    def run(x):
      join = tff.tensorflow.computation(lambda s: s + '!', np.str_)
      return tff.federated_map(join, x)

    self.assertEqual(list(_run('cohort', run, ['a', 'b'])), [b'a!', b'b!'])

  def test_sequences(self):
    add = tff.tensorflow.computation(lambda a, b: a + b, (np.int32, np.int32))
    double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

    @tff.federated_computation(tff.SequenceType(np.int32))
    def run(x):
      return tff.sequence_reduce(tff.sequence_map(double, x), 1, add)

    self.assertEqual(self.assert_parity(run, [1, 2, 3]), 13)

  def test_sequences_that_the_native_runtime_cannot_give(self):
    double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

    @tff.federated_computation(tff.SequenceType(np.int32))
    def run(x):
      return tff.sequence_sum(x), tff.sequence_map(double, x)

    self.assertEqual(_run('cohort', run, [1, 2, 3]), (6, [2, 4, 6]))

  def test_select(self):
    pick = tff.tensorflow.computation(
      lambda table, key: tf.gather(table, key),
      (tff.TensorType(np.float32, [3]), np.int32),
    )
    total = tff.tensorflow.computation(
      lambda rows: rows.reduce(0.0, lambda a, b: a + b),
      tff.SequenceType(np.float32),
    )

    @tff.federated_computation(
      tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
      tff.FederatedType(tff.TensorType(np.float32, [3]), tff.SERVER),
    )
    def run(keys, table):
      largest = tff.federated_value(3, tff.SERVER)
      rows = tff.federated_select(keys, largest, table, pick)
      return tff.federated_sum(tff.federated_map(total, rows))

    keys = [np.array(pair, np.int32) for pair in ([0, 1], [2, 2])]
    self.assertEqual(
      self.assert_parity(run, keys, np.array([1, 10, 100], np.float32)), 211
    )

  def test_work_that_needs_no_data(self):
    one = tff.tensorflow.computation(lambda: tf.constant(1))

    @tff.federated_computation
    def count():
      return tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))

    context = cohort.create_cohort_context(default_num_clients=5)
    tff.framework.set_default_context(context)
    self.assertEqual(count(), 5)

  def test_variables_belong_to_one_client(self):
    @tff.tensorflow.computation(np.float32)
    def count(x):
      total = tf.Variable(0.0)
      with tf.control_dependencies([total.assign_add(x)]):
        return total.read_value()

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def run(x):
      return tff.federated_map(count, x), tff.federated_map(count, x)

    numbers = [float(k) for k in range(20)]
    self.assert_parity(run, numbers)

  def test_stacked_clients_are_a_list_of_clients(self):
    @tff.federated_computation(tff.FederatedType(_VALUE, tff.CLIENTS))
    def run(x):
      return tff.federated_sum(x), x

    stacked = values.StackedClients(
      collections.OrderedDict(
        a=np.arange(15, dtype=np.float32).reshape(5, 3),
        b=np.arange(5, dtype=np.float32),
      ),
      5,
    )
    self.assert_same(
      self.assert_parity(run, stacked), self.assert_parity(run, list(stacked))
    )


class StackingTest(_TestCase):
  def test_groups_give_what_a_whole_stack_gives(self):
    # Clients whose results are so large that a stack of 7 comes in groups.
    big = tff.TensorType(np.float32, [4_000_000])

    @tff.tensorflow.computation(np.float32)
    def fill(x):
      return tf.fill([4_000_000], x)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def run(x):
      filled = tff.federated_map(fill, x)
      return tff.federated_sum(filled), tff.federated_map(
        tff.tensorflow.computation(lambda v: v[0], big), filled
      )

    tff.framework.set_default_context(cohort.create_cohort_context(stack=True))
    result = run([float(k) for k in range(7)])
    self.assertIsInstance(result[1], values.StackedClients)
    np.testing.assert_allclose(result[0], 21.0)
    self.assertEqual(list(result[1]), [0, 1, 2, 3, 4, 5, 6])

  @parameterized.parameters((100, True), (1_000_000, False))
  def test_clients_that_read_much_are_not_stacked(self, size, stacked):
    model = tff.TensorType(np.float32, [size])

    @tff.tensorflow.computation(model, np.float32)
    def judge(model, x):
      return x * model[0]

    @tff.federated_computation(
      tff.FederatedType(model, tff.SERVER),
      tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def run(model, clients):
      return tff.federated_map(judge, (tff.federated_broadcast(model), clients))

    result = _run('cohort', run, np.full(size, 2, np.float32), [1.0, 2.0])
    self.assertEqual(isinstance(result, values.StackedClients), stacked)
    self.assertEqual(list(result), [2, 4])

  def test_assertions_are_kept(self):
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def run(x):
      return tff.federated_secure_sum(x, 3)

    self.assertEqual(_run('cohort', run, [1, 2, 3, 3, 3]), 12)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'larger than'):
      _run('cohort', run, [1, 2, 3, 4, 5])


class ErrorsTest(_TestCase):
  def test_different_numbers_of_clients(self):
    kind = tff.FederatedType(np.int32, tff.CLIENTS)

    @tff.federated_computation(kind, kind)
    def run(x, y):
      return tff.federated_sum(x), tff.federated_sum(y)

    with self.assertRaisesRegex(ValueError, 'different numbers of clients'):
      _run('cohort', run, [1, 2], [1, 2, 3])

  def test_a_value_that_does_not_fit(self):
    double = tff.tensorflow.computation(
      lambda x: 2 * x, tff.TensorType(np.float32, [2])
    )
    with self.assertRaisesRegex(TypeError, r'float32\[2\]'):
      _run('cohort', double, np.zeros(3, np.float32))

  def test_an_unknown_intrinsic_is_named(self):
    jax = tff.jax.computation(lambda x: x + 1, np.int32)
    with self.assertRaisesRegex(NotImplementedError, 'xla'):
      _run('cohort', jax, 1)
