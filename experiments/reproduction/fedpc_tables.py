"""Tables 1 to 3 of FedPC (Silva et al. 2022), and what it claims.

The columns are the numbers k of a user's utterances that a method adapts to, 1,
5, 15 and all of them; the conditions of a cell, `known` and `withheld` users,
are tables 1 and 2. A figure is the perplexity of all words of all users
together. Beside the methods that are run stand two that are candidates of
FedPC: `Frozen`, which adapts to nothing, and `Pretrained`, GPT-2 without
anything that was trained. The published figures are of DistilGPT2, and shown
only where that was run.

Each claim is that a perplexity is lower than another, or is not. It is decided
on the ratio of the two, of which each user has one, in the mean over the
repeats: the mean of its logarithm over users and the interval of that mean,
Student's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import json
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from experiments.command_line import terminal
from experiments.reporting import folders
from experiments.reporting import repeats
from experiments.reproduction import crossed_grids
from experiments.sweeps import grid_results
from personalization.judgement import comparison
from tasks.models import gpt2

KNOWN, WITHHELD = 'known', 'withheld'
# What the candidate of each k is named after.
_AMOUNTS = {
  '1': '1 example',
  '5': '5 examples',
  '15': '15 examples',
  'all': 'all examples',
}
# Methods that are the same candidate of another one for each k.
DERIVED = {
  'Frozen': ('FedPC', '0 updates'),
  'Pretrained': ('FedPC', 'pretrained'),
}
_COMPARISONS = 'comparisons.json'
_DISTILGPT2 = sum(map(math.prod, gpt2.DISTILGPT2.shapes.values()))
# How much a perplexity that is flat may change.
_FLAT = 0.05

# {method: {users: {k: {'ours', 'over_repeats', 'published'}}}}
_Figures = dict[str, dict[str, dict[str, dict[str, float | None]]]]


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
    return np.array(
      [
        record['candidates'][self.candidates[k]]['pooled']
        for record in self.result.records
      ],
      np.float64,
    )

  def of_users(self, k: str) -> dict[str, float]:
    """The mean over repeats of the logarithm of each user's perplexity."""
    found: dict[str, list[float]] = {}
    for record in self.result.records:
      values = record['candidates'][self.candidates[k]]['test']
      for user, value in zip(record['clients'], values, strict=True):
        found.setdefault(user, []).append(
          math.nan if value is None else math.log(value)
        )
    return {user: float(np.mean(values)) for user, values in found.items()}


@dataclasses.dataclass(frozen=True)
class Claim:
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


def _claims(methods: Sequence[str]) -> Iterator[Claim]:
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


def candidates_of(names: Iterable[str]) -> dict[str, str]:
  """Finds the candidate of each k among their names."""
  return {
    k: name
    for k, amount in _AMOUNTS.items()
    for name in names
    if name.split(', ')[-1] == amount
  }


def _rows(
  cells: Mapping[str, crossed_grids.Cell],
  winners: Mapping[str, grid_results.PointResult],
) -> dict[str, dict[str, _Row]]:
  """Finds the candidates of each method and users: {method: {users: row}}."""
  rows: dict[str, dict[str, _Row]] = {}
  for name, (method, (users,)) in cells.items():
    if name in winners:
      candidates = candidates_of(winners[name].records[0]['candidates'])
      rows.setdefault(method, {})[users] = _Row(winners[name], candidates)
      for derived, (source, candidate) in DERIVED.items():
        if source == method:
          rows.setdefault(derived, {})[users] = _Row(
            winners[name], dict.fromkeys(_AMOUNTS, candidate)
          )
  return rows


def _is_published(row: _Row) -> bool:
  """Tells whether a row is of the model that the published figures are of."""
  return row.result.records[0]['frozen_weights'] == _DISTILGPT2


def compare(
  rows: Mapping[str, Mapping[str, _Row]],
  published: Mapping[str, Mapping[str, float]],
) -> _Figures:
  """Puts our figures beside the published ones.

  Args:
    rows: {method: {users: row}}.
    published: The published figures of a method and users, by k.

  Returns:
    {method: {users: {k: {'ours', 'over_repeats', 'published'}}}}, the published
    one only if there is one that ours can be held against.
  """
  figures: _Figures = {}
  for method, by_users in rows.items():
    for users, row in by_users.items():
      theirs: Mapping[str, float] = {}
      if _is_published(row):
        theirs = published.get(f'{method}_{users}', {})
      by_k = figures.setdefault(method, {})[users] = {}
      for k in _AMOUNTS:
        pooled = row.pooled(k)
        by_k[k] = {'ours': None}
        # What diverged has no figure.
        if np.isfinite(pooled).all():
          by_k[k]['ours'] = float(pooled.mean())
          by_k[k]['over_repeats'] = float(pooled.std())
        if k in theirs:
          by_k[k]['published'] = theirs[k]
  return figures


