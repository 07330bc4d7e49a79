"""Tests of how programs start and end."""

import pickle
import signal
import sys

from absl import app
import pytest

from base import errors
from experiments.command_line import launch


def _raise(error):
  raise error


@pytest.fixture(name='restore', autouse=True)
def _restore():
  """Leaves the handlers of signals as they were."""
  handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
  yield
  for number, handler in handlers.items():
    signal.signal(number, handler)


def test_the_exit_status_is_that_of_the_action():
  assert launch.carry_out(lambda: 3) == 3


def test_of_a_users_mistake_only_the_message_is_shown(capsys):
  assert launch.carry_out(lambda: _raise(errors.UserError('Wrong.'))) == 1
  assert capsys.readouterr().err == 'Error: Wrong.\n'


@pytest.mark.parametrize(
  ('when_stopped', 'shown'), [('', 'Stopped.'), ('Again.', 'Stopped. Again.')]
)
def test_of_ctrl_c_only_a_message_is_shown(capsys, when_stopped, shown):
  status = launch.carry_out(lambda: _raise(KeyboardInterrupt()), when_stopped)
  assert status == 130
  assert capsys.readouterr().err == f'\n{shown}\n'


def test_any_other_error_is_a_bug():
  with pytest.raises(ValueError, match='bug'):
    launch.carry_out(lambda: _raise(ValueError('bug')))


def test_arguments_that_are_no_flags_are_refused():
  launch.refuse_arguments(['run'])
  with pytest.raises(app.UsageError, match="no argument 'x'"):
    launch.refuse_arguments(['run', 'x'])


def test_a_late_call_imports_its_module_only_when_it_is_called():
  sys.modules.pop('colorsys', None)
  call = pickle.loads(
    pickle.dumps(launch.LateCall('colorsys', 'rgb_to_hsv', (1.0, 0.0)))
  )
  assert 'colorsys' not in sys.modules
  assert call(0.0) == (0.0, 1.0, 1.0)


def test_ctrl_c_takes_effect_between_rounds():
  launch.interrupt_between_rounds()
  launch.stop_if_interrupted()
  signal.raise_signal(signal.SIGINT)
  with pytest.raises(KeyboardInterrupt):
    launch.stop_if_interrupted()


def test_the_second_ctrl_c_takes_effect_at_once():
  launch.interrupt_between_rounds()
  signal.raise_signal(signal.SIGINT)
  with pytest.raises(KeyboardInterrupt):
    signal.raise_signal(signal.SIGINT)
  launch.interrupt_between_rounds()  # Forgets it.
  launch.stop_if_interrupted()


def test_sigterm_is_an_exit():
  launch.exit_when_terminated()
  with pytest.raises(SystemExit) as caught:
    signal.raise_signal(signal.SIGTERM)
  assert caught.value.code == 143
