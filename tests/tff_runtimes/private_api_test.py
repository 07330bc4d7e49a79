"""Tests of what is private in TensorFlow and TFF."""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_runtimes import private_api

_FITTING = {'tensorflow': '2.14.1', 'tensorflow_federated': '0.87.0'}


@pytest.mark.parametrize('tensorflow', ['2.14.0', '2.14.1', '2.14'])
def test_any_patch_release_fits(tensorflow):
  private_api.check_versions(_FITTING | {'tensorflow': tensorflow})


@pytest.mark.parametrize(
  ('package', 'version'),
  [
    ('tensorflow', '2.15.0'),
    ('tensorflow', '2.1.4'),
    ('tensorflow', '2.140.0'),
    ('tensorflow_federated', '0.86.0'),
    ('tensorflow_federated', '1.87.0'),
  ],
)
def test_another_release_is_an_error(package, version):
  with pytest.raises(ImportError):
    private_api.check_versions(_FITTING | {package: version})


def test_the_error_names_what_fits_and_what_is_installed():
  installed = {'tensorflow': '2.15.0', 'tensorflow_federated': '0.87.0'}
  with pytest.raises(ImportError) as error:
    private_api.check_versions(installed)
  assert str(error.value).endswith(
    'They fit tensorflow 2.14.x and tensorflow_federated 0.87.x; installed are'
    ' tensorflow 2.15.0 and tensorflow_federated 0.87.0.'
  )


@pytest.mark.parametrize(
  ('module', 'name'), [(tf, 'tensorflow'), (tff, 'tensorflow_federated')]
)
def test_the_import_checks_the_versions(monkeypatch, module, name):
  monkeypatch.setattr(module, '__version__', '9.9.9')
  with pytest.raises(ImportError, match=f'{name} 9.9.9'):
    importlib.reload(private_api)


def test_call_flat_gives_the_result_of_a_call():
  captured = tf.constant(3)
  function = tf.function(
    lambda x, y: (x + captured, [y])
  ).get_concrete_function(
    tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
  )
  x, y = tf.constant(1), tf.constant(2.0)
  cancellation = private_api.CancellationManager()
  assert private_api.call_flat(function, [x, y], cancellation) == [4, 2.0]


def test_a_cancelled_call_raises_an_error():
  function = tf.function(lambda: tf.constant(1)).get_concrete_function()
  cancellation = private_api.CancellationManager()
  cancellation.start_cancel()
  with pytest.raises(tf.errors.CancelledError):
    private_api.call_flat(function, [], cancellation)


def test_a_session_is_called_with_arrays():
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.int32, [2])
    y = 2 * x
  with tf.compat.v1.Session(graph=graph) as session:
    call = private_api.make_callable(session, [x], [y, 3 * y])
    result = call(np.array([1, 2], np.int32))
  np.testing.assert_equal(result, [[2, 4], [6, 12]])


@pytest.mark.parametrize(
  ('value', 'dtype', 'expected'),
  [
    (1, np.int32, True),
    (2**40, np.int32, False),
    (np.int16(1), np.int32, True),
    (True, np.int32, False),
    (1, np.float32, False),
    ('text', np.str_, True),
  ],
)
def test_a_value_is_compatible_with_a_type(value, dtype, expected):
  assert private_api.is_compatible(value, np.dtype(dtype)) == expected


def test_a_list_becomes_a_data_set():
  data_set = private_api.to_data_set([1, 2], tff.TensorType(np.int32))
  assert list(data_set.as_numpy_iterator()) == [1, 2]


@pytest.mark.parametrize(
  ('name', 'is_stateful'), [('Add', False), ('RandomUniform', True)]
)
def test_an_operation_tells_whether_it_is_stateful(name, is_stateful):
  assert private_api.op_definition(name).is_stateful == is_stateful


def test_an_unknown_operation_has_no_definition():
  assert private_api.op_definition('NoSuchOperation') is None


def test_loaded_functions_get_new_names_and_can_be_called():
  double = tf.function(lambda x: 2 * x).get_concrete_function(
    tf.TensorSpec([], tf.int32)
  )
  with tf.Graph().as_default() as graph:
    double(tf.constant(1))
  library = graph.as_graph_def().library
  old_names = {function.signature.name for function in library.function}
  with tf.Graph().as_default() as graph:
    functions = private_api.load_functions(library)
    for function in functions.values():
      function.add_to_graph(graph)
  added = {f.signature.name for f in graph.as_graph_def().library.function}
  assert set(functions) == old_names
  assert {f.name.decode() for f in functions.values()} == added
  assert not added & old_names


def test_the_worker_is_a_program():
  assert os.access(private_api.worker_binary(), os.X_OK)


def test_python_ends_without_an_error():
  done = subprocess.run(
    [sys.executable, '-c', 'from tff_runtimes import private_api'],
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0
  assert 'Exception ignored' not in done.stderr
