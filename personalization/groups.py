"""Finds groups of clients where the task does not know them.

A client's group is the cluster that it picks among HypCluster's models by its
loss, or groups are inferred from the updates that clients would send. Sattler,
Müller and Samek 2020 (clustered federated learning) split clients in two by the
cosine similarities a_ij of their updates at a trained model, so that

  max a_ij over i in one part and j in the other

is least, and go on with the parts. Their algorithm 1 finds this optimum: it is
agglomerative clustering with single linkage. Their published code has complete
linkage, which does not split off single clients. Repeated splitting is the same
as merging until k clusters are left, which is what scikit-learn does. Unlike in
the paper, updates are computed once, at the trained global model, and k is
given instead of a criterion for further splits.

Held-out clients are in a group as well: they pick a cluster by their loss, or
the group whose mean update is most similar to their own. Both need only their
personalization sets.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np
from sklearn import cluster

from algorithms import client_updates
from algorithms import group
from algorithms import methods
from base import errors
from base import words
from personalization.judgement import evaluation
from personalization.rounds import schedules
from personalization.rounds import training
from tasks import task as tasks
from tasks.data import populations

# Trains a method, under a name that says what the training is for.
Train = Callable[[methods.Method, str], training.Trained]


def _directions(updates: np.ndarray) -> np.ndarray:
  """Scales updates to length 1; updates that are not finite become 0."""
  updates = np.where(np.isfinite(updates), updates, 0.0).astype(np.float64)
  lengths = np.linalg.norm(updates, axis=1, keepdims=True)
  return updates / np.where(lengths > 0, lengths, 1.0)


def divide(updates: np.ndarray, num_groups: int, linkage: str) -> np.ndarray:
  """Groups clients by the cosine similarity of their updates.

  Args:
    updates: The update of each client, `[clients, parameters]`.
    num_groups: The number of groups.
    linkage: 'complete' or 'single'.

  Returns:
    The group of each client; groups are numbered by their first clients.
  """
  directions = _directions(updates)
  found = cluster.AgglomerativeClustering(
    num_groups, metric='precomputed', linkage=linkage
  ).fit_predict(1.0 - directions @ directions.T)
  _, first = np.unique(found, return_index=True)
  return np.argsort(np.argsort(first))[found]


def find_nearest(updates: np.ndarray, means: np.ndarray) -> np.ndarray:
  """Returns the group to whose mean update each update is most similar."""
  return np.argmax(_directions(updates) @ _directions(means).T, axis=1)


def _populations(task: tasks.Task) -> list[populations.Population]:
  """Returns the populations of a task, each client once, train first."""
  if task.cross_silo:
    return [task.train]
  return [task.train, task.validation, task.test]


def _infer(
  method: methods.Method,
  trained: training.Trained,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
  num_groups: int,
  linkage: str,
) -> dict[str, int]:
  """Infers the groups of clients from their updates of a trained model."""
  method = dataclasses.replace(
    method,
    personalizer=client_updates.ClientUpdates(
      method.trainer, client_updates.ClientUpdatesSettings()
    ),
  )
  groups: dict[str, int] = {}
  means = np.zeros([0, 0])
  for clients in _populations(task):
    client_ids, measured = evaluation.measure(
      method, trained, clients, task, training_settings
    )
    updates = measured[client_updates.UPDATE][:, 0]
    if not groups:
      if len(client_ids) < num_groups:
        raise errors.UserError(
          f'num_groups is {num_groups}, but {task.name} has'
          f' {words.count(len(client_ids), "clients")} with examples to train'
          ' on.'
        )
      # Sorted, as the order of clients decides between equal distances.
      order = np.argsort(client_ids)
      found = np.empty(len(client_ids), np.int64)
      found[order] = divide(updates[order], num_groups, linkage)
      means = np.stack(
        [updates[found == g].mean(axis=0) for g in range(num_groups)]
      )
    else:
      found = find_nearest(updates, means)
    groups.update(zip(client_ids, found.tolist()))
  return groups


def _pick(
  method: methods.Method,
  trained: training.Trained,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
) -> dict[str, int]:
  """Has clients pick a cluster by their loss."""
  groups: dict[str, int] = {}
  for clients in _populations(task):
    client_ids, measured = evaluation.measure(
      method, trained, clients, task, training_settings
    )
    total, size = measured['cluster']
    picked = np.rint(total[:, 0] / size[:, 0]).astype(int)
    groups.update(zip(client_ids, picked.tolist()))
  return groups


def check(
  method: methods.Method, task: tasks.Task, name: str = 'this method'
) -> None:
  """Raises a `UserError` if a method's groups are not those of the task."""
  trainer = method.trainer
  if not isinstance(trainer, group.Group) or trainer.found_attributes:
    return
  known = task.attributes[tasks.GROUP].names
  if trainer.num_models != len(known):
    raise errors.UserError(
      f'{name}: num_groups is {trainer.num_models}, but {task.name} knows'
      f' {words.count(len(known), "groups")}. Leave out num_groups, or set'
      ' groups to inferred or hypcluster.'
    )


def find(
  method: methods.Method,
  begins_with: training.Trained,
  task: tasks.Task,
  training_settings: schedules.TrainingSettings,
  train: Train,
) -> tasks.Attribute | None:
  """Finds the groups of a method's clients.

  Args:
    method: The method.
    begins_with: The training that it starts from.
    task: The task.
    training_settings: How to train.
    train: Trains another method.

  Returns:
    The groups; None if the task knows them.

  Raises:
    UserError: If there are fewer clients than groups.
  """
  trainer = method.trainer
  if not isinstance(trainer, group.Group) or not trainer.found_attributes:
    return None
  settings = trainer.settings
  if settings.groups == 'hypcluster':
    # HypCluster starts from its own initial models, not from the global model.
    picks = dataclasses.replace(
      method.replace_trainer(trainer.hypcluster), first_models=()
    )
    groups = _pick(picks, train(picks, 'hypcluster'), task, training_settings)
  else:
    before = method.predecessor
    assert before is not None
    groups = _infer(
      before,
      begins_with,
      task,
      training_settings,
      settings.num_groups,
      settings.linkage,
    )
  names: Sequence[str] = [str(g) for g in range(settings.num_groups)]
  return tasks.Attribute(names, groups)
