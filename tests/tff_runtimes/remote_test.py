"""Tests of TFF's workers as one runtime; all share a pair of them."""

from collections.abc import Iterator
import contextlib
import pathlib
import queue
import shutil
import signal
import socketserver
import subprocess
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tests.tff_runtimes import worker_programs
from tff_runtimes import crews
from tff_runtimes import remote

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_VECTOR = tff.TensorType(np.float32, [3])
_VECTORS = tff.FederatedType(_VECTOR, tff.CLIENTS)


@pytest.fixture(name='addresses', scope='module')
def _addresses() -> Iterator[list[str]]:
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(worker_programs.started()).address for _ in range(2)
    ]


@pytest.fixture(name='one', scope='module')
def _one(addresses) -> tff.framework.SyncContext:
  return remote.create_remote_context(addresses[:1])


@pytest.fixture(name='two', scope='module')
def _two(addresses) -> tff.framework.SyncContext:
  return remote.create_remote_context(addresses)


@tff.federated_computation(_INTS)
def _sum(clients):
  return tff.federated_sum(clients)


@tff.federated_computation(
  tff.FederatedType(_VECTOR, tff.SERVER), _VECTORS, _VECTORS
)
def _personalized_round(center, states, data):
  """A round whose clients keep states, and which aggregates twice."""

  @tff.tensorflow.computation(_VECTOR, _VECTOR, _VECTOR)
  def step(center, state, data):
    return state + 0.1 * tf.sin(center + data)

  @tff.tensorflow.computation(_VECTOR, _VECTOR)
  def deviation(state, mean):
    return (state - mean) ** 2

  at_clients = tff.federated_broadcast(center)
  states = tff.federated_map(step, (at_clients, states, data))
  mean = tff.federated_mean(states)
  squares = tff.federated_map(
    deviation, (states, tff.federated_broadcast(mean))
  )
  return mean, states, tff.federated_mean(squares)


def _vectors(seed, size=7):
  rng = np.random.default_rng(seed)
  return list(rng.normal(size=(size, 3)).astype(np.float32))


def _rounds(context):
  center, states = np.zeros(3, np.float32), _vectors(0)
  for seed in range(1, 4):
    center, states, spread = helpers.run(
      context, _personalized_round, center, states, _vectors(seed)
    )
  return center, states, spread


