"""Releases of private runs: their models, noised metrics, and a statement.

All of it follows from what private trainings have released, or has noise of its
own; the ledger of the run says how private these trainings are.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import pathlib
import secrets

import numpy as np

from base import errors
from base import words
from base.aliases import Json
from experiments.command_line import terminal
from experiments.reporting import exported_models
from experiments.reporting import folders
from experiments.reporting import results_folder
from experiments.runs import execution
from experiments.runs import ledgers
from experiments.runs import sources
from personalization.privacy import ledger
from personalization.privacy import ways
from tasks import task as tasks

STATEMENT, FACTS = 'GUARANTEE.md', 'release.json'
# Metrics are rounded to so many parts of their range, so that noise on their
# sum is a whole number, which has no digits to reveal anything.
_PARTS = 1000

_STATEMENT = """\
# What this folder reveals

The models here were trained on data of people. They are differentially private:

- **{text}.**
- Protected: {unit}. Neighboring data sets: {neighbors}.
- In words: whatever others know, and whatever they compute from this folder,
  the presence of these data changes the probability of any conclusion by a
  factor of at most e^ε = {factor:.3g}, but for a probability of
  δ = {delta:.2g}.
- Found by {accountant}, for everything in this folder together.
{metrics}
## How

| training | mechanism | noise z | clip | sampling |
|---|---|---|---|---|
{rows}

## This holds if

{assumptions}
- the settings of the training, and the number of clients, are public

## What is not here

The run has more that this guarantee does not cover, and that is not to be
published with it:

