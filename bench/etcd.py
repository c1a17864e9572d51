"""The measure for the A-Hash: etcd, three members on this machine, mutual TLS to clients and between members.

Members sync every write before they acknowledge it (etcd's default). The client is Python over gRPC, as the A-Hash's is
Python over HTTP. It encodes its few messages itself (protobuf wire format: rpc.proto of etcd 3.4), so that no generated
code has to fit the installed protobuf.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMBERS = 3
READY_S = 30.0
CALL_S = 10.0
PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"
STATUS = "/etcdserverpb.Maintenance/Status"


class NoEtcd(Exception):
    """There is no etcd to compare with; the text says why, and the cure."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM files: one certificate for everybody (its names include localhost), and the CA that signed it."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class Member:
    """One running member."""

    name: str
    port: int
    process: subprocess.Popen[bytes]


class Group:
    """Three members that serve."""

    def __init__(self, members: list[Member], credentials: Credentials) -> None:
        self.members = members
        self.credentials = credentials

    def pids(self) -> tuple[int, ...]:
        return tuple(member.process.pid for member in self.members)


@contextmanager
def group(scratch: Path, credentials: Credentials) -> Iterator[Group]:
    """Three members below a fresh directory. Raises: NoEtcd."""
    etcd, _ = _needed()
    with tempfile.TemporaryDirectory(dir=scratch, prefix="etcd-") as name:
        ports = _free_ports(2 * MEMBERS)
        peers = ",".join(f"m{n}=https://127.0.0.1:{ports[MEMBERS + n]}" for n in range(MEMBERS))
        members = [
            Member(f"m{n}", ports[n], _start(etcd, Path(name), n, ports, peers, credentials)) for n in range(MEMBERS)
        ]
        try:
            yield Group(members, credentials)
        finally:
            for member in members:
                member.process.send_signal(signal.SIGCONT)
                member.process.terminate()
            for member in members:
                member.process.wait(20)


def _needed() -> tuple[str, Any]:
    etcd = shutil.which("etcd")
    if etcd is None:
        raise NoEtcd("no etcd here: `apt-get install etcd-server`")
    try:
        import grpc
    except ImportError as error:
        raise NoEtcd(
            "no gRPC for Python here: `.venv/bin/pip install -c constraints.txt --no-build-isolation -e '.[bench]'`"
        ) from error
    return etcd, grpc


def _start(
    etcd: str, directory: Path, number: int, ports: list[int], peers: str, credentials: Credentials
) -> subprocess.Popen[bytes]:
    client, peer = f"https://127.0.0.1:{ports[number]}", f"https://127.0.0.1:{ports[MEMBERS + number]}"
    options = {
        "name": f"m{number}",
        "data-dir": str(directory / f"m{number}"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": peers,
        "initial-cluster-state": "new",
        "log-level": "error",
    }
    for prefix in ("", "peer-"):
        options |= {
            f"{prefix}cert-file": str(credentials.cert),
            f"{prefix}key-file": str(credentials.key),
            f"{prefix}trusted-ca-file": str(credentials.ca),
        }
    command = [etcd, "--client-cert-auth", "--peer-client-cert-auth"]
    command += [f"--{key}={value}" for key, value in options.items()]
    with (directory / f"m{number}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


class Client:
    """One connection to one member."""

    def __init__(self, channel: Any) -> None:
        def method(name: str) -> Any:
            return channel.unary_unary(name, request_serializer=None, response_deserializer=None)

        self._put, self._range, self._status = method(PUT), method(RANGE), method(STATUS)

    async def put(self, key: bytes, value: bytes) -> None:
        """Write one value, durable on a majority when it returns."""
        await self._put(_field(1, key) + _field(2, value), timeout=CALL_S)

    async def get(self, key: bytes, *, strong: bool) -> bytes:
        """Read one value: `strong` from a majority's point of view (etcd: linearizable), else the value of this
        member."""
        flag = b"" if strong else b"\x38\x01"  # field 7, varint: serializable
        answer: bytes = await self._range(_field(1, key) + flag, timeout=CALL_S)
        return answer

    async def leads(self) -> bool:
        answer = _fields(await self._status(b"", timeout=CALL_S))
        own = _fields(answer[1])[2]
        return bool(answer.get(4, 0) == own)


@asynccontextmanager
async def client(running: Group, member: Member) -> AsyncIterator[Client]:
    _, grpc = _needed()
    credentials = grpc.ssl_channel_credentials(
        running.credentials.ca.read_bytes(), running.credentials.key.read_bytes(), running.credentials.cert.read_bytes()
    )
    async with grpc.aio.secure_channel(f"127.0.0.1:{member.port}", credentials) as channel:
        yield Client(channel)


async def leader(running: Group) -> Member:
    """The member that leads, as soon as there is one."""
    _, grpc = _needed()
    give_up = time.monotonic() + READY_S
    while True:
        for member in running.members:
            try:
                async with client(running, member) as asked:
                    if await asked.leads():
                        return member
            except (grpc.aio.AioRpcError, KeyError):
                pass
        if time.monotonic() > give_up:
            raise NoEtcd("etcd did not start; its logs lie beside its data")
        await asyncio.sleep(0.1)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(data: bytes) -> dict[int, Any]:
    """The varint and length-delimited fields of a protobuf message, the last of each number."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            found[tag >> 3], at = data[at : at + value], at + value
        else:
            found[tag >> 3] = value
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
