import asyncio
import csv
import dataclasses
import io
import json
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from base import errors
from experiments.configuration import config as config_lib
from experiments.reporting import output
from personalization import evaluation as evaluation_lib
from tasks import registry
from tasks import task as task_lib


def _config(seed=0, algorithms='fedavg,local'):
  return config_lib.resolve(
    config_lib.read(None, (), {'seed': seed, 'algorithms': algorithms})
  )


def _metrics(client_ids, values):
  values = np.asarray(values, np.float32)
  weights = np.arange(1, len(values) + 1, dtype=np.float32)
  return evaluation_lib.Metrics(
    client_ids, {'accuracy': values}, {'accuracy': weights}
  )


def _evaluation(baseline=0, chosen=1):
  """Three test clients, of which the second is hurt by one epoch.

  Args:
    baseline: The candidate without personalization.
    chosen: The candidate that is best for all, or for each.

  Returns:
    The evaluation.
  """
  chosen = np.broadcast_to(chosen, 3)
  clients = ('a', 'b', 'c')
  return evaluation_lib.Evaluation(
    metric='accuracy',
    higher_is_better=True,
    candidates=('0 epochs', '1 epochs'),
    baseline=baseline,
    validation=_metrics(clients, 0.25 + 0.5 * np.eye(2)[chosen]),
    test=_metrics(clients, [[0.25, 0.5], [0.5, 0.25], [0.5, 0.5]]),
    skipped=('d',),
    num_personalization=np.array([10, 20, 30]),
  )


def _task(**changes):
  task = registry.load('synthetic', num_train_clients=1)
  return dataclasses.replace(task, **changes)


def _groups(**groups):
  names = ('x', 'y')
  values = {client: names.index(own) for client, own in groups.items()}
  return {'group': task_lib.Attribute(names, values)}


def _how(chosen):
  """The task, what else is measured, and how candidates are chosen."""
  choice = evaluation_lib.Choice(each=not np.isscalar(chosen))
  return _task(), evaluation_lib.Measured(), choice


def _result(chosen=1, baseline=0):
  return output.make_result(_evaluation(baseline, chosen), *_how(chosen))


def _as_read(result):
  """The same when it has been written and read again."""
  return json.loads(json.dumps(result))


def _rows(method='fedavg', chosen=1, baseline=0):
  return output.make_rows(method, _evaluation(baseline, chosen), *_how(chosen))


class FolderTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    root = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, root)
    self.path = root / 'results' / 'run'

  def rows(self):
    with (self.path / 'per_client.csv').open(newline='') as file:
      return list(csv.DictReader(file))

  def test_the_configuration_is_written_as_a_preset(self):
    with output.open_folder(self.path, _config(seed=3)):
      pass
    preset = str(self.path / 'config.toml')
    config = config_lib.resolve(config_lib.read(preset))
    self.assertEqual(config, _config(seed=3))

  def test_results_are_there_for_the_next_run(self):
    with output.open_folder(self.path, _config()) as folder:
      folder.add('fedavg', _result(), _rows())
    with output.open_folder(self.path, _config()) as folder:
      result = {**_result(), 'against': {}}
      self.assertEqual(
        folder.results, json.loads(json.dumps({'fedavg': result}))
      )
      folder.add('local', _result([0, 1, 1]), _rows('local', [0, 1, 1]))
    contents = json.loads((self.path / 'results.json').read_text())
    self.assertEqual(contents['configuration'], _config().to_dict())
    self.assertEqual(list(contents['methods']), ['fedavg', 'local'])
    # The first client is worse off without its epoch, the others are the same.
    against = contents['methods']['local']['against']['fedavg']
    self.assertEqual((against['better'], against['worse']), (0, 1))
    self.assertAlmostEqual(against['difference'], -0.25 / 3)
    self.assertEqual(
      [(row['method'], row['client']) for row in self.rows()],
      [(m, c) for m in ('fedavg', 'local') for c in 'abc'],
    )

  def test_a_method_that_is_not_in_results_json_is_not_done(self):
    with output.open_folder(self.path, _config()) as folder:
      folder.add('fedavg', _result(), _rows())
      with mock.patch.object(json, 'dumps', side_effect=KeyboardInterrupt):
        with self.assertRaises(KeyboardInterrupt):
          folder.add('local', _result(), _rows('local'))
    self.assertLen(self.rows(), 6)
    with output.open_folder(self.path, _config()) as folder:
      self.assertEqual(list(folder.results), ['fedavg'])
      folder.add('local', _result(), _rows('local'))
    self.assertLen(self.rows(), 6)

  def test_a_stopped_write_leaves_the_old_file(self):
    with output.open_folder(self.path, _config()) as folder:
      folder.add('fedavg', _result(), _rows())
      before = (self.path / 'results.json').read_text()
      with mock.patch.object(
        pathlib.Path, 'replace', side_effect=KeyboardInterrupt
      ):
        with self.assertRaises(KeyboardInterrupt):
          folder.add('local', _result(), _rows('local'))
    self.assertEqual((self.path / 'results.json').read_text(), before)
    self.assertLen(self.rows(), 3)

  def test_what_is_no_number_is_null(self):
    with output.open_folder(self.path, _config()) as folder:
      folder.add('fedavg', {'test': {'mean': float('nan')}}, [])
    text = (self.path / 'results.json').read_text()
    refuse = mock.Mock(side_effect=AssertionError)
    contents = json.loads(text, parse_constant=refuse)
    self.assertIsNone(contents['methods']['fedavg']['test']['mean'])

  def test_a_folder_of_another_configuration(self):
    with output.open_folder(self.path, _config(seed=1)):
      pass
    with self.assertRaisesRegex(
      errors.UserError, r'another configuration.*\n  seed: 1, not 2'
    ):
      with output.open_folder(self.path, _config(seed=2)):
        pass

  def test_a_folder_whose_configuration_makes_no_sense(self):
    self.path.mkdir(parents=True)
    (self.path / 'config.toml').write_text('[task]\nname = "gone"')
    with self.assertRaisesRegex(errors.UserError, "another conf.*\n.*'gone'"):
      with output.open_folder(self.path, _config()):
        pass

  def test_results_of_nobody_knows_what(self):
    (self.path / 'checkpoints').mkdir(parents=True)
    with self.assertRaisesRegex(errors.UserError, 'no config.toml'):
      with output.open_folder(self.path, _config()):
        pass

  def test_other_files_do_no_harm(self):
    self.path.mkdir(parents=True)
    (self.path / 'log.txt').write_text('')
    with output.open_folder(self.path, _config()):
      pass

  def test_damaged_results(self):
    with output.open_folder(self.path, _config()):
      pass
    (self.path / 'results.json').write_text('{"methods": ')
    with self.assertRaisesRegex(errors.UserError, 'damaged.*Delete'):
      with output.open_folder(self.path, _config()):
        pass

  def test_two_runs_do_not_share_a_folder(self):
    with output.open_folder(self.path, _config()):
      with self.assertRaisesRegex(errors.UserError, 'Another run is writing'):
        with output.open_folder(self.path, _config()):
          pass
    with output.open_folder(self.path, _config()):
      pass

  def test_a_folder_that_is_a_file(self):
    self.path.parent.mkdir()
    self.path.write_text('')
    with self.assertRaisesRegex(errors.UserError, 'cannot be the output_dir'):
      with output.open_folder(self.path, _config()):
        pass

  def test_metrics_of_rounds_go_to_a_table_and_to_tensorboard(self):
    with output.open_folder(self.path, _config()) as folder:
      for manager in folder.release_managers('fedavg'):
        self.assertIsInstance(manager, tff.program.ReleaseManager)
        asyncio.run(manager.release({'loss': 0.5}, 1))
    with (self.path / 'metrics' / 'fedavg.csv').open() as file:
      self.assertEqual(
        list(csv.DictReader(file)), [{'round': '1', 'loss': '0.5'}]
      )
    del manager  # Which writes what it has not written yet.
    (events,) = (self.path / 'tensorboard' / 'fedavg').iterdir()
    tags = [
      value.tag
      for event in tf.compat.v1.train.summary_iterator(str(events))
      for value in event.summary.value
    ]
    self.assertEqual(tags, ['loss'])


