"""Tests of the page of a report in a real browser.

Pictures of it are among the outputs of the test.
"""

import base64
import hashlib
import html
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from experiments.reporting import sources
from experiments.reporting.pages import page
from experiments.reporting.pages import report
from tests import attacks
from tests.experiments import made_up_folders
from tests.experiments.reporting.pages import attacked_reports

_BROWSER = shutil.which('chromium') or shutil.which('google-chrome')
pytestmark = pytest.mark.skipif(
  _BROWSER is None, reason="there is no browser; Debian's package is chromium"
)

# Presses a button twice, and has the orders of the rows as the title.
_PRESS = """
<script type="module">
const table = document.querySelectorAll('table.sortable')[TABLE];
const button = table.querySelectorAll('thead button')[COLUMN];
const orders = [1, 2].map(() => {
  button.click();
  return [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
});
document.title = orders.join(' then ');
</script></body>
"""

# Has as the title how many of the visible things to press or scroll take the
# keyboard's focus.
_FOCUS = """
<script type="module">
const selector = 'a, button, select, input, summary, .wide';
const visible = [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility());
const focused = visible.filter((element) => {
  element.focus();
  return element === document.activeElement && element.tabIndex >= 0;
});
document.title = `${focused.length} of ${visible.length}`;
</script></body>
"""


def _browse(path: pathlib.Path, *flags: str) -> str:
  """Opens a page; returns what the browser prints."""
  done = subprocess.run(
    [
      _BROWSER,
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--hide-scrollbars',
      '--enable-logging=stderr',
      '--virtual-time-budget=10000',
      f'--user-data-dir={path.parent / "profile"}',
      *flags,
      path.as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=300,
  )
  messages = re.findall(r'CONSOLE.*?"(.*)", source', done.stderr)
  # Vega-Lite warns of heights that follow from the number of rows, and of many
  # groups.
  known = 'Dropping "fit-y"', 'Symbol legend count exceeds limit'
  serious = [t for t in messages if not any(part in t for part in known)]
  assert not serious, serious
  return done.stdout


def _title_after(path: pathlib.Path, script: str) -> str:
  """Returns the title of a page that ends with a script, which it allows."""
  code = re.search('<script[^>]*>(.*)</script>', script, re.DOTALL)[1]
  digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
  text = path.read_text().replace('script-src', f"script-src 'sha256-{digest}'")
  path.write_text(text.rpartition('</body>')[0] + script)
  title = re.search('<title>(.*?)</title>', _browse(path, '--dump-dom'))
  return html.unescape(title.group(1))


@pytest.fixture(name='made', scope='module')
def _made(tmp_path_factory) -> page.Report:
  root = tmp_path_factory.mktemp('browser')
  paths = [
    made_up_folders.write_run(root / 'one'),
    made_up_folders.write_run(root / 'two', seed=1),
    made_up_folders.write_grid(root / 'grid'),
  ]
  return report.make(sources.read(paths), 'report one two grid')


@pytest.fixture(name='path')
def _path(made, tmp_path) -> pathlib.Path:
  path = tmp_path / 'report.html'
  path.write_text(page.to_html(made))
  return path


def test_draws_every_chart(path):
  dom = _browse(path, '--dump-dom')
  charts = re.findall(r'id="chart-[^"]*"(.*?)</section>|', dom, re.DOTALL)
  assert dom.count('<svg') >= sum('chart' in chart for chart in charts) > 0
  assert 'cannot be drawn: Error' not in dom


def test_a_button_sorts_a_table_up_and_down(path):
  press = _PRESS.replace('TABLE', '2').replace('COLUMN', '1')
  up, down = _title_after(path, press).split(' then ')
  assert up.split(',') == down.split(',')[::-1]


def test_all_can_be_done_by_keyboard(path):
  focused, visible = _title_after(path, _FOCUS).split(' of ')
  assert int(focused) == int(visible) > 30


def test_no_name_runs_a_script(tmp_path):
  path = tmp_path / 'report.html'
  path.write_text(page.to_html(attacked_reports.make()))
  dom = _browse(path, '--dump-dom')
  (title,) = re.findall('<title>(.*?)</title>', dom)
  assert html.unescape(title) == attacked_reports.make().title
  assert 'cannot be drawn' not in dom.rpartition('<script')[0]


def test_a_page_runs_no_script_but_its_own(path):
  added = f"<script>document.title='{attacks.RAN}'</script></body>"
  path.write_text(path.read_text().rpartition('</body>')[0] + added)
  with pytest.raises(AssertionError, match='Content Security Policy'):
    _browse(path)


@pytest.mark.parametrize(
  ('name', 'width', 'scheme'),
  [('desktop', 1280, 1), ('phone', 500, 1), ('dark', 1280, 0)],
)
def test_pictures(path, tmp_path, name, width, scheme):
  outputs = pathlib.Path(
    os.environ.get('TEST_UNDECLARED_OUTPUTS_DIR', tmp_path)
  )
  picture = outputs / f'report_{name}.png'
  _browse(
    path,
    f'--blink-settings=preferredColorScheme={scheme}',
    f'--window-size={width},3000',
    f'--screenshot={picture}',
  )
  assert picture.stat().st_size > 20_000
