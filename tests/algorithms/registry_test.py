"""The methods by name."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from algorithms import as_trained
from algorithms import fedavg
from algorithms import finetuning
from algorithms import hypcluster
from algorithms import registry
from base import errors
from base import settings
from tests.algorithms import helpers


def test_names_are_answered_without_importing_anything_heavy():
  code = """if True:
    import sys
    from algorithms import registry
    from base import errors
    assert 'fedavg' in registry.short_names()
    assert registry.canonical_name('fedavg+finetuning') == 'finetuning'
    try:
      registry.canonical_name('fedavgg')
    except errors.UserError as error:
      print(error)
    heavy = {'tensorflow', 'tensorflow_federated', 'numpy'}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
  """
  # The parent's path, wherever the test is run from.
  code = f'import sys; sys.path[:] = {sys.path!r}\n{code}'
  output = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  ).stdout
  assert "Did you mean 'fedavg'?" in output


@pytest.mark.parametrize(
  'name, canonical',
  [
    ('fedavg', 'fedavg'),
    ('finetuning', 'finetuning'),
    ('fedavg+as_trained', 'fedavg'),
    ('fedavg+finetuning', 'finetuning'),
    ('fedavg+knn_per', 'knn_per'),
    ('local+finetuning', 'local'),
    ('ditto+ditto', 'ditto'),
    ('mocha+as_trained', 'mocha'),
    ('fedrep+head_finetuning', 'fedrep'),
    ('fedrep+as_trained', 'fedrep+as_trained'),
    ('fedbabu+finetuning', 'fedbabu'),
    ('hypcluster+finetuning', 'hypcluster+finetuning'),
    ('ditto+finetuning', 'ditto+finetuning'),
  ],
)
def test_a_pair_with_a_short_name_has_that_name(name, canonical):
  assert registry.canonical_name(name) == canonical


@pytest.mark.parametrize('name', registry.short_names())
def test_short_names_are_canonical(name):
  assert registry.canonical_name(name) == name


def test_an_unknown_personalizer_is_answered_with_those_there_are():
  with pytest.raises(errors.UserError) as error:
    registry.canonical_name('fedavg+nothing')
  assert "fedavg+nothing: Unknown personalizer 'nothing'." in str(error.value)
  assert ', '.join(sorted(registry.PERSONALIZERS)) in str(error.value)


@pytest.mark.parametrize(
  'name, message',
  [
    ('nothing', "Unknown algorithm 'nothing'"),
    ('fedavgg+finetuning', "Unknown trainer 'fedavgg'. Did you mean 'fedavg'?"),
    ('+finetuning', "Unknown trainer ''"),
    ('fedavg+', "Unknown personalizer ''"),
    ('fedavg+finetuning+knn_per', "Unknown personalizer 'finetuning+knn_per'"),
    ('fedavg+ditto', 'ditto personalizes only what ditto trained'),
  ],
)
def test_refuses_what_is_no_method(name, message):
  for function in (registry.canonical_name, registry.settings_names):
    with pytest.raises(errors.UserError) as error:
      function(name)
    assert message in str(error.value)


def test_a_name_may_be_a_trainer_with_other_defaults():
  fedadam = registry.make_settings('fedadam', {}).trainer
  fedavg = registry.make_settings('fedavg', {}).trainer
  assert type(fedadam) is type(fedavg)
  assert fedadam.server_optimizer == 'adam'
  assert fedavg.server_optimizer == 'sgd'


def test_the_defaults_of_a_trainer_are_those_of_its_pairs():
  pair = registry.make_settings('fedadam+finetuning', {'finetuning_epochs': 3})
  assert pair.trainer == registry.make_settings('fedadam', {}).trainer
  assert pair.personalizer.finetuning_epochs == 3


def test_what_the_user_says_is_stronger_than_the_defaults():
  damped = registry.make_settings(
    'fedavgm',
    {'server_optimizer': 'damped_momentum', 'server_learning_rate': '1'},
  ).trainer
  assert damped.server_optimizer == 'damped_momentum'
  assert damped.server_learning_rate == 1.0


def test_the_values_are_split_between_the_halves():
  pair = registry.make_settings(
    'hypcluster+finetuning', {'num_clusters': '3', 'finetuning_epochs': 7}
  )
  assert pair.trainer == hypcluster.HypClusterSettings(num_clusters=3)
  assert pair.personalizer == finetuning.FinetuningSettings(finetuning_epochs=7)


def test_all_settings_are_those_of_both_halves():
  made = registry.make_settings('finetuning', {'finetuning_epochs': 7})
  items = made.to_dict()
  assert tuple(items) == registry.settings_names('finetuning')
  assert items['finetuning_epochs'] == 7
  assert items['client_learning_rate'] == 0.1


def test_the_names_of_settings():
  names = registry.settings_names('finetuning')
  assert 'client_learning_rate' in names
  assert 'finetuning_epochs' in names
  assert 'client_learning_rate' not in registry.settings_names('local')


@pytest.mark.parametrize(
  'trainer, personalizer',
  list(itertools.product(registry.TRAINERS, registry.PERSONALIZERS)),
)
def test_no_trainer_has_a_setting_of_the_name_of_a_personalizers(
  trainer, personalizer
):
  halves = registry.TRAINERS[trainer], registry.PERSONALIZERS[personalizer]
  first, second = (set(vars(half.settings_class()())) for half in halves)
  assert not first & second


def test_an_unknown_setting_is_answered_with_the_nearest():
  with pytest.raises(
    settings.SettingError,
    match="local: Unknown setting .* Did you mean 'finetuning_epochs'?",
  ) as error:
    registry.make_settings('local', {'finetuning_epoch': 3})
  assert error.value.name == 'finetuning_epoch'


def test_a_value_that_cannot_be_is_answered_with_the_methods_name():
  with pytest.raises(
    settings.SettingError, match='^fedavg: client_learning_rate must be'
  ):
    registry.make_settings('fedavg', {'client_learning_rate': 'fast'})


def test_builds_both_halves_with_their_settings():
  method = helpers.build('hypcluster+finetuning', finetuning_epochs=7)
  assert type(method.trainer) is hypcluster.HypCluster
  assert type(method.personalizer) is finetuning.Finetuning
  assert method.trainer.model is helpers.MODEL
  assert method.personalizer.settings.finetuning_epochs == 7
  assert method.evaluation_sets == helpers.SETS


def test_a_trainers_name_alone_is_without_personalization():
  method = helpers.build('hypcluster')
  assert type(method.personalizer) is as_trained.AsTrained


@pytest.mark.parametrize('said, clients', [(0, 5), (3, 3)])
def test_a_trainer_is_told_the_number_of_clients_unless_it_is_set(
  said, clients
):
  made = registry.make_settings('mocha', {'num_clients': said})
  method = registry.build(
    'mocha', helpers.MODEL, made, helpers.MEAN, helpers.SETS, num_clients=5
  )
  state = method.initial_state([0, 1])
  assert np.shape(state.server.models) == (clients, 4)


@pytest.fixture(name='registered')
def _registered(monkeypatch):
  """Lets a test register what others do not see."""
  monkeypatch.setattr(registry, 'TRAINERS', {**registry.TRAINERS})
  monkeypatch.setattr(registry, 'PERSONALIZERS', {**registry.PERSONALIZERS})


_ABOUT = dict(title='Own', does='nothing new')


def test_a_registered_trainer_is_a_method(registered):
  registry.register_trainer(
    'own',
    fedavg.FedAvg,
    sends='the update',
    personalizer='finetuning',
    **_ABOUT,
  )
  assert registry.halves('own') == ('own', 'finetuning')
  assert registry.title('own+knn_per') == 'Own + kNN'
  assert 'own' in registry.short_names()


def test_a_registered_personalizer_may_have_a_short_name(registered):
  registry.register_personalizer(
    'own', finetuning.Finetuning, trainer='fedadam', **_ABOUT
  )
  assert registry.halves('own') == ('fedadam', 'own')
  assert registry.title('own') == 'FedAdam + Own'


def test_what_is_registered_must_be_of_the_kind(registered):
  with pytest.raises(TypeError, match='derived from Trainer'):
    registry.register_trainer('own', finetuning.Finetuning, sends='', **_ABOUT)
  with pytest.raises(TypeError, match='derived from Personalizer'):
    registry.register_personalizer('own', fedavg.FedAvg, **_ABOUT)


def test_a_name_is_registered_once(registered):
  with pytest.raises(ValueError, match='ditto is registered already'):
    registry.register_trainer('ditto', fedavg.FedAvg, sends='', **_ABOUT)


def test_an_argument_that_is_not_known_is_refused(registered):
  with pytest.raises(TypeError, match='titel'):
    registry.register_trainer(
      'own', fedavg.FedAvg, sends='', titel='Own', **_ABOUT
    )


@pytest.mark.parametrize(
  'entries', [registry.TRAINERS, registry.PERSONALIZERS], ids=['t', 'p']
)
def test_modules_register_what_is_read_from_their_sources(entries):
  for entry in list(entries.values()):
    entry.load()  # Refuses to register anything else by the same name.
