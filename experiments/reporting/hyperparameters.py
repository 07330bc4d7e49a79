"""The settings and the result of a method, for TensorBoard's HParams page."""

from collections.abc import Mapping
import pathlib

from tensorboard.plugins.hparams import api
import tensorflow as tf

from base.aliases import Json
from experiments.configuration import user_settings


def write(
  folder: pathlib.Path,
  method: str,
  configuration: Mapping[str, Json],
  result: Mapping[str, Json],
) -> None:
  """Writes the settings and results by which TensorBoard compares methods.

  Args:
    folder: The folder of the method's events.
    method: The name of the method.
    configuration: All settings, as in config.toml.
    result: The result of the method, as in results.json.
  """
  settings = {'method': method}
  for name, value in user_settings.flatten(configuration):
    group, _, own_name = name.rpartition('.')
    if group in ('', 'task', 'privacy'):
      settings[name] = value
    elif group == method:
      # The same name for all methods, so that there is one column.
      settings[own_name] = value
  numbers = {
    name: value if isinstance(value, (bool, int, float)) else str(value)
    for name, value in settings.items()
  }
  with tf.summary.create_file_writer(str(folder)).as_default():
    api.hparams(numbers, trial_id=str(folder))
    for name in ('mean', 'worst_tenth', 'hurt'):
      value = result['test'][name]
      if value is not None:
        tf.summary.scalar(f'test/{name}', value, step=result['rounds'])