def check_claims(
  rows: Mapping[str, Mapping[str, _Row]],
) -> list[dict[str, Any]]:
  """Holds the paper's claims against what came of the methods.

  Args:
    rows: {method: {users: row}}.

  Returns:
    For each claim about methods that are there: its 'text' and 'users', whether
    it 'holds', the 'ratio' of the two perplexities with its 'interval', for how
    many users the first is lower and higher ('users_lower', 'users_higher'),
    and the p-value of the sign test ('p_sign').
  """
  found = []
  for claim in _claims(tuple(rows)):
    sides = []
    for method, k in (claim.first, claim.second):
      if claim.users in rows.get(method, {}):
        sides.append(rows[method][claim.users].of_users(k))
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


def _text(figure: Mapping[str, float | None]) -> str:
  text = '–'
  if figure['ours'] is not None:
    text = repeats.spread(figure['ours'], figure['over_repeats'] or 0.0, '.1f')
  return (
    f'{text} ({figure["published"]:.1f})' if 'published' in figure else text
  )


def _print(title: str, figures: _Figures) -> None:
  for users in (KNOWN, WITHHELD):
    numbers = [f'k = {k}' for k in _AMOUNTS]
    printed = terminal.make_table(
      f'{title}, {users} users', 'method', numbers=numbers
    )
    for method, by_users in figures.items():
      if users in by_users:
        printed.add_row(method, *map(_text, by_users[users].values()))
    terminal.print_table(printed)


def _milliseconds(row: _Row, name: str) -> str:
  """Writes a time of a user, in the mean over repeats that tell it."""
  times = [r[name] for r in row.result.records if r[name] is not None]
  return f'{1e3 * np.mean(times):.1f}' if times else '–'


def _print_times(rows: Mapping[str, Mapping[str, _Row]]) -> None:
  printed = terminal.make_table(
    'Milliseconds a user: in a round of training, and to be adapted (once for'
    ' each k) and evaluated',
    'method',
    numbers=('training', 'testing'),
  )
  for method, by_users in rows.items():
    # Only withheld users are evaluated in two cohorts, which tells the time.
    if method not in DERIVED and WITHHELD in by_users:
      row = by_users[WITHHELD]
      printed.add_row(
        method,
        _milliseconds(row, 'training_seconds'),
        _milliseconds(row, 'evaluation_seconds'),
      )
  terminal.print_table(printed)


def _print_claims(claims: Sequence[Mapping[str, Any]]) -> None:
  for claim in claims:
    low, high = claim['interval']
    print(
      f'{"holds" if claim["holds"] else "does not hold"}: {claim["text"]},'
      f' {claim["users"]} users (ratio {claim["ratio"]:.3f}, {low:.3f} to'
      f' {high:.3f}; lower for {claim["users_lower"]} users, higher for'
      f' {claim["users_higher"]})'
    )


def show(
  title: str,
  cells: Mapping[str, crossed_grids.Cell],
  published: Mapping[str, Mapping[str, float]],
  winners: Mapping[str, grid_results.PointResult],
  folder: pathlib.Path,
) -> dict[str, dict[str, dict[str, float | None]]]:
  """Prints the tables and the claims, and writes the latter.

  Args:
    title: What they show.
    cells: The cell of each row of the grids.
    published: The published figures of a method and users, by k.
    winners: The point of each row that is finished.
    folder: The folder to write to.

  Returns:
    {method: {users: {k: our perplexity}}}.
  """
  rows = _rows(cells, winners)
  figures = compare(rows, published)
  if figures:
    _print(title, figures)
    _print_times(rows)
  claims = check_claims(rows)
  _print_claims(claims)
  folders.write(
    folder / _COMPARISONS,
    f'{json.dumps({"figures": figures, "claims": claims}, indent=2)}\n',
  )
  return {
    method: {
      users: {k: figure['ours'] for k, figure in by_k.items()}
      for users, by_k in by_users.items()
    }
    for method, by_users in figures.items()
  }
