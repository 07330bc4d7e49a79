"""The names of the workloads that `benchmark` measures."""

# Workloads of made-up data: the functions of `reference_loops` that make them.
MADE_UP = {
  'W1': 'cnn_workload',
  'W2': 'linear_workload',
  'W3': 'lstm_workload',
  'W4': 'preference_workload',
  'W5': 'prompt_workload',
  'W6': 'photo_workload',
  'W7': 'resnet_workload',
  'W8': 'batch_norm_workload',
}
# Workloads of unmodified `tff.learning` code, see `learning_workloads`: the
# algorithm of each.
LEARNING = {
  'F1': 'fedavg',
  'F2': 'fedavg',
  'F3': 'fedavg',
  'F4': 'mime',
  'F5': 'fedavg',
  'F6': 'fedavg',
}
# The methods of the workloads that do not measure federated averaging.
OWN_METHODS = {'W4': 'fedembed_type', 'W5': 'fedpc'}
# The methods that are measured in addition to federated averaging, see
# `bare_methods`, and the workloads that they are measured on.
METHODS = ('pfedme', 'self_fl')
WITH_METHODS = ('W1', 'W2')
# The ways to train privately whose rounds are measured, and on which workloads.
PRIVATE = ('example', 'gaussian', 'local', 'distributed')
WITH_PRIVATE = ('W1', 'W2')
# The workloads that are also measured with cohorts of several sizes.
SCALED = ('W1', 'W2')
# Workloads of real tasks, see `task_workloads`: how many of their rounds are
# measured at a time.
TASKS = {'T1': 4, 'T2': 4, 'T3': 1}
