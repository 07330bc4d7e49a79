"""Operations give the same numbers, the special ones too."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes.parity import checks

_NAN, _INF = np.nan, np.inf
_SPECIAL = np.array(
  [_NAN, _INF, -_INF, -0.0, 0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5]
  + [3e38, -3e38, 1e-30, -1e-30, 1e10, 3.75, 88.9, -104.0],
  np.float32,
)
_ORDINARY = np.array(
  [[0.5, -1.5, 2.25], [3.0, 0.125, -0.75], [1.0, 4.5, 0.3]], np.float32
)
_SQUARE = [
  np.array(rows, np.float32)
  for rows in (
    [[4, 1, 0], [1, 3, 1], [0, 1, 2]],
    [[2, 0, 1], [0, 5, 0], [1, 0, 3]],
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  )
]
_INTS = np.array([-7, -3, -1, 0, 1, 2, 5, 100, 2**31 - 1, -(2**31)], np.int32)


def _clients(value: np.ndarray) -> list[np.ndarray]:
  """Returns three clients' values of one shape."""
  return [value, value[::-1].copy(), np.roll(value, 3, axis=0)]


def _check(parity, work, clients, **how):
  computation = checks.everywhere(work, checks.type_of(clients[0]))
  return parity(computation, clients, clients[1], **how)


_UNARY = {
  name: getattr(tf, name)
  for name in (
    'abs negative sign square exp cos sin tan tanh sigmoid asin acos atan sqrt'
    ' floor round cosh sinh acosh asinh atanh'
  ).split()
} | {
  name: getattr(tf.math, name)
  for name in (
    'ceil rint log log1p expm1 erf erfc rsqrt reciprocal reciprocal_no_nan'
    ' softplus softsign is_nan is_inf is_finite lgamma digamma ndtri erfinv'
    ' log_sigmoid bessel_i0e bessel_i1e l2_normalize cumsum cumprod'
    ' cumulative_logsumexp reduce_logsumexp reduce_std reduce_variance'
    ' reduce_euclidean_norm reduce_min reduce_max reduce_sum reduce_mean'
    ' reduce_prod argmax argmin'
  ).split()
}
_UNARY |= {
  name: getattr(tf.nn, name)
  for name in (
    'relu relu6 leaky_relu elu selu gelu silu softmax log_softmax'
  ).split()
}
_UNARY |= {
  'clip by value': lambda x: tf.clip_by_value(x, -1.0, 2.0),
  'clip by norm': lambda x: tf.clip_by_norm(x, 2.0),
  'clip by global norm': lambda x: tf.clip_by_global_norm([x, x], 2.0)[0],
  'global norm': lambda x: tf.linalg.global_norm([x, 2.0 * x]),
  'sort': tf.sort,
  'sort descending': lambda x: tf.sort(x, direction='DESCENDING'),
  'argsort': lambda x: tf.argsort(x, stable=True),
  'top k': lambda x: tf.math.top_k(x, 5),
  'to int32': lambda x: tf.cast(tf.clip_by_value(x, -9.0, 9.0), tf.int32),
  'to bool': lambda x: tf.cast(x, tf.bool),
  'to float16': lambda x: tf.cast(x, tf.float16),
  'to float64': lambda x: tf.cast(x, tf.float64),
  'to bfloat16': lambda x: tf.cast(x, tf.bfloat16),
  'to complex': lambda x: tf.cast(x, tf.complex64),
  'bitcast': lambda x: tf.bitcast(x, tf.int32),
  'sign of one over x': lambda x: tf.sign(1.0 / x),
  'is zero': lambda x: x == 0.0,
  'is itself': lambda x: x == x,
  'where': lambda x: tf.where(x > 0, tf.math.log(x), -x),
  'saturating cast': lambda x: tf.saturate_cast(x, tf.int8),
  'histogram': lambda x: tf.histogram_fixed_width(
    tf.clip_by_value(tf.where(tf.math.is_nan(x), 0.0, x), -3.0, 3.0),
    [-2.0, 2.0],
    4,
  ),
  'huber': lambda x: tf.keras.losses.huber(tf.zeros_like(x), x),
  'zero fraction': tf.math.zero_fraction,
  'all above zero': lambda x: tf.reduce_all(x > 0),
  'any below zero': lambda x: tf.reduce_any(x < 0),
}


