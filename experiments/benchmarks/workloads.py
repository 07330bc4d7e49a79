"""The names of the workloads that `benchmark` measures."""

# Of made-up data: the functions of `reference_loops` that make them.
MADE_UP = {
  'W1': 'cnn_workload',
  'W2': 'linear_workload',
  'W3': 'lstm_workload',
  'W4': 'preference_workload',
  'W5': 'prompt_workload',
}
# The method of a workload, where it is not federated averaging.
OWN_METHODS = {'W4': 'fedembed_type', 'W5': 'fedpc'}
# The methods that are measured beside federated averaging, see `bare_methods`,
# and the workloads that they are measured on.
METHODS = ('pfedme', 'self_fl')
WITH_METHODS = ('W1', 'W2')
# The ways to train privately whose rounds are measured, and on which workloads.
PRIVATE = ('example', 'gaussian', 'local')
WITH_PRIVATE = ('W1', 'W2')
# Those that are measured with cohorts of several sizes, too.
SCALED = ('W1', 'W2')
# Of real tasks, see `task_workloads`: how many of their rounds are measured at
# a time.
TASKS = {'T1': 4, 'T2': 4, 'T3': 1}
