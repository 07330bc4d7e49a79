import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from algorithms import registry
from base import errors
from tests.algorithms import helpers


class RegistryTest(parameterized.TestCase):
  def test_a_wrong_name_is_answered_without_importing_tensorflow(self):
    code = """if True:
      import sys
      from algorithms import registry
      from base import errors
      assert 'fedavg' in registry.algorithm_names()
      try:
        registry.check('fedavgg')
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
    self.assertIn("Did you mean 'fedavg'?", output)

  @parameterized.parameters(*registry.algorithm_names())
  def test_builds_each_method_as_it_is_by_default(self, name):
    algorithm = registry.build(
      name,
      helpers.MODEL,
      registry.hyperparameters(name, {}),
      helpers.mean(),
      helpers.SETS,
      num_clients=5,
    )
    self.assertNotEmpty(algorithm.candidates)

  def test_a_name_may_be_a_module_with_other_defaults(self):
    fedadam = registry.hyperparameters('fedadam', {})
    self.assertEqual(fedadam.server_optimizer, 'adam')
    self.assertEqual(
      registry.hyperparameters('fedavg', {}).server_optimizer, 'sgd'
    )

  def test_what_the_user_says_is_stronger_than_the_defaults(self):
    damped = registry.hyperparameters(
      'fedavgm',
      {'server_optimizer': 'damped_momentum', 'server_learning_rate': '1'},
    )
    self.assertEqual(damped.server_optimizer, 'damped_momentum')
    self.assertEqual(damped.server_learning_rate, 1.0)

  def test_the_names_of_hyperparameters(self):
    names = registry.hyperparameter_names('finetuning')
    self.assertIn('client_learning_rate', names)
    self.assertIn('finetuning_epochs', names)
    self.assertNotIn(
      'client_learning_rate', registry.hyperparameter_names('local')
    )

  def test_an_unknown_hyperparameter(self):
    with self.assertRaisesRegex(
      errors.UserError, "local: Unknown .* Did you mean 'finetuning_epochs'?"
    ):
      registry.hyperparameters('local', {'finetuning_epoch': 3})


if __name__ == '__main__':
  absltest.main()
