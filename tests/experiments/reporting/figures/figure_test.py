"""Tests of what all figures have in common."""

import re
import struct
import xml.etree.ElementTree
import zlib

import pytest

from base import errors
from experiments.reporting import folders
from experiments.reporting.figures import clients
from experiments.reporting.figures import figure
from tests.experiments import made_up_folders
from tests.experiments.reporting.figures import described

_BOXES = clients.boxes([made_up_folders.series()])


def _png(contents):
  """Reads the width, the text and the pixels of a PNG file."""
  chunks = {}
  place = 8
  while place < len(contents):
    size, kind = struct.unpack('>I4s', contents[place : place + 8])
    data = contents[place + 8 : place + 8 + size]
    (checksum,) = struct.unpack_from('>I', contents, place + 8 + size)
    assert checksum == zlib.crc32(kind + data)
    chunks[kind] = data
    place += size + 12
  (width,) = struct.unpack_from('>I', chunks[b'IHDR'])
  return width, chunks[b'tEXt'], zlib.decompress(chunks[b'IDAT'])


class TestFormats:
  FILES = _BOXES.files()

  def test_svg_is_as_wide_as_a_column(self):
    root = xml.etree.ElementTree.fromstring(self.FILES['svg'])
    assert root.attrib['width'] == '3.4in'

  def test_texts_in_svg_are_as_long_in_another_font(self):
    found = re.findall(r'<[^>]*>(?=[^<\s])', self.FILES['svg'].decode())
    assert found
    assert all('textLength' in text for text in found)
    drawn = clients.boxes([made_up_folders.series('fedavg')])
    (length,) = re.findall(
      'textLength="([^"]*)" [^>]*>FedAvg<', drawn.files()['svg'].decode()
    )
    # F, e, d, A, v and g, at 12 units.
    widths = (0.611, 0.556, 0.556, 0.667, 0.5, 0.556)
    assert float(length) == pytest.approx(12 * sum(widths), abs=0.1)

  def test_png_has_300_dots_per_inch(self):
    width, text, pixels = _png(self.FILES['png'])
    assert width == 1020
    assert text.endswith(folders.MARK.encode())
    assert len(set(pixels)) > 10

  def test_text_in_pdf_is_text_in_one_font(self):
    pdf = self.FILES['pdf']
    assert pdf.startswith(b'%PDF')
    assert set(re.findall(rb'/BaseFont /\w+\+(\w+)', pdf)) == {
      b'LiberationSans'
    }
    width = float(re.search(rb'/MediaBox \[0 0 ([\d.]+)', pdf)[1])
    assert width == pytest.approx(3.4 * 72)

  def test_equal_figures_give_equal_files(self):
    assert _BOXES.files() == self.FILES

  def test_programs_recognize_their_files(self):
    for contents in self.FILES.values():
      assert folders.MARK.encode() in contents


@pytest.mark.parametrize('ending', figure.ENDINGS)
def test_a_figure_replaces_itself_but_no_file_of_others(tmp_path, ending):
  for _ in range(2):
    figure.save(_BOXES, tmp_path)
  other = tmp_path / f'clients.{ending}'
  other.write_text('drawn by hand')
  with pytest.raises(errors.UserError, match=f'clients.{ending} is there'):
    figure.save(_BOXES, tmp_path)
  assert other.read_text() == 'drawn by hand'


def test_any_name_can_be_drawn_and_be_a_files(tmp_path):
  name = '../a/b $\\frac{$ 50%\n"x\' <b>&]]['
  drawn = clients.boxes([made_up_folders.series(name)])
  assert ' '.join(name.split()) in described.texts(drawn)
  (figure_of_client,) = clients.hurt([made_up_folders.series(name)])
  figure.save(figure_of_client, tmp_path)
  assert len(list(tmp_path.glob('hurt_*'))) == len(figure.ENDINGS)


def test_nothing_is_outside_of_a_figure():
  drawn = clients.boxes(
    [made_up_folders.series('a long name of a method, ' * 3)]
  ).add_captions('school, 139 test clients', 'word ' * 60)
  text = described.texts(drawn)
  assert text.count('word') == 60
  root = xml.etree.ElementTree.fromstring(drawn.files()['svg'])
  assert root.attrib['width'] == '3.4in'
