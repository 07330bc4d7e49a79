"""Small tables in the formats that users have."""

import csv
import gzip
import io
import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

Row = dict[str, Any]


def rows(num_clients: int = 6, size: int = 12, seed: int = 0) -> list[Row]:
  """Makes rows of clients that share a linear function of two columns."""
  rng = np.random.default_rng(seed)
  made = []
  for k in range(num_clients):
    for _ in range(size):
      a, b = rng.normal(3, 2), int(rng.integers(0, 50))
      made.append(
        {
          'who': f'c{k}',
          'a': round(a, 3),
          'b': b,
          'color': ['red', 'green', 'blue'][int(rng.integers(3))],
          'site': ['east', 'west'][k % 2],
          'y': round(2 * a + b / 10 + k / 5, 4),
          'label': 'yes' if a > 3 else 'no',
        }
      )
  return made


def write(path: pathlib.Path, table_rows: list[Row]) -> pathlib.Path:
  """Writes rows in the format that the ending says."""
  name = path.name.removesuffix('.gz')
  if name.endswith('.parquet'):
    parquet.write_table(pa.Table.from_pylist(table_rows), path)
    return path
  text = io.StringIO()
  if name.endswith('.jsonl'):
    text.writelines(json.dumps(row) + '\n' for row in table_rows)
  else:
    writer = csv.DictWriter(text, list(table_rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(table_rows)
  contents = text.getvalue().encode()
  path.write_bytes(
    gzip.compress(contents) if path.suffix == '.gz' else contents
  )
  return path
