"""Experiments from scripts and notebooks are those of the programs."""

import asyncio
from unittest import mock

import numpy as np
import pytest

from experiments import api
from tests.experiments import small_runs

_METHODS = ['fedavg', 'finetuning', 'local']
_SETTINGS = dict(
  (name, int(value))
  for name, value in (setting.split('=') for setting in small_runs.SMALL)
)
_SETTINGS |= {'finetuning_epochs': 2}


def _experiment(folder, methods=tuple(_METHODS), **settings):
  return api.Experiment(
    'synthetic', methods, _SETTINGS | settings, output_dir=folder
  )


class TestFinished:
  @pytest.fixture(scope='class', autouse=True)
  @classmethod
  def _do_it_once(cls, tmp_path_factory):
    cls.folder = tmp_path_factory.mktemp('api') / 'of_api'
    cls.experiment = _experiment(cls.folder)

    async def cells():
      # As in a notebook, whose cells run in an event loop.
      cls.trained = cls.experiment.train('fedavg', 'local')
      cls.results = cls.experiment.evaluate()

    asyncio.run(cells())

  def test_the_numbers_are_the_programs(self, tmp_path):
    config = small_runs.config('finetuning_epochs=2', algorithms=_METHODS)
    small_runs.run(config, tmp_path / 'of_program')
    assert small_runs.numbers(self.folder) == small_runs.numbers(
      tmp_path / 'of_program'
    )

  def test_the_task_and_the_methods_are_there(self):
    assert len(self.experiment.task.test.client_ids) == 4
    assert list(self.experiment.methods) == _METHODS

  def test_training_returns_where_it_ended(self):
    assert self.trained['fedavg'].round == 7
    assert self.trained['local'].round == 0

  def test_each_client_has_its_numbers(self):
    assert list(self.results) == _METHODS
    for name, of_method in self.results.items():
      rows = [r for r in small_runs.rows(self.folder) if r['method'] == name]
      assert of_method.clients.tolist() == [row['client'] for row in rows]
      assert of_method.metric.tolist() == [float(row['metric']) for row in rows]
    finetuning = self.results['finetuning']
    assert finetuning.metric.mean() == finetuning.statistics['test']['mean']
    np.testing.assert_array_equal(
      finetuning.hurt, finetuning.metric < finetuning.before
    )
    assert np.isnan(self.results['local'].before).all()
    assert finetuning.columns['candidate'].dtype.kind == 'U'

  def test_as_a_text_results_are_the_table(self):
    text = str(self.results)
    assert text.startswith('accuracy of 4 test clients; higher is better')
    mean = self.results['finetuning'].metric.mean()
    assert f'{mean:#.4g} ± ' in text
    assert all(line == line.rstrip() for line in text.splitlines())

  def test_methods_are_compared_client_by_client(self):
    compared = self.results.compare('finetuning', 'fedavg')
    against = self.results['finetuning'].statistics['against']['fedavg']
    assert compared.p_wilcoxon == against['p_wilcoxon']
    assert compared.difference == against['difference']

  def test_a_figure_is_drawn_as_the_program_does(self):
    drawing = self.results.plot('clients')
    assert drawing.path == self.folder / 'plots/clients.png'
    png, shown = drawing._repr_png_()
    assert png.startswith(b'\x89PNG')
    assert 300 < shown['width'] < 600
    assert drawing.path.with_suffix('.svg').is_file()
    with pytest.raises(api.UserError, match="'client'. Did you mean 'clients'"):
      self.results.plot('client')

  def test_nothing_that_is_done_is_done_again(self):
    with mock.patch.object(api.single_run, 'evaluate') as evaluate:
      again = _experiment(self.folder).evaluate()
    evaluate.assert_not_called()
    assert again.run == self.results.run == api.read(self.folder).run

  def test_a_method_that_is_not_there_is_named(self):
    for look_up in (
      self.experiment.train,
      self.experiment.evaluate,
      self.results.__getitem__,
      lambda name: self.results.compare('local', name),
    ):
      with pytest.raises(api.UserError, match="Unknown method 'ditto'"):
        look_up('ditto')
    assert 'ditto' not in self.results
    assert self.results.get('ditto') is None


def test_the_baseline_is_evaluated_with_the_method_that_needs_it(tmp_path):
  results = _experiment(tmp_path, baseline='fedavg').evaluate('local')
  assert list(results) == ['fedavg', 'local']
  local, fedavg = (results[name].metric for name in ('local', 'fedavg'))
  np.testing.assert_array_equal(results['local'].hurt, local < fedavg)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (dict(task='scool'), "the arguments: Unknown task 'scool'. .*'school'"),
    (dict(methods=['fedavgg']), "the arguments: .*'fedavgg'"),
    (dict(settings={'rounds': 1}), "the arguments: .*setting 'rounds'"),
    (dict(settings={'task': {'alpha': 'x'}}), 'the arguments: .*alpha must be'),
    (dict(settings={'total_rounds': np.int64(-1)}), 'must be at least 0'),
    (dict(preset='nowhere'), "Unknown preset 'nowhere'"),
    (dict(data_dir='/nowhere'), 'data folder /nowhere does not exist'),
  ],
)
def test_a_mistake_is_a_users_error(arguments, message):
  with pytest.raises(api.UserError, match=message):
    api.Experiment(**arguments)


def test_data_are_where_the_variable_says(monkeypatch, tmp_path):
  monkeypatch.setenv('PFL_DATA_DIR', '/nowhere')
  with pytest.raises(api.UserError, match='data folder /nowhere does not'):
    api.Experiment('school')
  assert api.Experiment().task.name == 'synthetic'
  # A path can be given as such, and another folder.
  table = tmp_path / 'table.csv'
  table.write_text('who,x,y\n' + 'a,1,2\nb,2,3\n' * 40)
  experiment = api.Experiment(
    'table',
    ['fedavg'],
    {'task.path': table, 'task.client_column': 'who', 'task.target_column': 'y'}
    | {'clients_per_round': 0},
    data_dir=tmp_path,
  )
  assert experiment.task.train.client_ids == ('a', 'b')
