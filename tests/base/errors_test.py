"""Tests of errors."""

import pathlib

import pytest

from base import errors


def test_an_unknown_name_is_answered_by_the_nearest_and_all_known_ones():
  message = str(errors.unknown('task', 'scool', {'school', 'emnist'}))
  assert (
    message
    == "Unknown task 'scool'. Did you mean 'school'? Known: emnist, school."
  )


def test_a_name_that_is_near_to_none_gets_no_suggestion():
  message = str(errors.unknown('task', 'xyz', ['school']))
  assert 'Did you mean' not in message


def test_where_no_name_is_known_the_error_says_so():
  message = str(errors.unknown('setting', 'x', []))
  assert message == "Unknown setting 'x'. Known: none."


def test_what_cannot_be_written_is_named():
  path = pathlib.Path('/dev/full')
  with pytest.raises(errors.ResourceError) as caught:
    with errors.writing(path):
      path.write_text('x')
  assert str(caught.value) == (
    '/dev/full cannot be written: No space left on device. Make room on the'
    ' disk.'
  )


def test_what_is_too_long_to_list_says_what_lists_it():
  error = errors.unknown('setting', 'alpa', ['alpha'], 'list task x')
  assert str(error) == (
    "Unknown setting 'alpa'. Did you mean 'alpha'? All are listed by"
    ' list task x.'
  )


def test_of_many_names_only_some_are_listed():
  message = str(errors.unknown('client', 'x', map(str, range(100_000))))
  assert len(message) < 1000
  assert message.endswith(' and 99,940 more.')
