"""The examples register themselves, which no test of other folders may see."""

from unittest import mock

from algorithms import registry as algorithm_registry
from tasks import registry as task_registry

with (
  mock.patch.dict(algorithm_registry.TRAINERS),
  mock.patch.dict(task_registry.TASKS),
):
  from examples import fedexp  # noqa: F401
  from examples import sine_waves  # noqa: F401
