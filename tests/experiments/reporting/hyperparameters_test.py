"""Tests of what TensorBoard is told of a method."""

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from experiments.reporting import hyperparameters


def test_tensorboard_reads_the_settings_of_the_method_and_its_result(tmp_path):
  hyperparameters.write(
    tmp_path,
    'ditto',
    {
      'seed': 3,
      'algorithms': ['fedavg', 'ditto'],
      'task': {'name': 'school'},
      'ditto': {'regularization': 0.5},
      'fedavg': {'client_learning_rate': 0.1},
    },
    {'test': {'mean': 0.75, 'worst_tenth': 0.5, 'hurt': None}, 'rounds': 7},
  )
  events = event_accumulator.EventAccumulator(str(tmp_path))
  events.Reload()
  content = events.PluginTagToContent('hparams')
  found = plugin_data_pb2.HParamsPluginData.FromString(
    content['_hparams_/session_start_info']
  ).session_start_info.hparams
  assert found['method'].string_value == 'ditto'
  assert found['regularization'].number_value == 0.5
  assert found['task.name'].string_value == 'school'
  assert found['seed'].number_value == 3
  assert 'client_learning_rate' not in found
  (mean,) = events.Tensors('test/mean')
  assert mean.step == 7
  assert 'test/hurt' not in events.Tags()['tensors']
