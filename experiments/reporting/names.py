"""Names of methods as papers write them."""

# Names of trainers, and of pairs with a short name.
_NAMES = {
  'apfl': 'APFL',
  'ditto': 'Ditto',
  'ensemble': 'Ensemble',
  'fedadam': 'FedAdam',
  'fedavg': 'FedAvg',
  'fedavgm': 'FedAvgM',
  'fedbabu': 'FedBABU',
  'fedembed_personal': 'FedEmbed (Personal)',
  'fedembed_prototype': 'FedEmbed (Prototype)',
  'fedembed_som': 'FedEmbed (SOM)',
  'fedembed_type': 'FedEmbed (Type)',
  'fedpc': 'FedPC',
  'fedpc_generated': 'FedPC (Generated)',
  'fedper': 'FedPer',
  'fedprox': 'FedProx',
  'fedrep': 'FedRep',
  'fedrod': 'Fed-RoD',
  'finetuning': 'FedAvg + fine-tuning',
  'global_plus': 'Global+',
  'group': 'Group',
  'hypcluster': 'HypCluster',
  'ifca': 'IFCA',
  'knn_per': 'kNN-Per',
  'lg_fedavg': 'LG-FedAvg',
  'local': 'Local',
  'mocha': 'MOCHA',
  'mr_mtl': 'MR-MTL',
  'perfedavg': 'Per-FedAvg',
  'pfedkm': 'pFedKM',
  'pfedme': 'pFedMe',
  'scaffold': 'SCAFFOLD',
  'self_fl': 'Self-FL',
  'self_fl_clusters': 'Self-FL (clusters)',
}
# Names of personalizers in other pairs, if they are not in the table above.
_PERSONALIZERS = {
  'adaptation': 'adaptation',
  'as_trained': 'as trained',
  'embedding_finetuning': 'fine-tuned embedding',
  'finetuning': 'fine-tuning',
  'head_finetuning': 'fine-tuned head',
  'knn_per': 'kNN',
}


def written_out(method: str) -> str:
  """Returns a method's name as papers write it, or else its name here."""
  trainer, plus, personalizer = method.partition('+')
  if not plus:
    return _NAMES.get(method, method)
  second = _PERSONALIZERS.get(personalizer, written_out(personalizer))
  return f'{written_out(trainer)} + {second}'
