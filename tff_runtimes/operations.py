"""Lists of TensorFlow's operations: those without state, and those safe in XLA.

All operations in the lists are known to be safe. Others run in a slower way,
with the same result as on TFF's own runtime.
"""

from collections.abc import Iterable, Iterator, Mapping
import functools
from typing import TypeAlias

import tensorflow as tf

from tff_runtimes import private_api

Node: TypeAlias = tf.compat.v1.NodeDef

# A variable of this name is a new one whenever its node is run.
ANONYMOUS_VARIABLE = b'cd2c89b7-88b7-44c8-ad83-06c2a9158347'

# These are marked as stateful because the functions that they call may be.
_CALLS = frozenset(
  'Case If PartitionedCall StatefulPartitionedCall While'.split()
)

# Stateful operations that leave nothing behind when a graph has been run.
_LEAVE_NOTHING = frozenset(
  """
  AnonymousHashTable AnonymousIterator AnonymousIteratorV2 AnonymousIteratorV3
  AnonymousMemoryCache AnonymousMutableDenseHashTable
  AnonymousMutableHashTable AnonymousMutableHashTableOfTensors
  AnonymousRandomSeedGenerator AnonymousSeedGenerator Assert
  AssignAddVariableOp AssignSubVariableOp AssignVariableOp DatasetCardinality
  DatasetFromGraph DatasetToSingleElement DeleteIterator DeleteMemoryCache
  DeleteRandomSeedGenerator DeleteSeedGenerator DestroyResourceOp
  DummyMemoryCache DummySeedGenerator EagerPyFunc InitializeTableFromDataset
  InitializeTableFromTextFileV2 InitializeTableV2 IteratorGetNext
  IteratorGetNextAsOptional IteratorGetNextSync LookupTableExportV2
  LookupTableFindV2 LookupTableImportV2 LookupTableInsertV2
  LookupTableRemoveV2 LookupTableSizeV2 MakeIterator NonDeterministicInts
  OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone Print
  PrintV2 PyFunc PyFuncStateless ReadVariableOp ReduceDataset ResourceGather
  ResourceGatherNd ResourceScatterAdd ResourceScatterDiv ResourceScatterMax
  ResourceScatterMin ResourceScatterMul ResourceScatterNdAdd
  ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub
  ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate
  ResourceStridedSliceAssign RngReadAndSkip RngSkip StackCloseV2 StackPopV2
  StackPushV2 StackV2 StatefulRandomBinomial StatefulStandardNormalV2
  StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
  StatefulUniformInt StatelessRandomGetAlg StatelessRandomGetKeyCounter
  StatelessRandomGetKeyCounterAlg TensorArrayCloseV3 TensorArrayConcatV3
  TensorArrayGatherV3 TensorArrayGradV3 TensorArrayGradWithShape
  TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3
  TensorArrayV3 TensorArrayWriteV3 Timestamp VarIsInitializedOp VariableShape
  """.split()
)
# The name of an optimizer follows.
_LEAVE_NOTHING_PREFIXES = ('ResourceApply', 'ResourceSparseApply')
# Without a seed, these differ each time. With a seed, they continue their
# sequence.
_RANDOM = frozenset(
  """
  Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson
  RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform
  RandomUniformInt TruncatedNormal
  """.split()
)

# TensorFlow marks data sets as stateful. These make elements and do nothing
# else. Those in the second list may make others each time: random ones, or
# those that are in a file then.
_ONLY_READ = frozenset(
  """
  BatchDatasetV2 ConcatenateDataset FilterDataset FlatMapDataset
  InterleaveDataset MapDataset ModelDataset OptionsDataset PaddedBatchDatasetV2
  ParallelMapDatasetV2 PrefetchDataset RangeDataset RepeatDataset ShardDataset
  SkipDataset TakeDataset TakeWhileDataset TensorDataset TensorSliceDataset
  WindowDataset ZipDataset _Retval
  """.split()
)
_READ_ANEW = _RANDOM | frozenset(
  """
  AnonymousRandomSeedGenerator AnonymousSeedGenerator DummySeedGenerator
  ShuffleDataset ShuffleDatasetV2 ShuffleDatasetV3 SqlDataset TFRecordDataset
  TFRecordDatasetV2 TextLineDataset
  """.split()
)

