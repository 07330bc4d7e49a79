"""Tables of what personalizes a frozen language model, and of claims about it.

The columns are the numbers k of a user's utterances that a method adapts to;
the conditions of a cell are `known` and `withheld` users. A figure is the
perplexity of all words of all users together. Beside the methods that are run
stand candidates of one of them, such as the language model without anything
that was trained.

FedPC's are tables 1 to 3 of Silva et al. 2022. `Frozen` is FedPC that adapts to
nothing. The published figures are of DistilGPT2, and shown only where that was
run. Adapters are compared with each other, and with a control: a shared model
that was trained for as many steps more as users adapt. A personal model is
worth its name only if it is better than that.

Each claim is that a perplexity is lower than another, or is not. It is decided
on the ratio of the two, of which each user has one, in the mean over the
repeats: the mean of its logarithm over users and the interval of that mean,
Student's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import math
import pathlib
from typing import NamedTuple

import numpy as np

from base.aliases import Json
from experiments.reporting import folders
from experiments.reproduction import entries
from experiments.reproduction import tables
from experiments.sweeps import grid_results
from experiments.sweeps import grids
from personalization.judgement import comparison
from tasks.models import gpt2

KNOWN, WITHHELD = 'known', 'withheld'
_NONE, _ALL = '0', 'all'
# What the candidate of each k is named after.
_AMOUNTS = {
  _NONE: '0 updates',
  '1': '1 example',
  '5': '5 examples',
  '15': '15 examples',
  'all': 'all examples',
}
_DISTILGPT2 = sum(map(math.prod, gpt2.DISTILGPT2.shapes.values()))
# How much a perplexity that is flat may change.
_FLAT = 0.05

# {method: {users: {k: entry}}}
_Entries = dict[str, dict[str, dict[str, entries.Entry]]]


class _Row(NamedTuple):
  """A method, for known or for withheld users.

  Attributes:
    result: The point that has its candidates.
    candidates: The candidate of each k.
  """

  result: grid_results.PointResult
  candidates: Mapping[str, str]

  def pooled(self, k: str) -> np.ndarray:
    """The perplexity of all users together in each repeat."""
    candidate = self.candidates[k]
    return np.array(
      [r['candidates'][candidate]['pooled'] for r in self.result.records],
      np.float64,
    )

  def users(self, k: str) -> dict[str, float]:
    """The mean over repeats of the logarithm of each user's perplexity."""
    found: dict[str, list[float]] = {}
    for record in self.result.records:
      values = record['candidates'][self.candidates[k]]['test']
      for user, value in zip(record['clients'], values, strict=True):
        found.setdefault(user, []).append(
          math.nan if value is None else math.log(value)
        )
    return {user: float(np.mean(values)) for user, values in found.items()}

  def milliseconds(self, name: str) -> str:
    """A time of a user as a text, in the mean over repeats that tell it."""
    seconds = self.result.statistic(name)
    return f'{1e3 * seconds[0]:.1f}' if seconds else '–'


# {method: {users: row}}
_Rows = Mapping[str, Mapping[str, _Row]]


class Claim(NamedTuple):
  """A claim about two figures.

  Attributes:
    text: What is claimed.
    users: Of which users.
    first: The method and the k whose perplexity is compared.
    second: Those that it is compared with.
    expected: Whether the first is to be 'lower', 'not lower' or 'flat', within
      `_FLAT` of the second.
  """

  text: str
  users: str
  first: tuple[str, str]
  second: tuple[str, str]
  expected: str

  def holds(self, interval: tuple[float, float]) -> bool:
    """Tells whether the interval of the ratio of the two is as claimed."""
    low, high = interval
    if self.expected == 'flat':
      return 1 - _FLAT < low and high < 1 + _FLAT
    return (high < 1) == (self.expected == 'lower')


