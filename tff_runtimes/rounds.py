"""Many rounds of an iterative process as one XLA program.

With a small model, Python takes longer between rounds than the rounds
themselves. This module only knows the form of `next`,

  (<S@SERVER, {C}@CLIENTS, F@SERVER, ...>
    -> <S@SERVER, {K}@CLIENTS, M@SERVER>)

and the caller's plan, which says how a round's C is made and what happens to K.
The constants F, of which there can be any number, are the same in all rounds.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_runtimes import aliases
from tff_runtimes import caches
from tff_runtimes import programs
from tff_runtimes import stacking
from tff_runtimes import values

# The number of shapes of arguments whose programs are kept.
_MAX_COMPILED = 8


@dataclasses.dataclass(frozen=True)
class Plan:
  """How one round follows from another, as functions of tensor structures.

  The functions take `fixed` values, the same in all rounds; `kept` values, kept
  from round to round; and values of one round.

  Attributes:
    clients: Makes the clients' stacked C of a round from fixed, kept and the
      round's.
    keep: Makes the kept values for the next round from the kept values before,
      the round's, and the clients' stacked K.
    size: Returns, given the round's, how many of the stacked clients take part;
      they come first. None for all. K of the other clients is meaningless.
  """

  clients: Callable[
    [aliases.Structure, aliases.Structure, aliases.Structure], aliases.Structure
  ]
  keep: Callable[
    [aliases.Structure, aliases.Structure, aliases.Structure], aliases.Structure
  ]
  size: Callable[[aliases.Structure], tf.Tensor | None] = lambda _: None


def fits(program: programs.Program) -> bool:
  """Returns whether a program has the form of `next`, and a state of one size.

  XLA cannot pass a state that may grow from round to round.
  """

  def has_placements(type_spec: tff.Type, expected: list[bool]) -> bool:
    return (
      isinstance(type_spec, tff.StructType)
      and all(isinstance(part, tff.FederatedType) for part in type_spec)
      and [values.is_per_client(part) for part in type_spec] == expected
    )

  num_constants = max(len(program.part_types) - 2, 0)
  return (
    has_placements(
      program.parameter_type, [False, True] + [False] * num_constants
    )
    and has_placements(program.result_type, [False, True, False])
    and all(
      spec.shape.is_fully_defined()
      for spec in values.leaf_specs(program.result_type[0])
    )
  )


class Rounds:
  """Runs several rounds at once; `CohortContext.rounds` makes it."""

  def __init__(
    self,
    program: programs.Program,
    runner: stacking.StackedRunner,
    plan: Plan,
  ):
    self._program = program
    self._runner = runner
    self._plan = plan
    self._functions = caches.Cache[programs.SessionFunction](_MAX_COMPILED)

  def __call__(
    self,
    num_rounds: int,
    state: aliases.Value,
    kept: aliases.Structure,
    fixed: aliases.Structure,
    per_round: aliases.Structure,
    constants: Sequence[aliases.Value] = (),
    first: int = 0,
  ) -> tuple[aliases.Value, aliases.Structure, aliases.Value]:
    """Runs rounds.

    Args:
      num_rounds: The number of rounds.
      state: The server's state before them.
      kept: The kept values before them, see `Plan`.
      fixed: The fixed values.
      per_round: The values of each round, stacked. There may be more rounds, so
        that one program can run any number of rounds up to these.
      constants: The values of F, one for each argument of `next` after the
        first two. Tensors are not copied.
      first: The place of the first of the rounds in `per_round`.

    Returns:
      The server's state and the kept values after the rounds; and the M of all
      rounds, stacked.
    """
    state_type, _, metrics_type = values.parts(self._program.result_type)
    _, _, *constant_types = self._program.part_types.values()
    if len(constants) != len(constant_types):
      raise ValueError(
        f'Expected {len(constant_types)} constants, got {len(constants)}.'
      )
    kept, fixed, per_round = (
      tree.map_structure(np.asarray, part) for part in (kept, fixed, per_round)
    )
    arguments = (
      np.int32(first),
      np.int32(first + num_rounds),
      values.flatten(state, state_type),
      tree.flatten(kept),
      tree.flatten(fixed),
      tree.flatten(per_round),
      list(map(values.flatten, constants, constant_types)),
    )
    key = tuple(tuple(leaf.shape) for leaf in tf.nest.flatten(arguments))

    # The program is cached, and must not hold on to these arguments.
    like = tree.map_structure(lambda _: None, (kept, fixed, per_round))

    def make() -> programs.SessionFunction:
      specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), arguments
      )

      def run(
        first: tf.Tensor,
        end: tf.Tensor,
        state_leaves: list[tf.Tensor],
        kept_leaves: list[tf.Tensor],
        fixed_leaves: list[tf.Tensor],
        own_leaves: list[tf.Tensor],
        constants_leaves: list[list[tf.Tensor]],
      ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        like_kept, like_fixed, like_own = like
        return self._run(
          first,
          end,
          state_leaves,
          tree.unflatten_as(like_kept, kept_leaves),
          tree.unflatten_as(like_fixed, fixed_leaves),
          tree.unflatten_as(like_own, own_leaves),
          constants_leaves,
        )

      return programs.SessionFunction(run, specs, jit_compile=True)

    new_state, new_kept, metrics = self._functions.get(key, make)(*arguments)
    metrics = values.to_python(metrics, metrics_type)
    return (
      values.to_python(new_state, state_type),
      tree.unflatten_as(kept, new_kept),
      tree.map_structure(
        lambda leaf: leaf[first : first + num_rounds], metrics
      ),
    )

  def _run(
    self,
    first: tf.Tensor,
    end: tf.Tensor,
    state: list[tf.Tensor],
    kept: aliases.Structure,
    fixed: aliases.Structure,
    per_round: aliases.Structure,
    constants: Sequence[list[tf.Tensor]],
  ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Runs rounds in the graph that is being built, see `__call__`."""
    state_part, clients_part, *constant_parts = self._program.part_types
    _, result_type, metrics_type = values.parts(self._program.result_type)
    constant_arguments = dict(zip(constant_parts, constants))

    def body(
      i: tf.Tensor,
      state: list[tf.Tensor],
      kept: aliases.Structure,
      metrics: list[tf.TensorArray],
    ) -> tuple[
      tf.Tensor, aliases.Leaves, aliases.Structure, list[tf.TensorArray]
    ]:
      now = tree.map_structure(lambda leaf: tf.gather(leaf, i), per_round)
      clients = values.flatten(
        self._plan.clients(fixed, kept, now),
        self._program.part_types[clients_part],
        stacked=True,
      )
      capacity = clients[0].shape[0]
      size = self._plan.size(now)
      state, result, new_metrics = self._runner.run_stages(
        capacity if size is None else size,
        capacity,
        {state_part: state, **constant_arguments},
        {clients_part: clients},
      )
      kept = self._plan.keep(kept, now, values.to_python(result, result_type))
      metrics = [
        array.write(i, metric) for array, metric in zip(metrics, new_metrics)
      ]
      return i + 1, state, kept, metrics

    length = tree.flatten(per_round)[0].shape[0]
    metrics = [
      tf.TensorArray(spec.dtype, length, element_shape=spec.shape)
      for spec in values.leaf_specs(metrics_type)
    ]
    _, state, kept, metrics = tf.while_loop(
      lambda i, *_: i < end, body, (first, list(state), kept, metrics)
    )
    return state, tree.flatten(kept), [array.stack() for array in metrics]