@pytest.mark.parametrize('name', _UNARY)
def test_a_function_of_special_numbers(parity, name):
  _check(parity, _UNARY[name], _clients(_SPECIAL))


_BINARY = {
  name: getattr(tf, name)
  for name in (
    'add subtract multiply divide minimum maximum pow less less_equal greater'
    ' greater_equal equal not_equal atan2 truediv'
  ).split()
} | {
  name: getattr(tf.math, name)
  for name in (
    'floordiv floormod divide_no_nan multiply_no_nan squared_difference xlogy'
    ' xlog1py xdivy nextafter'
  ).split()
}


@pytest.mark.parametrize('name', _BINARY)
def test_a_function_of_two_special_numbers(parity, name):
  pairs = np.stack(np.meshgrid(_SPECIAL, _SPECIAL)).reshape(2, -1)
  clients = [(pairs[0], pairs[1]), (pairs[1], pairs[0])]
  _check(parity, lambda pair: _BINARY[name](pair[0], pair[1]), clients)


_TINY = np.array(
  [1e-40, -1e-40, 1e-45, 5e-39, -5e-39, 1.2e-38, 1e-37], np.float32
)
_OF_TINY = {
  'itself': tf.identity,
  'reciprocal': lambda x: 1.0 / x,
  'sign': tf.sign,
  'is zero': lambda x: x == 0.0,
  'is positive': lambda x: x > 0.0,
  'to float64': lambda x: tf.cast(x, tf.float64),
  'times a large number': lambda x: x * 1e38,
  'half': lambda x: x / 2.0,
  'largest': tf.reduce_max,
  'sum': lambda x: tf.reduce_sum(x) * 1e38,
}


@pytest.mark.parametrize('name', _OF_TINY)
def test_a_function_of_denormal_numbers(parity, name):
  _check(parity, _OF_TINY[name], _clients(_TINY), atol=0.0)


_EXTREME = np.array([_INF, -_INF, _NAN, 3e38, 2e19, 0.0, 1.0], np.float32)
# XLA simplifies some, and TensorFlow others.
_SIMPLIFIED = {
  'root of a square': lambda x: tf.sqrt(tf.square(x)),
  'logarithm of an exponential': lambda x: tf.math.log(tf.exp(x)),
  'product of exponentials': lambda x: tf.exp(x) * tf.exp(-x),
  'difference of products': lambda x: x * x - 3.0 * x,
  'difference of the same': lambda x: x - x,
  'quotient of the same': lambda x: x / x,
  'product with zero': lambda x: x * 0.0,
  'matrix of zeros': lambda x: tf.matmul(x[:, None], tf.zeros([1, 3])),
  'power of a power': lambda x: tf.pow(tf.pow(x, 2.0), 0.5),
  'quotient of quotients': lambda x: (x / 3.0) / (x / 5.0),
  'inverse root': lambda x: 1.0 / tf.sqrt(x),
}


@pytest.mark.parametrize('name', _SIMPLIFIED)
def test_a_formula_that_can_be_simplified(parity, name):
  _check(parity, _SIMPLIFIED[name], _clients(_EXTREME))


