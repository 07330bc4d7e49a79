"""Singular values and left singular vectors, small ones as precisely as large.

XLA's own `eigh` and `svd` stop at an error of 1e-6 of the largest eigenvalue,
which is more than the small ones themselves. The method of Hestenes (1958),
one-sided Jacobi, rotates pairs of columns until all are orthogonal. They are
then the left singular vectors times the singular values, with an error that is
small relative to each of them (Demmel and Veselic 1992).
"""

import tensorflow as tf

# Columns count as orthogonal if the cosine between them is at most this; those
# that are shorter than this part of the longest one count as zero.
_PRECISION = 1e-10
_MOST_SWEEPS = 30


def _rotate(
  left: tf.Tensor, right: tf.Tensor, least: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Makes each column of one half orthogonal to that of the other half.

  Args:
    left: One half of the columns.
    right: The other half.
    least: The square of the length of a column that counts as zero.

  Returns:
    Both halves, and whether any columns had to be rotated.
  """
  a, b, c = (
    tf.reduce_sum(x * y, 0)
    for x, y in ((left, left), (right, right), (left, right))
  )
  turns = (tf.abs(c) > _PRECISION * tf.sqrt(a * b)) & (tf.minimum(a, b) > least)
  cotangent = tf.math.divide_no_nan(b - a, 2 * c)  # Of twice the angle.
  sign = tf.where(cotangent < 0, -tf.ones_like(a), tf.ones_like(a))
  tangent = sign / (tf.abs(cotangent) + tf.sqrt(1 + tf.square(cotangent)))
  tangent = tf.where(turns, tangent, 0)
  cosine = 1 / tf.sqrt(1 + tf.square(tangent))
  sine = cosine * tangent
  rotated = cosine * left - sine * right, sine * left + cosine * right
  return *rotated, tf.reduce_any(turns)


def _move_on(left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Moves all columns but the first, so that other columns meet."""
  if left.shape[1] == 1:
    return left, right
  return (
    tf.concat([left[:, :1], right[:, :1], left[:, 1:-1]], 1),
    tf.concat([right[:, 1:], left[:, -1:]], 1),
  )


def left_singular(matrix: tf.Tensor) -> tf.Tensor:
  """Returns the left singular vectors of a matrix times the singular values.

  Args:
    matrix: `[m, n]` float64, of known shape.

  Returns:
    The vectors as columns in any order, `[m, k]`, where k is the smaller of m
    and n, or one more. The others are zero.
  """
  m, n = matrix.shape
  if m < n:  # The transposed R of the transposed matrix has the same ones.
    _, r = tf.linalg.qr(tf.transpose(matrix))
    matrix, n = tf.transpose(r), m
  half = -(-n // 2)
  matrix = tf.pad(matrix, [[0, 0], [0, 2 * half - n]])
  longest = tf.reduce_max(tf.reduce_sum(tf.square(matrix), 0))
  least = _PRECISION**2 * longest

  def sweep(
    left: tf.Tensor, right: tf.Tensor, turned: tf.Tensor, number: tf.Tensor
  ) -> tuple[tf.Tensor, ...]:
    del turned

    def meet(
      i: tf.Tensor, left: tf.Tensor, right: tf.Tensor, turned: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
      left, right, turns = _rotate(left, right, least)
      return i + 1, *_move_on(left, right), turned | turns

    _, left, right, turned = tf.while_loop(
      lambda i, *_: i < 2 * half - 1, meet, (0, left, right, False)
    )
    return left, right, turned, number + 1

  left, right, _, _ = tf.while_loop(
    lambda _, __, turned, number: turned & (number < _MOST_SWEEPS),
    sweep,
    (matrix[:, :half], matrix[:, half:], True, 0),
  )
  return tf.concat([left, right], 1)
