"""The form in which clients' examples enter a TFF computation.

A client enters as `ClientData`, a struct of plain tensors: its examples once,
and the batches as indices into them. A place of a batch whose mask is 0 is
padding. Padding changes no result: neither rows added to the examples, nor
places added to a batch, nor steps added at the end. This allows a runtime to
stack a whole cohort into one tensor.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from tasks.data import populations

# The probability that a Poisson sample is larger than its places.
_RAREST = 1e-15
_NEARLY_ZERO = 1e-30


class ClientData(NamedTuple):
  """The examples of a client and the batches that it walks over, step by step.

  They are tensors or arrays, with an axis of clients in front if stacked.

  Attributes:
    examples: The features of the examples, each `[n, …]`.
    indices: The examples of each step's batch, `[steps, batch]` int32.
    mask: 1, or 0 for padding, `[steps, batch]` float32. An empty batch that is
      not padding has a place with a mask of nearly 0.
  """

  examples: collections.OrderedDict[str, tf.Tensor | np.ndarray]
  indices: tf.Tensor | np.ndarray
  mask: tf.Tensor | np.ndarray


def client_data_type(
  example_spec: Mapping[str, tf.TensorSpec],
) -> tff.StructType:
  """Makes the TFF type of a client's data, for any number of examples."""
  examples = collections.OrderedDict(
    (name, tff.TensorType(spec.dtype.as_numpy_dtype, [None, *spec.shape]))
    for name, spec in example_spec.items()
  )
  return tff.to_type(
    ClientData(
      examples=examples,
      indices=tff.TensorType(np.int32, [None, None]),
      mask=tff.TensorType(np.float32, [None, None]),
    )
  )


def stack_examples(
  clients: Sequence[populations.Examples], pad_to: int | None = None
) -> populations.Examples:
  """Stacks the examples of clients, padded with zeros to the same number.

  Args:
    clients: The examples of each client; there is at least one client.
    pad_to: The number of examples to pad to; by default the number of the
      largest client.

  Returns:
    The examples, `[clients, pad_to, ...]`.
  """
  sizes = [populations.num_examples(client) for client in clients]
  if pad_to is None:
    pad_to = max(sizes)
  stacked = {}
  for name, values in clients[0].items():
    shape = (len(clients), pad_to, *values.shape[1:])
    stacked[name] = np.zeros(shape, values.dtype)
    for row, client, size in zip(stacked[name], clients, sizes, strict=True):
      row[:size] = client[name]
  return stacked


