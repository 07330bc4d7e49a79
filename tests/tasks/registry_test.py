import subprocess
import sys

from absl.testing import absltest

from base import errors
from tasks import registry


class RegistryTest(absltest.TestCase):
  def test_a_wrong_name_is_answered_without_importing_tensorflow(self):
    code = """if True:
      import sys
      from base import errors
      from tasks import registry
      assert 'school' in registry.task_names()
      try:
        registry.load('scool')
      except errors.UserError as error:
        print(error)
      heavy = {'tensorflow', 'tensorflow_federated', 'numpy', 'sklearn'}
      assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    # The parent's path, wherever the test is run from.
    code = f'import sys; sys.path[:] = {sys.path!r}\n{code}'
    output = subprocess.run(
      [sys.executable, '-c', code], check=True, capture_output=True, text=True
    ).stdout
    self.assertIn("Did you mean 'school'?", output)

  def test_loads_a_task_with_its_parameters(self):
    task = registry.load('synthetic', seed=1, num_test_clients='7')
    self.assertEqual(task.name, 'synthetic')
    self.assertLen(task.test.client_ids, 7)

  def test_an_unknown_parameter(self):
    with self.assertRaisesRegex(
      errors.UserError, "task synthetic: Unknown .* Did you mean 'alpha'?"
    ):
      registry.load('synthetic', alhpa=1)

  def test_a_parameter_out_of_its_range(self):
    with self.assertRaisesRegex(
      errors.UserError, 'task synthetic: beta must be at least 0, not -1.0'
    ):
      registry.load('synthetic', beta=-1)


if __name__ == '__main__':
  absltest.main()
