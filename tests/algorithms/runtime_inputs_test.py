"""Settings as compiled programs see them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from algorithms import runtime_inputs
from base import settings


@dataclasses.dataclass(frozen=True)
class InputsSettings(settings.Settings):
  rate: float = settings.field(0.5, 'A rate.', minimum=0, maximum=1)
  rates: tuple[float, ...] = settings.field((0.1, 0.2), 'Some rates.')
  more: tuple[float, ...] = settings.field((), 'Rates there may be.')
  epochs: int = settings.field(3, 'Epochs.')
  name: str = settings.field('sgd', 'A name.')
  shuffle: bool = settings.field(False, 'A switch.')
  layers: tuple[str, ...] = settings.field(('all',), 'Layers.')


@dataclasses.dataclass(frozen=True)
class OtherInputsSettings(InputsSettings):
  pass


def test_numbers_are_the_floats_and_tuples_of_floats():
  numbers = runtime_inputs.numbers(InputsSettings())
  assert list(numbers) == ['rate', 'rates']
  np.testing.assert_array_equal(numbers['rate'], np.float32(0.5))
  np.testing.assert_array_equal(numbers['rates'], np.float32([0.1, 0.2]))
  assert {number.dtype for number in numbers.values()} == {np.dtype('f4')}


def test_an_empty_tuple_is_no_number():
  assert 'more' not in runtime_inputs.numbers(InputsSettings())
  assert 'more' in runtime_inputs.numbers(InputsSettings(more=(0.1,)))


@pytest.mark.parametrize(
  'values', [dict(rate=0.7), dict(rates=(3.0, 4.0)), dict(rate=0.0)]
)
def test_structure_does_not_depend_on_the_values_of_floats(values):
  structure = runtime_inputs.structure(InputsSettings(**values))
  assert structure == runtime_inputs.structure(InputsSettings())
  assert hash(structure) == hash(runtime_inputs.structure(InputsSettings()))


@pytest.mark.parametrize(
  'other',
  [
    InputsSettings(epochs=4),
    InputsSettings(name='adam'),
    InputsSettings(shuffle=True),
    InputsSettings(layers=('last',)),
    InputsSettings(rates=(0.1,)),  # Another number of them.
    InputsSettings(more=(0.1,)),
    OtherInputsSettings(),
  ],
)
def test_structure_depends_on_everything_else(other):
  structure = runtime_inputs.structure(InputsSettings())
  assert runtime_inputs.structure(other) != structure


def test_bind_puts_tensors_in_the_place_of_floats():
  inputs = InputsSettings()

  @tf.function
  def work(rate, rates):
    bound = runtime_inputs.bind(inputs, {'rate': rate, 'rates': rates})
    assert type(bound) is InputsSettings
    assert isinstance(bound.rates, tuple)
    assert (bound.epochs, bound.layers) == (3, ('all',))
    first, second = bound.rates
    return bound.rate + 10 * first + 100 * second

  # Out of the range, which settings of floats would refuse.
  result = work(tf.constant(2.0), tf.constant([3.0, 4.0]))
  assert result == 2 + 30 + 400


def test_bind_leaves_the_settings_as_they_were():
  inputs = InputsSettings()
  runtime_inputs.bind(inputs, {'rate': tf.constant(0.9)})
  assert inputs == InputsSettings()


def test_what_is_packed_is_unpacked():
  like = {'a': np.float32(3), 'b': np.array([1, 2], np.float32)}
  packed = runtime_inputs.pack(like)
  np.testing.assert_array_equal(packed, [3, 1, 2])
  unpacked = runtime_inputs.unpack(packed, like)
  assert list(unpacked) == ['a', 'b']
  np.testing.assert_array_equal(unpacked['a'], 3)
  np.testing.assert_array_equal(unpacked['b'], [1, 2])


def test_no_numbers_are_packed_into_an_empty_vector():
  packed = runtime_inputs.pack({})
  assert packed.shape == [0]
  assert not runtime_inputs.unpack(packed, {})
