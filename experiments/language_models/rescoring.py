"""Second-pass rescoring of a speech recognizer's hypotheses, and its errors.

As in group-personalized FL (Liu et al.), table 5: from each utterance's n-best
list, the hypothesis with the highest score is chosen,

  (1 - weight) * first pass + weight * log p(words, end of the sentence),

where p is the probability under a language model.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import pathlib

import numpy as np
import rich.table
import tensorflow as tf

from base import errors
from base import words
from experiments.command_line import terminal
from experiments.language_models import personal_rescoring
from experiments.reporting import folders
from experiments.runs import execution
from experiments.runs import sources
from tasks import task as tasks
from tasks.data import texts
from tasks.models import models
from tasks.models import next_word

FIRST_PASS = 'first pass'
# The number of examples that are scored at a time.
_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Utterance:
  """An utterance.

  Attributes:
    reference: The words that were said.
    hypotheses: The recognizer's hypotheses.
    scores: Their scores in the first pass.
    group: The name of the speaker's group, if the file has it.
    client: The name of the speaker, if the file has it.
    line: The number of its line in the file.
  """

  reference: str
  hypotheses: Sequence[str]
  scores: np.ndarray
  group: str | None
  client: str | None
  line: int


def _is_finite_number(value: object) -> bool:
  """Tells whether a value of JSON is a number that a float can hold."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return False
  try:
    return math.isfinite(value)
  except OverflowError:  # JSON's whole numbers have no limit.
    return False


def _read_line(text: str, line: int) -> Utterance:
  """Reads an utterance; raises a ValueError if the line is not one."""
  found = json.loads(text)
  if not isinstance(found, dict):
    raise ValueError('no object')
  # Raises a ValueError for characters that JSON can have, but UTF-8 cannot.
  json.dumps(found, ensure_ascii=False).encode()
  if not isinstance(found.get('reference'), str):
    raise ValueError('no text "reference"')
  hypotheses = found.get('hypotheses')
  if not isinstance(hypotheses, list) or not hypotheses:
    raise ValueError('no list "hypotheses"')
  for number, hypothesis in enumerate(hypotheses, 1):
    fields = hypothesis if isinstance(hypothesis, dict) else {}
    if not isinstance(fields.get('text'), str):
      raise ValueError(f'hypothesis {number} has no text "text"')
    if not _is_finite_number(fields.get('score')):
      raise ValueError(f'hypothesis {number} has no finite number "score"')
  for name in ('group', 'client'):
    if not isinstance(found.get(name), (str, type(None))):
      raise ValueError(f'"{name}" is no text')
  return Utterance(
    found['reference'],
    [hypothesis['text'] for hypothesis in hypotheses],
    np.array([hypothesis['score'] for hypothesis in hypotheses], np.float64),
    found.get('group'),
    found.get('client'),
    line,
  )


def read(path: pathlib.Path) -> list[Utterance]:
  """Reads the utterances of a file.

  Raises:
    UserError: If there are no utterances, or a line is not one.
  """
  utterances = []
  with texts.open_lines(path) as lines:
    for number, line in enumerate(lines, 1):
      try:
        utterances.append(_read_line(line, number))
      except ValueError as error:
        raise errors.UserError(
          f'{path}, line {number}: this is no utterance ({error}). --help of'
          ' this program says what a line is.'
        ) from error
  if not any(utterance.reference.split() for utterance in utterances):
    raise errors.UserError(f'{path} has no utterance with words.')
  return utterances


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
  """Counts the fewest words to substitute, insert and delete.

  Returns:
    Their edit distance (Levenshtein).
  """
  # The distances between the reference up to a word and the hypothesis up to
  # each of its words.
  row = list(range(len(hypothesis) + 1))
  for i, word in enumerate(reference, 1):
    diagonal, row[0] = row[0], i
    for j, other in enumerate(hypothesis, 1):
      distance = min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
      diagonal, row[j] = row[j], distance
  return row[-1]


def word_error_rate(
  references: Sequence[str], hypotheses: Sequence[str]
) -> float:
  """Divides the errors in all hypotheses by the words of all references."""
  pairs = [
    (reference.split(), hypothesis.split())
    for reference, hypothesis in zip(references, hypotheses, strict=True)
  ]
  total = sum(count_errors(*pair) for pair in pairs)
  return total / sum(len(reference) for reference, _ in pairs)


def _model(task: tasks.Task, where: str) -> next_word.NextWordModel:
  """Returns the model of a task; raises a `UserError` if it has no words."""
  if not isinstance(task.model, next_word.NextWordModel) or not task.vocabulary:
    raise errors.UserError(
      f'{where} is of the task {task.name}, which has no words to predict.'
      ' Name a run of a language task.'
    )
  return task.model


