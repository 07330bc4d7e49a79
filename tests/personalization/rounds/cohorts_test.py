"""Tests of how the clients of a population enter a computation."""

import concurrent.futures
from typing import Any, NamedTuple

import numpy as np
import pytest
import tree

from base import seeds
from personalization.rounds import cohorts
from tasks import task
from tasks.data import populations
from tff_runtimes import values

# 'b' and 'd' lack examples, each in another set.
_SIZES = {
  'a': dict(train=5, test=2),
  'b': dict(train=0, test=1),
  'c': dict(train=9, test=7),
  'd': dict(train=3, test=0),
  'e': dict(train=1, test=4),
  'f': dict(train=4, test=1),
}


def _population(
  sizes: dict[str, dict[str, int]] | None = None,
) -> populations.Population:
  """Clients whose examples can be told apart: no two have the same 'x'."""
  sizes = sizes or _SIZES

  def loader(name: str) -> populations.Load:
    def load(client_id: str) -> populations.Examples:
      n = sizes[client_id][name]
      first = 1000 * (list(sizes).index(client_id) + 1)
      x = np.float32(first) + np.arange(n, dtype=np.float32)
      return {'x': np.stack([x, -x], axis=1), 'y': x.astype(np.int32)}

    return load

  return populations.Population(
    tuple(sizes), {name: loader(name) for name in ('train', 'test')}
  )


def _client(data: Any, k: int) -> Any:
  """What client `k` is given, in whichever form."""
  if isinstance(data, list):
    return data[k]
  return values.StackedClients(data, len(data.indices))[k]


def _batches(client: Any) -> list[list[int]]:
  """The examples of each of a client's batches."""
  x, y = (np.asarray(client.examples[name]) for name in ('x', 'y'))
  np.testing.assert_array_equal(x[:, 0], y)
  np.testing.assert_array_equal(x[:, 1], -y)
  batches = [
    y[indices[mask > 0]].tolist()
    for indices, mask in zip(client.indices, client.mask)
  ]
  return [batch for batch in batches if batch]


def _rng(seed: int = 1) -> np.random.Generator:
  return np.random.default_rng(seed)


def test_clients_without_examples_in_a_set_are_left_out_and_named():
  clients = cohorts.Cohorts(_population(), padded=True)
  assert clients.client_ids == ('a', 'c', 'e', 'f')
  assert clients.skipped == ['b', 'd']
  assert len(clients) == 4
  assert clients.sizes['train'].tolist() == [5, 9, 1, 4]
  assert clients.sizes['test'].tolist() == [2, 7, 4, 1]


def test_no_client_is_loaded_to_begin_if_sizes_are_known():
  known = _population()

  def fail(client_id):
    raise AssertionError(f'{client_id} is loaded.')

  population = populations.Population(
    known.client_ids,
    dict.fromkeys(known.sets, fail),
    {
      name: np.array([sizes[name] for sizes in _SIZES.values()])
      for name in known.sets
    },
  )
  clients = cohorts.Cohorts(population, padded=False)
  expected = cohorts.Cohorts(known, padded=False)
  assert clients.client_ids == expected.client_ids
  assert clients.skipped == expected.skipped
  np.testing.assert_equal(clients.sizes, expected.sizes)
  assert clients.pad_to == expected.pad_to


_SHUFFLED = cohorts.Batching(4, shuffle=('x', 1))
_TWICE = cohorts.Batching(4, shuffle=('x', 1), epochs=2)


@pytest.mark.parametrize('padded', [True, False])
def test_threads_may_prepare_cohorts_at_once(padded):
  clients = cohorts.Cohorts(_population(), padded)
  cohorts_ = [np.array(rows) for rows in ([0, 1], [2, 3], [3, 0])] * 40

  def prepare(rows):
    data = clients.data('train', rows, _SHUFFLED)
    return [_batches(_client(data, k)) for k in range(2)]

  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    prepared = list(threads.map(prepare, cohorts_))
  assert prepared == [prepare(rows) for rows in cohorts_]


