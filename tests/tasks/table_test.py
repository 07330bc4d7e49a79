"""Tests of tables of users as tasks."""

import csv
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from base import errors
from tasks import registry
from tasks import task as tasks
from tasks.data import silos
from tasks.models import networks
from tests import data
from tests.tasks import table_source

_ROWS = table_source.rows()


@pytest.fixture(name='path')
def _path(tmp_path):
  return table_source.write(tmp_path / 't.csv', _ROWS)


@pytest.fixture(name='load')
def _load(path):
  def load(**settings):
    defaults = dict(
      path=str(path),
      client_column='who',
      target_column='y',
      feature_columns=('a', 'b'),
      seed=3,
    )
    return registry.load('table', **defaults | settings)

  return load


def _sets(task):
  """All examples of all clients, by population, set and client."""
  return {
    (name, of_set, client_id): load(client_id)
    for name in ('train', 'validation', 'test')
    for population in [getattr(task, name)]
    for of_set, load in population.sets.items()
    for client_id in population.client_ids
  }


def _assert_same(first, second):
  first, second = _sets(first), _sets(second)
  assert list(first) == list(second)
  for key, examples in first.items():
    for name, values in examples.items():
      np.testing.assert_allclose(values, second[key][name], atol=1e-6)


def _labels(task, of_set='train', population='train'):
  clients = getattr(task, population)
  return {c: clients.sets[of_set](c)['y'] for c in clients.client_ids}


def test_each_client_is_split(load):
  task = load(standardize_target=False)
  assert task.cross_silo
  assert task.train.client_ids == tuple(f'c{k}' for k in range(6))
  for client_id in task.train.client_ids:
    parts = [
      _labels(task)[client_id],
      _labels(task, 'evaluation', 'validation')[client_id],
      _labels(task, 'evaluation', 'test')[client_id],
    ]
    assert list(map(len, parts)) == [8, 2, 2]
    expected = [row['y'] for row in _ROWS if row['who'] == client_id]
    np.testing.assert_allclose(
      np.sort(np.concatenate(parts)), np.sort(expected), rtol=1e-6
    )


def test_clients_may_be_held_out(load):
  task = load(hold_out='clients', test_fraction=0.34)
  assert not task.cross_silo
  of_each = [
    set(population.client_ids)
    for population in (task.train, task.validation, task.test)
  ]
  assert list(map(len, of_each)) == [3, 1, 2]
  assert len(set.union(*of_each)) == 6
  (validation,) = task.validation.client_ids
  for name in ('personalization', 'evaluation'):
    assert len(task.validation.sets[name](validation)['y']) == 6


def test_what_is_fitted_is_fitted_to_what_is_trained_on(load):
  for how in ('examples', 'clients'):
    task = load(hold_out=how)
    train = [task.train.sets['train'](c) for c in task.train.client_ids]
    for name in ('x', 'y'):
      values = np.concatenate([examples[name] for examples in train])
      np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-6)
      np.testing.assert_allclose(values.std(axis=0), 1, atol=1e-6)


def test_a_client_may_be_standardized_by_its_own_examples(load):
  task = load(standardize='client')
  for client_id in task.train.client_ids:
    x = task.train.sets['train'](client_id)['x']
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-6)


def test_clients_may_be_interleaved(load, tmp_path):
  # The order of a client's own rows stays.
  order = np.argsort([row['who'][1:] for row in _ROWS], kind='stable')
  order = order.reshape(6, -1).T.ravel()
  other = table_source.write(tmp_path / 'o.csv', [_ROWS[k] for k in order])
  _assert_same(load(), load(path=str(other)))


def test_each_file_of_a_folder_may_be_a_client(load, tmp_path):
  folder = tmp_path / 'folder'
  folder.mkdir()
  for k, ending in enumerate(
    ('csv', 'csv.gz', 'jsonl', 'jsonl.gz', 'parquet', 'csv')
  ):
    rows = [dict(row) for row in _ROWS if row.get('who') == f'c{k}']
    for row in rows:
      del row['who']
    table_source.write(folder / f'c{k}.{ending}', rows)
  _assert_same(load(), load(path=str(folder), client_column=None))


def test_files_of_the_same_name_are_told(load, tmp_path):
  folder = tmp_path / 'folder'
  folder.mkdir()
  for ending in ('csv', 'jsonl'):
    table_source.write(folder / f'c.{ending}', _ROWS)
  with pytest.raises(errors.UserError, match='several files c,'):
    load(path=str(folder), client_column=None)