_OF_INTS = {
  'abs': tf.abs,
  'negative': tf.negative,
  'square': tf.square,
  'sum': tf.reduce_sum,
  'product': tf.reduce_prod,
  'mean': tf.reduce_mean,
  'largest': tf.reduce_max,
  'smallest': tf.reduce_min,
  'arg max': tf.argmax,
  'plus one': lambda x: x + 1,
  'minus one': lambda x: x - 1,
  'times three': lambda x: x * 3,
  'floor division': lambda x: x // 3,
  'floor division by a negative': lambda x: x // -3,
  'remainder': lambda x: x % 3,
  'remainder of a negative': lambda x: x % -3,
  'truncated division': lambda x: tf.truncatediv(x, 3),
  'truncated remainder': lambda x: tf.truncatemod(x, 3),
  'true division': lambda x: x / 3,
  'division by minus one': lambda x: x // tf.where(x == 5, 1, -1),
  'cumulative sum': tf.cumsum,
  'exclusive cumulative sum': lambda x: tf.cumsum(
    x, exclusive=True, reverse=True
  ),
  'sort': tf.sort,
  'top k': lambda x: tf.math.top_k(x, 3),
  'unique': lambda x: tf.unique(x % 3),
  'to int8': lambda x: tf.cast(x, tf.int8),
  'to uint8': lambda x: tf.cast(x, tf.uint8),
  'to int64': lambda x: tf.cast(x, tf.int64) * 2**33,
  'to float32': lambda x: tf.cast(x, tf.float32),
  'to bool': lambda x: tf.cast(x, tf.bool),
  'bitwise': lambda x: (
    tf.bitwise.bitwise_and(x, 6),
    tf.bitwise.bitwise_or(x, 6),
    tf.bitwise.bitwise_xor(x, 6),
    tf.bitwise.invert(x),
  ),
  'shifts': lambda x: (
    tf.bitwise.left_shift(x, 3),
    tf.bitwise.right_shift(x, 3),
    tf.bitwise.left_shift(x, 31),
  ),
  'population count': lambda x: tf.raw_ops.PopulationCount(x=x),
  'power': lambda x: tf.pow(x % 5, x % 4),
  'one hot': lambda x: tf.one_hot(x, 4),
  'one hot of other numbers': lambda x: tf.one_hot(
    x, 4, on_value=2.5, off_value=-1.0, axis=0
  ),
  'bincount': lambda x: tf.math.bincount(x % 4, minlength=6, maxlength=6),
  'confusion matrix': lambda x: tf.math.confusion_matrix(x % 3, (x + 1) % 3, 3),
  'in top k': lambda x: tf.math.in_top_k(
    x % 3, tf.ones([10, 3]) * tf.constant([1.0, 2.0, 3.0]), 2
  ),
  'invert permutation': lambda x: tf.math.invert_permutation(tf.argsort(x)),
  'search sorted': lambda x: tf.searchsorted(tf.sort(x), x),
  'base': lambda x: tf.strings.as_string(x),
}


@pytest.mark.parametrize('name', _OF_INTS)
def test_a_function_of_integers(parity, name):
  _check(parity, _OF_INTS[name], _clients(_INTS))


_DTYPES = [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint16]


@pytest.mark.parametrize('dtype', checks.first(2, _DTYPES))
@pytest.mark.parametrize(
  'name', ['add', 'subtract', 'multiply', 'negative', 'abs', 'sum', 'floordiv']
)
def test_integers_overflow_alike(parity, dtype, name):
  if np.issubdtype(dtype, np.unsignedinteger) and name in ('negative', 'abs'):
    pytest.skip('TensorFlow has it only for signed integers.')
  limits = np.iinfo(dtype)
  values = np.array([limits.max, limits.min, 1, limits.max - 1], dtype)
  work = {
    'add': lambda x: x + x[::-1],
    'subtract': lambda x: x - x[::-1],
    'multiply': lambda x: x * x,
    'negative': lambda x: -x,
    'abs': tf.abs,
    'sum': tf.reduce_sum,
    'floordiv': lambda x: x // tf.cast(3, x.dtype),
  }[name]
  _check(parity, work, [values, values[::-1].copy()])


_OF_MATRICES = {
  'inverse': tf.linalg.inv,
  'determinant': tf.linalg.det,
  'log determinant': tf.linalg.slogdet,
  'Cholesky': tf.linalg.cholesky,
  'QR': lambda x: [tf.abs(part) for part in tf.linalg.qr(x)],
  'singular values': lambda x: tf.linalg.svd(x, compute_uv=False),
  'product of the SVD': lambda x: (
    lambda s, u, v: tf.matmul(u * s, v, transpose_b=True)
  )(*tf.linalg.svd(x)),
  'eigenvalues': tf.linalg.eigvalsh,
  'complex eigenvalues': lambda x: tf.sort(tf.math.real(tf.linalg.eigvals(x))),
  'solve': lambda x: tf.linalg.solve(x, tf.ones([3, 1])),
  'triangular solve': lambda x: tf.linalg.triangular_solve(x, tf.ones([3, 1])),
  'least squares': lambda x: tf.linalg.lstsq(x, tf.ones([3, 2])),
  'pseudoinverse': tf.linalg.pinv,
  'matrix exponential': tf.linalg.expm,
  'matrix square root': tf.linalg.sqrtm,
  'trace': tf.linalg.trace,
  'diagonal': tf.linalg.diag_part,
  'set diagonal': lambda x: tf.linalg.set_diag(x, tf.zeros([3])),
  'band': lambda x: tf.linalg.band_part(x, 1, 0),
  'norm': lambda x: tf.norm(x, ord=1, axis=0),
  'cross': lambda x: tf.linalg.cross(x, x[::-1]),
  'transpose': tf.transpose,
  'product': lambda x: tf.matmul(x, x, transpose_a=True),
  'einsum': lambda x: tf.einsum('ij,kj,il->kl', x, x, x),
  'tensordot': lambda x: tf.tensordot(x, x, [[0], [1]]),
  'LU': tf.linalg.lu,
  'Kronecker': lambda x: tf.linalg.LinearOperatorKronecker(
    [tf.linalg.LinearOperatorFullMatrix(x)] * 2
  ).to_dense(),
  'FFT': lambda x: tf.signal.fft(tf.cast(x, tf.complex64)),
  'inverse FFT': lambda x: tf.signal.ifft(tf.cast(x, tf.complex64)),
  'real FFT': lambda x: tf.signal.rfft(x, [4]),
  'inverse real FFT': lambda x: tf.signal.irfft(tf.cast(x, tf.complex64), [4]),
  'FFT in two dimensions': lambda x: tf.signal.fft2d(tf.cast(x, tf.complex64)),
  'DCT': lambda x: tf.signal.dct(x),
  'Hadamard': lambda x: tf.matmul(
    tf.constant([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 1.0]]), x
  ),
}


