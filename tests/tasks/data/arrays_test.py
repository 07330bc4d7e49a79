"""Tests that numbers stay what they are."""

import numpy as np
import pytest

from tasks.data import arrays


@pytest.mark.parametrize(
  ('values', 'dtype', 'message'),
  [
    ([[1, 2], [3, 2**40]], np.int32, r'y has 1099511627776 at \[1, 1\]'),
    ([0, 0.5], np.int32, 'not a whole number of int32'),
    ([0, np.nan], np.int64, 'y has nan'),
    ([2.0**63], np.int64, r'at \[0\]'),
    ([10**30], np.int64, 'y is object'),
    ([0, 1e39], np.float32, 'not a finite number of float32'),
    ([0, np.inf], np.float64, 'y has inf'),
    ([1j], np.float32, 'y is complex128, not numbers'),
    (['1'], np.float32, 'y is <U1, not numbers'),
    ([None], np.int32, 'y is object'),
    ([[1], [1, 2]], np.float32, 'inhomogeneous'),
  ],
)
def test_what_would_become_another_number_is_refused(values, dtype, message):
  with pytest.raises(ValueError, match=message):
    arrays.convert(values, dtype, 'y')


@pytest.mark.parametrize(
  ('values', 'dtype'),
  [
    ([1.0, -2.0], np.int32),
    (np.array([255], np.uint8), np.int32),
    ([True, False], np.int32),
    ([0.1, 3e38], np.float32),
    (np.zeros([0, 3]), np.int64),
  ],
  ids=str,
)
def test_other_numbers_are_of_the_type(values, dtype):
  converted = arrays.convert(values, dtype, 'y')
  assert converted.dtype == dtype
  np.testing.assert_allclose(converted, values)


def test_columns_are_of_one_axis_and_may_be_optional(tmp_path):
  path = tmp_path / 'a.npz'
  np.savez(path, a=[1, 2], b=[[1]])
  dtypes = dict(a=np.float32, c=np.int32)
  columns = arrays.read_columns(path, dtypes, optional=('c',))
  assert {name: column.tolist() for name, column in columns.items()} == {
    'a': [1, 2]
  }
  with pytest.raises(KeyError):
    arrays.read_columns(path, dtypes)
  with pytest.raises(ValueError, match='b has the shape'):
    arrays.read_columns(path, dict(b=np.int32))