def index_batches(
  sizes: int | Sequence[int] | np.ndarray,
  batch_size: int,
  *,
  rng: np.random.Generator | None = None,
  drop_partial: bool = False,
  pad_to: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Makes an epoch's batches of a client, or of each client of a cohort.

  A client with fewer than `batch_size` examples has one batch of all of them.
  Clients are handled all at once because each round makes new batches.

  Args:
    sizes: The number of examples of a client, or of each client, `[clients]`.
    batch_size: The number of examples in a batch.
    rng: Shuffles the examples of each client; None keeps their order. The
      order does not depend on `pad_to`.
    drop_partial: Whether to drop the last batch if it is not full, instead of
      padding it.
    pad_to: A number of examples that no client exceeds. If given, the shape of
      the result depends on it and not on `sizes`.

  Returns:
    The indices of the examples, `[steps, batch]` int32, and their mask, 1 or 0
    for padding, float32. Both are `[clients, steps, batch]` for a cohort.
    Padding is at the end of a batch, and in whole steps at the end of a client.
  """
  one_client = np.ndim(sizes) == 0
  sizes = np.atleast_1d(np.asarray(sizes, np.int64))
  largest = int(sizes.max(initial=0)) if pad_to is None else pad_to
  if sizes.max(initial=0) > largest:
    raise ValueError(f'A client has more than {largest} examples.')

  def num_steps(size: np.ndarray) -> np.ndarray:
    full = size // np.clip(size, 1, batch_size)
    return full if drop_partial else -(-size // batch_size)

  # For each client, step and place in a batch, the example's position in the
  # client's order: [clients, steps, batch].
  step = np.arange(int(num_steps(np.asarray(largest))))[:, None]
  place = np.arange(min(batch_size, largest))
  position = np.broadcast_to(
    step * batch_size + place, (len(sizes), len(step), len(place))
  )
  valid = (step < num_steps(sizes)[:, None, None]) & (
    position < sizes[:, None, None]
  )

  if rng is None:
    indices = position
  else:
    # Sorting random keys shuffles all clients at once. Padding has infinite
    # keys, so that it comes last.
    keys = np.full((len(sizes), largest), np.inf)
    exists = np.arange(largest) < sizes[:, None]
    keys[exists] = rng.random(np.count_nonzero(exists))
    order = np.argsort(keys, axis=-1)
    row = np.arange(len(sizes))[:, None, None]
    # 'clip', as padding may have any index.
    indices = order.take(row * largest + position, mode='clip')
  indices = np.where(valid, indices, 0).astype(np.int32)
  mask = valid.astype(np.float32)
  return (indices[0], mask[0]) if one_client else (indices, mask)


def index_steps(
  sizes: int | Sequence[int] | np.ndarray,
  batch_size: int,
  num_steps: int,
  *,
  rng: np.random.Generator | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Makes a number of full batches of each client of a cohort, as indices.

  The batches are cut from passes over the client's examples, one after another,
  so that each has `batch_size` examples, or all examples if they are fewer.

  Args:
    sizes: The number of examples of each client, `[clients]`.
    batch_size: The number of examples in a batch.
    num_steps: The number of batches.
    rng: Shuffles the examples of each pass; None keeps their order.

  Returns:
    The indices, `[clients, steps, batch]` int32, and their mask, float32, which
    is 0 where a client has fewer examples than a batch.
  """
  shape = (len(np.atleast_1d(sizes)), num_steps, batch_size)
  indices, mask = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
  for k, size in enumerate(np.atleast_1d(sizes)):
    place = min(batch_size, int(size))
    if place:
      num_passes = -(-num_steps * place // size)
      passes = [
        np.arange(size) if rng is None else rng.permutation(size)
        for _ in range(num_passes)
      ]
      stream = np.concatenate(passes)[: num_steps * place]
      indices[k, :, :place] = stream.reshape(num_steps, place)
      mask[k, :, :place] = 1
  return indices, mask


def index_poisson(
  sizes: Sequence[int] | np.ndarray,
  batch_size: int,
  epochs: int,
  rng: np.random.Generator,
  *,
  drop_partial: bool = False,
  pad_to: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Makes batches of a cohort, each of which is a Poisson sample.

  Each batch samples each example independently, with a probability that gives
  `batch_size` examples on average. A client with fewer examples has all of them
  in each batch. There are as many batches as in `index_batches`.

  Args:
    sizes: The number of examples of each client, `[clients]`.
    batch_size: The mean number of examples in a batch.
    epochs: The number of passes.
    rng: Draws the batches.
    drop_partial: Whether a pass has as many batches as it has full ones.
    pad_to: A number of examples that no client exceeds, on which the shape
      depends.

  Returns:
    The indices and their mask, as in `index_batches`. An empty batch has one
    example with a mask of nearly zero, so that it does not count as padding.
    A batch has places for as many examples as it exceeds once in 1e15 batches;
    further examples are left out.
  """
  most_steps = pad_to // max(min(batch_size, pad_to), 1)
  if not drop_partial:
    most_steps = -(-pad_to // batch_size)
  places = pad_to
  if batch_size < pad_to:
    # The larger the client, the more the sizes of its batches vary.
    most = stats.binom.isf(_RAREST, pad_to, batch_size / pad_to)
    places = min(int(most), pad_to)
  shape = (len(sizes), epochs * most_steps, places)
  indices, mask = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
  # One client after another, as all at once would take much memory.
  for k, size in enumerate(map(int, sizes)):
    if not size:
      continue
    mean_size = min(batch_size, size)
    steps = epochs * (
      size // mean_size if drop_partial else -(-size // mean_size)
    )
    drawn = rng.random((steps, size)) < mean_size / size
    first = np.argsort(~drawn, axis=-1, kind='stable')[:, :places]
    is_drawn = np.take_along_axis(drawn, first, -1)
    indices[k, :steps, : first.shape[1]] = np.where(is_drawn, first, 0)
    mask[k, :steps, : first.shape[1]] = is_drawn
    mask[k, :steps, 0][~drawn.any(-1)] = _NEARLY_ZERO
  return indices, mask


def list_used(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Lists the examples that the batches of a cohort use.

  A client with far more examples than its batches use thus need not enter a
  computation with all of them.

  Args:
    indices: The indices of the batches, `[clients, steps, batch]`.

  Returns:
    The examples, in the order of the batches, `[clients, steps * batch]`, and
    the indices among these, which are the same for all clients.
  """
  clients, steps, batch = indices.shape
  places = np.arange(steps * batch, dtype=np.int32)
  return (
    indices.reshape(clients, -1),
    np.broadcast_to(places.reshape(steps, batch), indices.shape),
  )