@pytest.mark.parametrize('name', _OF_MATRICES)
def test_a_function_of_matrices(parity, name):
  _check(parity, _OF_MATRICES[name], _SQUARE, rtol=1e-4, atol=1e-5)


def _walk_to_ten(x):
  return tf.while_loop(
    lambda k, total: tf.logical_and(k < 10, tf.reduce_sum(total) < 50),
    lambda k, total: (k + 1, total + tf.abs(x) + 1),
    (0, x),
  )


def _nested_loops(x):
  def outer(k, total):
    _, inner = tf.while_loop(
      lambda j, _: j < k, lambda j, t: (j + 1, t + x), (0, total)
    )
    return k + 1, inner

  return tf.while_loop(lambda k, _: k < 4, outer, (0, x))


def _gradient(x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    loss = tf.reduce_sum(tf.tanh(x) ** 2 * tf.linalg.norm(x, axis=-1))
  return tape.gradient(loss, x)


def _gradient_through_a_loop(x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    _, y = tf.while_loop(
      lambda k, _: k < 3, lambda k, y: (k + 1, tf.sin(y) * x), (0, x)
    )
  return tape.gradient(y, x)


def _second_gradient(x):
  with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
      inner.watch(x)
      y = tf.reduce_sum(x**3)
    first = inner.gradient(y, x)
  return outer.gradient(first, x)


def _jacobian(x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.nn.softmax(x)
  return tape.jacobian(y, x)


def _own_gradient(x):
  @tf.custom_gradient
  def twice(y):
    return 2.0 * y, lambda dy: 5.0 * dy

  with tf.GradientTape() as tape:
    tape.watch(x)
    y = twice(x)
  return y, tape.gradient(y, x)


def _tensor_array(x):
  array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
  array = array.write(0, x[0]).write(2, x[1]).write(1, x[2])
  return array.stack(), array.size(), array.read(2), array.concat()


def _list_that_grows(x):
  rows = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[3])
  _, rows = tf.while_loop(
    lambda k, _: k < 5,
    lambda k, rows: (k + 1, rows.write(k, x[k % 3] * tf.cast(k, tf.float32))),
    (0, rows),
  )
  return rows.stack()


_LABELS = np.array([0, 2, 1], np.int32)
_OF_FLOATS = {
  'while loop': _walk_to_ten,
  'nested loops': _nested_loops,
  'cond': lambda x: tf.cond(tf.reduce_sum(x) > 5, lambda: x * 2, lambda: -x),
  'case': lambda x: tf.switch_case(
    tf.cast(tf.abs(x[0, 0]), tf.int32) % 3,
    [lambda: x, lambda: x + 1, lambda: x * 3],
  ),
  'map_fn': lambda x: tf.map_fn(lambda row: tf.reduce_sum(row) * row, x),
  'map_fn to another type': lambda x: tf.map_fn(
    lambda row: tf.argmax(row), x, fn_output_signature=tf.int64
  ),
  'scan': lambda x: tf.scan(lambda a, row: a * 0.5 + row, x),
  'foldl': lambda x: tf.foldl(lambda a, row: a - row, x),
  'foldr': lambda x: tf.foldr(lambda a, row: a - row, x),
  'vectorized map': lambda x: tf.vectorized_map(lambda row: row * row[0], x),
  'gradient': _gradient,
  'gradient through a loop': _gradient_through_a_loop,
  'second gradient': _second_gradient,
  'Jacobian': _jacobian,
  'own gradient': _own_gradient,
  'stop gradient': lambda x: tf.stop_gradient(x) * 2,
  'tensor array': _tensor_array,
  'list that grows': _list_that_grows,
  'conv2d': lambda x: tf.nn.conv2d(
    tf.reshape(x, [1, 3, 3, 1]), tf.ones([2, 2, 1, 2]), 1, 'SAME'
  ),
  'conv1d': lambda x: tf.nn.conv1d(
    tf.reshape(x, [1, 9, 1]), tf.ones([3, 1, 2]), 2, 'VALID'
  ),
  'max pool': lambda x: tf.nn.max_pool2d(
    tf.reshape(x, [1, 3, 3, 1]), 2, 1, 'SAME'
  ),
  'average pool': lambda x: tf.nn.avg_pool2d(
    tf.reshape(x, [1, 3, 3, 1]), 2, 1, 'SAME'
  ),
  'resize': lambda x: tf.image.resize(tf.reshape(x, [3, 3, 1]), [5, 4]),
  'sparse cross entropy': lambda x: (
    tf.nn.sparse_softmax_cross_entropy_with_logits(_LABELS, x)
  ),
  'softmax cross entropy': lambda x: tf.nn.softmax_cross_entropy_with_logits(
    tf.one_hot(_LABELS, 3), x
  ),
  'sigmoid cross entropy': lambda x: tf.nn.sigmoid_cross_entropy_with_logits(
    tf.one_hot(_LABELS, 3), x * 100.0
  ),
  'Keras cross entropy': lambda x: tf.keras.losses.categorical_crossentropy(
    tf.one_hot(_LABELS, 3), tf.nn.softmax(x)
  ),
  'weighted cross entropy': lambda x: tf.nn.weighted_cross_entropy_with_logits(
    tf.one_hot(_LABELS, 3), x, 2.0
  ),
  'gather': lambda x: tf.gather(x, [2, 0, 2]),
  'gather in the second dimension': lambda x: tf.gather(x, [2, 0], axis=1),
  'gather with batches': lambda x: tf.gather(x, _LABELS, batch_dims=1),
  'gather n-d': lambda x: tf.gather_nd(x, [[0, 1], [2, 2]]),
  'scatter': lambda x: tf.scatter_nd([[3], [1], [3]], x, [5, 3]),
  'scatter add': lambda x: tf.tensor_scatter_nd_add(x, [[0], [0]], x[1:]),
  'scatter update': lambda x: tf.tensor_scatter_nd_update(x, [[1]], x[:1]),
  'scatter max': lambda x: tf.tensor_scatter_nd_max(x, [[1]], x[:1]),
  'segment sum': lambda x: tf.math.segment_sum(x, [0, 0, 2]),
  'segment mean': lambda x: tf.math.segment_mean(x, [0, 0, 1]),
  'segment max': lambda x: tf.math.segment_max(x, [0, 1, 1]),
  'unsorted segment sum': lambda x: tf.math.unsorted_segment_sum(
    x, [1, -1, 1], 3
  ),
  'unsorted segment max': lambda x: tf.math.unsorted_segment_max(
    x, [1, 0, 1], 3
  ),
  'unsorted segment mean': lambda x: tf.math.unsorted_segment_mean(
    x, [1, 0, 1], 3
  ),
  'sparse segment sum': lambda x: tf.sparse.segment_sum(
    x, [0, 2, 1], [0, 0, 1]
  ),
  'embedding lookup': lambda x: tf.nn.embedding_lookup(x, [[0, 1], [2, 2]]),
  'sparse product': lambda x: tf.sparse.sparse_dense_matmul(
    tf.sparse.from_dense(tf.where(x > 1, x, 0.0)), x
  ),
  'ragged': lambda x: tf.RaggedTensor.from_row_lengths(
    tf.reshape(x, [-1]), [2, 0, 7]
  ).to_tensor(),
  'boolean mask': lambda x: tf.boolean_mask(x, x > 0.4),
  'sum of a boolean mask': lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0.4)),
  'where true': lambda x: tf.where(x > 0.4),
  'dynamic partition': lambda x: tf.dynamic_partition(x, [0, 1, 0], 2),
  'dynamic stitch': lambda x: tf.dynamic_stitch([[2], [0, 1]], [x[:1], x[1:]]),
  'unique rows': lambda x: tf.raw_ops.UniqueV2(x=x, axis=[0]),
  'slice': lambda x: tf.slice(x, [1, 0], [2, 2]),
  'strided slice': lambda x: x[::-2, ..., tf.newaxis, 1:],
  'pad': lambda x: tf.pad(x, [[1, 0], [0, 2]], constant_values=7.0),
  'mirror pad': lambda x: tf.pad(x, [[1, 1], [2, 2]], 'REFLECT'),
  'tile': lambda x: tf.tile(x, [2, 1]),
  'repeat': lambda x: tf.repeat(x, [1, 0, 2], axis=0),
  'roll': lambda x: tf.roll(x, [1, -1], [0, 1]),
  'reverse': lambda x: tf.reverse(x, [1]),
  'reverse sequence': lambda x: tf.reverse_sequence(x, [1, 3, 2], 1),
  'sequence mask': lambda x: tf.sequence_mask(tf.cast(tf.abs(x), tf.int32), 4),
  'concatenate': lambda x: tf.concat([x, -x], 1),
  'stack': lambda x: tf.stack([x, -x], 1),
  'unstack': lambda x: tf.unstack(x),
  'split': lambda x: tf.split(x, [1, 2], 1),
  'broadcast': lambda x: tf.broadcast_to(x[0], [4, 3]),
  'mesh grid': lambda x: tf.meshgrid(x[0], x[1]),
  'space to batch': lambda x: tf.space_to_batch(
    tf.reshape(x[:2, :2], [1, 2, 2, 1]), [2, 2], [[0, 0], [0, 0]]
  ),
  'linspace': lambda x: tf.linspace(x[0, 0], x[0, 1], 5),
  'eye': lambda x: tf.eye(3) * x,
  'batch norm': lambda x: tf.nn.batch_normalization(
    x, *tf.nn.moments(x, [0]), 0.0, 1.0, 1e-3
  ),
  'layer norm': lambda x: tf.keras.layers.LayerNormalization()(x),
  'cosine similarity': lambda x: tf.keras.losses.cosine_similarity(x, x[::-1]),
  'as string': lambda x: tf.strings.as_string(x, precision=3),
  'shape': lambda x: (tf.shape(x), tf.size(x), tf.rank(x)),
  'edit distance': lambda x: tf.edit_distance(
    tf.sparse.from_dense(tf.cast(x, tf.int64)),
    tf.sparse.from_dense(tf.cast(x[::-1], tf.int64)),
  ),
}


