"""Tests of settings."""

import dataclasses

import pytest

from base import errors
from base import settings


@dataclasses.dataclass(frozen=True)
class _DescribedSettings(settings.Settings):
  rate: float = settings.field(0.1, 'A rate.', above=0, maximum=10)
  steps: int = settings.field(5, 'A number.', minimum=1)
  nesterov: bool = settings.field(False, 'A switch.')
  optimizer: str = settings.field('sgd', 'A name.', choices=('sgd', 'adam'))
  rates: tuple[float, ...] = settings.field((0.1, 1.0), 'Some.', minimum=0)
  clip: float | None = settings.field(None, 'A bound.', minimum=0)


@dataclasses.dataclass(frozen=True)
class _ExampleSettings(_DescribedSettings):
  plain: int = 3
  parts: tuple[int, ...] = ()


def test_what_is_not_given_has_its_default():
  assert settings.parse(_ExampleSettings, {}, 'x') == _ExampleSettings()


@pytest.mark.parametrize(
  'name, value, expected',
  [
    ('rate', '1e-2', 0.01),
    ('rate', 0.5, 0.5),
    ('rate', 2, 2.0),
    ('steps', '7', 7),
    ('steps', 7, 7),
    ('nesterov', 'true', True),
    ('nesterov', 'False', False),
    ('nesterov', True, True),
    ('optimizer', 'adam', 'adam'),
    ('rates', '0.5, 2', (0.5, 2.0)),
    ('rates', [1, 0.5], (1.0, 0.5)),
    ('rates', '3', (3.0,)),
    ('parts', '', ()),
    ('clip', 'none', None),
    ('clip', '2.5', 2.5),
    ('plain', 4, 4),
  ],
)
def test_texts_and_toml_values_are_converted(name, value, expected):
  example_settings = settings.parse(_ExampleSettings, {name: value}, 'x')
  actual = getattr(example_settings, name)
  assert actual == expected
  assert type(actual) is type(expected)


@pytest.mark.parametrize(
  'name, value, message',
  [
    ('rate', 'fast', "method m: rate must be a number, not 'fast'."),
    ('rate', True, 'rate must be a number, not True'),
    ('steps', 2.5, 'steps must be a whole number, not 2.5'),
    ('steps', '2.5', "steps must be a whole number, not '2.5'"),
    ('steps', True, 'steps must be a whole number'),
    ('steps', [2], 'steps must be a whole number'),
    ('nesterov', 'yes', 'nesterov must be true or false'),
    ('nesterov', 1, 'nesterov must be true or false'),
    ('optimizer', 3, 'optimizer must be a text'),
    ('rates', 0.5, 'rates must be a list, each element a number'),
    ('rates', '1,,2', 'rates must be a list, each element a number'),
    ('clip', 'off', 'clip must be a number, or none'),
    ('rate', 0, 'method m: rate must be above 0, not 0.0.'),
    ('rate', 11, 'rate must be at most 10, not 11.0'),
    ('rates', '', 'rates must not be empty'),
    ('plain', '9' * 25, 'plain must be at most 1000000, not 99999'),
    ('parts', [10**7], 'parts must be at most 1000000, not 10000000'),
    ('clip', '1e39', 'clip must be from -3.4e+38 to 3.4e+38, not 1e+39'),
    ('clip', 10**400, 'clip must be a number, or none, not 1000'),
    ('steps', 'x' * 1000, f"steps must be a whole number, not '{'x' * 99} …."),
    ('steps', [16**5000], 'a number of thousands of digits'),
    ('rate', 'nan', 'rate must be a finite number, not nan'),
    ('steps', 0, 'steps must be at least 1, not 0'),
    ('optimizer', 'sdg', "must be one of sgd, adam, not 'sdg'"),
    ('rates', [1, -1], 'rates must be at least 0, not -1.0'),
    ('clip', -1, 'clip must be at least 0, not -1.0'),
    ('step', 3, "method m: Unknown setting 'step'. Did you mean 'steps'?"),
  ],
)
def test_what_is_wrong_is_said(name, value, message):
  with pytest.raises(errors.UserError) as raised:
    settings.parse(_ExampleSettings, {name: value}, 'method m')
  assert message in str(raised.value)


def test_the_range_is_checked_without_a_dictionary_too():
  with pytest.raises(errors.UserError, match='steps must be at least 1'):
    _ExampleSettings(steps=0)


def test_a_setting_describes_itself():
  described = {
    setting.name: (setting.default, setting.values)
    for setting in settings.describe(_DescribedSettings, {'steps': 9})
  }
  assert described == {
    'rate': ('0.1', 'a number, above 0, at most 10'),
    'steps': ('9', 'a whole number, at least 1'),
    'nesterov': ('false', 'true or false'),
    'optimizer': ('sgd', 'one of sgd, adam'),
    'rates': ('0.1,1.0', 'a list, each element a number, at least 0'),
    'clip': ('none', 'a number, or none, at least 0'),
  }
