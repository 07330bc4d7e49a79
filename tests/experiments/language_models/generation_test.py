"""Tests of generating text by the models of a finished run."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tomli_w

from base import errors
from experiments.configuration import configs
from experiments.configuration import user_settings
from experiments.language_models import generation
from experiments.reporting import manifests
from experiments.reporting import results_folder
from experiments.runs import execution
from personalization.rounds import client_states
from tasks.models import generated_prompts
from tests.experiments import small_runs
from tests.tasks import dialogue_source


def _posts():
  """Posts of eight users, of whom those of even numbers also ask."""
  for user in range(8):
    for i in range(10):
      kind = 'question' if user % 2 == 0 and i < 5 else 'answer'
      text = f'The {kind} {i} of user {user}. It is so, they say.'
      yield dict(site='beer', type=kind, user=f'beer:{user}', text=text)


@pytest.fixture(name='data_dir', scope='module')
def _data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  dialogue_source.write(folder)
  (folder / 'stackexchange').mkdir()
  lines = '\n'.join(map(json.dumps, _posts()))
  (folder / 'stackexchange/posts.jsonl').write_text(lines, encoding='utf-8')
  return str(folder)


@pytest.fixture(name='run', scope='module')
def _run(data_dir, tmp_path_factory):
  """A run in which some users are never trained on."""
  folder = tmp_path_factory.mktemp('run')
  assignments = (
    'task.hold_out=clients',
    'task.num_validation_clients=2',
    'task.num_test_clients=2',
    'task.min_utterances=10',
    'task.utterance_length=10',
    'total_rounds=2',
    'clients_per_round=0',
    'client_learning_rate=0.1',
    'new_client_noise=0',
    'runtime=native',
    'adaptation_updates=1',
    'adaptation_examples=1',
  )
  config = configs.resolve(
    user_settings.read(
      None,
      assignments,
      {'algorithms': 'fedpc', 'task.name': 'stackexchange_dialogue'},
    )
  )
  small_runs.run(config, folder, data_dir)
  return str(folder)


@pytest.fixture(name='loaded', scope='module')
def _loaded(run, data_dir):
  return generation.DialogueRun.load(run, data_dir)


def _generate(
  run, data_dir, client='beer:0', contexts=(), prompts=('The',), **changes
):
  values = dict(length=4, top=50, seed=0) | changes
  return generation.main(
    run, client, contexts, prompts, **values, data_dir=data_dir
  )


def test_a_client_has_its_own_weights_and_those_of_all_contexts(run, loaded):
  task = loaded.task
  checkpoints = pathlib.Path(run) / 'checkpoints/fedpc'
  kept = dict(client_states.read_saved(checkpoints, 2))
  (shared,) = execution.saved_models(loaded.source, task)
  assert len(kept) == 4
  for client in list(kept)[:2]:
    weights = loaded.start_weights(client)
    np.testing.assert_array_equal(weights['psi'], kept[client]['personal/psi'])
    np.testing.assert_array_equal(weights['phi'], shared['phi'])
  new = loaded.start_weights(task.test.client_ids[0])
  np.testing.assert_array_equal(new['psi'], shared['psi'])


@pytest.mark.parametrize('generated', [False, True])
def test_the_likeliest_words_are_those_of_the_model(loaded, generated):
  model, encoding = loaded.model, loaded.encoding
  if generated:
    model = generated_prompts.ModelWithGeneratedPrompts(
      model.language_model, 2, sequence_length=9, frozen=model.frozen
    )
  weights = model.init(tf.constant([0, 1]))
  # So that contexts make a difference.
  weights['phi'] *= 100.0
  generators = {k: np.random.default_rng(0) for k in range(2)}
  found = generation.generate(
    model, weights, encoding, 'The', generators, length=4, top=1
  )
  for context, text in enumerate(found):
    words = encoding.encode('The')
    for _ in range(4):
      x = np.zeros([1, 9], np.int32)
      x[0, : len(words)] = np.array(words) + 1
      batch = {'x': x, 'y': np.ones_like(x), 'context': [context]}
      scores = model.scores(weights, batch)
      words.append(int(np.argmax(scores.logits()[len(words) - 1])))
    assert text == encoding.decode(words)


def test_words_are_drawn_by_their_probabilities(loaded):
  model, encoding = (
    loaded.model.pretrained_models['pretrained'],
    loaded.encoding,
  )
  x = np.zeros([1, 9], np.int32)
  x[0, :2] = np.array(encoding.encode('The')) + 1
  batch = {'x': x, 'y': np.ones_like(x), 'context': [0]}
  logits = model.scores({}, batch).logits()[1].numpy()
  # More than there are, and special tokens are not among them.
  chances = np.exp(logits) / np.exp(logits).sum()
  (text,) = generation.generate(
    model, {}, encoding, 'The', {0: np.random.default_rng(3)}, 1, 1000
  )
  order = np.argsort(-logits, kind='stable')
  drawn = np.random.default_rng(3).choice(order, p=chances[order])
  assert text == encoding.decode([*encoding.encode('The'), drawn])


def test_text_depends_on_the_seed_and_not_on_other_contexts(
  run, data_dir, capsys
):
  def lines(**changes):
    assert not _generate(run, data_dir, **changes)
    return capsys.readouterr().out

  both = lines(prompts=('The', 'It'))
  assert both == lines(prompts=('The', 'It'))
  assert both != lines(prompts=('The', 'It'), seed=1)
  # By default all contexts of its own.
  assert 'beer question' in both and 'beer answer' in both
  one = lines(contexts=('beer answer',))
  assert 'beer question' not in one
  (row,) = (line for line in one.splitlines() if 'beer answer' in line)
  assert row.split('beer answer')[1].strip() in both


def test_a_user_may_be_under_a_context_of_others(run, data_dir, capsys):
  assert not _generate(
    run, data_dir, client='beer:1', contexts=('beer question',)
  )
  assert 'beer question' in capsys.readouterr().out


def test_all_that_is_known_is_listed(run, data_dir, capsys):
  assert not generation.show_known(run, data_dir)
  shown = capsys.readouterr().out
  assert all(f'beer:{user}' in shown for user in range(8))
  assert 'beer question, beer answer' in shown


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(client='beer:9'), "Unknown client 'beer:9'.* Known: beer:0, "),
    (
      dict(contexts=['wine']),
      "Unknown context 'wine'. Known: beer answer, beer question",
    ),
    (dict(prompts=['']), 'must have at least one word'),
    (dict(length=16), 'at most 16 tokens .* Set --length to'),
  ],
)
def test_says_what_is_wrong(run, data_dir, changes, message):
  with pytest.raises(errors.UserError, match=message):
    _generate(run, data_dir, **changes)


def test_another_gpt2_is_refused(run, data_dir, tmp_path):
  shutil.copytree(data_dir, tmp_path / 'data')
  path = tmp_path / 'data/gpt2/model.safetensors'
  damaged = bytearray(path.read_bytes())
  damaged[-3] ^= 1
  path.write_bytes(damaged)
  with pytest.raises(errors.UserError, match='other frozen weights'):
    _generate(run, str(tmp_path / 'data'))


def test_a_run_of_another_task_is_refused(run, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(run, folder)
  other = tomli_w.dumps(small_runs.config().to_dict())
  (folder / results_folder.CONFIG).write_text(other, encoding='utf-8')
  (folder / manifests.NAME).unlink()
  with pytest.raises(errors.UserError, match='synthetic, which generates no'):
    generation.show_known(str(folder), None)


def test_a_folder_without_a_run_is_named(tmp_path):
  with pytest.raises(errors.UserError, match='not an output folder of a run'):
    generation.show_known(str(tmp_path), None)
