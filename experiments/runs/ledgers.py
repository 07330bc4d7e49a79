"""The ledger of a folder: all uses of protected data by what it releases.

It is in `privacy.json`, with the guarantee of all uses together, for whoever is
in all of them.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
import dataclasses
import json
import math
import pathlib

import dp_accounting

from algorithms import methods
from base import errors
from base import inputs
from base.aliases import Json
from experiments.command_line import terminal
from experiments.configuration import configs
from experiments.reporting import folders
from experiments.reporting import results_folder
from experiments.runs import sources
from personalization.privacy import accounting
from personalization.privacy import ledger
from personalization.privacy import ways


def _list_stages(method: methods.Method) -> list[methods.Method]:
  """Returns a method and those that are trained before it, the first first."""
  before = method.predecessor
  return [*([] if before is None else _list_stages(before)), method]


def _use(
  name: str,
  guarantee: accounting.Guarantee,
  events: Mapping[str, dp_accounting.DpEvent],
  before: Iterable[str],
) -> ledger.Use:
  return ledger.Use(
    name,
    guarantee.unit,
    guarantee.neighbors,
    guarantee.delta,
    guarantee.caveats,
    events,
    tuple(before),
  )


def _list_starts(
  config: configs.Config, guarantee: accounting.Guarantee
) -> tuple[list[ledger.Use], list[str]]:
  """Lists the uses by models that methods start from.

  Returns:
    The uses, and the names of those by the models themselves. Training on
    another task is taken to be on the data of others.
  """
  uses: list[ledger.Use] = []
  names = []
  for folder in config.run.warmstart_from:
    source = sources.read(folder)
    if source.config.task != config.task:
      continue
    training, _ = source.training()
    prefix = f'{source.run.path.resolve()}:'
    names.append(f'{prefix}{training}')
    if source.config.privacy == ways.NONE:
      events = {ledger.ALL: dp_accounting.NonPrivateDpEvent()}
      uses.append(_use(names[-1], guarantee, events, ()))
      continue
    for use in ledger.find_chain(read(source.run.path), [training]):
      before = tuple(f'{prefix}{name}' for name in use.before)
      uses.append(
        dataclasses.replace(use, name=f'{prefix}{use.name}', before=before)
      )
  return uses, names


def make(
  config: configs.Config, built: Mapping[str, methods.Method]
) -> tuple[list[ledger.Use], dict[str, methods.Method]]:
  """Lists the uses of protected data by the methods of a run.

  A training that several methods share is one use. Within silos each method is
  one, as it also personalizes privately.

  Args:
    config: The configuration of the run.
    built: Its methods, by name.

  Returns:
    The uses, and the methods with guarantees that cover what they start from.
  """
  private = {n: m for n, m in built.items() if m.guarantee is not None}
  if not private:
    return [], dict(built)
  in_silos = ways.ENTRIES[config.privacy].of_examples
  names: dict[Hashable, str] = {}
  for name, method in private.items():
    names.setdefault(name if in_silos else method.training_key, name)
  uses, starts = _list_starts(config, next(iter(private.values())).guarantee)
  found = {use.name: use for use in uses}
  made = dict(built)
  for name, method in private.items():
    guarantee, before = method.guarantee, starts
    for stage, events in zip(_list_stages(method), guarantee.stages):
      key = name if in_silos else stage.training_key
      own = names.setdefault(key, f'{name}-global')
      found.setdefault(own, _use(own, guarantee, events, before))
      before = [own]
    if starts:
      total = ledger.add(ledger.find_chain(found.values(), before))
      made[name] = dataclasses.replace(
        method, guarantee=_with_start(guarantee, total)
      )
  return list(found.values()), made


def merge(uses: Iterable[ledger.Use]) -> list[ledger.Use]:
  """Returns uses of which those that are alike are one, and happen more often.

  What many start from is one use, as the name says.
  """
  alike: dict[Hashable, ledger.Use] = {}
  for use in {use.name: use for use in uses}.values():
    # Points have the same events if their guarantees are one object.
    key = id(use.events), use.before
    times = alike[key].times if key in alike else 0
    alike[key] = dataclasses.replace(use, times=times + use.times)
  return list(alike.values())


def _with_start(
  guarantee: accounting.Guarantee, total: ledger.Total
) -> accounting.Guarantee:
  """Returns the guarantee of a training and of the model that it starts from.

  Raises:
    UserError: If there is none.
  """
  if total.epsilon is None:
    raise errors.UserError(
      f'warmstart_from: with the model that training starts from, there is'
      f' {total}. Use the same privacy and client_sampling for both.'
    )
  return dataclasses.replace(
    guarantee,
    epsilon=total.epsilon,
    accountant=total.accountant,
    assumptions=(
      *guarantee.assumptions,
      'ε includes the training of the model that this one starts from',
    ),
  )


def _describe(uses: Sequence[ledger.Use], total: ledger.Total) -> str:
  """Says what all uses together guarantee, in a sentence."""
  text = f'This folder has one private training: {total}'
  if total.num_uses > 1:
    text = f'All {total.num_uses} trainings of this folder together: {total}'
  if total.epsilon == math.inf:
    open_uses = [use.name for use in uses if use.is_open]
    text += f', because of {" and ".join(open_uses)}'
  elif total.epsilon is not None:
    text += f', by {total.accountant}. Neighbors: {total.neighbors}'
  return f'{text}.'


def gather(by_seed: Mapping[int, pathlib.Path]) -> list[ledger.Use]:
  """Lists the uses by all repeats of a run, if they are private."""

  def rename(seed: int, name: str) -> str:
    # All seeds start from the same models of other folders.
    return name if ':' in name else f'seed {seed}: {name}'

  gathered = [
    dataclasses.replace(
      use,
      name=rename(seed, use.name),
      before=tuple(rename(seed, name) for name in use.before),
    )
    for seed, path in by_seed.items()
    if (path / results_folder.PRIVACY).exists()
    for use in read(path)
  ]
  return list({use.name: use for use in gathered}.values())


def show(path: pathlib.Path) -> None:
  """Shows what the uses of a folder guarantee together, if it has a ledger."""
  if (path / results_folder.PRIVACY).exists():
    terminal.say(_read(path)['text'])


def write_text(uses: Sequence[ledger.Use]) -> str:
  """Writes the ledger of a folder, as a text of JSON."""
  total = ledger.add(uses)
  written = {
    'text': _describe(uses, total),
    'all': total.to_json(),
    'uses': [use.to_json() for use in uses],
  }
  return folders.to_json(written, ensure_ascii=False)


def files(uses: Sequence[ledger.Use]) -> dict[str, str]:
  """Makes the file of the ledger, if there are uses; returns it by its name."""
  return {results_folder.PRIVACY: write_text(uses)} if uses else {}


def _read(path: pathlib.Path) -> dict[str, Json]:
  file = path / results_folder.PRIVACY
  try:
    written = json.loads(inputs.read_text(file))
    uses = [ledger.Use.from_json(use) for use in written['uses']]
    return {'text': str(written['text']), 'uses': uses}
  except FileNotFoundError as error:
    raise errors.UserError(
      f'{file} is missing, which says how private the results are: they are'
      ' those of an older version. Do the run again, in another folder.'
    ) from error
  except folders.DAMAGE as error:
    raise errors.UserError(
      f'{file} is damaged ({folders.fault(error)}). Do the run again, in'
      ' another folder.'
    ) from error


def read(path: pathlib.Path) -> list[ledger.Use]:
  """Reads the uses in the ledger of a folder.

  Raises:
    UserError: If it is not there, or damaged.
  """
  uses: list[ledger.Use] = _read(path)['uses']
  return uses