_FLOATS = frozenset([tf.float32, tf.float64])
_INTEGERS = frozenset([tf.int32, tf.int64])
_BOOL = frozenset([tf.bool])
_ALL = _FLOATS | _INTEGERS | _BOOL

# For each operation, the types for which XLA computes the same, except for
# rounding, as long as numbers are finite. Left out for floats are operations
# that make rounding visible (comparisons, rounding itself, and functions with a
# pole or a limited domain, such as logarithms and roots), operations that XLA
# simplifies so that they do not overflow (roots of squares, products of
# exponentials), and maxima and minima, which may lose NaN. Left out for
# integers are divisions, as one by zero is an error. Left out for all types are
# operations that check an index.
_SAME_IN_XLA: dict[str, frozenset[tf.DType]] = {
  **dict.fromkeys(
    """
    Abs Add AddN AddV2 BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul Mul Neg
    Square SquaredDifference Sub Sum
    """.split(),
    _FLOATS | _INTEGERS,
  ),
  **dict.fromkeys(
    """
    BiasAdd BiasAddGrad Cos Einsum Expm1 L2Loss Mean RealDiv Sigmoid Sin
    Softplus SoftplusGrad Tanh TanhGrad
    """.split(),
    _FLOATS,
  ),
  **dict.fromkeys('Cumprod Cumsum Prod'.split(), _INTEGERS),
  **dict.fromkeys(
    """
    Equal Greater GreaterEqual Less LessEqual Max Maximum Min Minimum NotEqual
    """.split(),
    _INTEGERS | _BOOL,
  ),
  **dict.fromkeys(
    """
    All Any BroadcastGradientArgs BroadcastTo Concat ConcatOffset ConcatV2 Const
    ExpandDims Fill Identity IdentityN LogicalAnd LogicalNot LogicalOr NoOp
    OnesLike Pack Pad PadV2 Placeholder PreventGradient Range Rank Reshape
    ReverseV2 Select SelectV2 Shape ShapeN Size Slice Snapshot Split SplitV
    Squeeze StatelessIf StatelessWhile StopGradient StridedSlice Tile Transpose
    Unpack ZerosLike
    """.split(),
    _ALL,
  ),
}
# Inputs of these operations must be constant: the place of a slice, as XLA
# moves a slice that begins outside of its input, and a divisor, as zero is a
# pole.
_CONSTANTS = {
  'Slice': 'reads at a place that is not fixed',
  'StridedSlice': 'reads at a place that is not fixed',
  'RealDiv': 'divides by what is not fixed',
}

_ADDED_BY_TENSORFLOW = frozenset(['Const', 'Identity', 'NoOp', 'Placeholder'])

# Operations that XLA computes in the same way where the guards hold that
# `interpreting` computes. Rounding may be visible in what comparisons
# decide, as it is in what TensorFlow's own kernels decide on another processor.
MAY_LOSE_NAN = frozenset(
  """
  ArgMax ArgMin Elu EluGrad IsFinite IsInf IsNan LeakyRelu LeakyReluGrad Max
  Maximum Min Minimum Relu Relu6 Relu6Grad ReluGrad Selu SeluGrad Sign
  """.split()
)
DIVISIONS = frozenset(
  'Div FloorDiv FloorMod Mod TruncateDiv TruncateMod'.split()
)
_SAME_WHERE_GUARDED = (
  MAY_LOSE_NAN
  | DIVISIONS
  | frozenset(
    """
    AddN Cast ConcatOffset DivNoNan DynamicStitch EmptyTensorList Equal Exp
    GatherV2 Greater GreaterEqual Identity InvertPermutation Less LessEqual
    Log Log1p LogSoftmax NotEqual Pow RealDiv Rsqrt RsqrtGrad SigmoidGrad
    Slice Softmax SoftmaxCrossEntropyWithLogits
    SparseSoftmaxCrossEntropyWithLogits Sqrt SqrtGrad StatelessCase
    StridedSliceGrad TensorListElementShape TensorListFromTensor
    TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
    TensorListReserve TensorListSetItem TensorListStack UnsortedSegmentSum
    Xdivy Xlogy ZerosLike
    """.split()
  )
)

