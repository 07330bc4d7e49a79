"""Tests of what a task is."""

import numpy as np
import pytest

from tasks import task


@pytest.fixture(name='language')
def _language():
  return task.Attribute(('en', 'es'), {'a': 0, 'b': 1, 'c': 1})


def test_an_attribute_names_the_value_of_a_client(language):
  assert [language.name(client_id) for client_id in 'abc'] == ['en', 'es', 'es']


def test_an_attribute_gives_the_integers_of_clients(language):
  values = language.gather(['c', 'a'])
  assert values.dtype == np.int32
  np.testing.assert_array_equal(values, [1, 0])
