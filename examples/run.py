"""Runs experiments, with the method and the task of this folder as well.

  run --algorithm=fedavg,finetuning,feddyn
  run --task=sine_waves --algorithm=fedavg,local,hypcluster+finetuning

A method or task of the project's own is a line like these in its registry.
"""

from absl import app

from algorithms import registry as algorithm_registry
from experiments import run
from tasks import registry as task_registry

algorithm_registry.TRAINERS['feddyn'] = algorithm_registry.Entry(
  'examples.feddyn:FedDyn'
)
task_registry.TASKS['sine_waves'] = 'examples.sine_waves:SineWavesSettings'


if __name__ == '__main__':
  app.run(run.main)