class ResultTest(absltest.TestCase):
  def test_the_chosen_candidates_are_what_is_reported(self):
    result = _result([1, 1, 0])
    self.assertEqual(result['chosen'], {'0 epochs': 1, '1 epochs': 2})
    self.assertAlmostEqual(result['test']['mean'], (0.5 + 0.25 + 0.5) / 3)
    self.assertAlmostEqual(result['test']['hurt'], 1 / 3)
    self.assertAlmostEqual(result['before']['mean'], (0.25 + 0.5 + 0.5) / 3)
    candidate = result['candidates']['1 epochs']
    self.assertEqual(
      list(candidate), ['validation', 'validation_hurt', 'test', 'test_hurt']
    )
    np.testing.assert_allclose(
      list(candidate.values()), [1.75 / 3, 1 / 3, 1.25 / 3, 1 / 3]
    )
    self.assertEqual(result['skipped_in_evaluation'], ['d'])

  def test_without_a_baseline_nobody_is_hurt(self):
    result = _result(baseline=None)
    self.assertIsNone(result['before'])
    self.assertIsNone(result['test']['hurt'])
    self.assertNotIn('hurt', _rows(baseline=None)[0])

  def test_rows(self):
    self.assertEqual(
      _rows(chosen=[1, 1, 0])[1],
      {
        'method': 'fedavg',
        'client': 'b',
        'examples': 2,
        'personalization_examples': 20,
        'metric': 0.25,
        'candidate': '1 epochs',
        'before': 0.5,
        'hurt': 1,
      },
    )
    self.assertEqual([row['hurt'] for row in _rows()], [0, 1, 0])


class MeasuredTest(absltest.TestCase):
  """What else is measured has its place in both files."""

  how = (
    evaluation_lib.Measured(
      ood_examples=5,
      evaluation_fractions=(0.5,),
      personalization_fractions=(0.25,),
      acceptance_min_examples=20,
      acceptance_margin=0.0,
    ),
    evaluation_lib.Choice(),
  )

  def evaluation(self):
    evaluation = _evaluation()
    less = dataclasses.replace(
      evaluation,
      # The second has nothing held out.
      further={'held_out': _metrics('abc', [[0, 1], [np.nan] * 2, [1, 0]])},
    )
    return dataclasses.replace(
      evaluation,
      test=dataclasses.replace(
        evaluation.test,
        values={
          **evaluation.test.values,
          'cluster': np.array([[0, 1], [0, 0], [0, 1]], np.float32),
        },
      ),
      further={
        'ood': _metrics('abc', [[0.5, 0.0], [0.5, 0.25], [0.5, 0.5]]),
        'part_0.5': _metrics('abc', [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]),
      },
      after_less={0.25: less, 0.8: less},
    )

  def test_in_the_results(self):
    task = _task(attributes=_groups(a='x', b='y', c='x', d='y'))
    result = output.make_result(self.evaluation(), task, *self.how)
    self.assertAlmostEqual(result['out_of_distribution']['mean'], 0.25)
    self.assertAlmostEqual(result['out_of_distribution']['hurt'], 2 / 3)
    part = result['evaluation_fractions']['0.5']
    self.assertAlmostEqual(part['hurt'], 1 / 3)
    fraction = result['personalization_fractions']['0.25']
    self.assertAlmostEqual(fraction['mean'], 1.25 / 3)
    acceptance = result['acceptance']
    self.assertAlmostEqual(acceptance['min_examples']['accepted'], 2 / 3)
    self.assertAlmostEqual(acceptance['margin']['accepted'], 1 / 3)
    self.assertEqual(acceptance['margin']['test']['hurt'], 0)
    self.assertEqual(
      result['clusters'],
      dict(
        sizes={'0': 1, '1': 2},
        groups={'x': {'0': 0, '1': 2}, 'y': {'0': 1, '1': 0}},
        adjusted_rand_index=1.0,
      ),
    )

  def test_of_each_client(self):
    task = _task(attributes=_groups(a='x', b='y', c='x'))
    rows = output.make_rows('fedavg', self.evaluation(), task, *self.how)
    usual = _rows()[1]
    self.assertEqual(
      {name: rows[1][name] for name in rows[1] if name not in usual},
      {
        'metric_ood': 0.25,
        'before_ood': 0.5,
        'metric_part_0.5': 1.0,
        'before_part_0.5': 0.0,
        'accepted_min_examples': 1,
        'accepted_margin': 0,
        'cluster': 0,
        'group': 'y',
      },
    )

  def test_in_the_table(self):
    result = output.make_result(self.evaluation(), _task(), *self.how)
    file = io.StringIO()
    output.print_table({'finetuning': result}, file)
    lines = [' '.join(line.split()) for line in file.getvalue().splitlines()]
    self.assertIn('if better held out 0.5000 ± 0.000', ' '.join(lines))
    self.assertTrue(any(line.endswith('taken by 33%') for line in lines))