@pytest.mark.parametrize('name', _OF_FLOATS)
def test_a_function_of_ordinary_numbers(parity, name):
  clients = [_ORDINARY, _ORDINARY * 2, _ORDINARY.T.copy()]
  _check(parity, _OF_FLOATS[name], clients)


_WITH_A_NUMBER = {
  'range': tf.range,
  'range from two in steps': lambda n: tf.range(2, 5 * n, 2),
  'fill': lambda n: tf.fill([n], 2.5),
  'sum of a range': lambda n: tf.reduce_sum(tf.range(n)),
  'loop': lambda n: tf.while_loop(
    lambda k, _: k < n, lambda k, t: (k + 1, t * 2), (0, 1)
  ),
  'tensor array': lambda n: tf.map_fn(lambda k: k * k, tf.range(n)),
  'slice': lambda n: tf.range(10)[:n],
  'repeat': lambda n: tf.repeat([1, 2], n),
  'tile': lambda n: tf.tile([1, 2], [n]),
  'one hot': lambda n: tf.one_hot([0, 1], n),
  'reshape': lambda n: tf.reshape(tf.range(2 * n), [n, 2]),
  'pad': lambda n: tf.pad([1], [[0, n]]),
  'linspace': lambda n: tf.linspace(0.0, 1.0, n + 1),
  'eye': lambda n: tf.eye(n),
  'python loop': tf.function(lambda n: tf.vectorized_map(tf.abs, tf.range(n))),
  'sequence mask': lambda n: tf.sequence_mask([1, 3], n),
  'zeros': lambda n: tf.zeros([n, 0, 2]),
}


