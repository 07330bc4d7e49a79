"""Tests of where the metrics of rounds are written to."""

import asyncio
import csv

import pytest
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf

from base import errors
from experiments.reporting import round_metrics


@pytest.fixture(name='path')
def _path(tmp_path):
  return tmp_path / 'metrics' / 'fedavg.csv'


def _release(path, rounds, loss=1.0):
  manager = round_metrics.CsvReleaseManager(path)

  async def release():
    for key in rounds:
      await manager.release(
        {'loss': tf.constant(loss), 'num_clients': 3.0}, key
      )

  asyncio.run(release())


def _read(path):
  with path.open(newline='') as file:
    return [
      (int(row['round']), float(row['loss']), float(row['num_clients']))
      for row in csv.DictReader(file)
    ]


def test_each_round_has_a_line(path):
  _release(path, [1, 2, 3])
  assert _read(path) == [(1, 1.0, 3.0), (2, 1.0, 3.0), (3, 1.0, 3.0)]


def test_a_round_that_comes_again_replaces_itself_and_what_followed(path):
  _release(path, [1, 2, 3, 4])
  _release(path, [3, 4, 5], loss=2.0)
  assert [row[:2] for row in _read(path)] == [
    (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)
  ]  # fmt: skip


def test_a_line_that_a_kill_cut_off_is_taken_away(path):
  _release(path, [1, 2, 3])
  path.write_text(path.read_text()[:-3])
  _release(path, [3, 4])
  assert [row[0] for row in _read(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
  'text',
  [
    '',
    '?',
    '\udcff',
    'round,accuracy\n1,0.5\n2,0.5\n',
    'round,loss,num_clients\n1,1.0,3.0\n',
    'round,loss,num_clients\n1,1.0,3.0\n2,1.',
    'round,loss,num_clients\n1,1.0,3.0\n3,1.0,3.0\n',
  ],
)
def test_a_file_that_lacks_earlier_rounds_is_left_as_it_is(path, text):
  path.parent.mkdir()
  path.write_text(text, errors='surrogateescape')
  before = path.read_bytes()
  with pytest.raises(errors.UserError, match='fedavg.csv is damaged'):
    _release(path, [3])
  assert path.read_bytes() == before


def test_the_first_round_begins_the_file_anew(path):
  path.parent.mkdir()
  path.write_text('of a run that was killed before its first checkpoint')
  _release(path, [1])
  assert [row[0] for row in _read(path)] == [1]


def test_tensorboard_reads_the_rounds_of_two_processes(tmp_path):
  for key in (1, 2):
    manager = round_metrics.TensorBoardReleaseManager(tmp_path)
    asyncio.run(manager.release({'loss': 0.5 / key}, key))
  events = event_accumulator.EventAccumulator(str(tmp_path))
  events.Reload()
  assert [(event.step, event.value) for event in events.Scalars('loss')] == [
    (1, 0.5),
    (2, 0.25),
  ]


def test_the_file_is_not_written_anew_for_each_round(path):
  _release(path, [1])
  manager = round_metrics.CsvReleaseManager(path)
  metrics = {'loss': 1.0, 'num_clients': 3.0}
  asyncio.run(manager.release(metrics, 2))
  file = path.stat().st_ino
  asyncio.run(manager.release(metrics, 3))
  assert path.stat().st_ino == file
  assert len(list(path.parent.iterdir())) == 1
