"""Privacy at the client level: what is guaranteed, and what is refused."""

import dataclasses
import functools
import math

import dp_accounting
import numpy as np
import pytest

from algorithms import aggregation
from algorithms import registry
from base import errors
from base import settings
from personalization.privacy import accounting
from personalization.privacy import matrix_noise
from personalization.privacy import ways
from personalization.rounds import schedules
from tasks import registry as task_registry
from tasks import task as tasks

_NUM_CLIENTS = 20
_DELTA = 1e-3
_MEAN = aggregation.mean()


@functools.cache
def _task() -> tasks.Task:
  return task_registry.load('synthetic', num_train_clients=_NUM_CLIENTS)


def _apply(
  name='fedavg', way='gaussian', rounds=None, private=None, task=None, **values
):
  values = dict(client_weighting='uniform') | values
  known = registry.settings_names(name)
  method = registry.build(
    name,
    _task().model,
    registry.make_settings(
      name, {n: v for n, v in values.items() if n in known}
    ),
    _MEAN,
    ('evaluation',),
    num_clients=_NUM_CLIENTS,
    num_groups=2,
  )
  made = ways.settings_class(way)(**(private or dict(noise=1.5, delta=_DELTA)))
  training_settings = schedules.TrainingSettings(
    **dict(total_rounds=30, clients_per_round=5) | (rounds or {})
  )
  return ways.apply(way, made, name, method, task or _task(), training_settings)


@pytest.mark.parametrize(
  ('changed', 'event', 'says'),
  (
    (
      dict(client_sampling='poisson'),
      accounting.poisson(1.5, 0.25, 30),
      'Poisson, each of 20 clients with q = 0.25',
    ),
    (
      # In each third round; the first parts have one more of 29 rounds.
      dict(client_sampling='cyclic_poisson', client_parts=3, total_rounds=29),
      accounting.poisson(1.5, 0.75, 10),
      'q = 0.75 in each of 10 rounds, in 3 parts that take turns',
    ),
    (
      dict(client_sampling='fixed_size'),
      accounting.fixed_size(1.5, 5, 20, 30),
      '5 of 20 clients without replacement',
    ),
    (
      # Thirty rounds are seven and a half passes of four.
      dict(client_sampling='passes'),
      accounting.gaussian(1.5, 8),
      'each client at most 8 times',
    ),
    (dict(clients_per_round=0), accounting.gaussian(1.5, 30), 'all 20 clients'),
  ),
)
def test_epsilon_is_that_of_the_draw_that_is_made(changed, event, says):
  guarantee = _apply(rounds=changed).guarantee
  expected, accountant = accounting.epsilon(event, _DELTA)
  assert guarantee.epsilon == expected
  assert guarantee.accountant == accountant
  assert says in guarantee.sampling


@pytest.mark.parametrize(
  ('way', 'private', 'rounds', 'event'),
  (
    # 30 rounds in passes of 4 are seven trees of three levels, and one of two.
    ('tree', {}, dict(client_sampling='passes'), 1.5 / 23**0.5),
    # In one tree of two passes of three rounds, the third and the fourth are
    # below one node of two and one of four: 1 + 1 + 4 + 4.
    (
      'tree',
      dict(restarts=False),
      dict(client_sampling='passes', clients_per_round=7, total_rounds=6),
      1.5 / 10**0.5,
    ),
    # At a distance of three, none are below one of two: 1 + 1 + 1 + 1 + 4.
    (
      'tree',
      dict(restarts=False),
      dict(client_sampling='cycles', clients_per_round=7, total_rounds=6),
      1.5 / 8**0.5,
    ),
    # Where all clients are in all rounds, later rounds cannot help.
    ('matrix', {}, dict(clients_per_round=0), 1.5 / 30**0.5),
    # Two updates are twice the clip apart, and no draw amplifies.
    ('local', {}, dict(client_sampling='poisson'), 0.75 / 30**0.5),
    ('local', {}, dict(client_sampling='passes'), 0.75 / 8**0.5),
    ('local', {}, dict(client_sampling='cyclic_poisson'), 0.75 / 15**0.5),
  ),
)
def test_other_ways_count_as_one_gaussian(way, private, rounds, event):
  guarantee = _apply(
    way=way, private=dict(noise=1.5, delta=_DELTA) | private, rounds=rounds
  ).guarantee
  expected, _ = accounting.epsilon(accounting.gaussian(event), _DELTA)
  assert guarantee.epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
  ('rounds', 'times', 'share'),
  (
    (dict(client_sampling='fixed_size'), 30, 1.0),
    # Seven and a half passes; the last round of each has two of six clients.
    (dict(client_sampling='passes', clients_per_round=6), 8, 2 / 6),
    (dict(clients_per_round=0), 30, 1.0),
  ),
)
def test_distributed_noise_counts_as_that_of_the_clients_that_come(
  rounds, times, share
):
  guarantee = _apply(way='distributed', rounds=rounds).guarantee
  as_gaussian = accounting.gaussian(1.5 * share**0.5 / times**0.5)
  expected = float(
    accounting._rdp_accountant(as_gaussian)
    .compose(as_gaussian)
    .get_epsilon(_DELTA)
  )
  assert expected < guarantee.epsilon < 1.01 * expected
  assert guarantee.accountant == 'RDP'
  assert 'simulated' in ' '.join(guarantee.assumptions)


