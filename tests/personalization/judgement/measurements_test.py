"""Tests of what an evaluation needs of clients' sets."""

import dataclasses

from personalization.judgement import measurements
from tasks import registry

_MEASUREMENT = measurements.MeasurementSettings(
  ood_examples=1000,
  evaluation_fractions=(0.5,),
  personalization_fractions=(0.25, 1.0),
  acceptance_margin=0.0,
  acceptance_fraction=0.4,
)
_NOTHING = measurements.MeasurementSettings()
_DEVICES = registry.load('synthetic', num_train_clients=1)
_SILOS = dataclasses.replace(_DEVICES, cross_silo=True)


def test_evaluation_sets_of_devices():
  assert measurements.evaluation_sets(_DEVICES, _MEASUREMENT) == (
    'evaluation',
    'part_0.5',
    'ood',
    'held_out',
  )


def test_silos_hold_out_a_part_of_what_chooses():
  assert measurements.evaluation_sets(_SILOS, _MEASUREMENT) == (
    'validation',
    'test',
    'part_0.5',
    'ood',
    'not_held_out',
    'held_out',
  )
  sets = measurements.further_sets(_SILOS, _MEASUREMENT, 1.0)
  assert sets['not_held_out'] == ('validation', 0, 0.6)
  assert sets['held_out'] == ('validation', 0.6, 1)
  assert measurements.personalization_parts(_SILOS, _MEASUREMENT) == (1.0, 0.25)


def test_parts_of_the_personalization_sets_of_devices():
  parts = measurements.personalization_parts(_DEVICES, _MEASUREMENT)
  assert parts == (1.0, 0.25, 0.6)


def test_without_settings_only_the_own_set_is_measured():
  assert measurements.evaluation_sets(_DEVICES, _NOTHING) == ('evaluation',)
  assert measurements.personalization_parts(_DEVICES, _NOTHING) == (1.0,)


def test_further_sets_are_for_models_of_whole_personalization_sets():
  sets = measurements.further_sets(_DEVICES, _MEASUREMENT, 0.6)
  assert {name: (part.start, part.stop) for name, part in sets.items()} == {
    'part_0.5': (0, 0),
    'ood': (0, 0),
    'held_out': (0.6, 1),
  }