class Study(NamedTuple):
  """The columns, the derived methods and the claims of a kind of table.

  Attributes:
    amounts: The numbers k of its columns.
    derived: Methods that are the same candidate of another one for each k.
    claims: Lists the claims about some methods.
  """

  amounts: Sequence[str]
  derived: Mapping[str, tuple[str, str]]
  claims: Callable[[Sequence[str]], Iterator[Claim]]


def _claims_of_adapters(methods: Sequence[str]) -> Iterator[Claim]:
  """Lists what a personal adapter should be better than."""
  for users in (KNOWN, WITHHELD):
    for method in methods:
      if method in ADAPTERS.derived or method == _CONTROL:
        continue
      adapted = method, _ALL
      for text, other in (
        ('gains by adapting', (method, _NONE)),
        ('is better than the language model alone', ('Alone', _NONE)),
        ('is better than the control', (_CONTROL, _NONE)),
        ('is better than FedIT', ('FedIT', _ALL)),
      ):
        if other != adapted:
          yield Claim(f'{method} {text}', users, adapted, other, 'lower')


def _claims_of_fedpc(methods: Sequence[str]) -> Iterator[Claim]:
  """Lists the paper's claims about the order of methods and about k."""
  for users in (KNOWN, WITHHELD):
    for method, verb, expected in (
      ('FedPC', 'improves', 'lower'),
      ('Split', 'improves', 'lower'),
      ('Meta', 'does not improve', 'not lower'),
      ('Generated', 'hardly changes', 'flat'),
    ):
      # Of known users the paper says it of Meta and Generated only.
      if users == WITHHELD or expected != 'lower':
        text = f'{method} {verb} with k'
        yield Claim(text, users, (method, 'all'), (method, '1'), expected)
    for other in methods:
      if other != 'FedPC':
        text = f'FedPC is better than {other} at k = all'
        yield Claim(text, users, ('FedPC', 'all'), (other, 'all'), 'lower')
  for other in methods:
    if other != 'Generated':
      text = f'Generated is better than {other} at k = 1'
      yield Claim(text, WITHHELD, ('Generated', '1'), (other, '1'), 'lower')


_CONTROL = 'Control'
FEDPC = Study(
  ('1', '5', '15', _ALL),
  {'Frozen': ('FedPC', '0 updates'), 'Pretrained': ('FedPC', 'pretrained')},
  _claims_of_fedpc,
)
ADAPTERS = Study(
  (_NONE, '1', '15', _ALL),
  {
    'Alone': ('FedIT', 'pretrained'),
    'Behind a word': ('FedIT', 'pretrained behind a word'),
  },
  _claims_of_adapters,
)


def find_candidates(names: Iterable[str]) -> dict[str, str]:
  """Finds the candidate of each k among their names."""
  return {
    k: name
    for k, amount in _AMOUNTS.items()
    for name in names
    if name.split(', ')[-1] == amount
  }


def _find_rows(
  study: Study,
  table: tables.Table,
  winners: Mapping[str, grid_results.PointResult],
) -> _Rows:
  """Finds the candidates of each method and users."""
  rows: dict[str, dict[str, _Row]] = {}
  for name, cell in table.cells.items():
    if name in winners:
      winner = winners[name]
      candidates = find_candidates(winner.records[0]['candidates'])
      own = rows.setdefault(cell.method, {})
      own[cell.column] = _Row(winner, candidates)
      for derived, (source, candidate) in study.derived.items():
        known = winner.records[0]['candidates']
        if source == cell.method and candidate in known:
          row = _Row(winner, dict.fromkeys(_AMOUNTS, candidate))
          rows.setdefault(derived, {})[cell.column] = row
  return rows


def _make_entry(row: _Row, k: str, published: float | None) -> entries.Entry:
  """Puts our perplexity beside the published one, if ours is of its model."""
  pooled = row.pooled(k)
  entry: entries.Entry = {'ours': None}
  if np.isfinite(pooled).all():  # What diverged has no figure.
    entry = {'ours': float(pooled.mean()), 'over_repeats': float(pooled.std())}
  of_paper = row.result.records[0]['frozen_weights'] == _DISTILGPT2
  if published is not None and of_paper:
    entry['published'] = published
  return entry