# On a CPU, XLA's code for these is several times slower than TensorFlow's own
# kernels.
_SLOW_IN_XLA = ('Conv', 'DepthwiseConv', 'MaxPool', 'AvgPool', 'FusedBatchNorm')
_VARIANT = tf.variant.as_datatype_enum
_OPAQUE_TYPES = frozenset(
  dtype.as_datatype_enum for dtype in (tf.string, tf.variant, tf.resource)
)


def _bodies(graph_def: tf.compat.v1.GraphDef) -> Iterator[list[Node]]:
  """Yields the nodes of a graph, and those of each of its functions."""
  yield list(graph_def.node)
  for function in graph_def.library.function:
    yield list(function.node_def)


def find_state(graph_def: tf.compat.v1.GraphDef) -> str | None:
  """Finds an operation that may keep state from run to run.

  Args:
    graph_def: A graph.

  Returns:
    The operation's name; None if each run of the graph in this process is like
    the first.
  """
  return find_state_of(_bodies(graph_def))


def find_state_of(bodies: Iterable[Iterable[Node]]) -> str | None:
  """Does the same as `find_state` for the nodes of some functions."""
  for nodes in bodies:
    for node in nodes:
      if node.op in _RANDOM:
        if node.attr['seed'].i or node.attr['seed2'].i:
          return f'{node.op} with a seed'
        continue
      if node.op == 'VarHandleOp':
        if node.attr['shared_name'].s != ANONYMOUS_VARIABLE:
          return str(node.op)
        continue
      definition = private_api.op_definition(node.op)
      if definition is None or (
        definition.is_stateful
        and node.op not in _LEAVE_NOTHING | _CALLS
        and not node.op.startswith(_LEAVE_NOTHING_PREFIXES)
        and not _makes_dataset(definition)
      ):
        return str(node.op)
  return None


def all_nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Node]:
  """Yields the nodes of a graph and of its functions."""
  for nodes in _bodies(graph_def):
    yield from nodes


def find_effect(nodes: Iterable[Node]) -> str | None:
  """Finds an operation of a data set that may do more than make elements."""
  known = _ONLY_READ | _READ_ANEW
  for node in nodes:
    if node.op not in known and _is_stateful(node.op):
      return str(node.op)
  return None


def may_change(nodes: Iterable[Node]) -> bool:
  """Tells whether the nodes of a data set may make other elements each time."""
  return any(node.op in _READ_ANEW for node in nodes)


def has_effects(node: Node) -> bool:
  """Tells whether a node may do more than give its outputs."""
  return node.op not in _RANDOM and _is_stateful(node.op)


def are_stateful(functions: Iterable[private_api.FunctionDef]) -> bool:
  """Tells whether an operation in some functions may have any state."""
  nodes = (node for function in functions for node in function.node_def)
  return any(_is_stateful(node.op) for node in nodes)


def _is_stateful(name: str) -> bool:
  if name in _CALLS:
    return False
  definition = private_api.op_definition(name)
  return definition is None or definition.is_stateful


def _makes_dataset(definition: private_api.OpDef) -> bool:
  return 'Dataset' in definition.name and [
    output.type for output in definition.output_arg
  ] == [_VARIANT]


@functools.cache
def _kinds(dtypes: frozenset[tf.DType]) -> frozenset[int]:
  return frozenset(dtype.as_datatype_enum for dtype in dtypes)


