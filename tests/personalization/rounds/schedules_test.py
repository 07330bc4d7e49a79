"""Tests of which clients train in a round, on which batches."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import types
from typing import Any

import numpy as np
import pytest
import tree

from base import errors
from base import settings
from personalization.rounds import schedules
from tasks import registry
from tasks import task as tasks
from tasks.data import batches
from tasks.data import populations

_SETTINGS = schedules.TrainingSettings(
  total_rounds=7,
  clients_per_round=3,
  batch_size=4,
  rounds_per_checkpoint=3,
  seed=5,
)
_NUM_CLIENTS = 6


@functools.cache
def _task() -> tasks.Task:
  return registry.load(
    'synthetic',
    num_train_clients=_NUM_CLIENTS,
    min_examples=6,
    max_examples=10,
    log_examples_mean=1.0,
  )


def _schedule(
  task: tasks.Task | None = None, **changed: Any
) -> schedules.Schedule:
  return schedules.Schedule(
    task or _task(), dataclasses.replace(_SETTINGS, **changed)
  )


def _rounds(
  task: tasks.Task | None = None, **changed: Any
) -> list[tuple[np.ndarray, batches.ClientData, np.ndarray]]:
  made = _schedule(task, **changed)
  return [made.make_round(round_num) for round_num in range(1, 8)]


def _sizes() -> list[int]:
  load = _task().train.sets['train']
  return [len(load(client_id)['y']) for client_id in _task().train.client_ids]


_EXAMPLE_BYTES = 61 * 4  # 60 features and a label.
_STACKED_BYTES = _NUM_CLIENTS * max(_sizes()) * _EXAMPLE_BYTES


def _make_task(sizes: Mapping[str, int], padded: bool = True) -> tasks.Task:
  """A task of clients with so many examples: 0, 1, ….

  Args:
    sizes: The number of examples of each client.
    padded: As in a task.
  """

  def load(client_id: str) -> dict[str, np.ndarray]:
    size = sizes[client_id]
    return {'x': np.zeros([size, 60], np.float32), 'y': np.arange(size)}

  population = populations.Population(tuple(sizes), {'train': load})
  return dataclasses.replace(_task(), train=population, padded=padded)


# Who takes part.


def test_clients_are_drawn_without_replacement():
  for round_num in range(1, 100):
    rows = schedules.sample(_SETTINGS, 6, round_num)
    assert len(set(rows)) == 3
    assert set(rows) <= set(range(6))


def test_all_clients_are_drawn_equally_often():
  drawn = np.concatenate(
    [schedules.sample(_SETTINGS, 6, round_num) for round_num in range(2000)]
  )
  np.testing.assert_allclose(np.bincount(drawn), 1000, rtol=0.1)


def _cohorts(**changed: Any) -> list[tuple[int, ...]]:
  settings = dataclasses.replace(_SETTINGS, **changed)
  return [tuple(schedules.sample(settings, 100, r)) for r in range(20)]


def test_a_cohort_depends_on_the_seed_and_the_round_alone():
  same = dict(
    total_rounds=999,
    batch_size=1,
    client_epochs=5,
    client_steps=2,
    drop_partial_batches=True,
    rounds_per_checkpoint=1,
  )
  assert _cohorts(**same) == _cohorts()


def test_each_round_and_each_seed_has_another_cohort():
  assert len(set(_cohorts())) == 20
  assert not set(_cohorts(seed=6)) & set(_cohorts())


@pytest.mark.parametrize('clients_per_round', [0, 6])
def test_all_clients_take_part_in_order(clients_per_round):
  settings = dataclasses.replace(_SETTINGS, clients_per_round=clients_per_round)
  np.testing.assert_array_equal(schedules.sample(settings, 6, 1), range(6))


def _drawn(rounds: int, num_clients: int, **changed: Any) -> np.ndarray:
  """Tells who takes part, `[rounds, clients]`."""
  settings = dataclasses.replace(_SETTINGS, **changed)
  drawn = np.zeros([rounds, num_clients], bool)
  for row, round_num in zip(drawn, range(1, rounds + 1)):
    row[schedules.sample(settings, num_clients, round_num)] = True
  return drawn


def test_poisson_draws_each_client_by_itself():
  drawn = _drawn(4000, 6, client_sampling='poisson')
  np.testing.assert_allclose(drawn.mean(0), 0.5, atol=0.03)
  # Independent draws: the variance of the number of clients is n q (1 - q).
  assert drawn.sum(1).var() == pytest.approx(6 / 4, rel=0.1)
  assert drawn.sum(1).min() == 0
  assert drawn.sum(1).max() == 6
  # And of rounds one after another.
  both = (drawn[1:] & drawn[:-1]).mean()
  assert both == pytest.approx(0.25, abs=0.02)


def test_parts_of_the_clients_take_turns_in_cyclic_poisson():
  drawn = _drawn(6000, 10, client_sampling='cyclic_poisson', client_parts=3)
  turns = drawn.reshape(2000, 3, 10)
  # Each client has its turn in one of three rounds, and then q = 3 * 3 / 10.
  shares = np.sort(turns.mean(0), axis=0)
  np.testing.assert_array_equal(shares[:2], 0)
  np.testing.assert_allclose(shares[2], 0.9, atol=0.03)
  # Parts differ by one client at most, and so many are expected in a round.
  sizes = (turns.mean(0) > 0).sum(1)
  np.testing.assert_array_equal(np.sort(sizes), [3, 3, 4])
  assert drawn.sum(1).mean() == pytest.approx(3, abs=0.05)
  # Draws are independent: of clients, and of a client's turns.
  part = turns[:, np.argmax(sizes)]
  of_part = part[:, part.any(0)]
  assert of_part.sum(1).var() == pytest.approx(4 * 0.9 * 0.1, rel=0.1)
  both = (of_part[1:] & of_part[:-1]).mean()
  assert both == pytest.approx(0.81, abs=0.02)


def test_cyclic_poisson_of_one_part_is_poisson():
  # Of the same coins, but not of clients in order.
  one = _drawn(4000, 6, client_sampling='cyclic_poisson', client_parts=1)
  np.testing.assert_allclose(one.mean(0), 0.5, atol=0.03)


@pytest.mark.parametrize(('num_clients', 'parts'), [(3, 1), (12, 2), (300, 10)])
def test_by_default_parts_are_the_root_of_the_rounds_of_a_pass(
  num_clients, parts
):
  how = dataclasses.replace(_SETTINGS, client_sampling='cyclic_poisson')
  assert schedules.count_parts(how, num_clients) == parts
  poisson = dataclasses.replace(_SETTINGS, client_sampling='poisson')
  assert schedules.count_parts(poisson, num_clients) == 1


def test_parts_that_are_too_small_for_a_round_are_refused():
  with pytest.raises(
    errors.UserError, match='client_parts is 3, but 6 clients'
  ):
    _schedule(client_sampling='cyclic_poisson', client_parts=3).make_round(1)


def test_each_client_takes_part_once_in_a_pass():
  drawn = _drawn(12, 11, client_sampling='passes')
  np.testing.assert_array_equal(
    drawn.reshape(3, 4, 11).sum(1), np.ones([3, 11])
  )
  np.testing.assert_array_equal(drawn.sum(1), [3, 3, 3, 2] * 3)
  assert np.any(drawn[:4] != drawn[4:8])


def test_in_cycles_each_pass_has_the_same_order():
  drawn = _drawn(12, 11, client_sampling='cycles')
  np.testing.assert_array_equal(drawn[:4].sum(0), np.ones(11))
  np.testing.assert_array_equal(drawn[:4], drawn[4:8])
  np.testing.assert_array_equal(drawn[:4], drawn[8:])


def test_a_round_is_of_the_clients_that_are_sampled():
  for round_num, (rows, data, _) in enumerate(_rounds(), 1):
    expected = schedules.sample(_SETTINGS, _NUM_CLIENTS, round_num)
    np.testing.assert_array_equal(rows, expected)
    for row, y, mask in zip(rows, data.examples['y'], data.mask):
      client_id = _task().train.client_ids[row]
      of_client = _task().train.sets['train'](client_id)['y']
      np.testing.assert_array_equal(y[: len(of_client)], of_client)
      assert mask.sum() == len(of_client)


def test_clients_without_examples_take_no_part_and_are_named():
  made = _schedule(_make_task(dict(a=2, b=0, c=3)), clients_per_round=0)
  assert made.clients.client_ids == ('a', 'c')
  assert made.clients.skipped == ['b']
  assert made.make_round(1)[0].tolist() == [0, 1]


# Seeds and batches.


def test_each_client_and_round_has_a_seed_of_its_own():
  seeds = np.concatenate([of_round for _, _, of_round in _rounds()])
  assert seeds.dtype == np.int32
  assert len(set(map(tuple, seeds))) == 7 * 3


def test_a_seed_fixes_every_round():
  tree.map_structure(np.testing.assert_array_equal, _rounds(), _rounds())


def test_every_round_has_the_same_shapes():
  shapes = [
    [leaf.shape for leaf in tree.flatten(of_round)]
    for of_round in _rounds(clients_per_round=2)
  ]
  assert len(shapes) == 7
  assert shapes.count(shapes[0]) == 7


def test_batches_differ_from_round_to_round_and_from_epoch_to_epoch():
  rounds = _rounds(clients_per_round=0, client_epochs=2)
  epochs = [
    epoch.tobytes()
    for _, data, _ in rounds
    for epoch in np.split(data.indices[0], 2)
  ]
  assert len(set(epochs)) == 2 * 7


def test_an_epoch_has_each_example_once():
  _, data, _ = _rounds(clients_per_round=0, client_epochs=2)[0]
  for k, size in enumerate(_sizes()):
    for indices, mask in zip(
      np.split(data.indices[k], 2), np.split(data.mask[k], 2)
    ):
      assert sorted(indices[mask > 0]) == list(range(size))


def test_batches_that_are_not_full_can_be_left_out():
  _, data, _ = _rounds(clients_per_round=0, drop_partial_batches=True)[0]
  assert set(data.mask.sum(axis=2).ravel()) <= {0, 4}


@pytest.mark.parametrize(('batch_size', 'expected'), [(1, 1), (5, 5), (0, 7)])
def test_the_size_of_a_batch_is_the_tasks_unless_it_is_set(
  batch_size, expected
):
  task = dataclasses.replace(_task(), batch_size=7)
  _, data, _ = _rounds(task, batch_size=batch_size)[0]
  assert data.indices.shape[2] == expected


# Steps rather than epochs.

_STEPS = dict(clients_per_round=0, client_steps=5, client_epochs=3)
_OF_SIZES = dict(a=1, b=3, c=4, d=9, e=100)


def test_each_client_takes_so_many_steps_whatever_its_size():
  _, data, _ = _schedule(_make_task(_OF_SIZES), **_STEPS).make_round(1)
  assert data.indices.shape == (5, 5, 4)
  assert data.indices.dtype == np.int32
  # Full batches, or all examples of a client that has fewer.
  expected = [[min(size, 4)] * 5 for size in _OF_SIZES.values()]
  np.testing.assert_array_equal(data.mask.sum(axis=2), expected)


def test_steps_of_clients_that_are_not_padded():
  _, data, _ = _schedule(
    _make_task(_OF_SIZES, padded=False), **_STEPS
  ).make_round(1)
  assert isinstance(data, list)
  assert [client_data.indices.shape for client_data in data] == [
    (5, min(size, 4)) for size in _OF_SIZES.values()
  ]
  assert all(np.all(client_data.mask == 1) for client_data in data)


@pytest.mark.parametrize('round_num', [1, 2, 9])
def test_each_pass_over_the_examples_is_a_permutation(round_num):
  _, data, _ = _schedule(
    _make_task(_OF_SIZES), **(_STEPS | dict(client_steps=60))
  ).make_round(round_num)
  for size, indices, mask in zip(_OF_SIZES.values(), data.indices, data.mask):
    stream = indices[mask > 0]
    assert len(stream) == 60 * min(size, 4)
    passes = np.split(stream, range(size, len(stream), size))
    assert len(passes) >= 3 or size == 100
    for order in passes[:-1]:
      assert sorted(order) == list(range(size))
    # The last pass may stop early, but has no example twice.
    assert len(set(passes[-1])) == len(passes[-1])
    if size > 4:
      assert len({tuple(order) for order in passes[:-1]}) == len(passes) - 1


def test_the_steps_of_a_round_do_not_depend_on_the_rounds_before():
  task = _make_task(_OF_SIZES)
  made = _schedule(task, **_STEPS)
  whole = [made.make_round(round_num) for round_num in range(1, 5)]
  resumed = _schedule(task, **_STEPS)
  for round_num in (3, 4):
    tree.map_structure(
      np.testing.assert_array_equal,
      resumed.make_round(round_num),
      whole[round_num - 1],
    )
  labels = [_gather_batches(data)['y'].tobytes() for _, data, _ in whole]
  assert len(set(labels)) == 4


# Several rounds at once.


@pytest.mark.parametrize(
  'changed',
  [
    dict(),
    dict(clients_per_round=0),
    dict(client_epochs=2, drop_partial_batches=True),
    dict(client_steps=3),
    dict(client_steps=1),
  ],
  ids=str,
)
@pytest.mark.parametrize('first_round', [1, 4, 6])
@pytest.mark.parametrize('stacked', [True, False])
def test_several_rounds_are_the_rounds_one_by_one(
  changed, first_round, stacked, monkeypatch
):
  if not stacked:
    monkeypatch.setattr(schedules.Schedule, '_is_stacked', False)
  made = _schedule(**changed)
  several = made.make_rounds(first_round)
  assert ('rows' in several) == (changed != dict(clients_per_round=0))
  assert made.rounds_at_once == 3
  for i in range(3):
    rows, data, seeds = made.make_round(first_round + i)
    now = {name: leaf[i].numpy() for name, leaf in several.items()}
    np.testing.assert_array_equal(now.get('rows', rows), rows)
    np.testing.assert_array_equal(now['mask'], data.mask)
    np.testing.assert_array_equal(now['seed'], seeds)
    client = schedules.PLAN.clients((made.examples, {}), {}, now)
    tree.map_structure(
      np.testing.assert_array_equal,
      _gather_batches(client.data),
      _gather_batches(data),
    )


def _gather_batches(data: batches.ClientData) -> Mapping[str, np.ndarray]:
  """The examples of stacked clients, batch by batch, 0 where there is none."""
  mask = np.asarray(data.mask) > 0
  return {
    name: np.array(
      [
        of_client[indices]
        for of_client, indices in zip(np.asarray(leaf), data.indices)
      ]
    )
    * mask.reshape(mask.shape + (1,) * (leaf.ndim - 2))
    for name, leaf in data.examples.items()
  }


def test_no_more_rounds_are_made_at_once_than_there_may_be(monkeypatch):
  monkeypatch.setattr(schedules, '_MOST_ROUNDS', 2)
  made = _schedule()
  assert made.rounds_at_once == 2
  assert {len(leaf) for leaf in made.make_rounds(1).values()} == {2}


def test_recent_rounds_are_kept():
  made = schedules.Schedule(_task(), _SETTINGS, num_kept=2)
  first, second = made.make_rounds(1), made.make_rounds(4)
  assert made.make_rounds(1) is first
  assert made.make_rounds(4) is second
  made.make_rounds(7)
  assert made.make_rounds(1) is not first


def test_examples_that_are_not_padded_are_not_stacked():
  assert _schedule(dataclasses.replace(_task(), padded=False)).examples is None


def test_examples_that_are_too_many_when_padded_are_one_after_another(
  monkeypatch,
):
  shape = _NUM_CLIENTS, max(_sizes())
  monkeypatch.setattr(schedules, '_MOST_BYTES', _STACKED_BYTES)
  assert _schedule().examples['y'].shape == shape
  monkeypatch.setattr(schedules, '_MOST_BYTES', _STACKED_BYTES - 1)
  assert _schedule().examples['y'].shape == [sum(_sizes())]
  # The 4 examples of a step are all that is needed of each client.
  several = _schedule(client_steps=1).make_rounds(1)
  assert several['examples'].shape == [3, 3, 4]


def test_examples_that_are_too_large_are_not_in_the_program(monkeypatch):
  size = sum(_sizes()) * _EXAMPLE_BYTES
  monkeypatch.setattr(schedules, '_MOST_BYTES', size)
  assert _schedule().examples is not None
  monkeypatch.setattr(schedules, '_MOST_BYTES', size - 1)
  assert _schedule().examples is None


# Attributes.


def _method_that_needs(*names):
  trainer = types.SimpleNamespace(attributes=names)
  return types.SimpleNamespace(attributes={}, trainer=trainer)


def test_clients_have_their_attributes_in_the_order_asked_for():
  values = {client_id: k % 3 for k, client_id in enumerate('abcde')}
  task = dataclasses.replace(
    _make_task(dict(a=1, b=0, c=2, d=3, e=4)),
    attributes={
      'group': tasks.Attribute(('x', 'y', 'z'), values),
      'type': tasks.Attribute(('even', 'odd'), dict.fromkeys('abcde', 1)),
    },
  )
  made = _schedule(task, clients_per_round=2)
  # 'b' has no examples, so that the rows are those of a, c, d and e.
  found = made.attributes(
    _method_that_needs('type', 'group'), np.array([3, 0, 1])
  )
  assert list(found) == ['type', 'group']
  assert {leaf.dtype for leaf in found.values()} == {np.dtype(np.int32)}
  assert found['group'].tolist() == [1, 0, 2]
  assert found['type'].tolist() == [1, 1, 1]


def test_methods_that_need_no_attributes_get_none():
  assert not _schedule().attributes(_method_that_needs(), np.arange(3))


# Settings that do not go with the task.


def test_nobody_to_train_on_is_an_error():
  with pytest.raises(errors.UserError, match='synthetic has no clients'):
    _schedule(_make_task(dict(a=0, b=0)), clients_per_round=0)


@pytest.mark.parametrize(
  ('task', 'clients_per_round', 'message'),
  [
    (_task, 7, 'is 7, but synthetic has 6'),
    (lambda: _make_task(dict(a=1, b=0, c=2)), 3, 'is 3, but synthetic has 2'),
  ],
)
def test_more_clients_a_round_than_there_are_is_an_error(
  task, clients_per_round, message
):
  with pytest.raises(errors.UserError, match=message):
    _schedule(task(), clients_per_round=clients_per_round)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('total_rounds', -1),
    ('clients_per_round', -1),
    ('batch_size', -1),
    ('client_epochs', 0),
    ('client_steps', -1),
    ('rounds_per_checkpoint', 0),
    ('seed', -1),
    ('seed', 2**31),
    ('client_steps', 1.5),
  ],
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
  with pytest.raises(errors.UserError, match=name):
    settings.parse(schedules.TrainingSettings, {name: value}, 'test')


# Cohorts of groups.


def _make_grouped_task(groups: Sequence[int]) -> tasks.Task:
  """A task with a client for each of these groups, of six examples."""
  task = _make_task({f'client_{k:02}': 6 for k in range(len(groups))})
  known = tasks.Attribute(
    [str(g) for g in range(max(groups) + 1)],
    dict(zip(task.train.client_ids, groups)),
  )
  return dataclasses.replace(task, attributes={'group': known})


def _grouped(groups: Sequence[int], **changed: Any) -> schedules.Schedule:
  settings = dataclasses.replace(_SETTINGS, **changed)
  return schedules.Schedule(
    _make_grouped_task(groups), settings, attribute='group'
  )


# Of seven, two and no clients, and one.
_GROUPS = (0, 1, 0, 0, 3, 0, 0, 0, 1, 0)


def test_a_cohort_is_of_one_group_and_groups_take_turns():
  made = _grouped(_GROUPS)
  drawn = [
    [_GROUPS[row] for row in made.make_round(r)[0]] for r in range(1, 11)
  ]
  epoch = [[0] * 3, [0] * 3, [0] * 3, [1, 1], [3]]
  assert drawn == epoch * 2


@pytest.mark.parametrize(
  'cohort, rounds', [(3, {0: 3, 1: 1, 3: 1}), (0, {0: 1, 1: 1, 3: 1})]
)
def test_an_epoch_has_as_many_rounds_as_each_group_has_cohorts(cohort, rounds):
  made = _grouped(_GROUPS, clients_per_round=cohort)
  assert made.rounds_per_epoch == rounds


def test_the_rounds_of_a_group_are_those_that_it_has_alone():
  made, alone = _grouped(_GROUPS), _schedule(_make_grouped_task([0] * 7))
  members = np.flatnonzero(np.array(_GROUPS) == 0)
  rounds = [made.make_round(r) for r in (1, 2, 3, 6, 7, 8)]
  for own_round, (rows, data, client_seeds) in enumerate(rounds, 1):
    own_rows, own_data, own_seeds = alone.make_round(own_round)
    np.testing.assert_array_equal(rows, members[own_rows])
    np.testing.assert_array_equal(data.indices, own_data.indices)
    np.testing.assert_array_equal(client_seeds, own_seeds)


def test_rounds_of_cohorts_that_differ_in_size_are_not_one_program():
  assert _grouped(_GROUPS).examples is None
  assert _grouped((0, 0, 0, 1, 1, 1, 1)).examples is not None


def test_several_rounds_are_those_one_by_one_in_groups_too():
  made = _grouped((0, 0, 0, 1, 1, 1, 1))
  several = made.make_rounds(1)
  for i in range(made.rounds_at_once):
    rows, data, _ = made.make_round(1 + i)
    np.testing.assert_array_equal(several['rows'][i], rows)
    np.testing.assert_array_equal(several['indices'][i], data.indices)


@pytest.mark.parametrize(
  'changed, epochs, rounds',
  [
    ({}, None, 7),
    ({'total_epochs': 4}, None, 8),
    ({'total_epochs': 4, 'clients_per_round': 4}, None, 8),
    ({'total_epochs': 4, 'clients_per_round': 0}, None, 4),
    ({'total_epochs': 4}, 10, 20),
    ({}, 0, 0),
  ],
)
def test_epochs_are_counted_in_rounds(changed, epochs, rounds):
  made = _schedule(**changed)
  settings = dataclasses.replace(_SETTINGS, **changed)
  assert made.num_rounds(settings, epochs) == rounds
