"""The bare loops take the steps of the methods that they are named after."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from experiments.benchmarks import bare_methods
from experiments.benchmarks import reference_loops
from experiments.benchmarks import workloads
from tasks.models import gpt2
from tests.algorithms import helpers

_ROUNDS = 5


@pytest.mark.parametrize('name', workloads.METHODS)
def test_rounds_are_those_of_the_method(name):
  workload = reference_loops.linear_workload(4, num_examples=20, batch_size=8)
  method = helpers.build_anew(
    name,
    workload.model,
    num_clients=len(workload.clients),
    client_learning_rate=workload.learning_rate,
  )
  with helpers.use_runtime('cohort'):
    clients = helpers.make_clients(method, workload.clients)
    expected = helpers.run(method, _ROUNDS, clients).state.server.model
  run_round = bare_methods.bare_round(workload, name)
  weights = workload.model.init(tf.constant([0, 0]))
  for _ in range(_ROUNDS):
    weights = run_round(weights)
  assert np.abs(expected['kernel']).max() > 0.01
  for weight, value in expected.items():
    np.testing.assert_allclose(weights[weight], value, rtol=1e-3, atol=1e-4)


def test_each_method_has_a_loop():
  assert set(workloads.METHODS) == set(bare_methods.METHODS)


def test_rounds_of_prompts_are_those_of_fedpc():
  sizes = gpt2.Gpt2(19, 9, 8, 1, 2)
  workload = reference_loops.prompt_workload(
    3, num_steps=2, batch_size=4, sizes=sizes, sequence_length=5
  )
  # Gradients next to zero are mostly rounding, of which Adam makes much.
  large = tf.nest.map_structure(lambda w: 8 * w, workload.model.frozen)
  workload = dataclasses.replace(
    workload, model=dataclasses.replace(workload.model, frozen=large)
  )
  method = helpers.build_anew('fedpc', model=workload.model)
  with helpers.use_runtime('unstacked'):
    clients = helpers.make_clients(method, workload.clients)
    state = method.initial_state([0, 0])
    expected = helpers.run(method, 2, clients, state).state.server.model
  run_round = bare_methods.bare_round(workload, 'fedpc')
  weights = workload.model.init(tf.constant([0, 0]))
  for _ in range(2):
    weights = run_round(weights)
  moved = expected['phi'] - workload.model.init(tf.constant([0, 0]))['phi']
  assert np.abs(moved).max() > 5e-4
  for weight, value in expected.items():
    np.testing.assert_allclose(weights[weight], value, atol=1e-4)


def test_rounds_of_fedembed_are_those_of_the_method():
  workload = reference_loops.preference_workload(3)
  method = helpers.build_anew(
    'fedembed_type',
    workload.model,
    client_learning_rate=0.001,
    **workload.settings,
  )
  with helpers.use_runtime('cohort'):
    clients = helpers.make_clients(method, workload.clients)
    weights = method.initial_state([0, 1]).server.model
    expected = helpers.run(method, 2, clients).state.server.model
  run_round = bare_methods.bare_round(workload, 'fedembed_type')
  after = run_round(run_round(weights))
  for name, weight in expected.items():
    moved = weight - weights[name]
    np.testing.assert_allclose(
      after[name] - weights[name], moved, atol=0.02 * np.abs(moved).max()
    )
