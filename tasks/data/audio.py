"""Clips of speech and their spectrograms."""

import functools
import pathlib
import wave

import numpy as np

RATE = 16_000
FRAMES, BANDS = 96, 64
# A window of 25 ms every 10 ms.
_WINDOW, _HOP, _FFT = 400, 160, 512
_LOWEST, _HIGHEST = 60.0, 7600.0
# Samples are from -1 to 1; this is far below any noise.
_SILENCE = 1e-6
# For linear spectrograms: a window of 25 ms every 2.5 ms.
LINEAR_BINS, LINEAR_FRAMES = 200, 375
_LINEAR_HOP = 40
# Roughly the mean and deviation of speech, which become about 0 and 1.
_MEAN, _DEVIATION = -10.0, 4.0


def read_wav(path: pathlib.Path) -> np.ndarray:
  """Reads a WAV file.

  Args:
    path: The file.

  Returns:
    The samples from -1 to 1, `[n]` float32.

  Raises:
    ValueError: If it does not have one channel, 16 bits and 16 kHz, is cut off
      or has no samples.
    wave.Error: If it is not a WAV file.
    EOFError: If it is cut off in its header.
    OSError: If it cannot be read.
  """
  with wave.open(str(path), 'rb') as file:
    form = file.getnchannels(), file.getsampwidth(), file.getframerate()
    if form != (1, 2, RATE):
      raise ValueError(
        f'it has {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz, not'
        f' one of 16 bits at {RATE} Hz'
      )
    samples = np.frombuffer(file.readframes(file.getnframes()), '<i2')
    if not 0 < file.getnframes() == len(samples):
      raise ValueError(
        f'it has {len(samples)} samples of {file.getnframes()}; perhaps it is'
        ' cut off'
      )
    return scale_samples(samples)


def scale_samples(samples: np.ndarray) -> np.ndarray:
  """Scales samples of 16 bits to -1 to 1."""
  return samples.astype(np.float32) / 2**15


def _mel(frequency: np.ndarray) -> np.ndarray:
  return 2595 * np.log10(1 + frequency / 700)


@functools.cache
def _filters() -> np.ndarray:
  """Makes triangular filters, evenly spaced in mels, `[bins, bands]`."""
  lowest, highest = _mel(np.array([_LOWEST, _HIGHEST]))
  corners = np.linspace(lowest, highest, BANDS + 2)
  places = _mel(np.fft.rfftfreq(_FFT, 1 / RATE))[:, np.newaxis]
  low, center, high = corners[:-2], corners[1:-1], corners[2:]
  rising = (places - low) / (center - low)
  falling = (high - places) / (high - center)
  return np.clip(np.minimum(rising, falling), 0, None)


def spectrogram(samples: np.ndarray) -> np.ndarray:
  """Computes the logarithm of the power in mel bands, frame by frame.

  Args:
    samples: A clip, from -1 to 1. If it is too long its middle is taken; if it
      is too short silence is added on both sides.

  Returns:
    The spectrogram, `[FRAMES, BANDS, 1]` float32; speech has a mean of about 0
    and a deviation of about 1.
  """
  size = _WINDOW + (FRAMES - 1) * _HOP
  missing = max(size - len(samples), 0)
  samples = np.pad(samples, (missing // 2, missing - missing // 2))
  start = (len(samples) - size) // 2
  windows = np.lib.stride_tricks.sliding_window_view(
    samples[start : start + size], _WINDOW
  )[::_HOP]
  power = np.abs(np.fft.rfft(windows * np.hanning(_WINDOW), _FFT)) ** 2
  logarithm = np.log(power @ _filters() + _SILENCE)
  scaled = (logarithm - _MEAN) / _DEVIATION
  return scaled[..., np.newaxis].astype(np.float32)


def linear_spectrogram(samples: np.ndarray) -> np.ndarray:
  """Computes the logarithm of the power in the bins of a Fourier transform.

  Args:
    samples: A clip, from -1 to 1. It is cut at its end, or silence is added.

  Returns:
    The spectrogram, `[LINEAR_BINS, LINEAR_FRAMES]` float16, without the last
    bin.
  """
  size = _WINDOW + (LINEAR_FRAMES - 1) * _LINEAR_HOP
  samples = np.pad(samples[:size], (0, max(size - len(samples), 0)))
  windows = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)
  spectrum = np.fft.rfft(windows[::_LINEAR_HOP] * np.hanning(_WINDOW))
  power = np.abs(spectrum[:, :LINEAR_BINS].T) ** 2
  return np.log(power + _SILENCE).astype(np.float16)
