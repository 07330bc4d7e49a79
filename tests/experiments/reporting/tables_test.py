"""Tests of the tables that are shown of runs."""

import io
import re

from experiments.command_line import terminal
from experiments.reporting import serialization
from experiments.reporting import sources
from experiments.reporting import tables
from tests.experiments import run_folders
from tests.experiments.reporting import small_outcomes


class TestOfResults:
  def table(self, results):
    file = io.StringIO()
    tables.print_results(results, file)
    return file.getvalue()

  def test_a_row_for_each_method(self):
    table = self.table(
      {
        'fedavg': small_outcomes.result(),
        'local': small_outcomes.result(baseline=None),
      }
    )
    assert 'accuracy of 3 test clients; higher is better' in table
    # Mean, deviation, interval, worst tenth, hurt, candidate.
    values = '0.4167 ± 0.1179 0.05811 to 0.7752 0.2500 {} 1 epoch'
    rows = [' '.join(line.split()) for line in table.strip().splitlines()]
    assert rows[-2:] == [
      'fedavg ' + values.format('33%'),
      'local ' + values.format('–'),
    ]

  def test_candidates_that_differ(self):
    assert 'each its own, most 1 epoch' in self.table(
      {'x': small_outcomes.result([1, 1, 0])}
    )

  def test_where_none_is_chosen_each_candidate_has_a_row(self):
    outcome = small_outcomes.make(evaluated=small_outcomes.none_chosen())
    table = self.table({'fedpc': serialization.make_result(outcome)})
    rows = [' '.join(line.split()) for line in table.strip().splitlines()]
    assert rows[-3:] == [
      'fedpc none is chosen',
      '0 epochs 0.4167 ± 0.1179 0.05811 to 0.7752 0.2500 –',
      '1 epoch 0.4167 ± 0.1179 0.05811 to 0.7752 0.2500 –',
    ]

  def test_clusters_are_behind_the_candidate(self):
    result = small_outcomes.result()
    sizes = dict(zip('01234', [1, 5, 2, 1, 1]))
    result['clusters'] = {'sizes': sizes}
    assert '1 epoch (50%, 20%, 10%, 10%, …)' in self.table({'x': result})

  def test_who_is_hurt_against_another_method(self):
    result = small_outcomes.result(baseline=None) | {'hurt_against': 'fedavg'}
    table = self.table({'fedavg': small_outcomes.result(), 'local': result})
    assert 'hurt: of methods without a baseline, against fedavg' in table

  def test_a_method_that_diverged(self):
    result = small_outcomes.result()
    result['test'] |= dict(
      mean=None, deviation=None, interval=None, worst_tenth=None
    )
    table = self.table({'x': result})
    assert re.search('x +diverged +– +diverged', table)

  def test_criteria_have_rows_of_their_own(self):
    result = serialization.make_result(small_outcomes.measured())
    file = io.StringIO()
    tables.print_results({'finetuning': result}, file)
    lines = [' '.join(line.split()) for line in file.getvalue().splitlines()]
    assert 'if better held out 0.5000 ± 0.000' in ' '.join(lines)
    assert any(line.endswith('taken by 33%') for line in lines)


def _row(table, name):
  file = io.StringIO()
  terminal.print_table(table, file)
  (line,) = (
    line for line in file.getvalue().splitlines() if line.split()[:1] == [name]
  )
  return line.split()[1:]


def test_groups_have_a_row_of_the_metric_of_all_their_examples():
  result = serialization.make_result(
    small_outcomes.make(groups={'a': 'x', 'b': 'y', 'c': 'x'})
  )
  table = tables.groups_table({'fedavg': result, 'other': result})
  groups = result['groups']
  x, all_of_them = (
    f'{pooled:#.4g}' for pooled in (groups['x']['pooled'], result['pooled'])
  )
  assert _row(table, 'x') == ['2', x, x]
  assert _row(table, 'all') == ['3', all_of_them, all_of_them]


def test_costs_of_groups_that_differ_are_a_range():
  costs = {
    'beer': {'models_received': 12, 'gradient_passes': 30.0},
    'tea': {'models_received': 15, 'gradient_passes': 30.0},
  }
  table = tables.costs_table({'group': {'costs': costs}})
  assert _row(table, 'group') == ['12', 'to', '15', '–', '30', '–']


def test_a_table_of_repeats(tmp_path, capsys):
  (two,) = sources.read_repeats(
    [
      run_folders.write(tmp_path / 'a', {'fedavg': 0.2, 'local': None}),
      run_folders.write(tmp_path / 'b', {'fedavg': 0.4, 'local': 1.0}, seed=2),
    ]
  )
  tables.print_repeats(sources.list_series(two))
  lines = [' '.join(s.split()) for s in capsys.readouterr().out.splitlines()]
  assert lines[0] == 'loss over 2 repeats; lower is better'
  # The deviation of a sample: 0.2 / sqrt(2).
  assert 'fedavg 0.3000 ± 0.1414 0.5000 ± 0.000 –' in lines
  assert 'local – 0.5000 ± 0.000 –' in lines
