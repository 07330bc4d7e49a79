"""Tests of names as they are shown."""

import re

import pytest

from base import names
from tests import attacks

_ALL = attacks.NAMES | attacks.UNWRITABLE


@pytest.mark.parametrize('kind', _ALL)
def test_nothing_unseen_is_left(kind):
  shown = names.visible({'a': [_ALL[kind]], _ALL[kind]: 1})
  for text in (shown['a'][0], *shown):
    assert not set(map(ord, text)) & {*range(10), *range(11, 32), 127, 0x202E}
    text.encode()


def test_names_of_any_script_stay():
  for name in ('Zoë', '日本', 'علی\u200cرضا', '👩\u200d🔬', 'a\nb', '\\x1b'):
    assert names.visible(name) == name


def test_what_is_escaped_can_be_told():
  assert names.visible('\x1b[31m \u202eb') == '\\x1b[31m \\u202eb'


@pytest.mark.parametrize('kind', _ALL)
def test_markdown_takes_a_name_for_a_text(kind):
  written = names.to_markdown(_ALL[kind])
  assert '\n' not in written
  active = written.replace('<br>', '')
  assert not re.search(r'(?<!\\)(?:\\\\)*[<\[`*|&]', active)


def test_words_with_underscores_stay_in_markdown():
  assert names.to_markdown('client_weight: _a_') == r'client_weight: \_a\_'
