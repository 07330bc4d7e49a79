"""Links among the pages of the documentation lead somewhere."""

import os
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PAGES = [_ROOT / 'README.md', *sorted((_ROOT / 'docs').glob('*.md'))]
# A target of a link or a picture, of which others are on the network.
_TARGET = re.compile(r'(?:\]\(|src=")([^)"\s]+)')
_MOST_BYTES = 100_000


def _anchors(page: pathlib.Path) -> set[str]:
  """Returns the anchors of a page's headings, as GitHub makes them."""
  text = page.read_text(encoding='utf-8')
  titles = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
  words = (re.sub(r'[^\w\- ]', '', title.lower()) for title in titles)
  return {title.replace(' ', '-') for title in words}


@pytest.mark.parametrize('page', _PAGES, ids=lambda page: page.name)
def test_each_link_to_a_page_or_picture_is_right(page):
  for target in _TARGET.findall(page.read_text(encoding='utf-8')):
    name, _, anchor = target.partition('#')
    # Bazel's files are links, which must not be followed.
    path = pathlib.Path(os.path.normpath(page.parent / name)) if name else page
    if path in _PAGES:
      assert not anchor or anchor in _anchors(path), target
    elif '/images/' in str(path) or path.parent == _ROOT / 'docs':
      assert path.is_file(), target


def test_pictures_are_small():
  pictures = list((_ROOT / 'docs/images').glob('*.*'))
  assert pictures
  for picture in pictures:
    assert picture.stat().st_size < _MOST_BYTES, picture
