"""Tests of the flags that several programs have."""

from absl import flags

from experiments.command_line import shared_flags


def test_a_flag_is_defined_once_for_all_programs_of_a_process():
  first, second = (shared_flags.workers() for _ in range(2))
  assert first is second is flags.FLAGS['workers']
  assert first.value >= 1


def test_a_flag_is_the_calling_modules():
  shared_flags.dry_run()
  of_module = flags.FLAGS.get_key_flags_for_module(__name__)
  assert 'dry_run' in {flag.name for flag in of_module}
