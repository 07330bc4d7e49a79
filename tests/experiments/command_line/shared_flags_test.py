"""Tests of the flags that several programs have."""

from absl import flags

from experiments.command_line import shared_flags
from tests.experiments import programs


def test_a_flag_is_the_calling_modules():
  shared_flags.dry_run()
  of_module = flags.FLAGS.get_key_flags_for_module(__name__)
  assert 'dry_run' in {flag.name for flag in of_module}


def test_a_variable_that_is_empty_names_no_folder(tmp_path):
  source = tmp_path / 'no_talks'
  done = programs.run(
    'prepare_ted_multi', f'--source={source}', PFL_DATA_DIR=''
  )
  assert done.returncode == 1
  assert f'There is no {source}/all_talks' in done.stderr