@pytest.mark.parametrize(
  'equal', checks.first(1, [False, True]), ids=['different', 'equal']
)
@pytest.mark.parametrize('name', _WITH_A_NUMBER)
def test_a_number_in_the_argument_sets_a_size(parity, name, equal):
  clients = [np.int32(3)] * 3 if equal else [np.int32(k) for k in (1, 4, 2)]
  _check(parity, _WITH_A_NUMBER[name], clients)


_OF_STRINGS = {
  'join': lambda s: tf.strings.join([s, s], '-'),
  'upper': tf.strings.upper,
  'length': tf.strings.length,
  'length in characters': lambda s: tf.strings.length(s, 'UTF8_CHAR'),
  'part': lambda s: tf.strings.substr(s, 0, 1),
  'hash': lambda s: tf.strings.to_hash_bucket_fast(s, 1000),
  'strong hash': lambda s: tf.strings.to_hash_bucket_strong(s, 1000, [1, 2]),
  'replace': lambda s: tf.strings.regex_replace(s, 'b', 'xy'),
  'split': lambda s: tf.strings.split(s, ' ').to_tensor(),
  'equal': lambda s: s == 'b c',
  'reduce': lambda s: tf.strings.reduce_join(s),
  'match': lambda s: tf.strings.regex_full_match(s, '.*c'),
  'decode': lambda s: tf.io.decode_raw(tf.strings.substr(s, 0, 1), tf.uint8),
  'n-grams': lambda s: tf.strings.ngrams(s, 2),
  'base 64': tf.io.encode_base64,
  'unicode': lambda s: tf.strings.unicode_decode(s, 'UTF-8').to_tensor(),
  'unique': lambda s: tf.unique(s),
  'serialize': lambda s: tf.io.serialize_tensor(s),
}


