"""Tests of errors that are errors of gRPC, too."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_runtimes import helpers
from tff_runtimes import errors


@pytest.mark.parametrize(
  'error',
  [
    tf.errors.InvalidArgumentError(None, None, 'No.'),
    tf.errors.OpError(None, None, 'No.', tf.errors.DATA_LOSS),
  ],
)
def test_an_error_is_of_both_kinds(error):
  made = errors.also_of_grpc(error)
  assert isinstance(made, grpc.RpcError)
  assert isinstance(made, type(error))
  assert made.details() == made.message == 'No.'
  assert made.code().value[0] == error.error_code
  assert str(made) == str(error)
  assert errors.also_of_grpc(made) is made


def test_code_for_the_worker_catches_errors_of_clients_and_of_the_server(
  cohort_context, each_context
):
  work = tff.tensorflow.computation(lambda x: 6 // x, np.int32)

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS),
    tff.FederatedType(np.int32, tff.SERVER),
  )
  def divide(clients, server):
    return tff.federated_map(work, clients), tff.federated_map(work, server)

  for context in (cohort_context, each_context):
    for clients, server in (([1, 0], 1), ([1, 2], 0)):
      with pytest.raises(grpc.RpcError) as caught:
        helpers.run(context, divide, clients, server)
      assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
      assert isinstance(caught.value, tf.errors.InvalidArgumentError)
