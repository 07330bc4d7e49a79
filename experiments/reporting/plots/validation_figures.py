"""The figure of the validation clients during training."""

from collections.abc import Iterator

from experiments.reporting import repeats
from experiments.reporting.plots import round_plots
from experiments.reporting.plots import style

_HURT = 'validation clients hurt'


def of_validation(
  repeated: repeats.Repeats, judged: tuple[str, bool]
) -> Iterator[tuple[str, style.Figure]]:
  """Draws the validation clients by round, which shows when to stop.

  Args:
    repeated: The repeats.
    judged: The metric, and whether higher is better.

  Yields:
    'validation' and the figure, if there were evaluations during a training. It
    has the mean at the candidate that would be chosen and, for methods that
    personalize, the share of clients hurt.
  """
  metric, higher_is_better = judged
  label = style.metric_label(f'validation {metric}', higher_is_better)
  panels: dict[str, dict[str, dict[int, list[float]]]] = {}
  for method in repeated.methods:
    measured = {label: 'metric'}
    # Nobody is hurt by the only candidate.
    if len(repeated.names(method, 'candidates')) > 1:
      measured[_HURT] = 'hurt'
    for run in repeated.runs:
      found = run.validation.get(method, {})
      for panel, column in measured.items():
        if column in found:
          series = panels.setdefault(panel, {}).setdefault(method, {})
          for number, value in zip(found['round'], found[column]):
            series.setdefault(int(number), []).append(value)
  if panels:
    yield 'validation', round_plots.learning_curves(panels, [_HURT])
