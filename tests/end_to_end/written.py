"""Reads the output of a run, for tests."""

import csv
import json
import pathlib
import statistics
from typing import Any

import pytest


def accuracies(folder: pathlib.Path) -> dict[str, Any]:
  """Reads the results of a run; asserts that they are those of its clients.

  Args:
    folder: The output folder of a run of a task whose metric is an accuracy.

  Returns:
    The results of each method.
  """
  methods = json.loads((folder / 'results.json').read_text())['methods']
  with (folder / 'per_client.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert {row['method'] for row in rows} == set(methods)
  for method, result in methods.items():
    assert result['metric'] == 'accuracy'
    of_method = [row for row in rows if row['method'] == method]
    metric = [float(row['metric']) for row in of_method]
    examples = [int(row['examples']) for row in of_method]
    right = [m * n for m, n in zip(metric, examples)]
    assert right == pytest.approx([round(n) for n in right], abs=1e-3)
    assert result['test']['num_clients'] == len(of_method)
    assert result['test']['mean'] == pytest.approx(statistics.fmean(metric))
    assert result['pooled'] == pytest.approx(sum(right) / sum(examples))
    assert result['dropped_updates'] == 0
  return methods
