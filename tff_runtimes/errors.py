"""TensorFlow's errors as errors of gRPC, too.

TFF's worker reports an error in a computation as a `grpc.RpcError`, and code
that was written for it catches that.
"""

from typing import Any

import grpc
import tensorflow as tf

# TensorFlow and gRPC number their errors alike.
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# The classes that were made here, by TensorFlow's.
_kinds: dict[Any, Any] = {}


def _code(error: tf.errors.OpError) -> grpc.StatusCode:
  return _CODES[error.error_code]


def _details(error: tf.errors.OpError) -> str:
  return str(error.message)


def also_of_grpc(error: tf.errors.OpError) -> tf.errors.OpError:
  """Returns the same error as a `grpc.RpcError`, with a code and details."""
  if isinstance(error, grpc.RpcError):
    return error
  kind = type(error)
  if kind not in _kinds:
    members = {'__module__': __name__, 'code': _code, 'details': _details}
    _kinds[kind] = type(kind.__name__, (kind, grpc.RpcError), members)
  made = Exception.__new__(_kinds[kind], *error.args)
  made.__dict__.update(error.__dict__)
  return made