def _is_same_in_xla(node: Node, types: set[int]) -> bool:
  """Returns whether XLA and TensorFlow compute the same for some types."""
  if not types <= _kinds(_ALL):
    return False
  if node.op == 'Cast':
    # The conversion of a float out of range to an integer is undefined.
    return node.attr['DstT'].type in _kinds(_FLOATS) or (
      node.attr['SrcT'].type in _kinds(_INTEGERS | _BOOL)
    )
  if node.op not in _SAME_IN_XLA:
    return False
  # The other types are of indices and shapes.
  return node.attr['T'].type in {0} | _kinds(_SAME_IN_XLA[node.op])


def outputs(node: Node) -> list[str]:
  """Returns the names of the outputs of a node.

  They are those that other nodes of a function use. An operation that is
  unknown has none.

  Args:
    node: The node.
  """
  names = []
  definition = private_api.op_definition(node.op)
  for output in definition.output_arg if definition is not None else []:
    size = 1
    if output.number_attr:
      size = node.attr[output.number_attr].i
    elif output.type_list_attr:
      size = len(node.attr[output.type_list_attr].list.type)
    names += [f'{node.name}:{output.name}:{i}' for i in range(size)]
  return names


def calls_functions(node: Node) -> bool:
  """Tells whether a node has functions among its attributes."""
  return any(
    attribute.func.name or attribute.list.func
    for attribute in node.attr.values()
  )


def _find_in_xla(
  node: Node, nodes: Mapping[str, Node], trust: bool, guarded: bool
) -> str | None:
  """Says what prevents compiling a node, see `find_unfit_for_xla`."""
  definition = private_api.op_definition(node.op)
  if node.op in _CALLS:
    return None
  if definition is None or definition.is_stateful:
    return f'{node.op} has state or other effects'
  if node.op.startswith(_SLOW_IN_XLA):
    return f'{node.op} is slow in XLA'
  declared = {a.type for a in (*definition.input_arg, *definition.output_arg)}
  given = {t for a in node.attr.values() for t in (a.type, *a.list.type)}
  if trust:
    # A variant in an attribute is a TensorList that the operation passes on.
    is_opaque = _OPAQUE_TYPES & (declared | given - {_VARIANT})
    if is_opaque and not node.op.startswith('TensorList'):
      return f'{node.op} works on strings, sequences or resources'
    return None
  types = (declared | given) - {0}
  if guarded:
    types -= {_VARIANT}  # A TensorList, as nothing else is in the lists.
    if node.op in _SAME_WHERE_GUARDED and types <= _kinds(_ALL):
      return None
  if not _is_same_in_xla(node, types):
    names = ', '.join(sorted(tf.as_dtype(t).name for t in types))
    return f'{node.op} ({names}) is not known to give the same in XLA'
  if node.op in _CONSTANTS:
    for name in node.input[1:]:
      source = nodes.get(name.split(':')[0])
      if source is None or source.op != 'Const':
        return f'{node.op} {_CONSTANTS[node.op]}'
  return None


def find_unfit_for_xla(
  graph_def: tf.compat.v1.GraphDef, trust: bool, guarded: bool = False
) -> str | None:
  """Finds an operation for which a graph should not be compiled by XLA.

  Args:
    graph_def: A graph.
    trust: Whether XLA is trusted with all operations without state that it
      compiles to fast code. It handles some of them differently: it does not
      check indices and divisors, draws other numbers from a seed, and may lose
      NaN in maxima and minima.
    guarded: Whether the graph has the guards of `interpreting`.

  Returns:
    The operation and the reason; None if there is none.
  """
  reasons = []
  for nodes in _bodies(graph_def):
    by_name = {node.name: node for node in nodes}
    for node in nodes:
      reason = _find_in_xla(node, by_name, trust, guarded)
      if reason is not None:
        # The reason of an operation that the user wrote says more.
        if node.op not in _ADDED_BY_TENSORFLOW:
          return reason
        reasons.append(reason)
  return reasons[0] if reasons else None
