"""Outcomes of methods in the form of results.json and per_client.csv."""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import math

import numpy as np

from base.aliases import Json
from experiments.reporting import results_folder
from personalization.judgement import measurements
from personalization.judgement import measures
from personalization.judgement import outcomes
from personalization.privacy import accounting


def _summary(outcome: outcomes.SetOutcome) -> dict[str, Json]:
  return dataclasses.asdict(outcome.summary)


def _groups(outcome: outcomes.Outcome) -> dict[str, Json]:
  """Writes the test clients of each known group."""
  known = np.array(outcome.groups)
  results: dict[str, Json] = {}
  for name in np.unique(known):
    clients = known == name
    before = outcome.test.before

    def numbers(
      of_set: outcomes.SetOutcome, clients: np.ndarray = clients
    ) -> dict[str, float]:
      return {'mean': of_set.mean(clients), 'pooled': of_set.pooled(clients)}

    results[str(name)] = {
      'num_clients': int(clients.sum()),
      **numbers(outcome.test),
      **({} if before is None else {'before': numbers(before)}),
    }
  return results


def make_result(outcome: outcomes.Outcome) -> results_folder.Result:
  """Writes an outcome in the form of results.json.

  Returns:
    The metric, its direction and its range; the number of clients that use each
    candidate, or if none is chosen the statistics of all candidates; the
    statistics of the test clients with personalization (with the last candidate
    if none is chosen) and without; the metric over all test clients' examples
    together, and over those of each known group; the mean of each candidate if
    all clients used it; the clients that were left out; and further
    measurements.
  """
  evaluated, measurement = outcome.evaluated, outcome.measurement
  before = outcome.test.before
  result: dict[str, Json] = {
    'metric': evaluated.metric,
    'higher_is_better': evaluated.higher_is_better,
    'metric_range': list(evaluated.metric_range),
    'chosen': dict(outcome.num_chosen),
    'all_reported': {
      name: _summary(at) for name, at in outcome.all_reported.items()
    },
    'test': _summary(outcome.test),
    'before': None if before is None else _summary(before),
    'pooled': outcome.test.pooled(),
    'candidates': {
      str(candidate): {
        'value': candidate.value,
        'unit': candidate.unit,
        'label': candidate.label,
        **numbers,
      }
      for candidate, numbers in zip(
        evaluated.candidates, outcome.candidate_measures
      )
    },
    'skipped_in_evaluation': list(evaluated.skipped),
  }
  if outcome.groups is not None:
    result['groups'] = _groups(outcome)
  if outcome.tuning:
    result['tuning'] = {
      n: _summary(tuned) for n, tuned in outcome.tuning.items()
    }
  if measurement.ood_examples:
    result['out_of_distribution'] = _summary(outcome.further[measurements.OOD])
  if measurement.evaluation_fractions:
    result['evaluation_fractions'] = {
      f'{fraction:g}': _summary(
        outcome.further[measurements.part_of_evaluation(fraction)]
      )
      for fraction in measurement.evaluation_fractions
    }
  if outcome.partly_personalized:
    result['personalization_fractions'] = {
      f'{fraction:g}': _summary(less)
      for fraction, less in outcome.partly_personalized.items()
    }
  if outcome.acceptance:
    result['acceptance'] = {
      criterion: {
        'accepted': float(accepting.accepted.mean()),
        'test': _summary(accepting.test),
      }
      for criterion, accepting in outcome.acceptance.items()
    }
  if outcome.clusters is not None:
    result['clusters'] = measures.describe_clusters(
      outcome.clusters, outcome.groups
    )
  return result


def make_guarantee(
  guarantee: accounting.Guarantee | None,
) -> dict[str, Json] | None:
  """Writes a guarantee in the form of results.json; None if there is none.

  An infinite epsilon, which means no privacy, is written as None.
  """
  if guarantee is None:
    return None
  fields = {
    field.name: getattr(guarantee, field.name)
    for field in dataclasses.fields(guarantee)
    if field.name != 'stages'  # They are in the ledger of the folder.
  }
  epsilon = guarantee.epsilon if math.isfinite(guarantee.epsilon) else None
  return {**fields, 'epsilon': epsilon, 'text': str(guarantee)}


def make_rows(
  method: str, outcome: outcomes.Outcome
) -> list[results_folder.Row]:
  """Writes the test clients of a method in the form of per_client.csv.

  Returns:
    The rows. `examples` is the number of examples or words that the metric is
    over; columns that end in the name of a set have the metric on it, after and
    before personalization.
  """
  evaluated = outcome.evaluated
  columns: dict[str, Sequence[object] | np.ndarray] = {
    'examples': outcome.test.weights.astype(int),
    'personalization_examples': evaluated.num_personalization,
    'candidate': [str(evaluated.candidates[i]) for i in outcome.chosen],
  }
  sets = {'': outcome.test} | {f'_{n}': o for n, o in outcome.further.items()}
  for name, of_set in sets.items():
    columns[f'metric{name}'] = of_set.values
    if of_set.before is not None:
      columns[f'before{name}'] = of_set.before.values
  if outcome.test.hurt is not None:
    columns['hurt'] = [
      None if np.isnan(hurt) else int(hurt) for hurt in outcome.test.hurt
    ]
  for criterion, accepting in outcome.acceptance.items():
    columns[f'accepted_{criterion}'] = accepting.accepted.astype(int)
  if outcome.clusters is not None:
    columns['cluster'] = outcome.clusters
  if outcome.groups is not None:
    columns['group'] = outcome.groups
  # Python's numbers are written with all digits.
  clients = zip(*(np.asarray(column).tolist() for column in columns.values()))
  return [
    {'method': method, 'client': client_id, **dict(zip(columns, values))}
    for client_id, values in zip(
      evaluated.test.client_ids, clients, strict=True
    )
  ]


def read_metrics(
  rows: Iterable[results_folder.Row],
) -> dict[str, dict[str, float]]:
  """Reads the metrics from rows that `make_rows` wrote.

  Returns:
    The metric of each client, by evaluation set and client; the set of clients'
    own examples has the name ''.
  """
  metrics: dict[str, dict[str, float]] = collections.defaultdict(dict)
  for row in rows:
    for column, value in row.items():
      name, _, further = column.partition('_')
      if name == 'metric' and value != '':
        metrics[further][row['client']] = float(value)
  return metrics
