"""Tests of the figure of the classes of clients' examples."""

import numpy as np

from experiments.reporting.figures import classes
from tests.experiments.reporting.figures import described


def test_clients_are_by_their_most_common_class_and_size():
  counts = np.array([[1, 4], [3, 0], [2, 20], [30, 7]])
  drawn = classes.draw(counts)
  shown = np.zeros_like(counts)
  for row in drawn.data:
    shown[row['client'], int(row['class'])] = row['examples']
  assert shown.tolist() == [[30, 7], [3, 0], [2, 20], [1, 4]]


def test_classes_have_their_names():
  drawn = classes.draw(np.array([[1, 4], [3, 0]]), ['beer', 'green tea ' * 3])
  text = described.texts(drawn)
  assert 'beer' in text
  assert 'green tea green tea gre…' in text
  assert '2 clients' in text


def test_a_thousand_clients_have_a_pixel_each():
  drawn = classes.draw(np.eye(10, dtype=int)[np.arange(1000) % 10])
  view = drawn.spec['vconcat'][1]
  # In print, 300 dots are 125 units.
  assert view['width'] * 300 / 125 > 1000
  assert '1,000 clients' in described.texts(drawn)
