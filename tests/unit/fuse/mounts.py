"""Mounts without a kernel: the file system over a cluster in memory, several on one namespace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Arrived, Files, Look, Looked, Named, Placed
from chelonia.hosting.transfer.call_batches import inline_bytes
from chelonia_fuse import behind, committing
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.committing import FileCommitter
from chelonia_fuse.copies import Cache
from chelonia_fuse.directories import OpenDirectory
from chelonia_fuse.filesystem import FileSystem, Handle, Owner
from chelonia_fuse.inodes import Inode, Inodes
from chelonia_fuse.journal import StagingJournal
from chelonia_fuse.reading import CopyReader
from tests.support.cluster import MemoryCluster

WHO = Dn("/CN=joe")
HOUR_S = 3600.0
OWNER = Owner(1000, 100)


class Network:
    """One user's port and bytes of a cluster. `who`: the user.

    `away`: every call fails, with `why`; `failed` counts them.
    `late`: the next answer of a method waits for the event.
    `slow_bytes`: so do the bytes read after the first MiB.
    `inline_bytes`: bytes sent in messages.
    """

    def __init__(self, memory: MemoryCluster) -> None:
        self.memory = memory
        self.who = WHO
        self.away, self.why = False, Kind.NETWORK
        self.reads = self.read_bytes = self.sent_bytes = self.inline_bytes = 0
        self.asked: list[str] = []
        self.failed = 0
        self.late: dict[str, asyncio.Event] = {}
        self.slow_bytes: asyncio.Event | None = None
        self.before_apply: Callable[[], None] | None = None

    def check(self) -> None:
        if self.away:
            self.failed += 1
            raise CheloniaError(self.why, cause="the network is away")

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def ask(call: Call, *args: Any) -> Any:
            self.check()
            self.asked.append(method)
            if method == "apply" and self.before_apply is not None:
                (act, self.before_apply) = (self.before_apply, None)
                act()
            if method == "apply":
                self.inline_bytes += sum(map(inline_bytes, args[0]))
            answer = await getattr(self.memory, method)(Call(dn=self.who), *args)
            if method in self.late:
                await self.late.pop(method).wait()
            return answer

        return ask

    async def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncGenerator[bytes, None]:
        self.check()
        whole = self.memory.bytes_of(sources[0])
        data = b"".join(whole[span.offset : span.offset + span.length] for span in spans)
        self.reads += 1
        self.read_bytes += len(data)
        for at in range(0, len(data), 1 << 20):
            yield data[at : at + (1 << 20)]
            if self.slow_bytes is not None:
                await self.slow_bytes.wait()

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = 0) -> Arrived:
        self.check()
        data = b"".join([chunk async for chunk in body])
        assert len(data) == size
        self.sent_bytes += size
        return self.memory.arrive(placed, data)


def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses take no time. On any machine, files made one after the other count as many, each as young when it is
    closed, and no commit as late."""
    monkeypatch.setattr(committing, "PAUSE_MS_MAX", 0)
    monkeypatch.setattr(behind, "LINGER_S", 0.0)
    for name in ("YOUNG_S", "MANY_S", "LATE_S"):
        monkeypatch.setattr(behind, name, HOUR_S)


@dataclass
class Trial:
    """One mount, and short ways to use it."""

    network: Network
    system: FileSystem
    committer: FileCommitter
    cache: Cache

    @property
    def root(self) -> Inode:
        return self.system.inodes.root

    async def find(self, name: str) -> Inode:
        inode = await self.system.lookups.lookup(self.root, name)
        inode.lookups += 1  # as the kernel does
        return inode

    async def open(self, name: str, flags: int = os.O_RDWR) -> Handle:
        if flags & os.O_CREAT:
            handle = await self.system.create(self.root, name, flags, 0o644, OWNER)
            handle.inode.lookups += 1
            return handle
        return await self.system.open(await self.find(name), flags)

    async def close(self, handle: Handle) -> None:
        try:
            await self.system.flush(handle)
        finally:
            await self.system.release(handle)

    async def write(self, name: str, data: bytes, at: int = 0, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        handle = await self.open(name, flags)
        await self.system.write(handle, at, data)
        await self.close(handle)

    async def read(self, name: str, at: int = 0, size: int = 1 << 30) -> bytes:
        handle = await self.open(name, os.O_RDONLY)
        data = await self.system.read(handle, at, size)
        await self.close(handle)
        return data


async def mounted(memory: MemoryCluster, directory: Path, *, strict: bool = False, cache_bytes: int = 1 << 30) -> Trial:
    """A mount of the root, with its cache and journal in a directory."""
    network = Network(memory)
    cluster = MountedCluster(cast(Files, network), network, 2)
    (there,) = await network.look(Call(), (Look(parse_ln("/")),))
    assert isinstance(there, Looked)
    inodes = Inodes(there.attributes, parse_ln("/"))
    cache = Cache(directory / "data", cache_bytes)
    reader = CopyReader(cluster, cache)
    committer = FileCommitter(cluster, inodes, cache, reader, StagingJournal(directory / "journal"), strict=strict)
    await committer.replay(str(there.attributes.created_ns))
    return Trial(network, FileSystem(cluster, inodes, cache, committer, reader), committer, cache)


async def names(trial: Trial, start: int = 0, most: int = 1000, directory: Inode | None = None) -> list[str]:
    """Read a directory, by default the top one: the names from the `start`th on, so many at most."""
    seen: list[str] = []

    def accept(entry: Named, inode: Inode | None, following: int) -> bool:
        seen.append(entry.name)
        return len(seen) < most

    await trial.system.entries(OpenDirectory(directory or trial.root), start, accept)
    return seen
