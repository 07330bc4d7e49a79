"""The models of a finished run, exported for use without this project."""

from collections.abc import Mapping, Sequence
import hashlib
import pathlib
import urllib.parse

from base import errors
from base.aliases import Json
from experiments.command_line import terminal
from experiments.reporting import exported_models
from experiments.reporting import folders
from experiments.runs import execution
from experiments.runs import finished_methods
from experiments.runs import personal_weights
from experiments.runs import sources
from tasks import task as tasks

# File systems take names of up to 255 bytes.
_LONGEST_NAME = 200


def _facts(
  source: sources.Source, task: tasks.Task, title: str, **more: Json
) -> dict[str, Json]:
  """Describes a model for a user who does not have the run."""
  return {
    'title': title,
    'run': source.name,
    **more,
    'task': source.config.to_dict()['task'],
    'metric': task.metric,
    'higher_is_better': task.higher_is_better,
    'encoding': task.encoding,
    'vocabulary': list(task.vocabulary),
    'contexts': list(task.contexts),
    'frozen_weights_sha256': task.model.frozen_digest,
  }


def _trained(
  source: sources.Source, task: tasks.Task
) -> dict[str, exported_models.Exported]:
  """Finds the models that all clients share."""
  name, _ = source.training()
  found = execution.saved_models(source, task)
  exported = {}
  for k, weights in enumerate(found):
    only = len(found) == 1
    title = 'Global model' if only else f'Model {k}'
    facts = _facts(source, task, f'{title} of {name}', method=name)
    exported['' if only else f'model_{k}'] = exported_models.Exported(
      task.model, weights, facts
    )
  return exported


def _folder_name(client: str) -> str:
  """Returns a name of a folder for a client, whatever its own name is."""
  name = urllib.parse.quote(client, safe=' ')
  if set(name) <= {'.'}:
    return name.replace('.', '%2E')
  if len(name) <= _LONGEST_NAME:
    return name
  # Long names may begin alike.
  digest = hashlib.sha256(client.encode()).hexdigest()
  return f'{name[: _LONGEST_NAME - len(digest) - 1]}-{digest}'


def _personal(
  source: sources.Source,
  task: tasks.Task,
  candidates: Mapping[str, str],
  name: str,
) -> dict[str, exported_models.Exported]:
  """Finds the models of clients."""
  source.check_frozen_weights(name, task)
  found = personal_weights.personalize(source, task, name, candidates)
  return {
    _folder_name(client): exported_models.Exported(
      personal.model,
      personal.weights,
      _facts(
        source,
        task,
        f'Model of {client} by {name}: {personal.candidate}',
        method=name,
        client=client,
        candidate=personal.candidate,
      ),
    )
    for client, personal in found.items()
  }


def main(
  run_name: str,
  clients: Sequence[str],
  all_clients: bool,
  candidate: str | None,
  output_dir: pathlib.Path,
  data_dir: str | None,
) -> int:
  """Exports what a user asked for; returns the exit status."""
  folders.check_empty('output_dir', output_dir)
  if clients and all_clients:
    raise errors.UserError(
      '--client and --all_clients were both given. Leave out one of the two.'
    )
  source = sources.read(run_name)
  run, config = source.run, source.config
  if clients or all_clients:
    name = source.method()
    personal_weights.check(source, name)
    if all_clients:
      clients = [row['client'] for row in run.clients[name]]
    known = run.methods[name]['candidates']
    if candidate is None:
      candidates = finished_methods.chosen_candidates(run, name, clients)
    elif candidate in known:
      candidates = dict.fromkeys(clients, candidate)
    else:
      raise errors.unknown('candidate', candidate, known)
    task = execution.load_task(config, data_dir)
    exported = _personal(source, task, candidates, name)
  elif candidate is not None:
    raise errors.UserError('--candidate is for the model of a --client.')
  else:
    source.training()
    task = execution.load_task(config, data_dir)
    exported = _trained(source, task)
  exported_models.write(output_dir, exported)
  terminal.say(
    f'Written to {output_dir}: '
    + ', '.join(name or 'a model' for name in list(exported)[:5])
    + (', …' if len(exported) > 5 else '')
  )
  return 0
