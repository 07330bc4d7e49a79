"""Releases: what must not be in them, what they state, and what is refused."""

import json
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from experiments.reporting import results_folder
from experiments.runs import ledgers
from experiments.runs import releasing
from experiments.runs import secret_seeds
from personalization.privacy import ledger
from tests.experiments import small_runs

_SEED = 918273645
_PRIVATE = (
  'privacy.name=gaussian',
  'privacy.noise=2',
  'client_weighting=uniform',
  'clients_per_round=0',
  f'seed={_SEED}',
)
_SECRET = 'privacy.seed=secret'


def _release(source, out, epsilon=None):
  return releasing.main(str(source), epsilon, out, None)


class TestRelease:
  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _release_once(cls, tmp_path_factory):
    root = tmp_path_factory.mktemp('release')
    cls.run, cls.out, cls.vault = root / 'run', root / 'out', root / 'vault'
    with pytest.MonkeyPatch.context() as patch:
      patch.setenv(secret_seeds.VARIABLE, str(cls.vault))
      config = small_runs.config(
        *_PRIVATE, _SECRET, algorithms='fedadam,fedadam+finetuning,local'
      )
      small_runs.run(config, cls.run)
    # Nothing of it needs the secret.
    _release(cls.run, cls.out, epsilon=2.0)

  def _texts(self):
    """Reads every file, and the arrays in it as they are in memory."""
    for path in self.out.rglob('*'):
      if path.is_file():
        yield path, path.read_bytes()
        if path.suffix == '.npz':
          with np.load(path) as arrays:
            for name in arrays.files:
              yield path, arrays[name].tobytes()

  def test_has_the_model_of_each_training_and_a_statement(self):
    models = [path.name for path in (self.out / 'models').iterdir()]
    assert models == ['fedadam']
    with np.load(self.out / 'models' / 'fedadam' / 'weights.npz') as released:
      last = max((self.run / 'checkpoints' / 'fedadam').glob('*.npz'))
      with np.load(last) as state:
        saved = [state[name] for name in state.files]
        for name in released.files:
          assert any(np.array_equal(released[name], array) for array in saved)
    statement = (self.out / 'GUARANTEE.md').read_text()
    epsilon = results_folder.read(self.run).methods['fedadam']['privacy'][
      'epsilon'
    ]
    assert f'**client: ε {epsilon:.4g}, δ ' in statement
    assert 'simulated' not in statement
    assert f'e^ε = {math.exp(epsilon):.3g}' in statement

  def test_states_the_epsilon_of_all_that_is_in_it(self):
    facts = json.loads((self.out / 'release.json').read_text())
    uses = [ledger.Use.from_json(use) for use in facts['uses']]
    assert uses == ledgers.read(self.run)
    assert facts['guarantee']['epsilon'] == ledger.add(uses).epsilon

  def test_no_byte_of_it_is_of_what_the_guarantee_does_not_cover(self):
    finished = results_folder.read(self.run)
    hidden = {
      'the seed': str(_SEED).encode(),
      'the place of the run': str(self.run.parent).encode(),
      'the secret': next(self.vault.iterdir()).read_bytes(),
      'the hash of the secret': next(self.vault.iterdir()).name.encode(),
    }
    for name, rows in finished.clients.items():
      for row in rows:
        hidden[f'{name}: a name'] = row['client'].encode()
        for column in ('metric', 'before'):
          # A number of few digits may be there by chance.
          if len(row[column]) > 8:
            hidden[f'{name}: {row["client"]}'] = row[column].encode()
    for name, result in finished.methods.items():
      for text in ('mean', 'deviation', 'worst_tenth'):
        value = str(result['test'][text])
        if len(value) > 8:
          hidden[f'{name}: {text}'] = value.encode()
    weights = set()
    with np.load(self.out / 'models' / 'fedadam' / 'weights.npz') as released:
      weights = {released[name].tobytes() for name in released.files}
    for path in self.run.glob('checkpoints/**/*.npz'):
      with np.load(path) as state:
        for name in state.files:
          array = state[name]
          # Zeros and small numbers are no state that tells anything.
          if array.size > 3 and array.any() and array.tobytes() not in weights:
            hidden[f'{path.name}: {name}'] = array.tobytes()
    assert len(hidden) > 10
    read = 0
    for path, text in self._texts():
      found = [what for what, value in hidden.items() if value in text]
      assert not found, path
      read += 1
    assert read > 7

  def test_the_model_can_be_loaded_without_this_project(self):
    folder = self.out / 'models' / 'fedadam' / 'saved_model'
    predict = tf.saved_model.load(str(folder)).signatures['serving_default']
    assert predict(x=tf.zeros([3, 60]))['prediction'].shape == [3]

  def test_metrics_depend_on_no_choice_of_validation_clients(self):
    facts = json.loads((self.out / 'release.json').read_text())
    (metric,) = facts['metrics']
    assert metric['name'] == 'mean accuracy, global model'
    assert metric['epsilon'] == 2.0 and 0 <= metric['value'] <= 1

  def test_one_method_can_be_named(self, tmp_path):
    _release(f'{self.run}:fedadam+finetuning', tmp_path / 'out')
    names = [path.name for path in (tmp_path / 'out' / 'models').iterdir()]
    assert names == ['fedadam+finetuning']
    assert (
      json.loads((tmp_path / 'out' / 'release.json').read_text())['metrics']
      == []
    )

  def test_a_method_that_sends_nothing_has_nothing_to_release(self, tmp_path):
    with pytest.raises(errors.UserError, match='trained no global model'):
      _release(f'{self.run}:local', tmp_path / 'out')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('assignments', 'says'),
  [
    ((), 'without privacy'),
    (_PRIVATE, 'follows from the seed of the run'),
    ((*_PRIVATE[:1], *_PRIVATE[2:], 'privacy.noise=0'), 'not private'),
    (
      (*_PRIVATE, _SECRET, 'privacy.noise_cohort=500'),
      'extrapolated to rounds of',
    ),
  ],
  ids=('not private', 'public seed', 'without noise', 'extrapolated'),
)
def test_what_is_not_protected_is_refused(
  assignments, says, tmp_path, monkeypatch
):
  monkeypatch.setenv(secret_seeds.VARIABLE, str(tmp_path / 'vault'))
  config = small_runs.config(*assignments, 'total_rounds=1')
  small_runs.run(config, tmp_path / 'run')
  with pytest.raises(errors.UserError, match=says):
    _release(tmp_path / 'run', tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
  kept = tmp_path / 'out' / 'kept'
  kept.parent.mkdir()
  kept.write_text('kept')
  with pytest.raises(errors.UserError, match='--output_dir'):
    _release(pathlib.Path('any'), tmp_path / 'out')
  assert kept.read_text() == 'kept'


@pytest.mark.parametrize('epsilon', [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_of_metrics_that_makes_no_sense_is_refused(
  epsilon, tmp_path
):
  with pytest.raises(errors.UserError, match='--metrics_epsilon must be'):
    _release(pathlib.Path('any'), tmp_path / 'out', epsilon)


def test_noise_on_metrics_is_that_of_the_mechanism():
  values, epsilon = np.full(40, 3.0), 0.7
  drawn = np.array(
    [releasing.add_noise(values, 2.0, 6.0, epsilon) for _ in range(4000)]
  )
  # Twice the squared scale of a Laplace variable, of (6 - 2) / 40 / ε.
  deviation = 2**0.5 * 4 / 40 / epsilon
  assert drawn[0, 1] == pytest.approx(deviation, rel=1e-3)
  assert np.mean(drawn[:, 0]) == pytest.approx(3, abs=4 * deviation / 4000**0.5)
  assert np.std(drawn[:, 0]) == pytest.approx(deviation, rel=0.1)
  # The odds of neighbors: one client's value is the other end of the range.
  other = np.append(np.full(39, 3.0), 6.0)
  moved = [
    releasing.add_noise(other, 2.0, 6.0, epsilon)[0] for _ in range(4000)
  ]
  for bound in (2.9, 3.0, 3.1, 3.2):
    odds = np.mean(np.array(moved) > bound) / np.mean(drawn[:, 0] > bound)
    assert odds < math.exp(epsilon) * 1.15


def test_noise_on_metrics_is_never_drawn_again():
  values = np.full(5, 0.5)
  drawn = {releasing.add_noise(values, 0, 1, 5.0)[0] for _ in range(20)}
  assert len(drawn) > 5