def test_there_may_be_no_client_with_examples():
  clients = cohorts.Cohorts(_population({'b': _SIZES['b']}), padded=True)
  assert not len(clients)
  assert clients.skipped == ['b']


@pytest.mark.parametrize('padded', [True, False])
def test_without_shuffling_batches_are_in_the_order_of_the_examples(padded):
  clients = cohorts.Cohorts(_population(), padded)
  data = clients.data('train', np.array([1, 2]), cohorts.Batching(4))
  assert _batches(_client(data, 0)) == [
    [3000, 3001, 3002, 3003],
    [3004, 3005, 3006, 3007],
    [3008],
  ]
  assert _batches(_client(data, 1)) == [[5000]]


@pytest.mark.parametrize('drop_partial', [True, False])
@pytest.mark.parametrize('epochs', [1, 3])
@pytest.mark.parametrize('batch_size', [1, 4, 100])
@pytest.mark.parametrize('seed', [None, 1])
def test_both_forms_hold_the_same_batches(
  drop_partial, epochs, batch_size, seed
):
  forms = []
  for padded in (True, False):
    data = cohorts.Cohorts(_population(), padded).data(
      'train',
      np.array([3, 0, 1]),
      cohorts.Batching(
        batch_size,
        shuffle=() if seed is None else ('x', seed),
        drop_partial=drop_partial,
        epochs=epochs,
      ),
    )
    forms.append([_batches(_client(data, k)) for k in range(3)])
  assert forms[0] == forms[1]
  assert all(forms[0])


@pytest.mark.parametrize('padded', [True, False])
def test_each_epoch_has_all_examples_in_an_order_of_its_own(padded):
  data = cohorts.Cohorts(_population(), padded).data(
    'train', np.array([0, 1]), cohorts.Batching(3, shuffle=('x', 1), epochs=4)
  )
  client = _client(data, 1)
  orders = [
    tuple(indices[mask > 0])
    for indices, mask in zip(
      np.split(client.indices, 4), np.split(client.mask, 4)
    )
  ]
  assert len(set(orders)) == 4
  assert {tuple(sorted(order)) for order in orders} == {tuple(range(9))}


def test_padding_comes_last_and_has_no_weight():
  clients = cohorts.Cohorts(_population(), padded=True)
  data = clients.data('train', np.array([2, 1]), _SHUFFLED)
  client = _client(data, 0)
  np.testing.assert_array_equal(client.examples['y'][1:], 0)
  np.testing.assert_array_equal(client.indices, 0)
  np.testing.assert_array_equal(client.mask[0], [1, 0, 0, 0])
  np.testing.assert_array_equal(client.mask[1:], 0)


def test_all_padded_cohorts_of_a_size_have_the_same_shapes():
  clients = cohorts.Cohorts(_population(), padded=True)
  shapes = {
    tuple(
      tuple(leaf.shape)
      for leaf in tree.flatten(clients.data('train', rows, _SHUFFLED))
    )
    for rows in map(np.array, ([0, 1], [2, 3], [3, 0]))
  }
  # Of 'x', 'y', the indices and their mask: 'c' has most, 9 examples.
  assert shapes == {((2, 9, 2), (2, 9), (2, 3, 4), (2, 3, 4))}


def test_pad_to_decides_the_shapes():
  clients = cohorts.Cohorts(_population(), padded=True)
  before = clients.data('test', np.array([0, 2]), _SHUFFLED)
  wider = cohorts.Cohorts(_population(), padded=True)
  wider.pad_to['test'] = 20
  after = wider.data('test', np.array([0, 2]), _SHUFFLED)
  assert after.examples['x'].shape == (2, 20, 2)
  assert after.indices.shape == (2, 5, 4)
  for k in range(2):
    assert _batches(_client(after, k)) == _batches(_client(before, k))


def _make_cohorts(sizes, by_size=True):
  """Cohorts of clients with so many examples to train on."""
  population = _population(
    {f'c{k}': dict(train=n, test=2) for k, n in enumerate(sizes)}
  )
  return cohorts.Cohorts(population, padded=True, by_size=by_size)