def test_the_count_for_an_adaptive_clip_is_paid_for():
  rounds = dict(clients_per_round=15, client_sampling='poisson')
  aggregator = _apply(
    'hypcluster', 'adaptive', rounds, dict(noise=1.0)
  ).aggregator
  assert aggregator.quantile_stddev == 15 / 20
  # Whoever is clipped or not moves the count by a half at most.
  parts = [
    aggregator.noise,
    aggregator.sums_noise,
    aggregator.quantile_stddev / 0.5,
  ]
  assert sum(z**-2 for z in parts) == pytest.approx(1)


@pytest.mark.parametrize(
  ('way', 'name', 'rounds', 'says'),
  (
    ('adaptive', 'fedavg', {}, 'below a tenth of the 5 clients'),
    ('tree', 'fedavg', {}, 'client_sampling to passes'),
    ('tree', 'fedavg', dict(clients_per_round=0), 'fewer than all'),
    ('tree', 'fedavg', dict(client_sampling='cyclic_poisson'), 'to passes'),
    ('matrix', 'fedavg', dict(client_sampling='passes'), 'to cycles'),
    (
      'tree',
      'hypcluster',
      dict(client_sampling='passes'),
      'counts of clusters',
    ),
    (
      'matrix',
      'hypcluster',
      dict(client_sampling='cycles'),
      'counts of clusters',
    ),
    ('local', 'hypcluster', {}, 'counts of clusters'),
    ('distributed', 'hypcluster', {}, 'counts of clusters'),
    (
      'distributed',
      'fedavg',
      dict(client_sampling='poisson'),
      'no client that',
    ),
    (
      'distributed',
      'fedavg',
      dict(client_sampling='cyclic_poisson'),
      'no client that',
    ),
  ),
)
def test_ways_that_do_not_go_with_the_settings_are_refused(
  way, name, rounds, says
):
  with pytest.raises(errors.UserError, match=says):
    _apply(name, way, rounds)


def test_the_noise_of_a_matrix_is_the_least_that_was_found():
  method = _apply(
    way='matrix',
    rounds=dict(client_sampling='cycles', total_rounds=20, clients_per_round=5),
  )
  buffers = matrix_noise.find_buffers(20, 4)
  assert method.aggregator.decays == buffers.decays
  assert method.aggregator.scales == buffers.scales
  sensitivity = matrix_noise.sensitivity(buffers.column(20), 4)
  expected, _ = accounting.epsilon(
    accounting.gaussian(1.5 / sensitivity), _DELTA
  )
  assert method.guarantee.epsilon == expected
  for decay in buffers.decays:
    assert f'{decay:.3g}' in method.guarantee.mechanism


def test_chance_amplifies_a_matrix_of_as_many_bands_as_parts():
  method = _apply(
    way='matrix',
    rounds=dict(client_sampling='cyclic_poisson', total_rounds=30),
  )
  column = matrix_noise.find_bands(30, 2)
  assert method.aggregator.scales == column[1:]
  assert not method.aggregator.decays
  # Each client has one of two rounds, with one Gaussian in each.
  event = accounting.poisson(1.5 / math.hypot(*column), 0.5, 15)
  expected, accountant = accounting.epsilon(event, _DELTA)
  assert method.guarantee.epsilon == expected
  assert method.guarantee.accountant == accountant
  assert 'of 2 bands' in method.guarantee.mechanism
  # Without chance, as many participations would cost more.
  certain, _ = accounting.epsilon(
    accounting.gaussian(1.5 / math.hypot(*column), 15), _DELTA
  )
  assert expected < 0.7 * certain