def check_claims(study: Study, rows: _Rows) -> list[dict[str, Json]]:
  """Holds the claims of a study against what came of the methods.

  Returns:
    For each claim about methods that are there: its 'text' and 'users', whether
    it 'holds', the 'ratio' of the two perplexities with its 'interval', for how
    many users the first is lower and higher ('users_lower', 'users_higher'),
    and the p-value of the sign test ('p_sign').
  """
  found = []
  for claim in study.claims(tuple(rows)):
    sides = [
      rows[method][claim.users].users(k)
      for method, k in (claim.first, claim.second)
      if claim.users in rows.get(method, {})
    ]
    if len(sides) < 2:
      continue
    first, second = sides
    compared = comparison.compare(
      np.array(list(first.values())),
      np.array([second[user] for user in first]),
      higher_is_better=False,
    )
    if compared.interval is None:
      continue
    low, high = (math.exp(end) for end in compared.interval)
    found.append(
      {
        'text': claim.text,
        'users': claim.users,
        'holds': claim.holds((low, high)),
        'ratio': math.exp(compared.difference),
        'interval': [low, high],
        'users_lower': compared.better,
        'users_higher': compared.worse,
        'p_sign': compared.p_sign,
      }
    )
  return found


def _print(study: Study, title: str, rows: _Rows, shown: _Entries) -> None:
  for users in (KNOWN, WITHHELD):
    texts = {
      method: {
        f'k = {k}': entries.text(entry, '.1f', '.1f')
        for k, entry in by_users[users].items()
      }
      for method, by_users in shown.items()
      if users in by_users
    }
    columns = [f'k = {k}' for k in study.amounts]
    entries.print_table(f'{title}, {users} users', texts, columns)
  entries.print_table(
    'Milliseconds a user: in a round of training, and to be adapted (once for'
    ' each k) and evaluated',
    {
      method: {
        'training': by_users[WITHHELD].milliseconds('training_seconds'),
        'testing': by_users[WITHHELD].milliseconds('evaluation_seconds'),
      }
      for method, by_users in rows.items()
      # Only withheld users are evaluated in two cohorts, which tells the time.
      if method not in study.derived and WITHHELD in by_users
    },
    ('training', 'testing'),
  )


def _print_claims(claims: Sequence[Mapping[str, Json]]) -> None:
  for claim in claims:
    low, high = claim['interval']
    print(
      f'{"holds" if claim["holds"] else "does not hold"}: {claim["text"]},'
      f' {claim["users"]} users (ratio {claim["ratio"]:.3f}, {low:.3f} to'
      f' {high:.3f}; lower for {claim["users_lower"]} users, higher for'
      f' {claim["users_higher"]})'
    )


def show(
  study: Study, table: tables.Table, grid: grids.Grid, folder: pathlib.Path
) -> dict[str, dict[str, dict[str, float | None]]]:
  """Prints the tables and the claims of a study, and writes the latter.

  Returns:
    {method: {users: {k: our perplexity}}}.
  """
  rows = _find_rows(study, table, grid.write())
  shown: _Entries = {
    method: {
      users: {
        k: _make_entry(
          row, k, table.published.get(method, {}).get(f'{users}, {k}')
        )
        for k in study.amounts
        if k in row.candidates
      }
      for users, row in by_users.items()
    }
    for method, by_users in rows.items()
  }
  if shown:
    _print(study, table.title, rows, shown)
  claims = check_claims(study, rows)
  _print_claims(claims)
  folders.write_json(
    folder / 'comparisons.json', {'figures': shown, 'claims': claims}
  )
  return {
    method: {
      users: {k: entry['ours'] for k, entry in by_k.items()}
      for users, by_k in by_users.items()
    }
    for method, by_users in shown.items()
  }