# A tenth of these is far larger than the others.
_SKEWED = [3, 64, 1, 5, 2, 7, 4, 6, 3, 8]


def test_clients_come_by_size_and_only_the_largest_are_padded_to_these():
  clients = _make_cohorts(_SKEWED)
  assert [_SKEWED[row] for row in clients.order] == sorted(_SKEWED)
  paddings = [
    clients.data('train', np.array(rows), cohorts.Batching(4))
    .examples['y']
    .shape[1]
    for rows in ([2], [5, 9], [9, 1])
  ]
  assert paddings == [8, 8, 64]


def test_a_cohort_has_the_same_batches_by_size():
  rows, batching = np.array([2, 5, 9]), cohorts.Batching(2, ('x', 1), epochs=2)
  narrow, wide = (
    _make_cohorts(_SKEWED, by_size).data('train', rows, batching)
    for by_size in (True, False)
  )
  assert narrow.examples['y'].shape[1] < wide.examples['y'].shape[1]
  for k in range(3):
    assert _batches(_client(narrow, k)) == _batches(_client(wide, k))


def test_clients_of_similar_sizes_keep_their_order():
  assert _make_cohorts([7, 3, 5, 4]).order.tolist() == [0, 1, 2, 3]


def test_populations_that_share_programs_are_padded_alike():
  clients, others = _make_cohorts(_SKEWED), _make_cohorts([*_SKEWED[1:], 9, 99])
  clients.pad_as(others)
  assert (clients.pad_to['train'], clients.pad_most_to['train']) == (99, 9)


def test_clients_enter_with_no_more_examples_than_their_batches_take():
  clients = cohorts.Cohorts(_population(), padded=True)
  rows, batching = np.array([2, 1]), cohorts.Batching(4, ('x', 1), num_steps=2)
  data = clients.data('train', rows, batching)
  assert data.examples['y'].shape == (2, 2 * 4)
  whole = cohorts.Cohorts(_population(), padded=False)
  for k, unpadded in enumerate(whole.data('train', rows, batching)):
    assert _batches(_client(data, k)) == _batches(unpadded)


def test_clients_in_a_list_are_not_padded():
  data = cohorts.Cohorts(_population(), padded=False).data(
    'train', np.array([2, 0, 1]), cohorts.Batching(4, epochs=2)
  )
  assert [client_data.examples['y'].shape for client_data in data] == [
    (1,),
    (5,),
    (9,),
  ]
  assert [len(client_data.indices) for client_data in data] == [2, 4, 6]


def test_other_rows_are_other_clients():
  clients = cohorts.Cohorts(_population(), padded=True)
  for rows in ([0, 1], [1, 0], [1, 0], [3, 2], [0, 1]):
    data = clients.data('train', np.array(rows), cohorts.Batching(100))
    for k, row in enumerate(rows):
      first = 1000 * (list(_SIZES).index(clients.client_ids[row]) + 1)
      assert _batches(_client(data, k))[0][0] == first


def test_what_is_kept_is_what_it_would_be_anew():
  kept = cohorts.Cohorts(_population(), padded=True, num_kept=3)
  first = {}
  for _ in range(2):
    for rows in ([0, 1], [1, 0], [3, 2]):
      data = kept.data('train', np.array(rows), _TWICE)
      assert data.indices is first.setdefault(str(rows), data.indices)
      anew = cohorts.Cohorts(_population(), padded=True).data(
        'train', np.array(rows), _TWICE
      )
      tree.map_structure(np.testing.assert_array_equal, data, anew)


def test_sets_are_not_mistaken_for_each_other():
  clients = cohorts.Cohorts(_population(), padded=True)
  rows = np.array([0, 1])
  for name, size in (('train', 5), ('test', 2), ('train', 5)):
    data = clients.data(name, rows, cohorts.Batching(100))
    assert len(_batches(_client(data, 0))[0]) == size


class _Parts(NamedTuple):
  """A client with a state and data."""

  data: Any
  state: Any
  seed: Any


