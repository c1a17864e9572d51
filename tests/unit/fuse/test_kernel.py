"""How the binding waits for the kernel's requests, with a pipe in the place of the session."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from chelonia_fuse.options import parse
from tests.support.polling import poll_async

pyfuse3 = pytest.importorskip("pyfuse3")
kernel = pytest.importorskip("chelonia_fuse.kernel")


@pytest.fixture
async def pipe() -> AsyncIterator[tuple[int, int]]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.fixture
async def watch() -> AsyncIterator[Any]:
    watch = kernel.SessionWatch()
    yield watch
    watch.end()


async def test_each_request_is_waited_for(watch: Any, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    for n in range(10):
        waiting = asyncio.create_task(watch.readable(reading))
        await asyncio.sleep(0)
        assert not waiting.done()
        os.write(writing, bytes([n]))
        await waiting
        assert os.read(reading, 1) == bytes([n])


async def test_what_came_while_nobody_waited_is_found(watch: Any, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"ab")
    await watch.readable(reading)
    await poll_async(lambda: not watch.watches)  # all who read are at work
    await watch.readable(reading)
    assert os.read(reading, 2) == b"ab"


def test_an_end_while_nobody_waits_is_found() -> None:
    """The loop of `chelonia` tells of an error once, and watches no more. An unmounted session is one, for good."""

    async def ended() -> None:
        watch = kernel.SessionWatch()
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
            two, _ = server.accept()
            two.send(b"x")
            await watch.readable(one.fileno())
            one.recv(1)
            two.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            two.close()
            await poll_async(lambda: not watch.watches)
            await watch.readable(one.fileno())
            watch.end()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ended())


async def test_the_kernel_is_told_what_a_mount_is_not_to_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(binding: object, mountpoint: str, flags: set[str]) -> None:
        raise RuntimeError(" ".join(sorted(flags - pyfuse3.default_options)))

    monkeypatch.setattr(pyfuse3, "init", told)
    with pytest.raises(RuntimeError, match=r"^fsname=chelonia noexec ro subtype=chelonia$"):
        await kernel.serve(None, "/m", parse("ro,noexec"), list)


async def test_who_waits_gives_up_when_the_session_ends(watch: Any, pipe: tuple[int, int]) -> None:
    waiting = asyncio.create_task(watch.readable(pipe[0]))
    await asyncio.sleep(0)
    watch.closing(pipe[0])
    with pytest.raises(pyfuse3.asyncio.ClosedResourceError):
        await waiting
    watch.closing(pipe[0])  # nobody waits


def test_an_entry_that_the_kernel_is_not_to_keep_has_its_number_still() -> None:
    assert kernel.UNLOOKED, "this pyfuse3 has its numbers elsewhere"
    entry = kernel._numbered(0x111111111111111, 0o100644)
    assert entry.st_ino == 0, "by which it would be kept"
    assert ctypes.c_uint64.from_address(id(entry) + object.__basicsize__ + 16 + 8).value == 0x111111111111111
