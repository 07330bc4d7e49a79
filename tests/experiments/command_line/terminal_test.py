"""Tests of what programs show."""

import io
from unittest import mock

import pytest

from experiments.command_line import terminal


class TestProgress:
  def test_without_a_terminal_a_line_now_and_then_and_at_the_end(self):
    file = io.StringIO()
    with mock.patch('time.monotonic') as now:
      now.return_value = 0.0
      with terminal.progress('fedavg', 30, 'rounds', file) as show:
        for i in range(30):
          now.return_value += 1.0
          show(i + 1, f'loss {i + 1}')
    assert file.getvalue().splitlines() == [
      'fedavg: 10 of 30 rounds, 10.0 s, 20 s left, loss 10',
      'fedavg: 20 of 30 rounds, 20.0 s, 10 s left, loss 20',
      'fedavg: 30 of 30 rounds, 30.0 s, loss 30',
    ]

  def test_what_was_done_before_says_nothing_of_what_is_left(self):
    with mock.patch('time.monotonic') as now:
      now.return_value = 0.0
      pace = terminal.Pace(120)
      assert pace.seconds_left(100) is None
      now.return_value = 50.0
      assert pace.seconds_left(110) == 50.0
      assert pace.seconds_left(120) is None

  def test_quiet_if_nothing_is_done(self):
    file = io.StringIO()
    with terminal.progress('fedavg', 30, 'rounds', file):
      pass
    assert not file.getvalue()

  def test_a_bar_on_a_terminal(self):
    class Terminal(io.StringIO):
      def isatty(self):
        return True

    file = Terminal()
    with mock.patch.dict('os.environ', {'TERM': 'xterm'}):
      with terminal.progress('fedavg', 3, 'rounds', file) as show:
        show(3, 'loss 0.5')
    assert '3/3' in file.getvalue()
    assert 'loss 0.5' in file.getvalue()


@pytest.mark.parametrize(
  ('seconds', 'text'), [(0.4, '0 s'), (59.6, '1 min 00 s'), (61, '1 min 01 s')]
)
def test_a_duration(seconds, text):
  assert terminal.duration(seconds) == text


def test_no_name_controls_the_terminal(capsys):
  terminal.say('a \x1b[31mname\r\nof ü\x07')
  assert capsys.readouterr().err == 'a \\x1b[31mname\\r\nof ü\\x07\n'


def test_a_notebook_does_not_change_what_is_written_to_a_stream():
  file = io.StringIO()
  table = terminal.make_table('title', 'name', numbers=['number'])
  table.add_row('a', '1')
  with (
    mock.patch('rich.console._is_jupyter', return_value=True),
    mock.patch.dict('os.environ', {'FORCE_COLOR': '1'}),
  ):
    terminal.print_table(table, file)
  title, names, _, row = filter(str.strip, file.getvalue().splitlines())
  assert title.strip() == 'title'
  assert (names.split(), row.split()) == (['name', 'number'], ['a', '1'])