def log_probabilities(
  model: next_word.NextWordModel,
  weights: models.Weights,
  vocabulary: Sequence[str],
  sentences: Sequence[str],
) -> np.ndarray:
  """Computes log p(words, end) of each sentence under one model."""
  examples = personal_rescoring.cut(
    sentences, vocabulary, model.sequence_length
  )
  x, y, place = (
    examples[name] for name in ('x', 'y', personal_rescoring.PLACE)
  )
  size = len(x)
  # Padding, which has no words, gives all batches the same shape.
  padding = [[0, -size % _BATCH_SIZE], [0, 0]]
  x, y = np.pad(x, padding), np.pad(y, padding)

  @tf.function
  def score(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    batch = {'x': x, 'y': y}
    total, _ = model.likelihood_statistics(
      model.log_likelihood(model.scores(weights, batch), batch), batch
    )['perplexity']
    return -total

  of_pieces = np.concatenate(
    [
      score(x[i : i + _BATCH_SIZE], y[i : i + _BATCH_SIZE]).numpy()
      for i in range(0, len(x), _BATCH_SIZE)
    ]
  )[:size]
  return np.bincount(place, of_pieces)


def choose(
  utterance: Utterance, log_probability: np.ndarray, weight: float
) -> str:
  """Returns the hypothesis with the highest score, the first of equal ones."""
  scores = (1 - weight) * utterance.scores + weight * log_probability
  return utterance.hypotheses[int(scores.argmax())]


def _find_model(
  utterance: Utterance, task: tasks.Task, num_models: int, where: str
) -> int:
  """Returns the index of the model for an utterance's group."""
  if num_models == 1:
    return 0
  attribute = task.attributes.get(tasks.GROUP)
  names = () if attribute is None else tuple(attribute.names)
  if len(names) != num_models:
    raise errors.UserError(
      f'{where} has {num_models} models, but {task.name} has {len(names)}'
      ' groups. Name a method with one model, or with one for each group.'
    )
  if utterance.group not in names:
    raise errors.UserError(
      f'The utterance in line {utterance.line} must name a "group", as'
      f' {where} has a model for each: {", ".join(names)}.'
    )
  return names.index(utterance.group)


def rescore(
  utterances: Sequence[Utterance],
  task: tasks.Task,
  trained: Sequence[models.Weights],
  weight: float,
  where: str,
) -> list[str]:
  """Chooses a hypothesis for each utterance.

  Args:
    utterances: The utterances.
    task: The task that the models have learned.
    trained: The weights of the model, or of each group's model.
    weight: The weight of the model relative to the first pass.
    where: The source of the models, for error messages.

  Raises:
    UserError: If it is not known which model to use for an utterance.
  """
  model = _model(task, where)
  of_model = np.array(
    [
      _find_model(utterance, task, len(trained), where)
      for utterance in utterances
    ]
  )
  chosen = [''] * len(utterances)
  for i in np.unique(of_model):
    rows = np.flatnonzero(of_model == i)
    of_group = [utterances[row] for row in rows]
    of_hypotheses = log_probabilities(
      model,
      trained[i],
      task.vocabulary,
      [text for utterance in of_group for text in utterance.hypotheses],
    )
    ends = np.cumsum([len(utterance.hypotheses) for utterance in of_group])
    for row, log_probability in zip(rows, np.split(of_hypotheses, ends[:-1])):
      chosen[row] = choose(utterances[row], log_probability, weight)
  return chosen


def _rescore_personally(
  utterances: Sequence[Utterance],
  task: tasks.Task,
  source: sources.Source,
  name: str,
  weight: float,
) -> list[str]:
  """Chooses a hypothesis for each utterance with its speaker's model."""
  folder = source.run.path
  _model(task, f'{folder}:{name}')
  by_client: dict[str, list[str]] = {}
  places = []
  for utterance in utterances:
    if utterance.client is None:
      raise errors.UserError(
        f'The utterance in line {utterance.line} must name a "client", as'
        f' {name} has a model for each. Name {folder} alone for the model that'
        ' it trained.'
      )
    sentences = by_client.setdefault(utterance.client, [])
    places.append((utterance.client, len(sentences)))
    sentences += utterance.hypotheses
  found = personal_rescoring.log_probabilities(source, name, task, by_client)
  return [
    choose(
      utterance, found[client][start:][: len(utterance.hypotheses)], weight
    )
    for utterance, (client, start) in zip(utterances, places)
  ]


def _table(rates: Mapping[str, float], num_utterances: int) -> rich.table.Table:
  utterances = words.count(num_utterances, 'utterances')
  table = terminal.make_table(
    f'word error rate of {utterances}; lower is better',
    'scored by',
    numbers=['word error rate'],
  )
  for name, rate in rates.items():
    table.add_row(name, f'{rate:.2%}')
  return table


def main(
  runs: Sequence[str],
  nbest: pathlib.Path,
  weight: float,
  output: pathlib.Path | None,
  data_dir: str | None,
) -> int:
  """Rescores a user's utterances and shows the error rates.

  Returns the exit status.
  """
  utterances = read(nbest)
  nothing = np.array(0.0)
  first = [choose(utterance, nothing, 0) for utterance in utterances]
  chosen = {FIRST_PASS: first}
  for run in dict.fromkeys(runs):
    source = sources.read(run)
    source.training()
    task = execution.load_task(source.config, data_dir)
    personal = source.personalized()
    if personal:
      chosen[run] = _rescore_personally(
        utterances, task, source, personal, weight
      )
    else:
      trained = execution.saved_models(source, task)
      chosen[run] = rescore(utterances, task, trained, weight, run)
  references = [utterance.reference for utterance in utterances]
  rates = {
    name: word_error_rate(references, hypotheses)
    for name, hypotheses in chosen.items()
  }
  terminal.print_table(_table(rates, len(utterances)))
  if output:
    result = {
      'weight': weight,
      'rows': {name: {'word_error_rate': rate} for name, rate in rates.items()},
      'chosen': chosen,
    }
    folders.write_json(output, result, ensure_ascii=False)
    terminal.say(f'Written to {output}')
  return 0
