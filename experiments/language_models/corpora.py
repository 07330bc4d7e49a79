"""The texts that a language model is pretrained on.

A corpus is a folder of WikiText or a file: of WikiText (.tokens), a plain text
(.txt), or lines of JSON with a text in each (.jsonl). Each file may be
compressed (.gz).

A model would learn to say what it reads. So the headings of WikiText are left
out, and `<unk>`, which stands for rare words there. In lines of JSON, texts of
some users or contexts can be left out, such as those of users that the model
will be evaluated on.
"""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
import re

from base import errors
from base import words
from base.aliases import Json
from experiments.command_line import terminal
from tasks import wikitext
from tasks.data import texts

# The fields of JSON that name a user or a context, with commas between them,
# and the names to leave out, each the values of the fields with spaces between.
LeftOut = Mapping[str, Sequence[str]]

_SPLITS = ('train', 'valid', 'test')
_UNKNOWN = re.compile(f' ?{texts.UNKNOWN}')
# Where WikiText has spaces that other texts lack: within numbers and compounds,
# before what ends a phrase, behind what begins one, in contractions, genitives
# and ranges, inside quotation marks, and around the ends of lines.
_SPACES = (
  (re.compile(r' @([-,.])@ '), r'\1'),
  (re.compile(r' ([,.;:!?%)\]])'), r'\1'),
  (re.compile(r'([(\[$£]) '), r'\1'),
  (re.compile(r" '(s|t|re|ve|ll|d|m)\b"), r"'\1"),
  (re.compile(r"s ' "), "s' "),
  (re.compile(r'(\d) – (\d)'), r'\1–\2'),
  (re.compile(r'" ([^"\n]*?) ?"'), r'"\1"'),
  (re.compile(r' *\n *'), '\n'),
)
_ADVICE = (
  'Unpack WikiText-2 or WikiText-103 in the data folder and name the folder of'
  ' its files as --source, or name a file that ends in .tokens, .txt or .jsonl.'
)
_ADVICE_ON_LINES = (
  'Name the field of the texts as --text_field, and have the same fields in all'
  ' lines of a file.'
)


def join_tokens(text: str) -> str:
  """Takes out the spaces that WikiText has put around punctuation marks."""
  for pattern, replacement in _SPACES:
    text = pattern.sub(replacement, text)
  return text


def _read_wikitext(path: pathlib.Path, joins: bool) -> str:
  """Reads the paragraphs of a file of WikiText."""
  paragraphs, num_headings = [], 0
  with texts.open_lines(path) as lines:
    for kind, line in wikitext.read_lines(lines):
      if kind == wikitext.PARAGRAPH:
        paragraphs.append(line)
      else:
        num_headings += 1
  terminal.say(f'{path}: left out {words.count(num_headings, "headings")}')
  text = ''.join(paragraphs)
  return join_tokens(text) if joins else text


class _JsonReader:
  """Reads lines of JSON, without some users or contexts.

  Attributes:
    names: The names that the texts have, by the fields of `LeftOut`.
  """

  def __init__(self, text_field: str, left_out: LeftOut):
    self._text_field = text_field
    self._left_out = {fields: set(names) for fields, names in left_out.items()}
    self.names: dict[str, set[str]] = {fields: set() for fields in left_out}

  def read(self, path: pathlib.Path) -> Iterator[str]:
    """Yields the texts of a file that are not left out."""
    of_first: list[str] | None = None

    def parse(found: Json) -> tuple[str, bool]:
      nonlocal of_first
      (text,) = texts.text_fields(found, [self._text_field])
      of_line = [
        fields
        for fields in self._left_out
        if all(field in found for field in fields.split(','))
      ]
      of_first = of_line if of_first is None else of_first
      if of_line != of_first:
        raise ValueError(
          'not the fields of --leave_out that the first line has'
        )
      stays = True
      for fields in of_line:
        name = ' '.join(texts.text_fields(found, fields.split(',')))
        self.names[fields].add(name)
        stays = stays and name not in self._left_out[fields]
      return text, stays

    num_left_out = 0
    lines = texts.read_json_lines(path, parse, 'a text', _ADVICE_ON_LINES)
    for text, stays in lines:
      num_left_out += not stays
      if stays:
        yield f'{text.strip()}\n'
    terminal.say(f'{path}: left out {words.count(num_left_out, "texts")}')

  def check(self) -> None:
    """Raises a `UserError` if a name to leave out is that of no text."""
    for fields, names in self._left_out.items():
      if not self.names[fields]:
        raise errors.UserError(
          f'--leave_out={fields}=…: no .jsonl file of --source has {fields}.'
        )
      for name in names:
        if name not in self.names[fields]:
          unknown = errors.unknown(fields, name, self.names[fields])
          raise errors.UserError(f'--leave_out: {unknown}')


def _files(source: str, data_dir: str | None) -> list[pathlib.Path]:
  """Finds the files of a corpus."""
  if source.removesuffix('.gz').endswith(('.tokens', '.txt', '.jsonl')):
    return [texts.find(source.removesuffix('.gz'), data_dir, _ADVICE)]
  names = [f'{source}/wiki.{split}.tokens' for split in _SPLITS]
  found = [texts.look_for(name, data_dir) for name in names]
  return [path for path in found if path] or [
    texts.find(names[0], data_dir, _ADVICE)  # Says where it is not.
  ]


def read(
  sources: Sequence[str],
  data_dir: str | None,
  joins: bool,
  text_field: str,
  left_out: LeftOut,
) -> list[str]:
  """Reads corpora, and says what is left out.

  Args:
    sources: The names of the corpora in the data folder.
    data_dir: The folder of the data sets.
    joins: Whether to apply `join_tokens` to WikiText.
    text_field: The field of the texts in lines of JSON.
    left_out: The users or contexts that are left out in lines of JSON.

  Returns:
    Spans of texts. What came before the first word of a span is not known.

  Raises:
    UserError: If a file cannot be read, or a name to leave out is in none.
  """
  reader = _JsonReader(text_field, left_out)
  found: list[str] = []
  for source in sources:
    for path in _files(source, data_dir):
      ending = path.name.removesuffix('.gz').rpartition('.')[-1]
      if ending == 'jsonl':
        found += reader.read(path)
      elif ending == 'tokens':
        found.append(_read_wikitext(path, joins))
      else:
        with texts.open_lines(path) as lines:
          found.append(''.join(lines))
  reader.check()
  spans = [_UNKNOWN.split(text) for text in found]
  gaps = sum(map(len, spans)) - len(spans)
  if gaps:
    terminal.say(f'Left out {texts.UNKNOWN} {words.count(gaps, "times")}')
  return [span for of_text in spans for span in of_text if span]
