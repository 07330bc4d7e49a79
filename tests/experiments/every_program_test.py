"""Tests of what all programs have in common."""

import ast
import pathlib

import pytest

from experiments import run

_PROGRAMS = {
  path.stem: path
  for path in sorted(pathlib.Path(run.__file__).parent.glob('*.py'))
  if path.stem not in ('__init__', 'api')
}


@pytest.mark.parametrize('program', _PROGRAMS)
def test_a_program_listens_for_signals_before_its_other_imports(program):
  _, first, second, *_ = ast.parse(_PROGRAMS[program].read_text()).body
  assert ast.unparse(first) == ('from experiments.command_line import stopping')
  assert ast.unparse(second) == (
    "if __name__ == '__main__':\n    stopping.listen()"
  )
