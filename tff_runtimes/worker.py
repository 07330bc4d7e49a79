r"""Starts a TFF worker for programs on this machine or others.

  python -m tff_runtimes.worker                     for this machine only
  python -m tff_runtimes.worker --host=10.0.0.2 \
      --tls_certificate=worker.pem --tls_key=worker.key --client_ca=ca.pem

TFF's worker listens on all interfaces without a password. So this program
starts it in a network namespace, where nothing else can reach it. The program
listens at --host and --port itself, or at --unix_socket, and forwards all
connections to the worker, with TLS if certificates are given. It ends with its
terminal, by Ctrl-C, or when the worker ends.
"""

import argparse
import asyncio
from collections.abc import Sequence
import contextlib
import ctypes
import fcntl
import importlib.util
import ipaddress
import os
import pathlib
import socket
import ssl
import struct
import subprocess
import sys
import time

from tff_runtimes import processes

_DEFAULT_PORT = 10000
_START_TIMEOUT_SECONDS = 60.0
_CHUNK_BYTES = 2**20

# Of Linux: <sched.h>, <linux/sockios.h>, <net/if.h>.
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


# The exit status where the worker cannot be hidden.
EXPOSED = 3


class _Refused(Exception):
  """The error for a worker that cannot be started or has ended."""

  status = 1


class _Exposed(_Refused):
  """The error for a worker that could not be hidden."""

  status = EXPOSED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m tff_runtimes.worker',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    '--host',
    default='127.0.0.1',
    help='The address to listen on; by default %(default)s, which only'
    ' programs on this machine can reach.',
  )
  parser.add_argument(
    '--port',
    type=int,
    default=_DEFAULT_PORT,
    help='The port; by default %(default)s. 0 takes a free port.',
  )
  parser.add_argument(
    '--unix_socket',
    help='A path to listen at instead. Who may enter its folder can use the'
    ' worker.',
  )
  parser.add_argument(
    '--worker_binary',
    help="TFF's worker; by default that of the TFF that is installed.",
  )
  parser.add_argument(
    '--tls_certificate',
    help='A PEM file: the certificate for the host name or address that'
    ' programs use for this worker.',
  )
  parser.add_argument('--tls_key', help='A PEM file: its private key.')
  parser.add_argument(
    '--client_ca',
    help='A PEM file: a certificate authority. Only programs with a certificate'
    ' that it signed can use this worker.',
  )
  parser.add_argument(
    '--allow_exposed',
    action='store_true',
    help='Starts the worker even if this system does not allow network'
    " namespaces. The worker's own port is then open without a password, so"
    ' that a firewall is needed.',
  )
  return parser.parse_args(arguments)


def _tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
  """Reads the certificates; returns None if there are none."""
  certificate, key = arguments.tls_certificate, arguments.tls_key
  if not certificate and not key and not arguments.client_ca:
    return None
  if not certificate or not key:
    raise _Refused('TLS takes both --tls_certificate and --tls_key.')
  context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
  context.set_alpn_protocols(['h2'])  # gRPC asks for it.
  try:
    context.load_cert_chain(certificate, key)
  except (OSError, ssl.SSLError) as error:
    raise _Refused(
      f'--tls_certificate and --tls_key cannot be read: {error}.'
    ) from error
  if arguments.client_ca:
    context.verify_mode = ssl.CERT_REQUIRED
    try:
      context.load_verify_locations(arguments.client_ca)
    except (OSError, ssl.SSLError) as error:
      raise _Refused(f'--client_ca cannot be read: {error}.') from error
  return context


def _listen(host: str, port: int) -> socket.socket:
  if not 0 <= port < 2**16:
    raise _Refused(f'--port must be from 0 to 65535, not {port}.')
  try:
    family, _, _, _, address = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen()
  except OSError as error:
    raise _Refused(
      f'Cannot listen on --host={host} --port={port}: {error}.'
    ) from error
  return listener


def _listen_at(path: str) -> socket.socket:
  listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
  try:
    listener.bind(path)
    listener.listen()
  except OSError as error:
    raise _Refused(
      f'Cannot listen at --unix_socket={path}: {error}.'
    ) from error
  return listener