def test_a_column_may_say_what_a_row_is_for(load, tmp_path):
  parts = ['train', 'train', 'test', 'validation']
  rows = [row | {'part': parts[k % 4]} for k, row in enumerate(_ROWS)]
  path = table_source.write(tmp_path / 'p.csv', rows)
  task = load(path=str(path), split_column='part', standardize_target=False)
  wanted = [r['y'] for r in rows if r['who'] == 'c2' and r['part'] == 'test']
  test = _labels(task, 'evaluation', 'test')['c2']
  np.testing.assert_allclose(test, wanted, rtol=1e-6)


def test_a_column_may_say_what_a_client_is_for(load, tmp_path):
  parts = {'c0': 'train', 'c1': 'validation'}
  rows = [row | {'part': parts.get(row['who'], 'test')} for row in _ROWS]
  path = table_source.write(tmp_path / 'p.csv', rows)
  task = load(path=str(path), split_column='part', hold_out='clients')
  assert task.train.client_ids == ('c0',)
  assert task.validation.client_ids == ('c1',)
  assert task.test.client_ids == ('c2', 'c3', 'c4', 'c5')


@pytest.mark.parametrize(
  'partition',
  [
    dict(partition='dirichlet', alpha=1.0),
    dict(partition='classes', classes_per_client=1),
  ],
)
def test_rows_may_be_dealt_out(partition, load):
  task = load(
    client_column=None, target_column='label', num_clients=4, **partition
  )
  assert len(task.train.client_ids) == 4
  sizes = [
    sum(map(len, _labels(task, *of).values()))
    for of in (
      ('train', 'train'),
      ('evaluation', 'validation'),
      ('evaluation', 'test'),
    )
  ]
  assert sum(sizes) == len(_ROWS)


@pytest.mark.parametrize(
  ('settings', 'model', 'metric', 'outputs'),
  [
    (dict(), networks.NetworkRegressor, 'squared_error', 1),
    (
      dict(target_column='b', feature_columns='a'),
      networks.NetworkRegressor,
      'squared_error',
      1,
    ),
    (
      dict(target_column='color'),
      networks.NetworkClassifier,
      'accuracy',
      3,
    ),
    (
      dict(target_column='label', target='preference'),
      networks.PreferenceNetwork,
      'macro_f1',
      2,
    ),
  ],
)
def test_the_target_says_what_the_task_is(
  settings, model, metric, outputs, load
):
  task = load(**settings)
  assert type(task.model) is model
  assert task.metric == metric
  weights = task.model.init(tf.constant([0, 1]))
  assert weights['output_kernel'].shape == (
    2 - ('feature_columns' in settings),
    outputs,
  )


def test_whole_numbers_of_few_values_are_classes(load, tmp_path):
  rows = [row | {'b': row['b'] % 3} for row in _ROWS]
  path = table_source.write(tmp_path / 'b.csv', rows)
  task = load(path=str(path), target_column='b', feature_columns='a')
  assert task.model.num_classes == 3


def test_all_other_columns_are_inputs(load):
  task = load(feature_columns=(), ignored_columns='label', group_column='site')
  # a, b and three colors.
  assert task.model.shape == (5,)


def test_clients_know_their_group_and_examples_their_type_and_context(load):
  task = load(
    target_column='label',
    group_column='site',
    type_column='color',
    context_column='color',
  )
  group = task.attributes[tasks.GROUP]
  assert [group.name(c) for c in ('c0', 'c1')] == ['east', 'west']
  examples = task.train.sets['train']('c0')
  assert task.contexts == ['blue', 'green', 'red']
  assert task.model.num_types == 3
  np.testing.assert_array_equal(examples['type'], examples['context'])
  colors = {row['a']: row['color'] for row in _ROWS}
  assert len(colors) == len(_ROWS)
  train = load(standardize='none', feature_columns='a').train.sets['train']
  told = [colors[round(float(a), 3)] for a in train('c0')['x'][:, 0]]
  assert told == [task.contexts[k] for k in examples['context']]


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (dict(path=None), 'task.path is not set'),
    (dict(target_column=None), 'task.target_column is not set'),
    (dict(client_column=None), 'task.client_column is not set'),
    (dict(target_column='z'), "task.target_column: Unknown column 'z'"),
    (dict(ignored_columns='z'), "task.ignored_columns: Unknown column 'z'"),
    (dict(feature_columns='y'), 'names the target, y'),
    (dict(client_column='y'), 'task.client_column names the target, y'),
    (dict(feature_columns=('a', 'a')), 'task.feature_columns names a twice'),
    (dict(ignored_columns='b'), 'task.ignored_columns both name b. Leave'),
    (
      dict(category_columns='a', text_columns='a'),
      'task.category_columns and task.text_columns both name a. Leave',
    ),
    (dict(text_columns='label'), 'names label, which is not an input'),
    (dict(category_columns='who'), 'names who, which is not an input'),
    (dict(partition='dirichlet'), 'Leave out one of the two'),
    (
      dict(client_column=None, partition='classes'),
      'needs classes, but the target is a number',
    ),
    (dict(partition_file='p.json'), 'is for a partition that is drawn'),
    (
      dict(hold_out='clients', validation_fraction=0.45, test_fraction=0.45),
      'Of the 6 clients of',
    ),
    (dict(model='cnn'), 'task.image_column names none'),
    (dict(hold_out='clients', standardize='client'), 'Set it to all or none'),
    (dict(hold_out='all_clients'), 'leaves nobody to train on'),
    (
      dict(target='preference', target_column='color'),
      "'color' has 3 classes, but must have two",
    ),
    (dict(target='number', target_column='color'), "line 2: column 'color'"),
    (dict(group_column='color'), "column 'color' differs from another row"),
    (dict(split_column='site'), 'must have one of train, validation, test'),
  ],
)
def test_what_cannot_be_is_told(settings, message, load):
  with pytest.raises(errors.UserError, match=re.escape(message)):
    load(**settings)


