"""Tests of the tables of a report."""

import csv
import math

import pytest

from experiments.reporting.pages import sheets

_SHEET = sheets.Sheet(
  'results',
  'Results',
  ['method', 'mean'],
  [
    [sheets.Cell('a|b, <c>'), sheets.number(0.25)],
    [sheets.Cell('fedavg_50%'), sheets.number(math.nan)],
  ],
)


def test_csv_has_the_texts_of_all_cells():
  assert list(csv.reader(_SHEET.to_csv().splitlines())) == [
    ['method', 'mean'],
    ['a|b, <c>', '0.25'],
    ['fedavg_50%', 'diverged'],
  ]


def test_markdown_keeps_texts_as_they_are_within_cells():
  assert _SHEET.to_markdown().splitlines() == [
    '| method | mean |',
    '| :-- | --: |',
    '| a\\|b, \\<c\\> | 0.25 |',
    '| fedavg_50% | diverged |',
  ]


def test_latex_takes_no_text_for_a_command():
  assert r'fedavg\_50\% & diverged \\' in _SHEET.to_latex()


def test_html_shows_texts_as_they_are_and_sorts_by_numbers():
  text = _SHEET.to_html()
  assert 'a|b, &lt;c&gt;' in text
  assert 'data-value="0.25"' in text


@pytest.mark.parametrize(
  ('values', 'text'),
  [
    ([1.0, 3.0], '2 ± 1.4'),
    ([2.0], '2'),
    ([2.0, 2.0], '2'),
    ([2.0, math.nan], 'diverged'),
  ],
)
def test_a_mean_has_its_deviation_over_repeats(values, text):
  assert sheets.spread(values).text == text
