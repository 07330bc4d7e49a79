"""Tasks of linear regression, whose gradients carry canaries."""

from tasks import task as tasks
from tasks.data import populations
from tasks.models import linear


def make(population: populations.Population, num_features: int) -> tasks.Task:
  """Makes a cross-silo task, whose populations are all the same."""
  return tasks.Task(
    name='made up',
    model=linear.LinearRegression(num_features),
    metric='half_squared_error',
    higher_is_better=False,
    train=population,
    validation=population,
    test=population,
    cross_silo=True,
    batch_size=4,
    padded=True,
  )
