"""Tests of the lanes in which clients run."""

import json
import subprocess
import sys

from tff_runtimes import lanes

# TensorFlow's devices are set before it starts, so this is a process of its
# own. Its CPU's logical devices stand for GPUs.
_PROGRAM = """
import json
import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices('CPU')
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 3
)
import tensorflow_federated as tff
from tff_runtimes import cohort
from tff_runtimes import private_api

used = []
call_flat = private_api.call_flat

def record(*args, **kwargs):
  outputs = call_flat(*args, **kwargs)
  used.extend(output.backing_device[-5:] for output in outputs[:1])
  return outputs

private_api.call_flat = record
vector = tff.TensorType(np.float32, [3])

@tff.tensorflow.computation(vector, vector, tff.SequenceType(vector))
def work(model, state, data):
  return data.reduce(state, lambda total, row: tf.sin(total + row) + model)

@tff.tensorflow.computation(vector, vector)
def deviation(state, mean):
  return (state - mean) ** 2

@tff.federated_computation(
  tff.FederatedType(vector, tff.SERVER),
  tff.FederatedType(vector, tff.CLIENTS),
  tff.FederatedType(tff.SequenceType(vector), tff.CLIENTS),
)
def run(model, states, data):
  model = tff.federated_broadcast(model)
  states = tff.federated_map(work, (model, states, data))
  mean = tff.federated_mean(states)
  spread = tff.federated_map(
    deviation, (states, tff.federated_broadcast(mean))
  )
  return mean, states, tff.federated_mean(spread)

rng = np.random.default_rng(0)
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
arguments = (
  draw(3),
  list(draw(5, 3)),
  [tf.data.Dataset.from_tensor_slices(draw(k + 1, 3)) for k in range(5)],
)
results = []
for devices in (None, ['CPU:1', 'CPU:2']):
  used.clear()
  with cohort.create_cohort_context(stack=False, devices=devices) as context:
    with tff.framework.get_context_stack().install(context):
      mean, states, spread = run(*arguments)
  results.append([part.tobytes().hex() for part in (mean, *states, spread)])
  results.append({name: used.count(name) for name in sorted(set(used))})
print(json.dumps(results))
"""


def test_clients_run_on_all_devices_with_the_same_bits():
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    stdout=subprocess.PIPE,
    check=True,
    text=True,
  )
  alone, used_alone, shared, used = json.loads(done.stdout)
  assert shared == alone
  assert used_alone.keys() == {'CPU:0'}
  assert used.keys() == {'CPU:1', 'CPU:2'}
  # The second device runs two of the five clients in each of two stages.
  assert used['CPU:2'] == 2 * 2
  # The first device runs the others, and the server.
  assert used['CPU:1'] > 2 * 3


def test_the_devices_take_the_jobs_in_turn():
  three_lanes = lanes.Lanes(['a', 'b', 'c'])
  jobs = [lambda device, k=k: (k, device) for k in range(20)]
  expected = [(k, 'abc'[k % 3]) for k in range(20)]
  assert list(three_lanes.run_in_order(iter(jobs))) == expected
  three_lanes.shut_down()
