"""Names and texts that attack whatever shows, writes or reads them.

Data come from anywhere, so that a client, a group, a class, a column or a
folder may have any of these names. Tests of all programs take them from here:
whoever finds another one adds it, and it is tried everywhere.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal

# What each script would do, if it ran: tests look for it.
RAN = 'attacked'
_RUN = f"document.title='{RAN}'"

# By what they attack.
NAMES = {
  'script in capitals': f'</SCRIPT><img src=y onerror="{_RUN}">',
  'script in mixed case': f'</sCrIpT ><sCrIpT>{_RUN}</ScRiPt>',
  'script with a slash': f'</script/><svg/onload="{_RUN}">',
  'script in a comment': f'<!--<script>{_RUN}',
  'end of a comment': f'--!><script>{_RUN}</script>',
  'end of a title': f'</title></style></textarea><script>{_RUN}</script>',
  'attribute in double quotes': f'" autofocus onfocus="{_RUN}" x="',
  'attribute in single quotes': f"' onmouseover='{_RUN}' x='",
  'address': f'javascript:{_RUN}',
  'link of Markdown': f'[a](javascript:{_RUN}) ![b](data:,c) <http://d.e>',
  'code of Markdown': '`a` **b** __c__ ~~d~~ \\| | e | # f',
  'entity': f'&lt;img src=y onerror={_RUN}&gt;',
  'section': ']]><script>a</script>',
  'template': '$title ${libraries} {{7*7}} %s {0}',
  'command of LaTeX': '\\input{/etc/passwd} $\\write18{id}$ %a^^5cb ~_#&',
  'options of LaTeX': '[2cm] *',
  'text of JavaScript': "';alert(1);//\\u0022\u2028\u2029",
  'prototype': '__proto__',
  'formula': '=HYPERLINK("http://a.b","c")',
  'formula of other signs': '@SUM(1+1)*cmd|x!A0',
  'formula after a tab': '\t=1+1',
  'zero byte': 'a\x00b',
  'control characters': 'a\x01\x07\x08\x0b\x0c\x1b]0;b\x07\x1b[2J\x7f\x9b31m',
  'lines': 'a\nb\r\nc',
  'right to left': '\u202eevil\u202c \u2066x\u2069 \u200fy',
  'wide': '\uff1cscript\uff1e\ufeff\u00a0',
  'folder above': '../../a/..',
  'path': '/etc/passwd',
  'long': 'n' * 5000,
  'markup of the terminal': '[bold red]a[/] [link=http://b.c]d[/link]',
  'blank': ' ',
}

# Texts that no file of UTF-8 has, but that JSON can say.
UNWRITABLE = {'half a character': 'a\ud800b'}


# Makes what looks like a file, and of which nobody sees the end.
ENDLESS = {
  'pipe': os.mkfifo,
  'device': lambda path: pathlib.Path(path).symlink_to('/dev/zero'),
  'terminal': lambda path: pathlib.Path(path).symlink_to('/dev/tty'),
}


@contextlib.contextmanager
def soon(seconds: int = 30) -> Iterator[None]:
  """Ends a test that waits for ever."""

  def fail(*_: object) -> None:
    raise AssertionError(f'It has waited for {seconds} s.')

  before = signal.signal(signal.SIGALRM, fail)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
