from absl.testing import absltest

from base import errors


class UnknownTest(absltest.TestCase):
  def test_names_the_nearest_and_all_that_are_known(self):
    message = str(errors.unknown('task', 'scool', {'school', 'emnist'}))
    self.assertEqual(
      message,
      "Unknown task 'scool'. Did you mean 'school'? Known: emnist, school.",
    )

  def test_names_none_if_none_is_near(self):
    message = str(errors.unknown('task', 'xyz', ['school']))
    self.assertNotIn('Did you mean', message)

  def test_nothing_known(self):
    message = str(errors.unknown('parameter', 'x', []))
    self.assertEqual(message, "Unknown parameter 'x'. Known: none.")


if __name__ == '__main__':
  absltest.main()