{not_covered}
"""


@dataclasses.dataclass(frozen=True)
class NoisedMetric:
  """A metric over test clients, with noise.

  Attributes:
    method: The method.
    name: The name of the metric, and of which model.
    value: Its value with noise.
    epsilon: What it costs.
    deviation: The deviation of the noise.
  """

  method: str
  name: str
  value: float
  epsilon: float
  deviation: float


def _check(
  source: sources.Source,
) -> tuple[list[str], list[ledger.Use], ledger.Total]:
  """Checks that a run can be released.

  Returns:
    The methods, one for each training that has a model; the uses of data; and
    what these guarantee together.

  Raises:
    UserError: If it cannot.
  """
  path = source.run.path
  if source.config.privacy == ways.NONE:
    raise errors.UserError(
      f'{path} was trained without privacy. Train it with --privacy, an'
      ' --epsilon and --privacy_seed=secret.'
    )
  chosen = source.run.methods if source.chosen is None else [source.method()]
  trainings: dict[str, str] = {}
  for name in chosen:
    training = source.run.methods[name]['training']
    if training is not None:
      trainings.setdefault(training, name)
  if not trainings:
    raise errors.UserError(f'{source.name} has trained no global model.')
  in_silos = ways.ENTRIES[source.config.privacy].of_examples
  uses = ledger.find_chain(
    ledgers.read(path), list(trainings.values() if in_silos else trainings)
  )
  total = ledger.add(uses)
  if total.epsilon is None or total.epsilon == math.inf:
    raise errors.UserError(f'{path} cannot be released: {total}.')
  if 'simulated' in total.caveats:
    raise errors.UserError(
      f'{path} cannot be released: its noise follows from the seed of the run,'
      ' so that whoever guesses it can subtract the noise. Train it again, with'
      ' --privacy_seed=secret.'
    )
  if total.caveats:
    raise errors.UserError(
      f'{path} cannot be released: its ε is extrapolated to rounds of'
      ' privacy.noise_cohort clients, which it does not have.'
    )
  return list(trainings.values()), uses, total


def _export(
  source: sources.Source, names: Sequence[str], task: tasks.Task
) -> dict[str, exported_models.Exported]:
  """Returns the models of methods, with facts that follow from no data."""
  exported = {}
  for name in names:
    of_method = dataclasses.replace(source, chosen=name)
    found = execution.saved_models(of_method, task)
    for k, weights in enumerate(found):
      folder = name if len(found) == 1 else f'{name}_{k}'
      facts: dict[str, Json] = {
        'title': f'Global model of {name}' + f', {k}' * (len(found) > 1),
        'method': name,
        'task': {'name': source.config.task},
        'metric': task.metric,
        'higher_is_better': task.higher_is_better,
        # Learned from the data without noise.
        'encoding': {},
        'frozen_weights_sha256': task.model.frozen_digest,
      }
      exported[f'models/{folder}'] = exported_models.Exported(
        task.model, weights, facts
      )
  return exported


def add_noise(
  values: np.ndarray, low: float, high: float, epsilon: float
) -> tuple[float, float]:
  """Returns the mean of clients' values with noise, and the noise's deviation.

  The values are rounded, so that their sum is a whole number, to which the
  difference of two geometric variables is added, drawn from the randomness of
  the operating system. If the value of any one client is another, the sum
  changes by `_PARTS` at most, and the probability of each result by e^ε at most
  (Ghosh et al. 2009).
  """
  parts = np.rint((np.clip(values, low, high) - low) / (high - low) * _PARTS)
  rng = np.random.default_rng(secrets.randbits(128))
  decay = math.exp(-epsilon / _PARTS)
  first, second = rng.geometric(1 - decay, 2)
  noised = int(parts.sum()) + int(first) - int(second)
  unit = (high - low) / _PARTS / len(values)
  mean = float(np.clip(low + noised * unit, low, high))
  return mean, unit * math.sqrt(2 * decay) / (1 - decay)


def _make_metrics(
  source: sources.Source, names: Sequence[str], epsilon: float
) -> list[NoisedMetric]:
  """Adds noise to the metrics of test clients, each with the same part of ε.

  The candidate that validation clients have chosen depends on them, so that
  personalized models are judged only if there is no choice, or each client has
  chosen for itself.
  """
  wanted = []
  for name in names:
    result = source.run.methods[name]
    has_baseline = result['before'] is not None
    columns = {'before': 'global model'} if has_baseline else {}
    if len(result['candidates']) == 1:
      columns = columns or {'metric': 'as trained'}
    elif source.config.run.choose == 'each':
      columns['metric'] = 'personalized'
    low, high = results_folder.metric_range(result)
    if not (math.isfinite(low) and math.isfinite(high)):
      raise errors.UserError(
        f'--metrics_epsilon: the {result["metric"]} of a client has no bound,'
        ' so that no noise hides it. Leave out --metrics_epsilon.'
      )
    wanted += [(name, column, columns[column]) for column in columns]
  metrics = []
  for name, column, model in wanted:
    result = source.run.methods[name]
    values = np.array([float(r[column]) for r in source.run.clients[name]])
    if not np.all(np.isfinite(values)):
      raise errors.UserError(
        f'--metrics_epsilon: {name} has diverged for some clients, which no'
        ' noise hides. Leave out --metrics_epsilon.'
      )
    own = epsilon / len(wanted)
    value, deviation = add_noise(
      values, *results_folder.metric_range(result), own
    )
    text = f'mean {result["metric"]}, {model}'
    metrics.append(NoisedMetric(name, text, value, own, deviation))
  return metrics


def _list(items: Sequence[str]) -> str:
  return '\n'.join(f'- {item}' for item in items)


def _describe_metrics(
  metrics: Sequence[NoisedMetric], cross_silo: bool, epsilon: float | None
) -> str:
  if not metrics:
    return ''
  whose = (
    'They are of the clients that training is on, whose ε is thus that above'
    f' and {epsilon:g} more'
    if cross_silo
    else f'They are of test clients, who are in no training: their ε is'
    f' {epsilon:g}'
  )
  rows = '\n'.join(
    f'| {m.method} | {m.name} | {m.value:.4f} | {m.deviation:.2g} |'
    for m in metrics
  )
  return (
    f'\n## Metrics\n\n{whose} (δ 0; any change of one client).\n\n'
    '| method | metric | value | deviation of its noise |\n|---|---|---|---|\n'
    f'{rows}\n'
  )


def main(
  run_name: str,
  metrics_epsilon: float | None,
  output_dir: pathlib.Path,
  data_dir: str | None,
) -> int:
  """Releases what a user asked for; returns the exit status."""
  folders.check_empty('output_dir', output_dir)
  if metrics_epsilon is not None and not 0 < metrics_epsilon < math.inf:
    raise errors.UserError(
      f'--metrics_epsilon must be above 0 and finite, not {metrics_epsilon:g}.'
    )
  source = sources.read(run_name)
  names, uses, total = _check(source)
  metrics = (
    []
    if metrics_epsilon is None
    else _make_metrics(source, names, metrics_epsilon)
  )
  task = execution.load_task(source.config, data_dir)
  exported = _export(source, names, task)
  assert total.epsilon is not None  # It was checked.
  guarantees = {n: source.run.methods[n]['privacy'] for n in names}
  statement = _STATEMENT.format(
    text=total,
    unit=total.unit,
    neighbors=total.neighbors,
    factor=math.exp(min(total.epsilon, 700)),
    delta=total.delta,
    accountant=total.accountant,
    metrics=_describe_metrics(metrics, task.cross_silo, metrics_epsilon),
    rows='\n'.join(
      f'| {name} | {g["mechanism"]} | {g["noise"]:.4g} | {g["clip"]} |'
      f' {g["sampling"]} |'
      for name, g in guarantees.items()
    ),
    assumptions=_list(_merge(guarantees, 'assumptions')),
    not_covered=_list(_merge(guarantees, 'not_covered')),
  )
  facts = {
    'guarantee': total.to_json(),
    'uses': [use.to_json() for use in uses],
    'metrics': [dataclasses.asdict(metric) for metric in metrics],
  }
  texts = {
    STATEMENT: statement,
    FACTS: f'{json.dumps(facts, indent=2, ensure_ascii=False)}\n',
  }
  exported_models.write(output_dir, exported, texts)
  terminal.say(
    f'Written to {output_dir}: {words.count(len(exported), "models")}, with'
    f' {total}. {STATEMENT} says what this means.'
  )
  return 0


def _merge(guarantees: Mapping[str, Json], field: str) -> list[str]:
  """Lists the texts of a field of several guarantees, each once."""
  return list(dict.fromkeys(t for g in guarantees.values() for t in g[field]))
