"""Outcomes of methods, for tests."""

import dataclasses
from typing import Any

import numpy as np

from algorithms import candidates
from experiments.reporting import results_folder
from experiments.reporting import serialization
from personalization.judgement import choosing
from personalization.judgement import evaluation
from personalization.judgement import measurements
from personalization.judgement import outcomes
from tasks import registry
from tasks import task
from tests.personalization import evaluations

_TASK = registry.load('synthetic', num_train_clients=1)


def client_metrics(values: Any) -> evaluation.ClientMetrics:
  """Makes the metrics of clients 'a', 'b', … with 1, 2, … examples."""
  size = len(values)
  return evaluations.client_metrics(values, range(1, size + 1), 'abc'[:size])


def make_evaluation(
  baseline: int | None = 0, chosen: Any = 1
) -> evaluation.Evaluation:
  """Makes three test clients, of which the second is hurt by one epoch.

  Args:
    baseline: The candidate without personalization.
    chosen: The candidate that is best for all, or for each.

  Returns:
    The evaluation.
  """
  return evaluations.make(
    client_metrics(0.25 + 0.5 * np.eye(2)[np.broadcast_to(chosen, 3)]),
    client_metrics([[0.25, 0.5], [0.5, 0.25], [0.5, 0.5]]),
    candidates=tuple(candidates.Candidate(k, 'epochs') for k in range(2)),
    baseline=baseline,
    skipped=('d',),
    num_personalization=np.array([10, 20, 30]),
  )


def none_chosen() -> evaluation.Evaluation:
  """Makes the same clients with candidates that do not compete."""
  return dataclasses.replace(
    make_evaluation(baseline=None, chosen=0), candidates_compete=False
  )


def make(
  chosen: Any = 1,
  baseline: int | None = 0,
  evaluated: evaluation.Evaluation | None = None,
  groups: dict[str, str] | None = None,
  **measured: Any,
) -> outcomes.Outcome:
  """Makes the outcome of an evaluation, by default of `make_evaluation`'s.

  Args:
    chosen: As in `make_evaluation`.
    baseline: Likewise.
    evaluated: The evaluation.
    groups: The known group of each client, 'x' or 'y'.
    **measured: What else was measured.

  Returns:
    The outcome.
  """
  attributes = {}
  if groups is not None:
    names = ('x', 'y')
    values = {client: names.index(group) for client, group in groups.items()}
    attributes['group'] = task.Attribute(names, values)
  return outcomes.Outcome(
    evaluated or make_evaluation(baseline, chosen),
    dataclasses.replace(_TASK, attributes=attributes),
    measurements.MeasurementSettings(**measured),
    choosing.Choice(each=not np.isscalar(chosen)),
  )


def result(chosen: Any = 1, baseline: int | None = 0) -> results_folder.Result:
  """Makes a method in results.json."""
  return serialization.make_result(make(chosen, baseline))


def rows(
  method: str = 'fedavg', chosen: Any = 1, baseline: int | None = 0
) -> list[results_folder.Row]:
  """Makes the clients of a method in per_client.csv."""
  return serialization.make_rows(method, make(chosen, baseline))


def measured() -> outcomes.Outcome:
  """Makes the outcome of a method of which everything was measured."""
  usual = make_evaluation()
  less = dataclasses.replace(
    usual,
    # The second has nothing held out.
    further={'held_out': client_metrics([[0, 1], [np.nan] * 2, [1, 0]])},
  )
  clusters = evaluations.client_metrics(
    usual.test.values[evaluations.METRIC],
    range(1, 4),
    'abc',
    cluster=[[0, 1], [0, 0], [0, 1]],
  )
  return make(
    evaluated=dataclasses.replace(
      usual,
      test=clusters,
      further={
        'ood': client_metrics([[0.5, 0.0], [0.5, 0.25], [0.5, 0.5]]),
        'part_0.5': client_metrics([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]),
      },
      partly_personalized={0.25: less, 0.8: less},
    ),
    groups=dict(a='x', b='y', c='x', d='y'),
    ood_examples=5,
    evaluation_fractions=(0.5,),
    personalization_fractions=(0.25,),
    acceptance_min_examples=20,
    acceptance_margin=0.0,
  )
