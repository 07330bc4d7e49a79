"""TFF's own library gives the same: aggregators, learning and analytics."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tests.tff_runtimes.parity import checks

_FLOAT = np.float32
_SIZE = 6


def _rounds(
  context: Any, process: Any, clients: tuple[Any, ...], number: int = 2
) -> list[Any]:
  """Runs an iterative process; returns the outputs of its rounds."""
  state = checks.run_once(context, process.initialize)
  outputs = [state]
  for _ in range(number):
    output = checks.run_once(context, process.next, state, *clients)
    state = output.state if hasattr(output, 'state') else output[0]
    outputs.append(output)
  return outputs


def _result(outputs: list[Any]) -> list[Any]:
  return [output.result for output in outputs[1:]]


def _shapes(outputs: list[Any]) -> list[Any]:
  """Keeps of some results only the shapes and the types."""
  return tree.map_structure(
    lambda leaf: (type(leaf).__name__, np.shape(leaf), np.asarray(leaf).dtype),
    outputs,
  )


def _everything(outputs: list[Any]) -> list[Any]:
  return outputs


def _hold_to_native(
  parity: checks.Parity,
  process: Any,
  clients: tuple[Any, ...],
  view: Callable[[list[Any]], Any] = _everything,
  number: int = 2,
  **how: Any,
) -> None:
  """Asserts that the rounds of a process are the same."""
  expected = view(_rounds(parity.native, process, clients, number))
  wrong = {}
  for name, context in parity.contexts(process.next):
    try:
      actual = view(_rounds(context, process, clients, number))
      if view is _shapes:
        assert repr(actual) == repr(expected)
      else:
        checks.assert_same(actual, expected, **how)
    except Exception as error:  # pylint: disable=broad-except
      text = ' '.join(str(error).split())[:400]
      wrong[name] = f'{type(error).__name__}: {text}'
  assert not wrong, '\n'.join(f'{name}: {wrong[name]}' for name in wrong)


_STRUCT = tff.to_type(
  collections.OrderedDict(b=tff.TensorType(_FLOAT, [3]), a=_FLOAT)
)
_VECTOR = tff.TensorType(_FLOAT, [4])
_INTS = tff.TensorType(np.int32, [3])


def _clients_of(kind: tff.Type) -> list[Any]:
  rng = np.random.default_rng(5)

  def make(tensor: Any) -> Any:
    if np.issubdtype(tensor.dtype, np.integer):
      return rng.integers(-3, 4, tensor.shape).astype(tensor.dtype)
    return rng.normal(size=tensor.shape).astype(tensor.dtype)[()]

  def build(part: tff.Type) -> Any:
    if isinstance(part, tff.StructType):
      return collections.OrderedDict(
        (name, build(element))
        for name, element in tff.structure.iter_elements(part)
      )
    return make(part)

  return [build(kind) for _ in range(_SIZE)]


_AGGREGATORS = tff.aggregators
_QUANTILE = _AGGREGATORS.PrivateQuantileEstimationProcess


def _estimate() -> Any:
  return _QUANTILE.no_noise(1.0, 0.5, 0.2)


def _private(name: str, **settings: Any) -> Any:
  make = getattr(_AGGREGATORS.DifferentiallyPrivateFactory, name)
  return make(noise_multiplier=0.0, clients_per_round=_SIZE, **settings)


def _specs() -> Any:
  return collections.OrderedDict(b=tf.TensorSpec([3]), a=tf.TensorSpec([]))


def _ints_of_floats(inner: Any) -> Any:
  return _AGGREGATORS.discretization.DiscretizationFactory(inner, 100.0)


def _largest(value: Any) -> Any:
  return collections.OrderedDict(
    largest=tff.federated_max(
      tff.federated_map(tff.tensorflow.computation(lambda v: v['a']), value)
    )
  )


def _norm(value: Any) -> Any:
  norm = tff.tensorflow.computation(lambda v: tf.norm(v['b']))
  return collections.OrderedDict(norm=tff.federated_map(norm, value))


# What is made, for values of which type, and what of it has no chance in it.
_UNWEIGHTED = {
  'sum': (_AGGREGATORS.SumFactory, _STRUCT, _everything),
  'sum of integers': (_AGGREGATORS.SumFactory, _INTS, _everything),
  'mean': (_AGGREGATORS.UnweightedMeanFactory, _STRUCT, _everything),
  'clipping': (
    lambda: _AGGREGATORS.clipping_factory(0.5, _AGGREGATORS.SumFactory()),
    _STRUCT,
    _everything,
  ),
  'adaptive clipping': (
    lambda: _AGGREGATORS.clipping_factory(
      _estimate(), _AGGREGATORS.UnweightedMeanFactory()
    ),
    _STRUCT,
    _everything,
  ),
  'zeroing': (
    lambda: _AGGREGATORS.zeroing_factory(1.0, _AGGREGATORS.SumFactory()),
    _STRUCT,
    _everything,
  ),
  'zeroing by the largest number': (
    lambda: _AGGREGATORS.zeroing_factory(
      1.0, _AGGREGATORS.SumFactory(), norm_order=np.inf
    ),
    _STRUCT,
    _everything,
  ),
  'zeroing and clipping': (
    lambda: _AGGREGATORS.zeroing_factory(
      2.0,
      _AGGREGATORS.clipping_factory(_estimate(), _AGGREGATORS.SumFactory()),
    ),
    _STRUCT,
    _everything,
  ),
  'secure sum': (
    lambda: _AGGREGATORS.SecureSumFactory(8.0),
    _STRUCT,
    _everything,
  ),
  'secure sum in bounds': (
    lambda: _AGGREGATORS.SecureSumFactory(1.0, -2.0),
    _STRUCT,
    _everything,
  ),
  'secure sum of integers': (
    lambda: _AGGREGATORS.SecureSumFactory(8, -8),
    _INTS,
    _everything,
  ),
  'secure sum in estimated bounds': (
    lambda: _AGGREGATORS.SecureSumFactory(_estimate()),
    _STRUCT,
    _everything,
  ),
  'modular sum': (
    lambda: _AGGREGATORS.SecureModularSumFactory(16),
    _INTS,
    _everything,
  ),
  'symmetric modular sum': (
    lambda: _AGGREGATORS.SecureModularSumFactory(16, True),
    _INTS,
    _everything,
  ),
  'modular clipping': (
    lambda: _AGGREGATORS.modular_clipping.ModularClippingSumFactory(-4, 4),
    _INTS,
    _everything,
  ),
  'concatenation': (
    lambda: _AGGREGATORS.concat_factory(_AGGREGATORS.SumFactory()),
    _STRUCT,
    _everything,
  ),
  'concatenation before clipping': (
    lambda: _AGGREGATORS.concat_factory(
      _AGGREGATORS.clipping_factory(1.0, _AGGREGATORS.UnweightedMeanFactory())
    ),
    _STRUCT,
    _everything,
  ),
  'discretization': (
    lambda: _ints_of_floats(_AGGREGATORS.SumFactory()),
    _STRUCT,
    _everything,
  ),
  'discretization and modular sum': (
    lambda: _ints_of_floats(_AGGREGATORS.SecureModularSumFactory(4096, True)),
    _STRUCT,
    _everything,
  ),
  'stochastic discretization': (
    lambda: _AGGREGATORS.discretization.DiscretizationFactory(
      _AGGREGATORS.SumFactory(), 1e5, True, 0.5, 10.0
    ),
    _VECTOR,
    _result,
  ),
  'Hadamard rotation': (
    _AGGREGATORS.HadamardTransformFactory,
    _STRUCT,
    _result,
  ),
  'two Hadamard rotations': (
    lambda: _AGGREGATORS.HadamardTransformFactory(num_repeats=2),
    _VECTOR,
    _result,
  ),
  'Fourier rotation': (
    _AGGREGATORS.DiscreteFourierTransformFactory,
    _STRUCT,
    _result,
  ),
  'compression': (
    lambda: _AGGREGATORS.EncodedSumFactory.quantize_above_threshold(
      quantization_bits=8, threshold=0
    ),
    _STRUCT,
    _shapes,
  ),
  'compression of nothing': (
    lambda: _AGGREGATORS.EncodedSumFactory.quantize_above_threshold(
      quantization_bits=8, threshold=1000
    ),
    _STRUCT,
    _everything,
  ),
  'sampling': (
    lambda: _AGGREGATORS.UnweightedReservoirSamplingFactory(10),
    _STRUCT,
    _result,
  ),
  'sampling of some': (
    lambda: _AGGREGATORS.UnweightedReservoirSamplingFactory(3),
    _STRUCT,
    _shapes,
  ),
  'sampling with metadata': (
    lambda: _AGGREGATORS.UnweightedReservoirSamplingFactory(3, True),
    _STRUCT,
    _shapes,
  ),
  'measurements at clients': (
    lambda: _AGGREGATORS.add_measurements(
      _AGGREGATORS.SumFactory(), client_measurement_fn=_largest
    ),
    _STRUCT,
    _everything,
  ),
  'measurements at the server': (
    lambda: _AGGREGATORS.add_measurements(
      _AGGREGATORS.SumFactory(), server_measurement_fn=_norm
    ),
    _STRUCT,
    _everything,
  ),
  'debug measurements': (
    lambda: tff.learning.add_debug_measurements(
      _AGGREGATORS.UnweightedMeanFactory()
    ),
    _STRUCT,
    _everything,
  ),
  'debug measurements of mixed types': (
    lambda: tff.learning.add_debug_measurements_with_mixed_dtype(
      _AGGREGATORS.UnweightedMeanFactory()
    ),
    _STRUCT,
    _everything,
  ),
  'fixed clipping without noise': (
    lambda: _private('gaussian_fixed', clip=0.5),
    _STRUCT,
    _result,
  ),
  'adaptive clipping without noise': (
    lambda: _AGGREGATORS.DifferentiallyPrivateFactory.gaussian_adaptive(
      noise_multiplier=1e-6,
      clients_per_round=_SIZE,
      initial_l2_norm_clip=0.5,
      clipped_count_stddev=1e-6,
    ),
    _STRUCT,
    _result,
  ),
  'tree without noise': (
    lambda: _private(
      'tree_aggregation', l2_norm_clip=1.0, record_specs=_specs()
    ),
    _STRUCT,
    _result,
  ),
  'adaptive tree without noise': (
    lambda: _private('tree_adaptive', record_specs=_specs(), noise_seed=1),
    _STRUCT,
    _result,
  ),
  'distributed privacy without noise': (
    lambda: tff.learning.ddp_secure_aggregator(
      1e-6, _SIZE, rotation_type='dft', zeroing=False
    ),
    _STRUCT,
    _shapes,
  ),
  'private learning': (
    lambda: tff.learning.dp_aggregator(1e-6, _SIZE),
    _STRUCT,
    _shapes,
  ),
}


@pytest.mark.parametrize('name', checks.first(15, _UNWEIGHTED))
def test_an_aggregator(parity, name):
  make, kind, view = _UNWEIGHTED[name]
  process = make().create(kind)
  how = {} if view is _everything else dict(rtol=1e-3, atol=2e-3)
  _hold_to_native(parity, process, (_clients_of(kind),), view, **how)


_WEIGHTED = {
  'mean': (_AGGREGATORS.MeanFactory, _everything),
  'mean without NaN': (
    lambda: _AGGREGATORS.MeanFactory(no_nan_division=True),
    _everything,
  ),
  'clipped mean': (
    lambda: _AGGREGATORS.clipping_factory(1.0, _AGGREGATORS.MeanFactory()),
    _everything,
  ),
  'secure mean': (
    lambda: _AGGREGATORS.MeanFactory(
      _AGGREGATORS.SecureSumFactory(50.0), _AGGREGATORS.SecureSumFactory(50.0)
    ),
    _everything,
  ),
  'weights of one': (
    lambda: _AGGREGATORS.as_weighted_aggregator(_AGGREGATORS.SumFactory()),
    _everything,
  ),
  'concatenated mean': (
    lambda: _AGGREGATORS.concat_factory(_AGGREGATORS.MeanFactory()),
    _everything,
  ),
  'debug measurements': (
    lambda: tff.learning.add_debug_measurements(_AGGREGATORS.MeanFactory()),
    _everything,
  ),
  'robust': (tff.learning.robust_aggregator, _everything),
  'secure': (tff.learning.secure_aggregator, _everything),
  'compression': (tff.learning.compression_aggregator, _shapes),
}


@pytest.mark.parametrize('name', checks.first(7, _WEIGHTED))
def test_a_weighted_aggregator(parity, name):
  make, view = _WEIGHTED[name]
  process = make().create(_STRUCT, tff.TensorType(_FLOAT))
  weights = [_FLOAT(k % 3 + 0.5) for k in range(_SIZE)]
  _hold_to_native(parity, process, (_clients_of(_STRUCT), weights), view)


@pytest.mark.parametrize('secure', [False, True])
def test_an_estimate_of_a_quantile(parity, secure):
  process = _QUANTILE.no_noise(1.0, 0.8, 0.2, secure_estimation=secure)
  numbers = [_FLOAT(k / 3) for k in range(_SIZE)]
  state = parity(process.initialize)
  for _ in range(2):
    state = parity(process.next, state, numbers)
    parity(process.report, state)


def test_a_sample_of_clients(parity):
  @tff.federated_computation(checks.at_clients(_STRUCT))
  def run(x):
    return tff.aggregators.federated_sample(x, 3)

  expected = checks.run_once(parity.native, run, _clients_of(_STRUCT))
  for context in parity.cohorts.values():
    actual = checks.run_once(context, run, _clients_of(_STRUCT))
    assert repr(_shapes(actual)) == repr(_shapes(expected))
    given = {float(client['a']) for client in _clients_of(_STRUCT)}
    assert {float(a) for a in actual['a']} <= given


# --- Learning ---


def _dataset(k: int, batch: int = 2) -> tf.data.Dataset:
  rng = np.random.default_rng(k)
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      x=rng.normal(size=[5, 3]).astype(_FLOAT),
      y=rng.normal(size=[5, 1]).astype(_FLOAT),
    )
  ).batch(batch)


def _datasets() -> list[tf.data.Dataset]:
  return [_dataset(k) for k in range(4)]


_SPEC = _dataset(0).element_spec


def _keras_model() -> tf.keras.Model:
  inputs = tf.keras.Input([3])
  hidden = tf.keras.layers.Dense(2, 'relu', kernel_initializer='ones')(inputs)
  outputs = tf.keras.layers.Dense(1, kernel_initializer='ones')(hidden)
  return tf.keras.Model(inputs, outputs)


def _model() -> tff.learning.models.VariableModel:
  return tff.learning.models.from_keras_model(
    _keras_model(),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=_SPEC,
    metrics=[tf.keras.metrics.MeanAbsoluteError()],
  )


def _functional() -> tff.learning.models.FunctionalModel:
  return tff.learning.models.functional_model_from_keras(
    _keras_model(),
    loss_fn=tf.keras.losses.MeanSquaredError(),
    input_spec=_SPEC,
    metrics_constructor=collections.OrderedDict(
      loss=tf.keras.metrics.MeanSquaredError
    ),
  )


def _recon_model() -> tff.learning.models.ReconstructionModel:
  inputs = tf.keras.Input([3])
  local = tf.keras.layers.Dense(2, kernel_initializer='ones')
  common = tf.keras.layers.Dense(1, kernel_initializer='ones')
  model = tf.keras.Model(inputs, common(local(inputs)))
  return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
    keras_model=model,
    global_layers=[common],
    local_layers=[local],
    input_spec=_SPEC,
  )


def _sgd() -> Any:
  return tff.learning.optimizers.build_sgdm(0.05)


_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
_ALGORITHMS = tff.learning.algorithms
_ADAM = tff.learning.optimizers.build_adam
_LEARNING = {
  'weighted FedAvg': lambda: _ALGORITHMS.build_weighted_fed_avg(_model, _sgd()),
  'FedAvg of a functional model': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _functional(), _sgd(), _ADAM(0.1)
  ),
  'FedAvg with a loop': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _model, _sgd(), loop_implementation=_LOOP
  ),
  'robust FedAvg': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _model, _sgd(), model_aggregator=tff.learning.robust_aggregator()
  ),
  'weighted FedProx': lambda: _ALGORITHMS.build_weighted_fed_prox(
    _model, 0.5, _sgd()
  ),
  'FedSGD': lambda: _ALGORITHMS.build_fed_sgd(_model),
  'weighted MimeLite': lambda: _ALGORITHMS.build_weighted_mime_lite(
    _model, tff.learning.optimizers.build_sgdm(0.05, 0.9)
  ),
  'evaluation': lambda: _ALGORITHMS.build_fed_eval(_model),
  'FedRecon': lambda: _ALGORITHMS.build_fed_recon(
    _recon_model,
    loss_fn=tf.keras.losses.MeanSquaredError,
    metrics_fn=lambda: [tf.keras.metrics.MeanAbsoluteError()],
  ),
  'unweighted FedAvg': lambda: _ALGORITHMS.build_unweighted_fed_avg(
    _model, _sgd()
  ),
  'FedAvg of a functional model with a loop': (
    lambda: _ALGORITHMS.build_weighted_fed_avg(
      _functional(), _sgd(), loop_implementation=_LOOP
    )
  ),
  'FedAvg with Adagrad': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _model, _sgd(), tff.learning.optimizers.build_adagrad(0.1)
  ),
  'FedAvg with Yogi': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _model, _ADAM(0.01), tff.learning.optimizers.build_yogi(0.1)
  ),
  'secure FedAvg': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _model, _sgd(), model_aggregator=tff.learning.secure_aggregator()
  ),
  'FedAvg with a schedule': (
    lambda: _ALGORITHMS.build_weighted_fed_avg_with_optimizer_schedule(
      _model,
      lambda k: 0.1 / tf.cast(k + 1, tf.float32),
      tff.learning.optimizers.build_sgdm,
    )
  ),
  'unweighted FedProx': lambda: _ALGORITHMS.build_unweighted_fed_prox(
    _functional(), 0.5, _sgd()
  ),
  'FedProx with a loop': lambda: _ALGORITHMS.build_weighted_fed_prox(
    _model, 0.5, _sgd(), loop_implementation=_LOOP
  ),
  'FedSGD of a functional model': lambda: _ALGORITHMS.build_fed_sgd(
    _functional()
  ),
  'FedSGD with a loop': lambda: _ALGORITHMS.build_fed_sgd(
    _model, loop_implementation=_LOOP
  ),
  'unweighted MimeLite': lambda: _ALGORITHMS.build_unweighted_mime_lite(
    _model, tff.learning.optimizers.build_sgdm(0.05, 0.9)
  ),
  'MimeLite of a functional model': (
    lambda: _ALGORITHMS.build_weighted_mime_lite(
      _functional(), tff.learning.optimizers.build_adam(0.05)
    )
  ),
  'MimeLite with a schedule': (
    lambda: _ALGORITHMS.build_mime_lite_with_optimizer_schedule(
      _model,
      lambda k: 0.1 / tf.cast(k + 1, tf.float32),
      tff.learning.optimizers.build_sgdm(0.05, 0.9),
    )
  ),
  'evaluation of a functional model': lambda: _ALGORITHMS.build_fed_eval(
    _functional()
  ),
  'evaluation with a loop': lambda: _ALGORITHMS.build_fed_eval(
    _model, loop_implementation=_LOOP
  ),
  'FedRecon with a split': lambda: _ALGORITHMS.build_fed_recon(
    _recon_model,
    loss_fn=tf.keras.losses.MeanSquaredError,
    dataset_split_fn=(
      tff.learning.models.ReconstructionModel.build_dataset_split_fn(
        recon_epochs=2, split_dataset=True
      )
    ),
  ),
  'evaluation of FedRecon': lambda: _ALGORITHMS.build_fed_recon_eval(
    _recon_model,
    loss_fn=tf.keras.losses.MeanSquaredError,
    metrics_fn=lambda: [tf.keras.metrics.MeanAbsoluteError()],
  ),
}


# The rest of the processes are variants.
@pytest.mark.parametrize('name', checks.first(5, _LEARNING))
def test_a_learning_process(parity, name):
  _hold_to_native(
    parity, _LEARNING[name](), (_datasets(),), rtol=1e-4, atol=1e-5
  )


def test_a_model_is_set_and_read(parity):
  process = _LEARNING['weighted FedAvg']()
  for context in [parity.native, *parity.cohorts.values()]:
    with tff.framework.get_context_stack().install(context):
      state = process.initialize()
      weights = process.get_model_weights(state)
      other = tree.map_structure(lambda leaf: leaf + 1, weights.trainable)
      changed = process.set_model_weights(
        state, tff.learning.models.ModelWeights(other, [])
      )
      np.testing.assert_allclose(
        process.get_model_weights(changed).trainable[0], other[0]
      )
      process.next(changed, _datasets())


def test_k_means(parity):
  process = _ALGORITHMS.build_fed_kmeans(2, (3,), (1, 2))
  data = [_dataset(k).unbatch().map(lambda row: row['x']) for k in range(4)]
  _hold_to_native(parity, process, (data,))


def _personalized(
  model: Any, train: tf.data.Dataset, test: tf.data.Dataset, context: Any = None
) -> Any:
  del context

  def step(count: tf.Tensor, batch: Any) -> tf.Tensor:
    with tf.GradientTape() as tape:
      output = model.forward_pass(batch)
    gradients = tape.gradient(output.loss, model.trainable_variables)
    for gradient, variable in zip(gradients, model.trainable_variables):
      variable.assign_sub(0.05 * gradient)
    return count + output.num_examples

  count = train.batch(2).reduce(0, step)
  return collections.OrderedDict(count=count, loss=_loss(model, test))


def _loss(model: Any, data: tf.data.Dataset) -> tf.Tensor:
  return data.batch(2).reduce(
    0.0, lambda total, batch: total + model.forward_pass(batch, False).loss
  )


def test_an_evaluation_of_personalization(parity):
  computation = _ALGORITHMS.build_personalization_eval_computation(
    _model,
    collections.OrderedDict(sgd=lambda: tf.function(_personalized)),
    tf.function(_loss),
    max_num_clients=10,
  )
  process = _LEARNING['weighted FedAvg']()
  with tff.framework.get_context_stack().install(parity.native):
    weights = process.get_model_weights(process.initialize())
  clients = [
    collections.OrderedDict(
      train_data=_dataset(k).unbatch(), test_data=_dataset(k + 9).unbatch()
    )
    for k in range(4)
  ]

  def ordered(result: Any) -> list[list[float]]:
    """Sorts the clients, of which TFF draws a sample in any order."""
    flat = [np.asarray(leaf, np.float64) for leaf in tree.flatten(result)]
    return sorted(np.stack(flat, 1).tolist())

  expected = checks.run_once(parity.native, computation, weights, clients)
  assert len(ordered(expected)) == 4
  for _, context in parity.contexts(computation):
    actual = checks.run_once(context, computation, weights, clients)
    np.testing.assert_allclose(ordered(actual), ordered(expected), rtol=1e-4)


@pytest.mark.slow
def test_a_model_with_a_recurrent_layer(parity):
  spec = (
    tf.TensorSpec([None, 4], tf.int32),
    tf.TensorSpec([None, 1], tf.float32),
  )

  def model() -> Any:
    layers = tf.keras.layers
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(
        [
          layers.Embedding(
            5, 3, embeddings_initializer='ones', input_shape=[4]
          ),
          layers.LSTM(2, kernel_initializer='ones'),
          layers.Dense(1, kernel_initializer='ones'),
        ]
      ),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=spec,
    )

  data = [
    tf.data.Dataset.from_tensor_slices(
      (
        np.arange(12, dtype=np.int32).reshape(3, 4) % (k + 2),
        np.ones([3, 1], _FLOAT) * k,
      )
    ).batch(2)
    for k in range(3)
  ]
  process = _ALGORITHMS.build_weighted_fed_avg(model, _sgd())
  _hold_to_native(parity, process, (data,), _shapes, number=1)


def test_a_model_with_convolutions_and_batch_normalization(parity):
  spec = (
    tf.TensorSpec([None, 6, 6, 1], tf.float32),
    tf.TensorSpec([None], tf.int32),
  )

  def model() -> Any:
    layers = tf.keras.layers
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(
        [
          layers.Conv2D(2, 3, kernel_initializer='ones', input_shape=[6, 6, 1]),
          layers.BatchNormalization(),
          layers.MaxPool2D(),
          layers.Flatten(),
          layers.Dense(3, kernel_initializer='ones'),
        ]
      ),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=spec,
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )

  rng = np.random.default_rng(2)
  data = [
    tf.data.Dataset.from_tensor_slices(
      (
        rng.normal(size=[4, 6, 6, 1]).astype(_FLOAT),
        np.arange(4, dtype=np.int32) % 3,
      )
    ).batch(3)
    for _ in range(3)
  ]
  process = _ALGORITHMS.build_weighted_fed_avg(model, _sgd())
  _hold_to_native(parity, process, (data,), number=1, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_model_with_dropout(parity):
  def model() -> Any:
    inputs = tf.keras.Input([3])
    dropped = tf.keras.layers.Dropout(0.5)(inputs)
    return tff.learning.models.from_keras_model(
      tf.keras.Model(inputs, tf.keras.layers.Dense(1)(dropped)),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=_SPEC,
    )

  process = _ALGORITHMS.build_weighted_fed_avg(model, _sgd())
  _hold_to_native(parity, process, (_datasets(),), _shapes)


# --- Analytics ---


def _words(*clients: str) -> list[tf.data.Dataset]:
  return [
    tf.data.Dataset.from_tensor_slices(words.split()) for words in clients
  ]


_HITTERS = {
  'plain': dict(capacity=50),
  'of at least two clients': dict(capacity=50, k_anonymity=2),
  'with few words a client': dict(capacity=50, max_words_per_user=3),
  'with short words': dict(capacity=50, string_max_bytes=3),
  'once for each client': dict(capacity=50, multi_contribution=False),
  'secure': dict(capacity=50, secure_sum_bitwidth=10),
}


@pytest.mark.parametrize('name', checks.first(1, _HITTERS))
def test_heavy_hitters(parity, name):
  computation = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
    batch_size=1, **_HITTERS[name]
  )
  data = [words.batch(1) for words in _words('a b a c', 'b b beyond', 'a d')]
  expected = checks.run_once(parity.native, computation, data)
  for _, context in parity.contexts(computation):
    actual = checks.run_once(context, computation, data)
    if name == 'with few words a client':  # Which ones is a matter of chance.
      assert type(actual) is type(expected)
    else:
      checks.assert_same(_hitters(actual), _hitters(expected))


def _hitters(result: Any) -> Any:
  """Returns what was found, sorted, as the order is that of a hash."""
  names = [np.asarray(name).item() for name in result.heavy_hitters]
  counts = np.asarray(result.heavy_hitters_counts).tolist()
  return sorted(zip(names, counts)), [
    getattr(result, name)
    for name in ('clients', 'num_not_decoded', 'rounds')
    if hasattr(result, name)
  ]


@pytest.mark.parametrize('secure', [False, True])
@pytest.mark.parametrize('clip', checks.first(1, ['distinct', 'sub-sampling']))
def test_a_hierarchical_histogram(parity, secure, clip):
  process = tff.analytics.build_hierarchical_histogram_process(
    0.0, 8.0, 8, clip_mechanism=clip, enable_secure_sum=secure
  )
  data = [
    tf.data.Dataset.from_tensor_slices(np.array(numbers, _FLOAT))
    for numbers in ([0.5, 1.5, 1.6], [7.0], [3.0, 4.0, 3.0])
  ]
  expected = checks.run_once(
    parity.native, process.next, _start(parity.native, process), data
  )
  for _, context in parity.contexts(process.next):
    actual = checks.run_once(
      context, process.next, _start(context, process), data
    )
    assert repr(_shapes(actual)) == repr(_shapes(expected))
    first, second = tree.flatten(actual), tree.flatten(expected)
    for one, other in zip(first, second):
      if np.asarray(one).dtype.kind == 'f':
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def _start(context: Any, process: Any) -> Any:
  return checks.run_once(context, process.initialize)


@pytest.mark.parametrize('secure', [False, True])
def test_a_count_of_distinct_words(parity, secure):
  distinct = tff.analytics.count_distinct
  computation = distinct.create_federated_hyperloglog_computation(
    use_secagg=secure
  )
  parity(computation, _words('a b c', 'c d', 'e f g a'))


def test_words_and_their_values(parity):
  process = tff.analytics.IbltFactory(
    capacity=20, string_max_bytes=5, repetitions=3, seed=1
  ).create(
    tff.SequenceType(
      tff.to_type(
        collections.OrderedDict(
          key=np.str_, value=tff.TensorType(np.int64, [1])
        )
      )
    )
  )
  data = [
    tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        key=np.array(list(words)), value=np.ones([len(words), 1], np.int64)
      )
    )
    for words in ('aab', 'bc', 'a')
  ]

  def found(outputs: list[Any]) -> Any:
    result = outputs[1].result
    return sorted(
      (np.asarray(key).item(), np.asarray(value).tolist())
      for key, value in zip(result.output_strings, result.string_values)
    )

  _hold_to_native(parity, process, (data,), found, number=1)