class TableTest(absltest.TestCase):
  def table(self, results):
    file = io.StringIO()
    output.print_table(results, file)
    return file.getvalue()

  def test_a_row_for_each_method(self):
    table = self.table({'fedavg': _result(), 'local': _result(baseline=None)})
    self.assertIn('accuracy of 3 test clients; higher is better', table)
    # Mean, deviation, interval, worst tenth, hurt, candidate.
    values = '0.4167 ± 0.1179 0.2500 to 0.5000 0.2500 {} 1 epochs'
    rows = [' '.join(line.split()) for line in table.strip().splitlines()]
    self.assertEqual(
      rows[-2:],
      ['fedavg ' + values.format('33%'), 'local ' + values.format('–')],
    )

  def test_candidates_that_differ(self):
    self.assertIn(
      'each its own, most 1 epochs', self.table({'x': _result([1, 1, 0])})
    )

  def test_a_method_that_diverged(self):
    result = _result()
    result['test'] |= dict(
      mean=None, deviation=None, interval=None, worst_tenth=None
    )
    self.assertIn('diverged ± diverged', self.table({'x': result}))


class ProgressTest(absltest.TestCase):
  def test_without_a_terminal_a_line_now_and_then_and_at_the_end(self):
    file = io.StringIO()
    with mock.patch('time.monotonic') as now:
      now.return_value = 0.0
      with output.progress('fedavg', 30, 'rounds', file) as show:
        for i in range(30):
          now.return_value += 1.0
          show(i + 1, f'loss {i + 1}')
    self.assertEqual(
      file.getvalue().splitlines(),
      [f'fedavg: {i} of 30 rounds, {i}.0 s, loss {i}' for i in (10, 20, 30)],
    )

  def test_quiet_if_nothing_is_done(self):
    file = io.StringIO()
    with output.progress('fedavg', 30, 'rounds', file):
      pass
    self.assertEmpty(file.getvalue())

  def test_a_bar_on_a_terminal(self):
    class Terminal(io.StringIO):
      def isatty(self):
        return True

    file = Terminal()
    with mock.patch.dict('os.environ', {'TERM': 'xterm'}):
      with output.progress('fedavg', 3, 'rounds', file) as show:
        show(3, 'loss 0.5')
    self.assertIn('3/3', file.getvalue())
    self.assertIn('loss 0.5', file.getvalue())


if __name__ == '__main__':
  absltest.main()
