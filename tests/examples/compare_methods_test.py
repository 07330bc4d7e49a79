"""The script and the notebook that compare methods run as they stand."""

import asyncio
import json
import pathlib
import re
import subprocess
import sys

import pytest

import examples
from tests.experiments import programs

_FOLDER = pathlib.Path(next(iter(examples.__path__)))


def test_the_script_prints_its_results_and_nothing_else(tmp_path):
  done = subprocess.run(
    [sys.executable, str(_FOLDER / 'compare_methods.py')],
    env=programs.environment(BUILD_WORKING_DIRECTORY=str(tmp_path)),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  first, title, *_, worst, p_value, figure = done.stdout.splitlines()
  assert first == '100 clients to train on'
  assert title == 'accuracy of 50 test clients; higher is better'
  assert re.fullmatch(r'worst client: test_\d{6}', worst)
  assert 0 <= float(p_value.removeprefix('p-value: ')) <= 1
  assert pathlib.Path(figure.removeprefix('figure: ')).is_file()
  # No message of TensorFlow's, nor an error when Python ends.
  for line in done.stderr.splitlines():
    assert re.match(r'Settings start from preset synthetic|\w+: ', line), line


class TestTheNotebook:
  @pytest.fixture(autouse=True)
  def _read(self):
    text = (_FOLDER / 'compare_methods.ipynb').read_text(encoding='utf-8')
    cells = json.loads(text)['cells']
    self.cells = [cell for cell in cells if cell['cell_type'] == 'code']

  def test_runs_cell_by_cell(self, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('BUILD_WORKING_DIRECTORY', str(tmp_path))
    names = {}

    async def run():
      # Jupyter, too, runs its cells in an event loop.
      for cell in self.cells:
        exec(''.join(cell['source']), names)

    asyncio.run(run())
    printed = capsys.readouterr().out
    assert '40 clients to train on' in printed
    assert re.search(r'^\d+ clients are better off', printed, re.MULTILINE)
    assert set(names['results']) == {'fedavg', 'finetuning', 'local'}
    (folder,) = (tmp_path / 'results').iterdir()
    assert names['experiment'].folder == folder
    assert (folder / 'plots/candidates_finetuning.svg').is_file()

  def test_has_no_outputs(self):
    for cell in self.cells:
      assert cell['outputs'] == []
      assert cell['execution_count'] is None
