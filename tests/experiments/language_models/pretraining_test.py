"""Tests of the training of a small GPT-2."""

import dataclasses
import gzip
import itertools
import pathlib
import re
import types

import numpy as np
import pytest

from base import errors
from experiments.language_models import pretraining
from experiments.runs import execution
from tasks.data import bpe
from tasks.models import language_model_files

_SETTINGS = pretraining.Settings(
  sources=('texts',),
  tokenizer=pretraining.LEARNED,
  epochs=2,
  vocabulary_size=264,
  width=8,
  num_blocks=1,
  seed=0,
)
_WEIGHTS = pretraining.WEIGHTS


@pytest.fixture(name='data_dir', scope='module')
def _data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  (folder / 'texts').mkdir()
  words = np.random.default_rng(0).choice(['the', 'an', 'old', 'cat'], 9_000)
  half = len(words) // 2
  (folder / 'texts/wiki.valid.tokens').write_text(' '.join(words[:half]))
  with gzip.open(folder / 'texts/wiki.test.tokens.gz', 'wt') as file:
    file.write(' '.join(words[half:]))
  return folder


@pytest.fixture(name='finished', scope='module')
def _finished(data_dir):
  folder = data_dir / 'finished'
  assert pretraining.main(_SETTINGS, str(data_dir), folder) == 0
  return folder


def test_a_task_can_read_what_it_saves(finished):
  sizes, weights = language_model_files.load(finished / _WEIGHTS)
  assert sizes == _SETTINGS.sizes
  assert list(weights) == list(sizes.shapes)
  assert len(bpe.read(finished, sizes.vocabulary_size)) == 264


def test_a_finished_training_is_not_repeated(finished, data_dir, capsys):
  before = (finished / _WEIGHTS).stat().st_mtime_ns
  assert pretraining.main(_SETTINGS, str(data_dir), finished) == 0
  assert (finished / _WEIGHTS).stat().st_mtime_ns == before
  assert 'is finished' in capsys.readouterr().out


