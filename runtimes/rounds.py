"""Many rounds of an iterative process as one XLA program.

Between one round and the next of small models, Python takes longer than the
rounds. Nothing about the rounds is known here but the form of `next`,

  (<S@SERVER, {C}@CLIENTS> -> <S@SERVER, {K}@CLIENTS, M@SERVER>)

and what the caller says about how a round's C is made and what becomes of K.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
import tree

from runtimes import program as program_lib
from runtimes import stacking
from runtimes import values


@dataclasses.dataclass(frozen=True)
class Plan:
  """How one round follows from another; all are structures of tensors.

  Attributes:
    clients: From what is the same in all rounds, what is kept from round to
      round, and what is this round's own, to the stacked C of the clients.
    keep: From what is kept, what is this round's own, and the stacked K, to
      what is kept.
  """

  clients: Callable[[Any, Any, Any], Any]
  keep: Callable[[Any, Any, Any], Any]


def fits(program: program_lib.Program) -> bool:
  """Whether a program is of the form that rounds have."""
  types = (program.parameter_type, program.result_type)
  if not all(isinstance(t, tff.StructType) for t in types):
    return False
  expected = ([False, True], [False, True, False])
  return all(
    len(t) == len(placements)
    and all(isinstance(part, tff.FederatedType) for part in t)
    and [values.is_per_client(part) for part in t] == placements
    for t, placements in zip(types, expected)
  )


class Rounds:
  """Runs rounds; `CohortContext.rounds` makes it."""

  def __init__(
    self,
    program: program_lib.Program,
    runner: stacking.StackedRunner,
    plan: Plan,
  ):
    self._program = program
    self._runner = runner
    self._plan = plan
    self._functions: dict[Any, program_lib.Function] = {}

  def __call__(
    self, num_rounds: int, state: Any, kept: Any, fixed: Any, own: Any
  ) -> tuple[Any, Any, Any]:
    """Runs rounds.

    Args:
      num_rounds: How many.
      state: The server's state before them.
      kept: What is kept from round to round, before them.
      fixed: What is the same in all of them.
      own: What is each round's own, stacked; it may be of more rounds, so that
        any number of them can be run by one program.

    Returns:
      The server's state and what is kept, after them; and M, stacked.
    """
    state_type, _, measured_type = values.parts(self._program.result_type)
    kept, fixed, own = (
      tree.map_structure(tf.convert_to_tensor, part)
      for part in (kept, fixed, own)
    )
    arguments = (
      tf.constant(num_rounds),
      values.flatten(state, state_type),
      tree.flatten(kept),
      tree.flatten(fixed),
      tree.flatten(own),
    )
    specs = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), arguments
    )
    key = tuple(
      (tuple(spec.shape), spec.dtype) for spec in tf.nest.flatten(specs)
    )
    if key not in self._functions:

      def run(num_rounds, state, kept_, fixed_, own_):
        return self._run(
          num_rounds,
          state,
          tree.unflatten_as(kept, kept_),
          tree.unflatten_as(fixed, fixed_),
          tree.unflatten_as(own, own_),
        )

      self._functions[key] = program_lib.Function(run, specs, jit_compile=True)
    new_state, new_kept, measured = self._functions[key](*arguments)
    measured = values.to_python(measured, measured_type)
    return (
      values.to_python(new_state, state_type),
      tree.map_structure(
        lambda leaf: leaf.numpy(), tree.unflatten_as(kept, new_kept)
      ),
      tree.map_structure(lambda leaf: leaf[:num_rounds], measured),
    )

  def _run(
    self, num_rounds: tf.Tensor, state: list[tf.Tensor], kept, fixed, own
  ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    state_part, clients_part = self._program.part_types
    _, result_type, measured_type = values.parts(self._program.result_type)

    def body(i: tf.Tensor, state: Any, kept: Any, measured: Any) -> Any:
      now = tree.map_structure(lambda leaf: tf.gather(leaf, i), own)
      clients = values.flatten(
        self._plan.clients(fixed, kept, now),
        self._program.part_types[clients_part],
        stacked=True,
      )
      state, result, metrics = self._runner.run_stages(
        clients[0].shape[0], {state_part: state}, {clients_part: clients}
      )
      kept = self._plan.keep(kept, now, values.to_python(result, result_type))
      measured = [
        array.write(i, metric) for array, metric in zip(measured, metrics)
      ]
      return i + 1, state, kept, measured

    length = tree.flatten(own)[0].shape[0]
    measured = [
      tf.TensorArray(spec.dtype, length, element_shape=spec.shape)
      for spec in values.leaf_specs(measured_type)
    ]
    _, state, kept, measured = tf.while_loop(
      lambda i, *_: i < num_rounds, body, (0, list(state), kept, measured)
    )
    return state, tree.flatten(kept), [array.stack() for array in measured]
