"""Tests of the parts of a run: trainings that begin with saved models."""

import dataclasses
import pathlib
import shutil
import tempfile
from unittest import mock

import pytest

from base import errors
from experiments.runs import execution
from personalization.rounds import training
from tasks import registry
from tasks.models import linear
from tests.experiments import small_runs


class TestWarmstart:
  """Trainings that begin with the models of finished runs."""

  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _run_once(cls, tmp_path_factory):
    cls.root = tmp_path_factory.mktemp('runs')
    for name, *assignments, algorithms in (
      ('fedavg', 'fedavg'),
      ('faster', 'client_learning_rate=0.5', 'fedavg'),
      ('several', 'fedavg,fedadam'),
      ('ensemble', 'ensemble'),
      ('local', 'finetuning_epochs=2', 'local'),
    ):
      config = small_runs.config(*assignments, algorithms=algorithms)
      small_runs.run(config, cls.root / name)

  def run_from(self, sources, *assignments, algorithms='finetuning'):
    """The results and rows of a run from those of the names."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
    paths = ','.join(str(self.root / source) for source in sources.split(','))
    config = small_runs.config(
      f'warmstart_from={paths}', *assignments, algorithms=algorithms
    )
    return small_runs.run(config, folder), small_runs.rows(folder)

  def test_finetuning_begins_with_the_model_of_fedavg(self):
    config = small_runs.config(
      'finetuning_epochs=2', algorithms='fedavg,finetuning'
    )
    expected = small_runs.run(config, self.root / 'finetuning')['finetuning']
    for source in ('fedavg', 'several:fedavg'):
      results, rows = self.run_from(
        source, 'total_rounds=0', 'finetuning_epochs=2'
      )
      result = results['finetuning']
      for part in ('test', 'before', 'candidates'):
        assert result[part] == expected[part]
      assert rows == [
        row
        for row in small_runs.rows(self.root / 'finetuning')
        if row['method'] == 'finetuning'
      ]
      assert result['warmstart_from'] == [str(self.root / source)]

  def test_hypcluster_begins_with_the_models_of_several(self):
    _, rows = self.run_from(
      'fedavg,faster', 'total_rounds=0', algorithms='hypcluster'
    )
    of_models = [
      small_runs.rows(self.root / name) for name in ('fedavg', 'faster')
    ]
    for row, *of_client in zip(rows, *of_models, strict=True):
      picked = of_client[int(float(row['cluster']))]
      assert row['client'] == picked['client']
      assert float(row['metric']) == pytest.approx(
        float(picked['metric']), abs=5e-7
      )

  def test_hypcluster_begins_with_the_models_of_an_ensemble(self):
    _, rows = self.run_from(
      'ensemble', 'total_rounds=0', algorithms='hypcluster'
    )
    of_ensemble = small_runs.rows(self.root / 'ensemble')
    for row, expected in zip(rows, of_ensemble, strict=True):
      assert row == expected | {'method': 'hypcluster'}

  @pytest.mark.parametrize(
    'name', ['fedavg', 'fedadam', 'knn_per', 'ditto', 'hypcluster', 'ensemble']
  )
  def test_every_method_with_a_global_model(self, name):
    num_models = 2 if name in ('hypcluster', 'ensemble') else 1
    sources = ','.join(('fedavg', 'faster')[:num_models])
    results, _ = self.run_from(sources, 'total_rounds=2', algorithms=name)
    assert results[name]['test']['mean'] is not None

  @pytest.mark.parametrize(
    ('sources', 'algorithms', 'message'),
    [
      ('nothing', 'finetuning', 'nothing is not an output folder of a run'),
      ('fedavg:fedavgm', 'finetuning', "Unknown method 'fedavgm'"),
      ('several', 'finetuning', 'trained fedavg and fedadam. Name one of them'),
      ('local', 'finetuning', 'has trained no global model'),
      ('fedavg,faster', 'finetuning', 'begins with 1 model, but .* has 2'),
      (
        'fedavg',
        'hypcluster',
        'hypcluster begins with 2 models, but .* has 1',
      ),
      ('fedavg', 'fedavg,local', 'local has no global model'),
    ],
  )
  def test_is_refused_before_training(self, sources, algorithms, message):
    with mock.patch.object(training, 'train', side_effect=AssertionError):
      with pytest.raises(errors.UserError, match=message):
        self.run_from(sources, algorithms=algorithms)

  def test_another_model(self):
    real = registry.load

    def load(*args, **kwargs):
      task = real(*args, **kwargs)
      return dataclasses.replace(task, model=linear.LinearRegression(3))

    with mock.patch.object(registry, 'load', load):
      with pytest.raises(
        errors.UserError,
        match=r"warmstart_from: .*'0/server/model/bias' is float32"
        r'\[10\] in it, not float32\[\]',
      ):
        self.run_from('fedavg')

  def test_a_checkpoint_that_is_missing(self):
    shutil.copytree(self.root / 'fedavg', self.root / 'copy')
    shutil.rmtree(self.root / 'copy' / 'checkpoints')
    with pytest.raises(errors.UserError, match='no checkpoint of round 7'):
      self.run_from('copy')


@pytest.mark.parametrize('garbage', [b'', b'garbage', bytes(99)])
def test_a_certificate_that_is_none_is_named(tmp_path, garbage):
  (tmp_path / 'x.pem').write_bytes(garbage)
  config = small_runs.config(
    'runtime=remote',
    'remote_workers=127.0.0.1:1',
    f'remote_ca={tmp_path / "x.pem"}',
  )
  with pytest.raises(errors.UserError, match=r'x\.pem, which remote_ca names'):
    execution.set_runtime(config.run)