@pytest.mark.parametrize('name', _OF_STRINGS)
def test_a_function_of_strings(parity, name):
  clients = [
    np.array(words, object)
    for words in (
      [b'a', b'b c', b'd'],
      ['é'.encode(), b'zz', b'b c'],
      [b'b c', b'x', b'b'],
    )
  ]
  _check(parity, _OF_STRINGS[name], clients)


_OF_COMPLEX = {
  'abs': tf.abs,
  'angle': tf.math.angle,
  'conjugate': tf.math.conj,
  'real and imaginary part': lambda z: (tf.math.real(z), tf.math.imag(z)),
  'product': lambda z: z * z,
  'quotient': lambda z: z / (z + 2.0),
  'exp': tf.exp,
  'log': tf.math.log,
  'sqrt': tf.sqrt,
  'sum': tf.reduce_sum,
  'FFT': tf.signal.fft,
  'product of matrices': lambda z: tf.matmul([z], [z], adjoint_b=True),
}


@pytest.mark.parametrize(
  'dtype', checks.first(1, [np.complex64, np.complex128])
)
@pytest.mark.parametrize('name', _OF_COMPLEX)
def test_a_function_of_complex_numbers(parity, name, dtype):
  clients = [
    np.array([1 + 2j, -1j, 3, 0.5 - 0.25j], dtype) * k for k in (1, 1j, 2)
  ]
  _check(parity, _OF_COMPLEX[name], clients)


_AGGREGATES = {
  'sum': tff.federated_sum,
  'mean': tff.federated_mean,
  'min': tff.federated_min,
  'max': tff.federated_max,
}


@pytest.mark.parametrize('name', _AGGREGATES)
def test_special_numbers_are_aggregated(parity, name):
  @tff.federated_computation(
    checks.at_clients(tff.TensorType(np.float32, _SPECIAL.shape))
  )
  def run(x):
    return _AGGREGATES[name](x)

  for k in range(1, len(_SPECIAL), 4):
    parity(run, [_SPECIAL, np.roll(_SPECIAL, k), np.roll(_SPECIAL, 2 * k)])
    parity(run, [_SPECIAL])


@pytest.mark.parametrize(
  'dtype', checks.first(3, [np.float32, *_DTYPES, np.float16])
)
@pytest.mark.parametrize('name', ['sum', 'min', 'max'])
def test_limits_are_aggregated(parity, name, dtype):
  limits = (
    np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else np.finfo(dtype)
  )
  computation = tff.federated_computation(
    _AGGREGATES[name], checks.at_clients(dtype)
  )
  parity(computation, [dtype(limits.max)] * 3)
  parity(computation, [dtype(limits.min)] * 3)
  parity(computation, [dtype(limits.max), dtype(1), dtype(limits.min)])
