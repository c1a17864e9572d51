"""The measure for healing: files copied from one directory to another over one mutual-TLS connection, and nothing more.

Two processes, blocking sockets, one stream, each file synced before the next begins; no checksums, no metadata.
`copy` starts both. Protocol: 8 bytes of length, the bytes, one byte back when the file is on stable storage; length 0
ends it.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import Cost

GIB = 1024**3
CHUNK = 1024**2


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM files: both ends show the same certificate and trust the same directory of CAs."""

    cert: str
    key: str
    ca_dir: str


def copy(credentials: Credentials, sources: Sequence[Path], target: Path) -> Cost:
    """Copy `sources` into `target`; the cost of both processes, `operations` in GiB."""
    target.mkdir(parents=True, exist_ok=True)
    common = [credentials.cert, credentials.key, credentials.ca_dir]
    command = [sys.executable, __file__]
    receiver = subprocess.Popen([*command, "receive", *common, str(target)], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    port = receiver.stdout.readline().strip()
    sender = subprocess.Popen(
        [*command, "send", *common, port, *map(str, sources)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert sender.stdout is not None
    sender.stdout.readline()  # connected: starting two interpreters is not what is measured
    started = time.perf_counter()
    sender.communicate("go\n")
    _, status, usage = os.wait4(receiver.pid, 0)
    wall_s = time.perf_counter() - started
    receiver.returncode = os.waitstatus_to_exitcode(status)
    if sender.returncode or receiver.returncode:
        raise SystemExit(f"the plain copy failed: sender {sender.returncode}, receiver {receiver.returncode}")
    size = sum(path.stat().st_size for path in sources)
    return Cost(size / GIB, wall_s, usage.ru_utime + usage.ru_stime, 0.0)


def context(side: ssl.Purpose, cert: str, key: str, ca_dir: str) -> ssl.SSLContext:
    """Of one end that shows a certificate and demands one."""
    made = ssl.create_default_context(side, capath=ca_dir)
    made.load_cert_chain(cert, key)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def _receive(cert: str, key: str, ca_dir: str, target: str) -> None:
    tls = context(ssl.Purpose.CLIENT_AUTH, cert, key, ca_dir)
    buffer = memoryview(bytearray(CHUNK))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        plain, _ = listener.accept()
        with tls.wrap_socket(plain, server_side=True) as connection:
            number = 0
            while size := int.from_bytes(_exactly(connection, 8)):
                _store(connection, Path(target, f"copy{number}"), size, buffer)
                number += 1


def _exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise SystemExit("the sender went away")
        data += part
    return data


def _store(connection: ssl.SSLSocket, path: Path, size: int, buffer: memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        while size:
            count = connection.recv_into(buffer, min(CHUNK, size))
            if not count:
                raise SystemExit("the sender went away")
            file.write(buffer[:count])
            size -= count
        os.fsync(file.fileno())
    connection.sendall(b"+")


def _send(cert: str, key: str, ca_dir: str, port: str, *names: str) -> None:
    tls = context(ssl.Purpose.SERVER_AUTH, cert, key, ca_dir)
    buffer = memoryview(bytearray(CHUNK))
    with (
        socket.create_connection(("127.0.0.1", int(port))) as plain,
        tls.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        print("connected", flush=True)
        sys.stdin.readline()
        for name in names:
            path = Path(name)
            connection.sendall(path.stat().st_size.to_bytes(8))
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    connection.sendall(buffer[:count])
            _exactly(connection, 1)
        connection.sendall(bytes(8))


if __name__ == "__main__":
    {"receive": _receive, "send": _send}[sys.argv[1]](*sys.argv[2:])