def test_parts_that_are_stacked_stay_stacked():
  parts = dict(
    data={'x': np.arange(6.0).reshape(3, 2)},
    state={'w': np.ones([3, 1])},
    seed=np.arange(3),
  )
  result = cohorts.clients(_Parts, 3, **parts)
  assert isinstance(result, values.StackedClients)
  assert isinstance(result.stacked, _Parts)
  assert len(result) == 3
  np.testing.assert_equal(result.stacked._asdict(), parts)


def test_one_part_in_a_list_makes_a_list_of_all():
  lists = [{'x': np.ones(n)} for n in (1, 2, 3)]
  state = {'w': np.arange(6.0).reshape(3, 2)}
  result = cohorts.clients(
    _Parts, 3, data=lists, state=state, seed=np.arange(3)
  )
  assert result == [
    _Parts(data, {'w': pytest.approx(row)}, k)
    for k, (data, row) in enumerate(zip(lists, state['w']))
  ]


@pytest.mark.parametrize(
  'data', [[{'x': 1}, {'x': 2}], {'x': np.array([1, 2])}], ids=['list', 'stack']
)
def test_clients_without_a_state_keep_an_empty_one(data):
  result = cohorts.clients(_Parts, 2, data=data, state={}, seed=np.arange(2))
  assert list(result) == [_Parts({'x': 1}, {}, 0), _Parts({'x': 2}, {}, 1)]


def test_clients_of_the_same_shapes_can_be_stacked():
  parts = dict(data={'x': np.ones([2, 3])}, state={}, seed=np.arange(2))
  result = cohorts.clients(_Parts, 2, **parts)
  for clients in (result, list(result)):
    np.testing.assert_equal(cohorts.stack(clients), _Parts(**parts))


_ATTRIBUTES = {
  'group': task.Attribute(
    ('x', 'y', 'z'), dict(a=0, b=1, c=2, d=0, e=1, f=2, other=1)
  ),
  'type': task.Attribute(('even', 'odd'), dict.fromkeys('abcdef', 1)),
}


@pytest.mark.parametrize('padded', [True, False])
def test_attributes_are_those_of_the_clients_in_the_rows(padded):
  clients = cohorts.Cohorts(_population(), padded)
  # The rows are those of a, c, e and f.
  found = clients.attributes(_ATTRIBUTES, ('group',), np.array([3, 0, 2, 3]))
  assert list(found) == ['group']
  assert found['group'].dtype == np.int32
  assert found['group'].tolist() == [2, 0, 1, 2]


def test_every_client_knows_its_size():
  clients = cohorts.Cohorts(_population(), padded=True)
  attributes = clients.attributes({}, [task.SIZE], np.array([1, 0, 3]))
  # 'c', 'a' and 'f' to train on.
  assert attributes[task.SIZE].tolist() == [9, 5, 4]


def test_attributes_come_in_the_order_of_their_names():
  clients = cohorts.Cohorts(_population(), padded=True)
  found = clients.attributes(_ATTRIBUTES, ('type', 'group'), np.array([1]))
  assert list(found.items()) == [('type', [1]), ('group', [2])]


def test_no_attributes_are_an_empty_structure():
  clients = cohorts.Cohorts(_population(), padded=True)
  assert clients.attributes(_ATTRIBUTES, (), np.array([1])) == {}


@pytest.mark.parametrize('padded', [True, False])
def test_a_number_of_steps_replaces_the_epochs(padded):
  data = cohorts.Cohorts(_population(), padded).data(
    'train', np.array([1, 2]), cohorts.Batching(4, num_steps=3, epochs=7)
  )
  assert _batches(_client(data, 0)) == [
    [3000, 3001, 3002, 3003],
    [3004, 3005, 3006, 3007],
    [3008, 3000, 3001, 3002],
  ]
  assert _batches(_client(data, 1)) == [[5000]] * 3


def test_seeds_are_reproducible_and_differ():
  drawn = seeds.pairs(_rng(), 50)
  assert (drawn.dtype, drawn.shape) == (np.int32, (50, 2))
  assert len(set(map(tuple, drawn))) == 50
  np.testing.assert_array_equal(seeds.pairs(_rng(), 50), drawn)


