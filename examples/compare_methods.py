"""Compares methods from a script: trains, evaluates, tests and draws.

  ./bazelw run //examples:compare_methods

`compare_methods.ipynb` does the same in a notebook; `docs/api.md` says what
else a script can do.
"""

from experiments import api

experiment = api.Experiment(
  'synthetic', ['fedavg', 'finetuning', 'local'], {'total_rounds': 50}
)
print(len(experiment.task.train.client_ids), 'clients to train on')
experiment.train()
results = experiment.evaluate()
print(results)
finetuning = results['finetuning']
print('worst client:', finetuning.clients[finetuning.metric.argmin()])
print('p-value:', results.compare('finetuning', 'local').p_wilcoxon)
print('figure:', results.plot('clients').path)
