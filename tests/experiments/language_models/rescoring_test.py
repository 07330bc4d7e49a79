"""Tests of rescoring."""

import dataclasses
import functools
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.language_models import personal_rescoring
from experiments.language_models import rescoring
from experiments.reporting import results_folder
from experiments.runs import execution
from experiments.runs import single_run
from experiments.runs import sources
from tasks import registry

_PERSONAL = 'fedadam+finetuning'
_SITES = {'beer': 'the ale is good .', 'coffee': 'the brew is hot .'}


def _reference_distance(one, other):
  """The edit distance, straight from its recursive definition."""

  @functools.cache
  def distance(i, j):
    if not i or not j:
      return i + j
    return min(
      distance(i - 1, j) + 1,
      distance(i, j - 1) + 1,
      distance(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
    )

  return distance(len(one), len(other))


def _random_pairs():
  rng = np.random.default_rng(0)
  for _ in range(200):
    one, other = (rng.integers(0, 4, rng.integers(0, 12)) for _ in '12')
    yield [f'w{i}' for i in one], [f'w{i}' for i in other]


def test_errors_are_the_edit_distance():
  distances = set()
  for one, other in _random_pairs():
    expected = _reference_distance(one, other)
    assert rescoring.count_errors(one, other) == expected
    distances.add(expected)
  assert len(distances) > 5


def test_word_error_rate_is_of_all_words_together():
  pairs = list(_random_pairs())
  rate = rescoring.word_error_rate(
    *([' '.join(words) for words in side] for side in zip(*pairs))
  )
  total = sum(_reference_distance(*pair) for pair in pairs)
  assert rate == total / sum(len(reference) for reference, _ in pairs)


def _utterance(scores, group=None):
  hypotheses = [f'hypothesis {i}' for i in range(len(scores))]
  return rescoring.Utterance('', hypotheses, np.array(scores), group, None, 1)


@pytest.mark.parametrize(
  'weight, expected', [(0, 1), (0.1, 1), (0.5, 0), (1, 2)]
)
def test_the_model_counts_by_its_weight(weight, expected):
  # At .1: -2.9, -1.9, -9.9; at .5: -2.5, -5.5, -5.5.
  utterance = _utterance([-3.0, -1.0, -11.0])
  of_model = np.array([-2.0, -10, 0])
  chosen = rescoring.choose(utterance, of_model, weight)
  assert chosen == f'hypothesis {expected}'


@pytest.fixture(name='data_dir', scope='module')
def _data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  lines = [
    json.dumps({'site': site, 'user': f'{site}:{i}', 'text': 9 * f'{text} '})
    for site, text in _SITES.items()
    for i in range(2)
  ]
  (folder / 'posts.jsonl').write_text('\n'.join(lines))
  return str(folder)


@pytest.fixture(name='run', scope='module')
def _run(data_dir, tmp_path_factory):
  """The folder of a finished run."""
  folder = tmp_path_factory.mktemp('run')
  request = user_settings.read(
    None,
    [
      'task.lstm_size=8',
      'task.num_lstms=1',
      'task.filters=4,4',
      'client_learning_rate=1.0',
      'server_learning_rate=0.1',
    ],
    {
      'task.name': 'stackexchange',
      'algorithms': ['fedadam', _PERSONAL],
      'total_rounds': 40,
      'clients_per_round': 4,
    },
  )
  single_run.run(configs.resolve(request), folder, data_dir)
  return str(folder)


@pytest.fixture(name='task')
def _task(run, data_dir):
  config = configs.read(pathlib.Path(run, 'config.toml'))
  return execution.load_task(config, data_dir)


def _hypotheses(*texts):
  return [{'text': text, 'score': -i} for i, text in enumerate(texts)]


def _write(path, *lines):
  path.write_text('\n'.join(map(json.dumps, lines)))
  return path


def test_log_probability_is_the_sum_over_words_and_the_end(task):
  weights = task.model.init(tf.constant([0, 1]))
  weights['output_bias'] += tf.range(float(task.model.num_words))
  sentences = ['the ale is hot .', 'unheard', ' '.join(21 * ['the'])]
  result = rescoring.log_probabilities(
    task.model, weights, task.vocabulary, sentences
  )
  number = dict(zip(task.vocabulary, range(1, 99)))
  unknown = len(task.vocabulary) + 1
  begin, end = unknown + 1, unknown + 2
  for sentence, log_probability in zip(sentences, result):
    words = [number.get(word, unknown) for word in sentence.split()]
    total = 0.0
    # One piece of 20 words after the other.
    for start in range(0, len(words) + 1, 20):
      x, y = np.zeros([2, 1, 20], np.int32)
      before = [begin, *words][start : start + 20]
      x[0, : len(before)] = before
      after = [*words, end][start : start + 20]
      probabilities = task.model.predict_softly(
        task.model.scores(weights, {'x': x, 'y': y})
      ).numpy()
      total += np.log(probabilities[np.arange(len(after)), after]).sum()
    np.testing.assert_allclose(log_probability, total, rtol=1e-5)


def test_each_group_has_its_model(task):
  low, high = (task.model.init(tf.constant([0, 1])) for _ in '12')
  for weights, sign in ((low, -50.0), (high, 50.0)):
    weights['output_bias'] += tf.one_hot(1, task.model.num_words) * sign
  first = task.vocabulary[0]
  utterances = [
    dataclasses.replace(
      _utterance([0.0, 0.0], group), hypotheses=[f'{first} {first}', 'unheard']
    )
    for group in ('beer', 'coffee')
  ]
  chosen = rescoring.rescore(utterances, task, [low, high], 1.0, 'here')
  assert chosen == ['unheard', f'{first} {first}']
  with pytest.raises(errors.UserError, match='line 1 must name a "group"'):
    rescoring.rescore([_utterance([0.0])], task, [low, high], 1.0, 'here')
  with pytest.raises(errors.UserError, match='3 models, but .* has 2 groups'):
    rescoring.rescore(utterances, task, 3 * [low], 1.0, 'here')


def test_models_of_other_words_are_refused(run, task):
  frozen = {'spelling': np.roll(task.model.frozen['spelling'], 1, axis=0)}
  other = dataclasses.replace(
    task, model=dataclasses.replace(task.model, frozen=frozen)
  )
  source = sources.read(run)
  assert len(execution.saved_models(source, task)) == 1
  with pytest.raises(errors.UserError, match='trained with other frozen'):
    execution.saved_models(source, other)


def test_a_trained_model_makes_fewer_errors(run, data_dir, tmp_path, capsys):
  nbest = _write(
    tmp_path / 'nbest.jsonl',
    *(
      {
        'reference': text,
        'hypotheses': _hypotheses('. is hot the hot', text, 'is'),
      }
      for text in _SITES.values()
    ),
  )
  output = tmp_path / 'rates.json'
  assert not rescoring.main([run], nbest, 0.5, output, data_dir)
  result = json.loads(output.read_text())
  assert result['chosen'][run] == list(_SITES.values())
  rates = {n: row['word_error_rate'] for n, row in result['rows'].items()}
  errors_of_first = sum(
    _reference_distance(text.split(), '. is hot the hot'.split())
    for text in _SITES.values()
  )
  assert rates == {'first pass': errors_of_first / 10, run: 0}
  assert f'{errors_of_first / 10:.2%}' in capsys.readouterr().out


def test_personal_models_are_those_that_were_evaluated(run, task, data_dir):
  finished = results_folder.read(pathlib.Path(run))
  words = dict(enumerate(task.vocabulary, 1))
  sentences = {
    row['client']: [
      ' '.join(words[number] for number in y if number in words)
      for y in task.test.sets['evaluation'](row['client'])['y']
    ]
    for row in finished.clients[_PERSONAL]
  }
  found = personal_rescoring.log_probabilities(
    sources.read(run), _PERSONAL, task, sentences
  )
  candidates = set()
  for row in finished.clients[_PERSONAL]:
    client = row['client']
    assert len(found[client]) == len(sentences[client])
    # The end of a sentence is one more.
    number = sum(len(text.split()) + 1 for text in sentences[client])
    perplexity = np.exp(-found[client].sum() / number)
    np.testing.assert_allclose(perplexity, float(row['metric']), rtol=1e-5)
    candidates.add(row['candidate'])
  assert candidates != {'0 epochs'}


def test_each_speaker_has_a_model(run, data_dir, tmp_path):
  source = f'{run}:{_PERSONAL}'
  texts = list(_SITES.values())
  lines = [
    {'reference': text, 'hypotheses': _hypotheses(*texts), 'client': client}
    for text, client in zip(texts, ('beer:0', 'coffee:1'))
  ]
  output = tmp_path / 'rates.json'
  nbest = _write(tmp_path / 'nbest.jsonl', *lines)
  assert not rescoring.main([source], nbest, 1.0, output, data_dir)
  assert json.loads(output.read_text())['chosen'][source] == texts

  del lines[1]['client']
  nbest = _write(tmp_path / 'nbest.jsonl', *lines)
  with pytest.raises(errors.UserError, match='line 2 must name a "client"'):
    rescoring.main([source], nbest, 1.0, output, data_dir)
  nbest = _write(tmp_path / 'nbest.jsonl', {**lines[0], 'client': 'tea:7'})
  with pytest.raises(errors.UserError, match='evaluated no client tea:7'):
    rescoring.main([source], nbest, 1.0, output, data_dir)


@pytest.mark.parametrize(
  'line, message',
  [
    ([], 'no object'),
    ({'hypotheses': _hypotheses('a')}, 'no text "reference"'),
    ({'reference': 'a'}, 'no list "hypotheses"'),
    ({'reference': 'a', 'hypotheses': []}, 'no list "hypotheses"'),
    (
      {'reference': 'a', 'hypotheses': [{'score': 1}]},
      'hypothesis 1 has no text "text"',
    ),
    (
      {'reference': 'a', 'hypotheses': [{'text': 'a', 'score': True}]},
      'hypothesis 1 has no finite number "score"',
    ),
    (
      {'reference': 'a', 'hypotheses': [{'text': 'a', 'score': float('nan')}]},
      'hypothesis 1 has no finite number "score"',
    ),
    (
      {'reference': 'a', 'hypotheses': [{'text': 'a', 'score': 10**400}]},
      'hypothesis 1 has no finite number "score"',
    ),
    (
      {'reference': 'a', 'hypotheses': _hypotheses('a'), 'group': 1},
      '"group" is no text',
    ),
  ],
)
def test_a_line_that_is_no_utterance_is_named(line, message, tmp_path):
  good = {'reference': 'a', 'hypotheses': _hypotheses('a')}
  path = _write(tmp_path / 'nbest.jsonl', good, line)
  with pytest.raises(
    errors.UserError, match=f'nbest.jsonl, line 2: .*{message}'
  ):
    rescoring.read(path)


def test_a_file_without_words_is_refused(tmp_path):
  path = _write(
    tmp_path / 'nbest.jsonl', {'reference': '', 'hypotheses': _hypotheses('a')}
  )
  with pytest.raises(errors.UserError, match='no utterance with words'):
    rescoring.read(path)


def test_a_task_without_words_is_refused():
  task = registry.load('synthetic')
  with pytest.raises(errors.UserError, match='synthetic, which has no words'):
    rescoring.rescore([_utterance([0.0])], task, [{}], 0.1, 'here')