# Parts of a set: of 'train', the clients have 5, 9, 1 and 4 examples.

_ROWS = np.arange(4)


def _parts(
  padded: bool = True,
  shuffle: tuple[int | str, ...] = (),
  **part: float,
) -> list[list[int]]:
  clients = cohorts.Cohorts(_population(), padded)
  data = clients.data('train', _ROWS, cohorts.Batching(3, shuffle), **part)
  return [sum(_batches(_client(data, k)), []) for k in _ROWS]


@pytest.mark.parametrize('padded', [True, False])
@pytest.mark.parametrize(
  ('fraction', 'sizes'),
  [
    (0.5, [3, 5, 1, 2]),
    (0.25, [2, 3, 1, 1]),
    (0.8, [4, 8, 1, 4]),
    (1.0, [5, 9, 1, 4]),
  ],
)
def test_a_first_part_and_the_rest_are_the_whole(padded, fraction, sizes):
  whole = _parts()
  first = _parts(padded, stop=fraction)
  rest = _parts(padded, start=fraction)
  assert [len(examples) for examples in first] == sizes
  assert [a + b for a, b in zip(first, rest)] == whole


def test_a_tenth_of_thirty_is_three():
  sizes = np.array([30, 100])
  assert cohorts._rows_before(0.1, sizes).tolist() == [3, 10]
  assert cohorts._rows_before(0.55, sizes).tolist() == [17, 55]


def test_the_shapes_of_a_part_are_those_of_the_whole_set():
  clients = cohorts.Cohorts(_population(), True)
  whole = clients.data('train', _ROWS, cohorts.Batching(3))
  for part in (dict(stop=0.25), dict(start=0.5), dict(stop=0.0)):
    other = clients.data('train', _ROWS, cohorts.Batching(3), **part)
    for a, b in zip(tree.flatten(whole), tree.flatten(other)):
      assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize('padded', [True, False])
@pytest.mark.parametrize('part', [dict(stop=0.0), dict(start=1.0)])
def test_a_part_may_be_empty(padded, part):
  clients = cohorts.Cohorts(_population(), padded)
  data = clients.data('train', _ROWS, cohorts.Batching(3), **part)
  for k in _ROWS:
    client = _client(data, k)
    assert not np.any(client.mask)
    assert not np.any(client.indices)


def test_a_part_is_shuffled_by_itself():
  first = _parts(stop=0.5)
  shuffled = _parts(stop=0.5, shuffle=('shuffle', 1))
  assert [sorted(examples) for examples in shuffled] == first
  assert shuffled != first


# A set that all clients share.


def _drawn(size: int, seed: int = 0) -> populations.Examples:
  clients = cohorts.Cohorts(_population(), True)
  return clients.sample('test', size, np.random.default_rng(seed))


def test_a_sample_is_drawn_from_the_examples_of_all_clients():
  everything = _drawn(100)
  assert everything['y'].tolist() == [
    *(1000, 1001),
    *range(3000, 3007),
    *range(5000, 5004),
    6000,
  ]
  some = _drawn(6)
  np.testing.assert_array_equal(some['x'][:, 0], some['y'])
  assert len(set(some['y'])) == 6
  assert set(some['y']) < set(everything['y'])


def test_all_examples_are_as_likely_in_a_sample():
  drawn = np.concatenate([_drawn(7, seed)['y'] for seed in range(400)])
  _, counts = np.unique(drawn, return_counts=True)
  assert len(counts) == 14
  assert 150 < counts.min() and counts.max() < 250


@pytest.mark.parametrize('padded', [True, False])
def test_every_client_has_a_shared_set(padded):
  clients = cohorts.Cohorts(_population(), padded)
  drawn = _drawn(5)
  clients.share('shared', drawn)
  data = clients.data('shared', np.array([2, 0]), cohorts.Batching(2))
  for k in range(2):
    assert sum(_batches(_client(data, k)), []) == drawn['y'].tolist()
