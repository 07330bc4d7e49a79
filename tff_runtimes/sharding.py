"""Splits a TFF computation into pieces that several TFF workers can run.

Each stage of a lowered computation becomes two TFF computations: the server's
work, and the clients' work with its aggregation. The latter is run for each
block of clients. The server's work of the next stage merges their aggregates.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import TypeAlias

import numpy as np
import tensorflow_federated as tff

from tff_runtimes import caches
from tff_runtimes import lowering
from tff_runtimes import values

_Block: TypeAlias = tff.framework.ComputationBuildingBlock
_Named: TypeAlias = tuple[str, _Block]

# An input or output of a piece: the number of a part of the whole computation's
# argument, or the name of a result of a piece.
Key: TypeAlias = int | str

# How many pieces of a computation are kept compiled.
_CACHE_SIZE = 64

# The first input of a piece. Its length is the number of clients, which the
# other inputs may not tell.
_COUNTED = tff.FederatedType(np.int32, tff.CLIENTS)


@dataclasses.dataclass(frozen=True)
class Piece:
  """A piece of a computation.

  Attributes:
    computation: It takes and gives a struct. The first input is a list with a
      number for each client.
    inputs: The other inputs, each with whether it is one value for each client.
    outputs: The names of its results, each with whether it is one value for
      each client.
  """

  computation: tff.framework.ConcreteComputation
  inputs: Sequence[tuple[Key, bool]]
  outputs: Sequence[tuple[str, bool]]


def _intrinsic(
  uri: str, types: Sequence[tff.Type], result_type: tff.Type, *arguments: _Block
) -> _Block:
  """Makes a call of an intrinsic, for arguments of given types."""
  return tff.framework.Call(
    tff.framework.Intrinsic(uri, tff.FunctionType(types, result_type)),
    tff.framework.Struct(arguments),
  )


def _aggregate(aggregation: lowering.Aggregation) -> _Block:
  """Makes the aggregate of some of the clients."""
  partial_type = aggregation.partial_type
  partial = tff.framework.Reference('partial', partial_type)
  report = tff.framework.Lambda('partial', partial_type, partial)
  functions = aggregation.accumulate, aggregation.merge, report
  return _intrinsic(
    'federated_aggregate',
    [
      tff.FederatedType(aggregation.value_type, tff.CLIENTS),
      partial_type,
      *(function.type_signature for function in functions),
    ],
    tff.FederatedType(partial_type, tff.SERVER),
    aggregation.value,
    aggregation.zero,
    *functions,
  )


def _merge(
  aggregation: lowering.Aggregation, partials: Sequence[_Block]
) -> _Block:
  """Makes the result of an aggregation from the aggregates of all blocks."""
  all_type = tff.StructType([aggregation.partial_type] * len(partials))
  all_partials = tff.framework.Reference('partials', all_type)
  # By names, as protocol buffers refuse calls that are nested too deeply.
  bindings: list[_Named] = []
  merged: _Block = tff.framework.Selection(all_partials, index=0)
  for number in range(1, len(partials)):
    other = tff.framework.Selection(all_partials, index=number)
    both = tff.framework.Struct([merged, other])
    bindings.append(
      (f'merged/{number}', tff.framework.Call(aggregation.merge, both))
    )
    merged = tff.framework.Reference(bindings[-1][0], merged.type_signature)
  result = tff.framework.Block(
    bindings, tff.framework.Call(aggregation.report, merged)
  )
  report = tff.framework.Lambda('partials', all_type, result)
  zipped = _intrinsic(
    'federated_zip_at_server',
    [partial.type_signature for partial in partials],
    tff.FederatedType(all_type, tff.SERVER),
    *partials,
  )
  return _intrinsic(
    'federated_apply',
    [report.type_signature, zipped.type_signature],
    tff.FederatedType(result.type_signature, tff.SERVER),
    report,
    zipped,
  )


def partial_name(aggregate: str, block: int) -> str:
  """Names the aggregate of one block of clients."""
  return f'{aggregate}/{block}'


def _split(block: _Block) -> list[_Block]:
  """Splits a block into those of the `values.parts` of its type."""
  type_spec = block.type_signature
  if not isinstance(type_spec, tff.StructType):
    return [block]
  return [
    part
    for i in range(len(type_spec))
    for part in _split(
      block[i]
      if isinstance(block, tff.framework.Struct)
      else tff.framework.Selection(block, index=i)
    )
  ]


def _names(blocks: Sequence[_Named]) -> set[str]:
  """Returns the names that occur in blocks."""
  return {name for _, block in blocks for name, _ in lowering.references(block)}


class ShardedComputation:
  """A computation in pieces.

  Attributes:
    computation: The computation.
    parameter_type: The type of its argument; None if it takes none.
    result_type: The type of its result.
    num_stages: The number of its stages, each of which has a piece of the
      server and one of the clients.
    result: The names of the results that are the parts of its own.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    """Splits a computation; see `lowering.lower` for what is refused."""
    lowered = lowering.lower(computation)
    self.computation = computation
    self.parameter_type = lowered.parameter_type
    self.result_type = lowered.result_type
    self.num_stages = len(lowered.stages)
    self.result: list[str] = []
    self._parameter_name = lowered.parameter_name
    self._stages = lowered.stages
    self._pieces = caches.Cache[Piece | None](_CACHE_SIZE)
    # The parts of the result that only the last pieces compute.
    self._of_server: list[_Named] = []
    self._of_clients: list[_Named] = []
    kept = {name for stage in self._stages for name in stage.keep}
    for k, part in enumerate(_split(lowered.result)):
      name = f'result/{k}'
      if not values.is_per_client(part.type_signature):
        self._of_server.append((name, part))
      elif isinstance(part, tff.framework.Reference) and part.name in kept:
        name = part.name
      else:
        # A part of the argument, which a worker converts as TFF does.
        self._of_clients.append((name, part))
      self.result.append(name)
    self._types: dict[Key, tff.Type] = dict(
      enumerate(values.parts(lowered.parameter_type))
    )
    # The names that are used after the server's piece of each stage.
    self._used_later: list[set[str]] = []
    used = {name for name, _ in self._of_server}
    for i in reversed(range(self.num_stages)):
      server_blocks = self._server_blocks(i, 1)
      client_blocks = self._client_blocks(i)
      self._types |= {
        name: block.type_signature
        for name, block in server_blocks + self._stages[i].clients
      }
      used |= _names(client_blocks)
      self._used_later.insert(0, set(used))
      used |= _names(server_blocks)

  def _server_blocks(self, i: int, num_blocks: int) -> list[_Named]:
    merged = []
    for aggregation in self._stages[i - 1].aggregations if i else ():
      partials = [
        tff.framework.Reference(
          partial_name(aggregation.name, number),
          tff.FederatedType(aggregation.partial_type, tff.SERVER),
        )
        for number in range(num_blocks)
      ]
      self._types |= {one.name: one.type_signature for one in partials}
      merged.append((aggregation.name, _merge(aggregation, partials)))
    is_last = i == self.num_stages - 1
    return merged + self._stages[i].server + self._of_server * is_last

  def _client_blocks(self, i: int) -> list[_Named]:
    stage = self._stages[i]
    aggregates = [
      (aggregation.name, _aggregate(aggregation))
      for aggregation in stage.aggregations
    ]
    is_last = i == self.num_stages - 1
    return stage.clients + aggregates + self._of_clients * is_last

  def server(self, i: int, num_blocks: int) -> Piece | None:
    """Returns the server's work of stage `i`; None if there is none.

    Args:
      i: The number of the stage.
      num_blocks: The number of blocks of clients in the stage before.
    """

    def make() -> Piece | None:
      blocks = self._server_blocks(i, num_blocks)
      return self._piece(
        blocks, [name for name, _ in blocks if name in self._used_later[i]]
      )

    return self._pieces.get((i, num_blocks), make)

  def clients(self, i: int) -> Piece | None:
    """Returns the clients' work of stage `i`; None if there is none."""

    def make() -> Piece | None:
      stage = self._stages[i]
      inner = {name for name, _ in stage.clients}.difference(stage.keep)
      blocks = self._client_blocks(i)
      return self._piece(
        blocks, [name for name, _ in blocks if name not in inner]
      )

    return self._pieces.get(i, make)

  def _piece(
    self, blocks: Sequence[_Named], outputs: Sequence[str]
  ) -> Piece | None:
    """Makes a computation of blocks, unless it has no outputs."""
    if not outputs:
      return None
    bound = {name for name, _ in blocks}
    parts: set[int] = set()
    names: dict[str, None] = {}
    for _, block in blocks:
      parts |= lowering.used_parts(
        block, self._parameter_name, self.parameter_type
      )
      for name, _ in lowering.references(block):
        if name in self._types and name not in bound:
          names[name] = None
    keys: list[Key] = [*sorted(parts), *names]
    inputs = tff.framework.Reference(
      'inputs', tff.StructType([_COUNTED, *map(self._types.__getitem__, keys)])
    )
    given: dict[Key, _Block] = {
      key: tff.framework.Selection(inputs, index=k)
      for k, key in enumerate(keys, start=1)
    }
    bindings = [(name, given[name]) for name in names]
    if parts:
      bindings.append((self._parameter_name or '', self._argument(given)))
    types = {name: block.type_signature for name, block in blocks}
    result = tff.framework.Struct(
      [tff.framework.Reference(name, types[name]) for name in outputs]
    )
    block = tff.framework.Lambda(
      inputs.name,
      inputs.type_signature,
      tff.framework.Block([*bindings, *blocks], result),
    )
    return Piece(
      tff.backends.native.desugar_and_transform_to_native(
        tff.framework.ConcreteComputation(
          computation_proto=block.proto,
          context_stack=tff.framework.get_context_stack(),
        )
      ),
      [(key, values.is_per_client(self._types[key])) for key in keys],
      [(name, values.is_per_client(types[name])) for name in outputs],
    )

  def _argument(self, given: Mapping[Key, _Block]) -> _Block:
    """Makes the whole argument, but for the parts that are not given."""
    numbers = itertools.count()

    def make(type_spec: tff.Type) -> _Block:
      if isinstance(type_spec, tff.StructType):
        return tff.framework.Struct(
          [
            (name, make(element))
            for name, element in tff.structure.iter_elements(type_spec)
          ]
        )
      return given.get(next(numbers), tff.framework.Struct([]))

    return make(self.parameter_type)