def _leave_network() -> None:
  """Moves this process into a network namespace of its own.

  The sockets that it already has stay in the old one.

  Raises:
    OSError: If the system does not allow it.
  """
  libc = ctypes.CDLL(None, use_errno=True)
  # Users other than root need a user namespace as well.
  if libc.unshare(_CLONE_NEWNET) and libc.unshare(
    _CLONE_NEWUSER | _CLONE_NEWNET
  ):
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
  with socket.socket() as any_socket:
    request = struct.pack('16sh', b'lo', _IFF_UP)
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _worker_binary() -> str:
  """Finds TFF's worker without importing TFF, which takes seconds."""
  found = importlib.util.find_spec('tensorflow_federated')
  if found is None or found.origin is None:
    raise _Refused('TensorFlow Federated is not installed.')
  return str(pathlib.Path(found.origin).parent / 'data' / 'worker_binary')


def _check(worker: subprocess.Popen[bytes]) -> None:
  status = worker.poll()
  if status is not None:
    raise _Refused(f"TFF's worker {processes.describe_end(status)}.")


def _start_worker(binary: str) -> tuple[subprocess.Popen[bytes], int]:
  """Starts TFF's worker; returns it and its port when it answers."""
  give_up = time.monotonic() + _START_TIMEOUT_SECONDS
  with processes.reserved_port() as port:
    worker = processes.start([binary, f'--port={port}'], sys.stderr.buffer)
    # A port that is reserved refuses until somebody listens.
    while True:
      _check(worker)
      with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(('127.0.0.1', port)).close()
        return worker, port
      if time.monotonic() > give_up:
        raise _Refused(
          f"TFF's worker did not answer within {_START_TIMEOUT_SECONDS:g} s."
        )
      time.sleep(0.01)


async def _forward(
  reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
  """Forwards all data until one of the two sides closes the connection."""
  with contextlib.suppress(OSError):
    while data := await reader.read(_CHUNK_BYTES):
      writer.write(data)
      await writer.drain()
  writer.close()


async def _serve(
  listener: socket.socket,
  tls: ssl.SSLContext | None,
  worker: subprocess.Popen[bytes],
  port: int,
) -> None:
  """Forwards the connections of programs to the worker until it ends."""

  async def connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    try:
      inner_reader, inner_writer = await asyncio.open_connection(
        '127.0.0.1', port, limit=_CHUNK_BYTES
      )
    except OSError:  # The worker has just ended.
      writer.close()
      return
    await asyncio.gather(
      _forward(reader, inner_writer), _forward(inner_reader, writer)
    )

  async with await asyncio.start_server(
    connect, sock=listener, ssl=tls, limit=_CHUNK_BYTES
  ):
    while True:
      _check(worker)
      await asyncio.sleep(0.2)


def _run(arguments: argparse.Namespace) -> None:
  tls = _tls(arguments)
  if arguments.unix_socket is not None:
    listener = _listen_at(arguments.unix_socket)
    address, is_open = arguments.unix_socket, False
  else:
    listener = _listen(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    is_open = not ipaddress.ip_address(host).is_loopback
    address = f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
  try:
    _leave_network()
  except OSError as error:
    if not arguments.allow_exposed:
      raise _Exposed(
        'This system does not allow a network namespace, which would hide the'
        f" port of TFF's worker (unshare: {error.strerror}). Run this as root"
        ' (in Docker with --cap-add=SYS_ADMIN), or behind a firewall with'
        ' --allow_exposed.'
      ) from error
  worker, port = _start_worker(arguments.worker_binary or _worker_binary())
  if is_open and not arguments.client_ca:
    print(
      f'Warning: anyone who can connect to {address} can use this worker, and'
      ' read and write files with it. Give --client_ca, or use a firewall.',
      file=sys.stderr,
    )
  print(f'Ready: {address}', flush=True)
  asyncio.run(_serve(listener, tls, worker, port))


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs a worker until it is stopped; returns the exit status."""
  parsed = _parse(arguments)
  try:
    _run(parsed)
  except _Refused as refused:
    print(f'Error: {refused}', file=sys.stderr)
    return refused.status
  except KeyboardInterrupt:
    return 130
  return 0


if __name__ == '__main__':
  sys.exit(main())
