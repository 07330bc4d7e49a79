"""Small files in the form of Sent140's, for tests."""

import csv
import pathlib

FILE = 'sent140/training.1600000.processed.noemoticon.csv'
GLOVE = 'glove/glove.6B.300d.txt'
VECTORS = {'so': [1, 2, 3], 'glad': [0, -1, 0.5], '!': [4, 4, 4]}
USERS = {'ann': 12, 'bob': 40, 'cäs': 31, 'dan': 35}


def write(data_dir: pathlib.Path) -> None:
  """Writes the tweets of all users in turn, and the embeddings of words."""
  rows = [
    (str(4 * (k % 2)), str(k), 'Mon Apr 06', 'NO_QUERY', user, f'So {user}, x!')
    for user, size in USERS.items()
    for k in range(size)
  ]
  rows.sort(key=lambda row: int(row[1]))
  for name in (FILE, GLOVE):
    (data_dir / name).parent.mkdir()
  with (data_dir / FILE).open('w', encoding='latin-1', newline='') as file:
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
  lines = [f'{w} {" ".join(map(str, v))}\n' for w, v in VECTORS.items()]
  (data_dir / GLOVE).write_text(''.join(lines))
