"""Settings of tasks and methods: frozen dataclasses that check themselves.

A class of settings declares the type, the default, the help and the range of
each setting:

    @dataclasses.dataclass(frozen=True)
    class NoiseSettings(settings.Settings):
      noise: float = settings.field(1.0, 'Its deviation.', minimum=0)

`from_dict` makes an instance from a user's values in a TOML file or on the
command line.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import math
import types
import typing
from typing import Any, Self, TypeAlias, TypeVar

from base import aliases
from base import errors

_T = TypeVar('_T')
# A value of a setting, in TOML or in Python.
Value: TypeAlias = bool | int | float | str | None | Sequence['Value']
# The type of a setting, as its annotation has it.
_Kind: TypeAlias = type | types.GenericAlias | types.UnionType

# The largest whole number, unless a setting has another maximum.
_MOST = 1_000_000
# The largest float of 32 bits, the type of all computations.
_MOST_FLOAT = 3.4e38

_KINDS: dict[_Kind, str] = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  aliases.Number: 'a number',
  str: 'a text',
}


class SettingError(errors.UserError):
  """The error for a setting that does not exist, or cannot have its value.

  Attributes:
    name: The name of the setting.
  """

  def __init__(self, message: str, name: str):
    super().__init__(message)
    self.name = name


def field(
  default: _T,
  help: str,  # pylint: disable=redefined-builtin
  *,
  minimum: float | None = None,
  above: float | None = None,
  maximum: float | None = None,
  choices: Sequence[Value] | None = None,
  path: bool = False,
  exchangeable: bool = False,
  repr: bool = True,  # pylint: disable=redefined-builtin
) -> _T:
  """Defines a setting of a dataclass.

  The range is that of a number, or of each element of a tuple.

  Args:
    default: The value if the user gives none.
    help: A description of the setting, for the user.
    minimum: The smallest value allowed.
    above: A bound that the value must exceed.
    maximum: The largest value allowed.
    choices: All values allowed.
    path: Whether it is a path of a file or folder, or several paths. A relative
      path starts at the folder in which the program is called.
    exchangeable: Whether a run that was stopped can go on with another value.
    repr: Whether it is in the `repr` of settings, by which noise is drawn.

  Returns:
    The field.
  """
  limits = dict(minimum=minimum, above=above, maximum=maximum, choices=choices)
  return dataclasses.field(
    default=default,
    repr=repr,
    metadata=dict(
      limits=limits, help=help, path=path, exchangeable=exchangeable
    ),
  )


def redefine(settings_class: type['Settings'], name: str, default: Any) -> Any:
  """Defines an inherited setting again, with another default."""
  (inherited,) = (
    spec for spec in dataclasses.fields(settings_class) if spec.name == name
  )
  return dataclasses.field(default=default, metadata=inherited.metadata)


def _conditions(
  minimum: float | None = None,
  above: float | None = None,
  maximum: float | None = None,
  choices: Sequence[Value] | None = None,
) -> Iterator[tuple[str, Callable[[Any], bool]]]:
  """Yields the conditions of a value, in words and as functions."""
  if minimum is not None:
    yield f'at least {minimum}', lambda value: value >= minimum
  if above is not None:
    yield f'above {above}', lambda value: value > above
  if maximum is not None:
    yield f'at most {maximum}', lambda value: value <= maximum
  if choices is not None:
    yield (
      f'one of {", ".join(map(str, choices))}',
      lambda value: value in choices,
    )


def _violation(value: Value, **limits: Any) -> str | None:
  """Returns the condition that `value` violates; None if it is in the range."""
  if isinstance(value, float):
    if not math.isfinite(value):
      return 'a finite number'
    if abs(value) > _MOST_FLOAT:
      return f'from -{_MOST_FLOAT} to {_MOST_FLOAT}'
  for condition, holds in _conditions(**limits):
    if not holds(value):
      return condition
  if type(value) is int and limits.get('maximum') is None and value > _MOST:
    return f'at most {_MOST}'
  return None


@dataclasses.dataclass(frozen=True)
class Settings:
  """The base class of settings; refuses values that are out of range.

  Raises:
    SettingError: For the first value that is out of range.
  """

  def __post_init__(self) -> None:
    for spec in dataclasses.fields(self):
      value = getattr(self, spec.name)
      if value == () and spec.default:
        raise SettingError(f'{spec.name} must not be empty.', spec.name)
      for element in value if isinstance(value, tuple) else (value,):
        if element is None:
          continue
        violation = _violation(element, **spec.metadata.get('limits', {}))
        if violation:
          raise SettingError(
            f'{spec.name} must be {violation}, not {errors.quote(element)}.',
            spec.name,
          )

  def replace_paths(self, replace: Callable[[str], str]) -> Self:
    """Returns the settings with each path replaced; none stays none."""

    def replaced(value: str | tuple[str, ...] | None) -> Value:
      if isinstance(value, tuple):
        return tuple(map(replace, value))
      return None if value is None else replace(value)

    changed = {
      spec.name: replaced(getattr(self, spec.name))
      for spec in dataclasses.fields(self)
      if spec.metadata.get('path')
    }
    return dataclasses.replace(self, **changed)


def require_order(given: Settings, smaller: str, larger: str) -> None:
  """Raises a `SettingError` if the setting `smaller` is above `larger`."""
  values = getattr(given, smaller), getattr(given, larger)
  if values[0] > values[1]:
    raise SettingError(
      f'{smaller} must be at most {larger}, {values[1]}, not {values[0]}.',
      smaller,
    )


def _optional(kind: _Kind) -> _Kind | None:
  """Returns the type beside None in an optional type; None for other types."""
  if typing.get_origin(kind) not in (typing.Union, types.UnionType):
    return None
  (inner,) = set(typing.get_args(kind)) - {type(None)}
  return inner


def _describe(kind: _Kind) -> str:
  """Describes the values of a type, for the user."""
  if inner := _optional(kind):
    return f'{_describe(inner)}, or none'
  if typing.get_origin(kind) is tuple:
    return f'a list, each element {_describe(typing.get_args(kind)[0])}'
  return _KINDS[kind]


def _convert(value: Value, kind: _Kind) -> Value:
  """Converts a text or TOML value to a type; may raise a ValueError."""
  if kind is aliases.Number:
    kind = float
  if inner := _optional(kind):
    return None if value in (None, 'none') else _convert(value, inner)
  if typing.get_origin(kind) is tuple:
    if isinstance(value, str):
      value = [part.strip() for part in value.split(',')] if value else []
    if not isinstance(value, (list, tuple)):
      raise ValueError
    return tuple(_convert(part, typing.get_args(kind)[0]) for part in value)
  if isinstance(value, str) and kind is bool:
    value = {'true': True, 'false': False}.get(value.lower())
  elif isinstance(value, str) and kind in (int, float):
    return int(value) if kind is int else float(value)
  elif kind is float and type(value) is int:  # A bool is not a number.
    return float(value)
  if type(value) is not kind:
    raise ValueError
  return value


def parse(cls: type[_T], values: Mapping[str, Value], where: str) -> _T:
  """Makes settings from a user's values.

  Args:
    cls: The dataclass. Its fields are bool, int, float or str, one of these or
      None, or a tuple of any number of them.
    values: The settings by name, as read from TOML or as text.
    where: The task or method of the settings, for the error message.

  Returns:
    An instance of `cls`, with the defaults for settings not in `values`.

  Raises:
    SettingError: For an unknown name, or a value of a wrong type or out of
      range.
  """
  kinds = typing.get_type_hints(cls)

  def setting(name: str, value: Value) -> Value:
    if name not in kinds:
      raise SettingError(str(errors.unknown('setting', name, kinds)), name)
    try:
      return _convert(value, kinds[name])
    except (ValueError, OverflowError):
      raise SettingError(
        f'{name} must be {_describe(kinds[name])}, not {errors.quote(value)}.',
        name,
      ) from None

  try:
    return cls(**{name: setting(name, value) for name, value in values.items()})
  except SettingError as error:
    raise SettingError(f'{where}: {error}', error.name) from None


@dataclasses.dataclass(frozen=True)
class Description:
  """A setting, for the user.

  Attributes:
    name: Its name.
    default: The value if the user gives none, as a user would write it.
    values: The values that it can have.
    help: Its description.
  """

  name: str
  default: str
  values: str
  help: str


def to_text(value: object) -> str:
  """Writes a value in the form that `parse` reads."""
  if isinstance(value, tuple):
    return ','.join(map(to_text, value))
  is_keyword = value is None or isinstance(value, bool)
  return str(value).lower() if is_keyword else str(value)


def describe(
  cls: type[Settings], defaults: Mapping[str, Value] | None = None
) -> list[Description]:
  """Describes all settings of a class.

  Args:
    cls: The class.
    defaults: The defaults that differ from those of the class.

  Returns:
    The settings, in the order of the class.
  """
  kinds, defaults = typing.get_type_hints(cls), defaults or {}

  def values(spec: dataclasses.Field[Value]) -> Iterator[str]:
    limits = spec.metadata['limits']
    if limits['choices'] is None or kinds[spec.name] is not str:
      yield _describe(kinds[spec.name])
    for condition, _ in _conditions(**limits):
      yield condition

  return [
    Description(
      spec.name,
      to_text(defaults.get(spec.name, spec.default)),
      ', '.join(values(spec)),
      spec.metadata['help'],
    )
    for spec in dataclasses.fields(cls)
  ]
