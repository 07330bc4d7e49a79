"""Encodes the columns of a table as examples.

A run writes it as JSON beside its results. Another table, with the rows of new
clients, can then be encoded in the same way.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib

from base import aliases
from tasks.data import files
from tasks.data.tables import features


@dataclasses.dataclass(frozen=True)
class Target:
  """The encoding of the target as a number or a class.

  Attributes:
    column: Its name.
    classes: The names of the classes 0, 1, …; none for a number.
    mean: What is subtracted from a number.
    deviation: What the number is divided by.
  """

  column: str
  classes: Sequence[str] = ()
  mean: float = 0.0
  deviation: float = 1.0


@dataclasses.dataclass(frozen=True)
class Encoding:
  """The encoding of a table as examples.

  Attributes:
    target: The target.
    columns: What becomes of each column that is an input; none of an image.
    names: The names of the values 0, 1, … of the groups of clients and of the
      types and contexts of examples, by 'group', 'type' and 'context'.
  """

  target: Target
  columns: Sequence[features.Column] = ()
  names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

  def to_dict(self) -> dict[str, aliases.Json]:
    """Writes it for JSON, with a name for each input of a row."""
    return {
      'inputs': features.input_names(self.columns),
      'columns': [features.to_dict(column) for column in self.columns],
      'target': dataclasses.asdict(self.target),
      'names': dict(self.names),
    }


def read(path: pathlib.Path) -> Encoding:
  """Reads what a file has that `Encoding.to_dict` gave.

  Args:
    path: The file.

  Returns:
    The encoding.

  Raises:
    UserError: If there is no such file, or it has something else.
  """
  with files.reading(
    path,
    "a run's encoding of a table",
    'Name the encoding.json of a run as task.encoding_file.',
  ):
    found = json.loads(path.read_text(encoding='utf-8'))
    return Encoding(
      Target(**found['target']),
      [features.parse(column) for column in found['columns']],
      found['names'],
    )