def _model():
  keras = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer((3,)),
      tf.keras.layers.Dense(2, kernel_initializer='zeros'),
    ]
  )
  return tff.learning.models.from_keras_model(
    keras,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=(
      tf.TensorSpec([None, 3], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
  )


@pytest.fixture(name='fed_avg', scope='module')
def _fed_avg():
  """Runs two rounds of FedAvg, whose clients have data sets."""
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _model, tff.learning.optimizers.build_sgdm(0.1)
  )
  clients = [
    tf.data.Dataset.from_tensor_slices(
      (np.stack(_vectors(k, 8)), np.arange(8, dtype=np.int32) % 2)
    ).batch(3)
    for k in range(5)
  ]

  def run(context):
    with tff.framework.get_context_stack().install(context):
      state = process.initialize()
      for _ in range(2):
        state, metrics = process.next(state, clients)
      return process.get_model_weights(state).trainable, metrics

  return run


def _assert_same_bits(first, second):
  ones, others = helpers.leaves(first), helpers.leaves(second)
  assert len(ones) == len(others)
  for one, other in zip(ones, others):
    np.testing.assert_array_equal(one, other)


def test_the_bits_do_not_depend_on_the_number_of_workers(
  one, two, addresses, fed_avg
):
  _assert_same_bits(fed_avg(two), fed_avg(one))
  first = _rounds(two)
  _assert_same_bits(_rounds(one), first)
  _assert_same_bits(_rounds(two), first)
  _assert_same_bits(_rounds(remote.create_remote_context(addresses)), first)


def test_blocks_differ_from_the_native_runtime_by_the_rounding_of_sums(
  native_context, two, fed_avg
):
  helpers.assert_same(fed_avg(two), fed_avg(native_context), rtol=1e-6)
  helpers.assert_same(_rounds(two), _rounds(native_context), rtol=1e-6)


@pytest.mark.parametrize(
  ('size', 'number'), [(1, 1), (7, 7), (100, 8), (160, 10), (5000, 64)]
)
def test_the_number_of_blocks_follows_from_that_of_the_clients(size, number):
  blocks = remote._blocks(size)
  assert len(blocks) == number
  clients = [k for block in blocks for k in range(size)[block]]
  assert clients == [*range(size)]


def test_all_workers_have_clients(two):
  @tff.tensorflow.computation
  def process():
    return tf.io.read_file('/proc/self/stat')

  @tff.federated_computation(_INTS)
  def where(clients):
    return tff.federated_map(
      tff.tensorflow.computation(lambda _: process(), np.int32), clients
    )

  pids = [int(stat.split()[0]) for stat in helpers.run(two, where, range(8))]
  assert len(set(pids)) == 2
  assert all(pids.count(pid) == 4 for pid in pids)


@pytest.mark.parametrize('size', [0, 1, 2])
def test_there_may_be_fewer_clients_than_workers(two, size):
  assert helpers.run(two, _sum, range(size)) == sum(range(size))


def test_values_of_clients_are_given_back_as_tff_does(native_context, two):
  @tff.federated_computation(
    tff.FederatedType(np.str_, tff.CLIENTS),
    tff.FederatedType(np.int32, tff.SERVER),
  )
  def same(texts, number):
    return number, texts

  expected = helpers.run(native_context, same, ('a', 'b', 'c'), 3)
  assert helpers.run(two, same, ('a', 'b', 'c'), 3) == expected


def test_a_secure_sum_is_a_sum(two):
  @tff.federated_computation(_INTS)
  def secure_sum(clients):
    return tff.federated_secure_sum(clients, 10)

  assert helpers.run(two, secure_sum, (1, 2, 3)) == 6


def test_an_error_of_a_client_is_raised_and_the_workers_go_on(two):
  @tff.tensorflow.computation(np.int32)
  def fail(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  run = tff.federated_computation(lambda x: tff.federated_map(fail, x), _INTS)
  with pytest.raises(grpc.RpcError, match='assertion failed'):
    helpers.run(two, run, [1, 2, 3, -1])
  assert helpers.run(two, run, [1, 2, 3, 4]) == [1, 2, 3, 4]


def test_workers_that_cannot_be_reached_are_named():
  with pytest.raises(remote.WorkerError, match='at 127.0.0.1:1 .* refused'):
    remote.create_remote_context(['127.0.0.1:1', '127.0.0.1:2'])


def test_without_one_of_them_the_others_begin(addresses):
  told = queue.Queue()
  context = remote.create_remote_context(
    ['127.0.0.1:1', *addresses], tell=told.put
  )
  assert 'at 127.0.0.1:1 cannot be used' in told.get(timeout=10)
  assert helpers.run(context, _sum, range(20)) == 190


class _OfHttp1(socketserver.BaseRequestHandler):
  """Answers as a server of web pages does."""

  def handle(self):
    self.request.recv(1000)
    self.request.sendall(b'HTTP/1.0 200 OK\r\n\r\nhello')


class _OfHttp2(socketserver.BaseRequestHandler):
  """Answers as a server of web pages does that has no such page."""

  def handle(self):
    self.request.recv(1000)
    settings = b'\0\0\0\4' + b'\0' * 5
    self.request.sendall(settings)
    self.request.recv(1000)
    # The headers of stream 1, whose only one is that the status is 404.
    self.request.sendall(b'\0\0\1\1\5\0\0\0\1\x8d')
    self.request.recv(1000)


class _Server(socketserver.ThreadingTCPServer):
  """A server that ends while a client keeps its connection."""

  daemon_threads = True


@pytest.mark.parametrize('handler', [_OfHttp1, _OfHttp2])
def test_a_server_of_web_pages_is_no_worker(monkeypatch, handler):
  monkeypatch.setattr(crews, '_SECONDS_TO_CONNECT', 2.0)
  with _Server(('127.0.0.1', 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f'127.0.0.1:{server.server_address[1]}'
    with pytest.raises(remote.WorkerError) as raised:
      remote.create_remote_context([address])
    server.shutdown()
  assert address in str(raised.value)
  assert 'OK' not in str(raised.value)
  assert 'status' not in str(raised.value)


def _run_for_ever(x):
  return tf.while_loop(lambda y: y < 10, lambda y: [y * 1], [x])[0]


@pytest.mark.parametrize(
  ('number', 'reason'),
  [(signal.SIGKILL, 'cannot be used'), (signal.SIGSTOP, 'not answer within')],
)
def test_without_any_worker_left_work_is_an_error(monkeypatch, number, reason):
  monkeypatch.setattr(crews, '_SECONDS_BETWEEN_CALLS', 0.3)
  monkeypatch.setattr(crews, '_SECONDS_TO_ANSWER', 0.5)
  work = tff.tensorflow.computation(_run_for_ever, np.int32)
  run = tff.federated_computation(lambda x: tff.federated_map(work, x), _INTS)
  with worker_programs.started() as program:
    context = remote.create_remote_context([program.address])
    assert helpers.run(context, run, [10, 10]) == [10, 10]
    program.worker.send_signal(number)
    for _ in range(2):
      with pytest.raises(remote.WorkerError, match=reason) as raised:
        helpers.run(context, run, [10, 1])
      assert program.address in str(raised.value)


@pytest.fixture(name='certificates', scope='module')
def _certificates(tmp_path_factory) -> pathlib.Path:
  """Makes two authorities, and certificates of one and of the other."""
  if shutil.which('openssl') is None:
    pytest.skip('There is no openssl here, to make certificates with.')
  folder = tmp_path_factory.mktemp('certificates')

  def make(name: str, *more: str) -> None:
    command = 'openssl req -x509 -newkey rsa:2048 -nodes -days 1'.split()
    command += [f'-keyout={name}.key', f'-out={name}.pem', f'-subj=/CN={name}']
    subprocess.run(
      [part for word in command for part in word.split('=', 1)] + list(more),
      cwd=folder,
      check=True,
      stderr=subprocess.DEVNULL,
    )

  for authority, owners in (
    ('ca', ['worker', 'user']),
    ('other', ['stranger']),
  ):
    make(authority)
    for owner in owners:
      make(
        owner,
        *('-CA', f'{authority}.pem', '-CAkey', f'{authority}.key'),
        *('-addext', 'subjectAltName=IP:127.0.0.1'),
      )
  return folder


def test_only_who_has_a_certificate_can_use_a_worker_that_asks_for_one(
  certificates,
):
  def credentials(authority, owner=None):
    names = [f'{authority}.pem']
    names += [f'{owner}.key', f'{owner}.pem'] if owner else []
    return grpc.ssl_channel_credentials(
      *((certificates / name).read_bytes() for name in names)
    )

  with worker_programs.started(
    f'--tls_certificate={certificates}/worker.pem',
    f'--tls_key={certificates}/worker.key',
    f'--client_ca={certificates}/ca.pem',
  ) as program:
    addresses = [program.address]
    context = remote.create_remote_context(addresses, credentials('ca', 'user'))
    assert helpers.run(context, _sum, [1, 2]) == 3
    for wrong in (
      None,
      credentials('ca'),
      credentials('ca', 'stranger'),
      credentials('other', 'user'),
    ):
      with pytest.raises(remote.WorkerError, match=program.address):
        remote.create_remote_context(addresses, wrong)
