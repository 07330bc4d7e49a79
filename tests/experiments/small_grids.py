"""A small grid, for tests."""

import pathlib

SETTINGS = """
total_rounds = 12
clients_per_round = 3
rounds_per_checkpoint = 4
finetuning_epochs = 3
[task]
name = "synthetic"
num_train_clients = 6
num_validation_clients = 3
num_test_clients = 4
max_examples = 40
"""
GRID = """
preset = "{preset}"
repeats = [1, 2]
[[grid]]
algorithms = ["finetuning"]
[grid.values]
client_learning_rate = [0.01, 0.1, 1e38]
total_rounds = [8, 12]
[[grid]]
algorithms = ["fedavg"]
[grid.values]
client_learning_rate = [0.01, 0.1, 1e38]
"""


def write(folder: pathlib.Path, text: str = GRID) -> pathlib.Path:
  """Writes the file of a grid, and its preset."""
  preset = folder / 'preset.toml'
  preset.write_text(SETTINGS)
  path = folder / 'small.toml'
  path.write_text(text.format(preset=preset))
  return path
