"""Runs the rounds of a training: one by one, or several as one program."""

from collections.abc import Generator
import math
import time
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import tensorflow_federated as tff
import tree

from algorithms import methods
from algorithms import process
from algorithms import trainers
from base import aliases
from personalization.rounds import client_states
from personalization.rounds import cohorts
from personalization.rounds import schedules
from tff_runtimes import cohort
from tff_runtimes import rounds

# Rounds are one program only if all clients' states take at most these bytes.
_MOST_STATE_BYTES = 2**29
# A training that can be stopped asks about this often whether to go on.
_SECONDS_AT_ONCE = 0.5

# The input of one round or several, see `schedules`.
_Inputs: TypeAlias = aliases.Structure


class Portion(NamedTuple):
  """Rounds that are run together.

  Attributes:
    inputs: The input of these rounds, and of others.
    first: The place of the first of them among the rounds of `inputs`.
    num_rounds: Their number.
  """

  inputs: _Inputs
  first: int
  num_rounds: int


class RoundRunner(Protocol):
  """Runs rounds of a training."""

  def prepare(
    self, done: int, total_rounds: int
  ) -> Generator[tuple[_Inputs, int], None, None]:
    """Yields the input of the rounds to run next, and their number."""

  def run(
    self, server_state: process.State, done: int, portion: Portion
  ) -> tuple[process.State, aliases.Structure]:
    """Runs rounds; returns the server's state and the rounds' metrics.

    Args:
      server_state: The server's state before them.
      done: The number of rounds before them.
      portion: The rounds.
    """

  def store(self, round_num: int) -> None:
    """Stores the clients' states after a round."""


class _OneByOne(RoundRunner):
  """Runs one round at a time; clients' states are in memory for their round."""

  def __init__(
    self,
    method: methods.Method,
    schedule: schedules.Schedule,
    states: client_states.ClientStates,
  ):
    self._method = method
    self._schedule = schedule
    self._states = states

  def prepare(
    self, done: int, total_rounds: int
  ) -> Generator[tuple[_Inputs, int], None, None]:
    for round_num in range(done + 1, total_rounds + 1):
      yield self._schedule.make_round(round_num), 1

  def run(
    self, server_state: process.State, done: int, portion: Portion
  ) -> tuple[process.State, aliases.Structure]:
    rows, data, client_seeds = portion.inputs
    clients = cohorts.clients(
      trainers.Client,
      len(rows),
      data=data,
      state=self._states.read(rows),
      seed=client_seeds,
      attributes=self._schedule.attributes(self._method, rows),
    )
    server_state, new_states, metrics = self._method.next(
      server_state, clients, *self._method.constants
    )
    # A round may have no clients.
    if len(rows) and not self._states.is_empty:
      self._states.write(rows, cohorts.stack(new_states), done + 1)
    return server_state, metrics

  def store(self, round_num: int) -> None:
    pass  # `run` has stored the clients' states.


class _AtOnce(RoundRunner):
  """Runs several rounds as one program, which keeps all clients' states."""

  def __init__(
    self,
    run: rounds.Rounds,
    method: methods.Method,
    training_settings: schedules.TrainingSettings,
    schedule: schedules.Schedule,
    states: client_states.ClientStates,
  ):
    self._run = run
    self._method = method
    self._settings = training_settings
    self._schedule = schedule
    self._states = states
    self._rows = np.arange(len(schedule.clients))
    self._all_states = states.read(self._rows)
    self._changed = np.zeros(len(self._rows), bool)
    self._fixed = (
      schedule.examples,
      schedule.attributes(method, self._rows),
    )

  def prepare(
    self, done: int, total_rounds: int
  ) -> Generator[tuple[_Inputs, int], None, None]:
    training_settings = self._settings
    intervals = [training_settings.rounds_per_checkpoint]
    if training_settings.rounds_per_evaluation:
      intervals.append(training_settings.rounds_per_evaluation)
    while done < total_rounds:
      num_rounds = min(
        self._schedule.rounds_at_once,
        total_rounds - done,
        *(every - done % every for every in intervals),
      )
      yield self._schedule.make_rounds(done + 1), num_rounds
      done += num_rounds

  def run(
    self, server_state: process.State, done: int, portion: Portion
  ) -> tuple[process.State, aliases.Structure]:
    del done
    inputs, first, num_rounds = portion
    server_state, self._all_states, metrics = self._run(
      num_rounds,
      server_state,
      self._all_states,
      self._fixed,
      inputs,
      self._method.constants,
      first,
    )
    rows = self._rows  # Without 'rows' all clients take part.
    if 'rows' in inputs:
      rows = np.asarray(inputs['rows'])[first : first + num_rounds]
    self._changed[rows] = True
    return server_state, metrics

  def store(self, round_num: int) -> None:
    rows = self._rows[self._changed]
    changed = tree.map_structure(lambda leaf: leaf[rows], self._all_states)
    self._states.write(rows, changed, round_num)
    self._changed[:] = False


def make_runner(
  method: methods.Method,
  training_settings: schedules.TrainingSettings,
  schedule: schedules.Schedule,
  states: client_states.ClientStates,
) -> RoundRunner:
  """Makes the runner of rounds: of several at once, where that is possible."""
  context = tff.framework.get_context_stack().current
  state_bytes = len(schedule.clients) * states.bytes_per_client
  if (
    isinstance(context, cohort.CohortContext)
    and isinstance(method.next, tff.Computation)
    and state_bytes <= _MOST_STATE_BYTES
    and schedule.examples is not None
  ):
    run = context.rounds(method.next, schedules.PLAN)
    if run is not None:
      return _AtOnce(run, method, training_settings, schedule, states)
  return _OneByOne(method, schedule, states)


class Pace:
  """Divides rounds that are run at once into portions that do not take long."""

  def __init__(self, is_short: bool):
    """Makes a pace.

    Args:
      is_short: Whether portions take half a second; else nothing is divided.
    """
    self._is_short = is_short
    # It is not known how long the first round takes, which may compile.
    self._seconds_per_round = math.inf

  def divide(
    self, inputs: _Inputs, num_rounds: int
  ) -> Generator[Portion, None, None]:
    """Yields portions of rounds, given their input and their number.

    The time until the next one is asked for is what the portion has taken.
    """
    first = 0
    while first < num_rounds:
      size = num_rounds - first
      if self._is_short:
        most = int(_SECONDS_AT_ONCE / self._seconds_per_round)
        size = min(size, max(most, 1))
      start = time.monotonic()
      yield Portion(inputs, first, size)
      self._seconds_per_round = (time.monotonic() - start) / size
      first += size
