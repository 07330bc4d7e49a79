"""Reruns a published table, and shows the results beside the published ones.

  reproduce --table=motley_school          everything, with the paper's grids
  reproduce --table=motley_school --best   only the points found best before
  reproduce --table=self_fl_mnist          rows that are compared on clients
  reproduce --table=self_fl_mnist --row=Ditto-w --row=Self-FL    two of them
  reproduce --table=self_fl_gaussian       curves, which are drawn
  reproduce --table=school_private         examples protected, at several ε
  reproduce --table=digits_private         clients protected, at several noises
  reproduce --table=fedpc_tv --weights=distilgpt2/model.safetensors

Every point of the grids is run with every seed, the best is chosen by
validation, and its test metric is shown beside the published one, if there is
one. The same command continues where it was stopped.
"""

from experiments.command_line import stopping

if __name__ == '__main__':
  stopping.listen()  # Before the other imports, which take a while.

from absl import flags

from base import errors
from experiments.command_line import launch
from experiments.command_line import paths
from experiments.command_line import shared_flags
from experiments.reproduction import tables
from experiments.sweeps import launchers

_NAMES = tables.names()

_TABLE = flags.DEFINE_string('table', None, f'The table: {", ".join(_NAMES)}.')
_BEST = flags.DEFINE_bool(
  'best', False, 'Runs only the points that were found best before.'
)
_JSON = shared_flags.new_file(
  'json',
  'A file for the results: {method: {"ours": …, "over_repeats": …,'
  ' "published": …, "hurt": …}}, without the numbers that a method does not'
  ' have. For a table with columns it is {row: {column: …}}, for curves {figure'
  ' and x: {method: …}}, for privacy {method: {ε: {"ours": …,'
  ' "published": …}}}, and for FedPC {method: {"known": {k: perplexity},'
  ' "withheld": {k: …}}}.',
)
_REPEATS = flags.DEFINE_integer(
  'repeats',
  None,
  'Runs only this many of the seeds of the table, the first ones; by default'
  ' all.',
  lower_bound=1,
)
_ROWS = flags.DEFINE_multi_string(
  'row',
  [],
  'Runs only this row of the table, or these rows if it is given several times.'
  ' Of the others, those that are finished are shown.',
)
_WEIGHTS = shared_flags.path(
  'weights',
  "The weights of the GPT-2 that FedPC's tables begin with, such as"
  ' model.safetensors of DistilGPT2, with the tokenizer in the same folder; by'
  ' default gpt2/model.safetensors in the data folder.',
)
_DRY_RUN = shared_flags.dry_run()
_DATA_DIR = shared_flags.data_dir()
_OUTPUT_DIR = shared_flags.output_dir("one with the table's name, in results/")
_LAUNCHER = launchers.define_flags()


def main() -> int:
  """Reruns the table that the flags name, and returns the exit status."""
  if _TABLE.value is None:
    raise errors.UserError(f'Name a table with --table: {", ".join(_NAMES)}.')
  table = tables.read(_TABLE.value)
  json_file = _JSON()
  name = f'{_TABLE.value}{"-best" if _BEST.value else ""}'
  folder = _OUTPUT_DIR() or paths.user_path(f'results/{name}')
  data_dir, launcher = _DATA_DIR(), _LAUNCHER()
  settings, weights = {}, _WEIGHTS()
  if weights is not None:
    # A relative path would start at the folder of the data.
    weights = weights.absolute()
    if not weights.is_file():
      raise errors.UserError(
        f'--weights: there is no file {weights}. Name the weights of a GPT-2,'
        ' or make some with the program pretrain.'
      )
    settings['task.weights'] = str(weights)
  for name, is_given in (('best', _BEST.value), ('row', _ROWS.value)):
    if is_given and table.axes is not None:
      raise errors.UserError(
        f'--{name}: {_TABLE.value} has curves, which show every point. Leave'
        ' the flag out.'
      )
  return launch.load('experiments.reproduction.reruns').main(
    table.changed(_REPEATS.value, settings, _ROWS.value),
    _BEST.value,
    folder,
    json_file,
    data_dir,
    launcher,
    _DRY_RUN.value,
  )


if __name__ == '__main__':
  launch.start(main)