@pytest.mark.parametrize('column', ['who', 'y', 'label'])
def test_a_row_without_a_client_or_a_target_is_told(column, load, tmp_path):
  rows = [dict(row) for row in _ROWS]
  rows[3][column] = ''
  path = table_source.write(tmp_path / 'm.csv', rows)
  target = column if column != 'who' else 'y'
  with pytest.raises(
    errors.UserError, match=f"m.csv, line 5: column '{column}' has no value"
  ):
    load(path=str(path), target_column=target)


def test_what_was_read_fits_into_80_columns(load):
  notes = load(
    target_column='label', feature_columns=(), ignored_columns='y'
  ).notes
  assert max(map(len, notes.splitlines()[1:])) <= 80
  for told in (
    '72: 48 examples for train, 12 examples for validation, 12',
    '6, of 12 to 12 rows, median 12',
    'label: 2 classes: no 3',
    'color             3 categories: blue, green, red',
    '2 columns         a number each: a, b',
    '████████████████ 6',
  ):
    assert told in notes


def _draw(path, color):
  image = np.broadcast_to(np.uint8(color), (10, 7, 3))
  path.write_bytes(tf.io.encode_png(image).numpy())


@pytest.fixture(name='images')
def _images(tmp_path):
  """Writes images that are as red as their label is likely."""
  (tmp_path / 'images').mkdir()
  rows = []
  for k in range(24):
    name = f'images/{k}.png'
    _draw(tmp_path / name, [10 * k, 0, 255])
    label = ['no', 'yes'][k > 11]
    rows.append({'who': f'c{k % 2}', 'file': name, 'label': label})
  return table_source.write(tmp_path / 'i.jsonl', rows)


def test_images_are_decoded_when_they_are_taken(images, load):
  task = load(
    path=str(images), target_column='label', image_column='file', image_size=6
  )
  x = task.train.sets['train']('c1')['x']
  assert x.shape == (8, 6, 6, 3)
  np.testing.assert_allclose(x[..., 1], 0)
  np.testing.assert_allclose(x[..., 2], 1, rtol=1e-6)
  red = np.round(255 * x[:, 0, 0, 0] / 10)
  assert set(red) <= set(range(1, 24, 2))
  assert task.model.filters
  assert not load(
    path=str(images),
    target_column='label',
    image_column='file',
    model='dense',
  ).model.filters


def test_a_missing_image_is_told_at_once(images, load):
  (images.parent / 'images/5.png').unlink()
  with pytest.raises(errors.UserError, match='line 6.*5.png: is not a file'):
    load(path=str(images), target_column='label', image_column='file')


def test_what_is_no_image_is_told_at_once(images, load):
  (images.parent / 'images/5.png').write_bytes(b'text')
  with pytest.raises(errors.UserError, match='line 6.*5.png: is not a PNG,'):
    load(path=str(images), target_column='label', image_column='file')


def test_a_damaged_image_is_told(images, load):
  for path in (images.parent / 'images').iterdir():
    path.write_bytes(path.read_bytes()[:50])
  task = load(path=str(images), target_column='label', image_column='file')
  with pytest.raises(errors.UserError, match='line .*png: is a damaged image.'):
    task.train.sets['train']('c0')


_ALL_COLUMNS = dict(
  target_column='label',
  feature_columns=('b', 'color', 'a'),
  context_column='site',
)