def test_a_matrix_of_one_part_is_plain_noise_by_poisson():
  rounds = dict(client_sampling='cyclic_poisson', client_parts=1)
  poisson = dict(client_sampling='poisson')
  assert (
    _apply(way='matrix', rounds=rounds).guarantee.epsilon
    == _apply(rounds=poisson).guarantee.epsilon
  )


def test_the_noise_that_is_found_keeps_within_epsilon():
  rounds = dict(client_sampling='passes')
  method = _apply(private=dict(epsilon=3.0, delta=_DELTA), rounds=rounds)
  assert 2.98 < method.guarantee.epsilon <= 3
  assert method.aggregator.noise == method.guarantee.noise
  assert method.aggregator.clients == 5


def test_the_usual_delta_is_taken():
  assert _apply(private=dict(noise=1.0)).guarantee.delta == _NUM_CLIENTS**-1.1


def test_without_noise_nothing_is_called_private():
  guarantee = _apply(private=dict(noise=0.0)).guarantee
  assert guarantee.epsilon == math.inf
  assert str(guarantee) == 'not private'


def test_counts_of_clusters_are_paid_for():
  aggregator = _apply('hypcluster').aggregator
  assert aggregator.sums_noise == 5 * 1.5
  parts = [aggregator.noise, aggregator.sums_noise]
  assert sum(z**-2 for z in parts) == pytest.approx(1.5**-2)


def _make_grouped_task(sizes):
  """The task, whose clients are in groups of these sizes."""
  clients = _task().train.client_ids
  group_of = np.repeat(np.arange(len(sizes)), sizes)
  names = [f'group {k}' for k in range(len(sizes))]
  found = tasks.Attribute(names, dict(zip(clients, map(int, group_of))))
  return dataclasses.replace(_task(), attributes={tasks.GROUP: found})


@pytest.mark.parametrize(
  ('sampling', 'before', 'of_groups', 'says'),
  (
    # Three epochs of one round of 4 clients, and of four rounds of 5 of 16.
    (
      'poisson',
      accounting.poisson(1.5, 0.25, 30),
      (accounting.gaussian(1.5, 3), accounting.poisson(1.5, 5 / 16, 12)),
      'all 4 clients in each of 3 rounds',
    ),
    # Neighbours replace a client, also where all of a group take part.
    (
      'fixed_size',
      accounting.fixed_size(1.5, 5, 20, 30),
      (accounting.gaussian(0.75, 3), accounting.fixed_size(1.5, 5, 16, 12)),
      '5 of 16 clients without replacement in each of 12',
    ),
  ),
)
def test_what_groups_begin_with_is_accounted_for(
  monkeypatch, sampling, before, of_groups, says
):
  # PLD takes seconds, and adds the same events.
  monkeypatch.setattr(accounting, 'MOST_PLD_EPSILON', 0.0)
  method = _apply(
    'group',
    rounds=dict(client_sampling=sampling),
    task=_make_grouped_task([4, 16]),
    group_epochs=3,
  )
  # A client is in one of the groups; the guarantee is that of the worst.
  events = [dp_accounting.ComposedDpEvent([before, g]) for g in of_groups]
  expected = max(accounting.epsilon(event, _DELTA)[0] for event in events)
  guarantee = method.guarantee
  assert guarantee.epsilon == pytest.approx(expected)
  assert says in guarantee.sampling
  assert ('of its group' in guarantee.neighbors) == (sampling == 'fixed_size')
  # The training before is as private.
  assert method.predecessor.aggregator is method.aggregator


def test_a_method_without_counts_has_all_noise_for_its_update():
  aggregator = _apply().aggregator
  assert aggregator.noise == 1.5
  assert aggregator.sums_noise == 0


@pytest.mark.parametrize('way', ['gaussian', 'adaptive'])
def test_a_cohort_that_is_not_simulated_has_its_noise_and_its_epsilon(way):
  private = dict(
    noise=1.5, delta=1e-8, noise_cohort=1000, noise_population=10**6
  )
  made = _apply('hypcluster', way, dict(client_sampling='poisson'), private)
  expected = accounting.poisson(1.5, 1e-3, 30)
  assert made.guarantee.epsilon == accounting.epsilon(expected, 1e-8)[0]
  assert str(made.guarantee).endswith('(simulated, extrapolated)')
  # The mean over five has the noise that the mean over a thousand would have.
  aggregator = made.aggregator
  assert aggregator.clients == 5
  noises = [z * 1000 / 5 for z in (aggregator.noise, aggregator.sums_noise)]
  if way == 'adaptive':
    noises.append(2 * 1000 * aggregator.quantile_stddev / 5)
  assert sum(z**-2 for z in noises) == pytest.approx(1.5**-2)