def test_a_training_that_was_stopped_ends_as_if_it_were_not(
  finished, data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(pretraining, '_SECONDS_PER_CHECKPOINT', 0)
  take_steps = pretraining.Training.run

  def stop_after_some(self, start, first):
    for done, *others in take_steps(self, start, first):
      yield done, *others
      if done == 12:  # Behind the first epoch.
        raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(pretraining.Training, 'run', stop_after_some)
    with pytest.raises(KeyboardInterrupt):
      pretraining.main(_SETTINGS, str(data_dir), tmp_path)
  assert not (tmp_path / _WEIGHTS).exists()
  assert pretraining.main(_SETTINGS, str(data_dir), tmp_path) == 0
  contents = [(f / _WEIGHTS).read_bytes() for f in (finished, tmp_path)]
  assert contents[0] == contents[1]


def _read(data_dir, folder):
  """Checks a folder as a run does whose task has its weights."""
  weights = f'{folder.relative_to(data_dir)}/{_WEIGHTS}'
  settings = types.SimpleNamespace(weights=weights)
  config = types.SimpleNamespace(task_settings=settings)
  execution._check_pretraining(config, str(data_dir))


@pytest.mark.parametrize('name', [_WEIGHTS, 'vocab.json', 'pretraining.json'])
def test_a_file_that_was_changed_is_refused_by_name(finished, data_dir, name):
  path = finished / name
  contents = path.read_bytes()
  _read(data_dir, finished)
  path.write_bytes(contents.replace(b'2', b'3', 1))
  with pytest.raises(errors.UserError, match=f'{name} is not as it was'):
    _read(data_dir, finished)
  with pytest.raises(errors.UserError, match=f'{name}'):
    pretraining.main(_SETTINGS, str(data_dir), finished)
  path.write_bytes(contents)
  _read(data_dir, finished)


def test_a_training_that_is_killed_at_any_write_goes_on(
  finished, data_dir, monkeypatch
):
  monkeypatch.setattr(pretraining, '_SECONDS_PER_CHECKPOINT', 0)
  replace = pathlib.Path.replace
  folder = data_dir / 'killed'
  # Each program goes on where the one before was killed.
  for last in (1, 2, 4, 'merges.txt', _WEIGHTS):
    writes = itertools.count(1)

    def replace_or_die(self, target, *, writes=writes, last=last):
      if last in (next(writes), pathlib.Path(target).name):
        raise KeyboardInterrupt
      return replace(self, target)

    with monkeypatch.context() as patch:
      patch.setattr(pathlib.Path, 'replace', replace_or_die)
      with pytest.raises(KeyboardInterrupt):
        pretraining.main(_SETTINGS, str(data_dir), folder)
    if folder.exists():
      _read(data_dir, folder)
  assert pretraining.main(_SETTINGS, str(data_dir), folder) == 0
  _read(data_dir, folder)
  contents = [(f / _WEIGHTS).read_bytes() for f in (finished, folder)]
  assert contents[0] == contents[1]


def test_it_learns_the_words(finished, data_dir, tmp_path, capsys):
  one_epoch = dataclasses.replace(_SETTINGS, epochs=1)
  longer = dataclasses.replace(_SETTINGS, epochs=6)
  found = []
  for name, settings in (('one', one_epoch), ('longer', longer)):
    pretraining.main(settings, str(data_dir), tmp_path / name)
    printed = capsys.readouterr().out
    found.append(float(re.search(r'perplexity ([\d.]+)', printed)[1]))
  assert found[1] < 0.8 * found[0] < 0.8 * 264, found


def test_the_rate_rises_and_falls():
  rates = [pretraining._rate(step, 99) for step in range(99)]
  assert np.argmax(rates) == 9
  assert max(rates) == pytest.approx(2e-3)
  assert 0 < rates[0] == pytest.approx(rates[9] / 10)
  assert 0 < rates[-1] < 3e-5


def test_each_token_but_the_first_of_a_span_is_predicted_once():
  spans = [range(100), range(100, 101), range(101, 50 * 64 + 7)]
  trained, held_out = pretraining._cut(spans)
  assert (len(trained.tokens), len(held_out.tokens)) == (49, 1)
  follow = np.concatenate([trained.tokens, held_out.tokens])[:, 1:]
  np.testing.assert_array_equal(follow.ravel(), range(1, 50 * 64 + 1))
  mask = np.concatenate([trained.mask, held_out.mask])
  assert follow[mask == 0].tolist() == [100, 101]


def test_what_is_not_predicted_has_no_effect_on_the_loss():
  objective = pretraining.LanguageModel(_SETTINGS.sizes)
  weights = _SETTINGS.sizes.init([0, 1])
  # A later token is seen by no earlier one.
  batch = np.random.default_rng(0).integers(0, 264, [2, 65]).astype(np.int32)
  mask = np.ones([2, 64], np.float32)
  mask[1, -1] = 0
  changed = batch.copy()
  changed[1, -1] += 1
  losses = [
    objective.mean_loss(weights, {'pieces': pieces}, mask)
    for pieces in (batch, changed)
  ]
  assert losses[0] == losses[1]


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'sources': ('none',)}, 'wiki.train.tokens is in none of .*--source'),
    ({'tokenizer': 'none'}, 'none is in none of .*take --tokenizer=learned'),
    ({'vocabulary_size': 5_000}, '--vocabulary_size is 5000'),
  ],
)
def test_says_what_is_missing(data_dir, tmp_path, changes, message):
  settings = dataclasses.replace(_SETTINGS, **changes)
  with pytest.raises(errors.UserError, match=message):
    pretraining.main(settings, str(data_dir), tmp_path)


def test_refuses_a_text_that_is_too_short(tmp_path):
  (tmp_path / 'texts').mkdir()
  (tmp_path / 'texts/wiki.test.tokens').write_text('aa bb cc dd ee ff gg hh ii')
  with pytest.raises(errors.UserError, match='fewer than 50 pieces of 64'):
    pretraining.main(_SETTINGS, str(tmp_path), tmp_path / 'out')


def test_refuses_a_folder_of_other_settings(finished, data_dir):
  other = dataclasses.replace(_SETTINGS, seed=1)
  with pytest.raises(errors.UserError, match='settings of another model'):
    pretraining.main(other, str(data_dir), finished)