@pytest.fixture(name='like_first')
def _like_first(load, tmp_path):
  """Loads another table as the first one was, all of whose clients are new."""
  file = tmp_path / 'encoding.json'

  def like_first(rows, **settings):
    settings = _ALL_COLUMNS | settings
    encoding = load(hold_out='clients', **settings).encoding
    file.write_text(json.dumps(encoding), encoding='utf-8')
    path = table_source.write(tmp_path / 'new.csv', rows)
    new = dict(path=str(path), hold_out='all_clients', encoding_file=str(file))
    return load(**settings | new)

  return like_first


def _inputs_by_a(task):
  """The input of each row of a client of test, by its column a."""
  names = task.encoding['inputs']
  load = task.test.sets
  x = np.concatenate(
    [
      load[name](client)['x']
      for client in task.test.client_ids
      for name in ('personalization', 'evaluation')
    ]
  )
  return {row[names.index('a')]: dict(zip(names, row)) for row in x.tolist()}


def test_another_table_becomes_what_the_first_one_did(load, like_first):
  first = _inputs_by_a(load(hold_out='clients', **_ALL_COLUMNS))
  # Other means, no blue, one label, and other clients.
  rows = [
    row | {'who': f'new {row["who"]}'}
    for row in _ROWS
    if row['color'] != 'blue' and row['a'] > 3
  ]
  other = like_first(rows)
  assert not other.train.client_ids and not other.validation.client_ids
  assert all(c.startswith('new ') for c in other.test.client_ids)
  assert other.encoding['names'] == {'context': ['east', 'west']}
  found = _inputs_by_a(other)
  assert len(found) == len(rows)
  shared = first.keys() & found.keys()
  assert len(shared) > 3
  assert all(found[a] == first[a] for a in shared)
  y = other.test.sets['evaluation'](other.test.client_ids[0])['y']
  assert set(y) == {other.encoding['target']['classes'].index('yes')}


def test_a_new_category_is_all_zeros_and_a_missing_number_is_as_filled(
  like_first,
):
  rows = [row | {'color': 'pink', 'b': ''} for row in _ROWS[:4]]
  found = _inputs_by_a(like_first(rows, missing='fill'))
  for inputs in found.values():
    assert not any(inputs[f'color is {c}'] for c in ('red', 'green', 'blue'))
    assert abs(inputs['b']) < 1e-6
    assert 'b is missing' not in inputs


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'label': 'maybe'}, "line 2: column 'label' has 'maybe', but .* no, yes"),
    ({'site': 'north'}, "line 2: column 'site' has 'north', .* east, west"),
    ({'b': ''}, "line 2: column 'b' has no value"),
    ({'b': 'many'}, "column 'b' has 'many', which is not a number"),
  ],
)
def test_what_the_first_table_did_not_have_is_told(change, message, like_first):
  with pytest.raises(errors.UserError, match=message):
    like_first([_ROWS[0] | change, *_ROWS[1:]])


def test_a_column_that_is_not_there_is_told(like_first):
  rows = [{name: row[name] for name in row if name != 'b'} for row in _ROWS]
  with pytest.raises(errors.UserError, match="new.csv.*Unknown column 'b'"):
    like_first(rows)


def test_what_is_no_encoding_is_told(load, tmp_path):
  (tmp_path / 'e.json').write_text('{"target": {}}')
  with pytest.raises(errors.UserError, match='e.json .* task.encoding_file'):
    load(encoding_file=str(tmp_path / 'e.json'))


def test_school_as_a_table_is_school(tmp_path):
  folder = data.path('school').parent
  school = registry.load('school', data_dir=str(folder), seed=100)
  sets = _sets(school)
  rows = _rows_of_school(folder / 'school/school.mat')
  path = tmp_path / 'school.csv'
  with path.open('w', newline='') as file:
    csv.writer(file).writerows(rows)
  task = registry.load(
    'table',
    path=str(path),
    client_column='school',
    target_column='score',
    standardize='client',
    standardize_target=False,
    seed=100,
  )
  found = _sets(task)
  assert list(found) == list(sets)
  for key, examples in sets.items():
    for name, values in examples.items():
      np.testing.assert_array_equal(found[key][name], values)


def _rows_of_school(path):
  """The rows of the file of School, with its scores as School has them."""
  names = [f'x{k}' for k in range(28)]
  yield 'school', *names, 'score'
  for k, (features, scores) in enumerate(silos.read_mat(path, 28, '')):
    for x, y in zip(features, (scores - 1) / 69):
      yield f'school_{k:03d}', *x.tolist(), float(y)