def test_a_larger_cohort_is_drawn_from_as_many_more_clients():
  rounds = dict(client_sampling='poisson')
  larger = dict(noise=1.5, delta=1e-8, noise_cohort=500)
  guarantee = _apply(rounds=rounds, private=larger).guarantee
  assert (
    guarantee.epsilon
    == accounting.epsilon(accounting.poisson(1.5, 0.25, 30), 1e-8)[0]
  )
  assert 'each of 2000 clients' in guarantee.sampling


@pytest.mark.parametrize(
  ('private', 'rounds', 'says'),
  [
    (dict(noise_population=9), {}, 'noise_cohort, which is not set'),
    (dict(noise_cohort=9, noise_population=8), {}, 'must be at least'),
    (
      dict(noise_cohort=30, noise_population=90),
      dict(clients_per_round=0),
      'all clients are in each round',
    ),
    (dict(noise_cohort=500, delta=1e-3), {}, 'delta must be'),
  ],
)
def test_a_cohort_that_cannot_be_is_refused(private, rounds, says):
  with pytest.raises(errors.UserError, match=says):
    _apply(rounds=rounds, private=dict(noise=1.5) | private)


def test_what_is_outside_of_the_guarantee_is_said():
  not_covered = ' '.join(_apply().guarantee.not_covered)
  for what in ('metrics of each round', 'validation', 'per_client.csv'):
    assert what in not_covered


@pytest.mark.parametrize(
  ('name', 'values', 'says'),
  (
    ('fedavg', dict(client_weighting='examples'), 'client_weighting must be'),
    ('fedavg', dict(client_weighting='size'), 'client_weighting must be'),
    ('mocha', {}, 'mocha with privacy gaussian: It cannot be private'),
    ('self_fl', {}, 'set one_pass=true'),
    ('self_fl_clusters', {}, 'in the clear'),
    ('group', dict(groups='hypcluster', num_groups=2), 'groups=column'),
    ('group', dict(groups='inferred', num_groups=2), 'groups=column'),
  ),
)
def test_methods_that_cannot_be_private_are_refused(name, values, says):
  with pytest.raises(errors.UserError, match=says):
    _apply(name, **values)


@pytest.mark.parametrize('restarts', (True, False))
def test_a_tree_without_rounds_reveals_nothing(restarts):
  guarantee = _apply(
    way='tree',
    rounds=dict(client_sampling='passes', total_rounds=0),
    private=dict(epsilon=1.0, restarts=restarts),
  ).guarantee
  assert (guarantee.epsilon, guarantee.noise) == (0, 0)


def test_one_client_cannot_be_hidden_by_the_usual_delta():
  alone = task_registry.load('synthetic', num_train_clients=1)
  with pytest.raises(errors.UserError, match='below 1 / 1, the number of cli'):
    _apply(
      task=alone, rounds=dict(clients_per_round=1), private=dict(noise=1.0)
    )


@pytest.mark.parametrize('delta', (1 / _NUM_CLIENTS, 0.5))
def test_a_delta_of_one_over_the_clients_is_refused(delta):
  with pytest.raises(errors.UserError, match='below 1 / 20'):
    _apply(private=dict(noise=1.0, delta=delta))


@pytest.mark.parametrize(
  ('values', 'says'),
  (
    ({}, 'either the epsilon or the noise'),
    (dict(epsilon=1.0, noise=1.0), 'either the epsilon or the noise'),
    (dict(epsilon=0.0), 'epsilon must be above 0'),
    (dict(noise=-1.0), 'noise must be at least 0'),
    (dict(noise=1e-60), 'noise must be 0 or at least 1.2e-38'),
    (dict(noise=1.0, clip=0.0), 'clip must be above 0'),
  ),
)
def test_settings_that_make_no_sense_are_refused(values, says):
  with pytest.raises(settings.SettingError, match=says):
    ways.settings_class('gaussian')(**values)


def test_an_unknown_way_is_refused():
  with pytest.raises(errors.UserError, match="Did you mean 'gaussian'"):
    ways.settings_class('gausian')
