"""The binding's wait for the kernel's requests, with a pipe in the place of the session."""

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
    await poll_async(lambda: not watch.watches)  # all readers are at work
    await watch.readable(reading)
    assert os.read(reading, 2) == b"ab"


async def test_of_those_who_wait_one_is_woken_for_each_request(watch: Any, pipe: tuple[int, int]) -> None:
    """A second one would block in the kernel, and the event loop with it: a loop may report a read request twice."""
    reading, writing = pipe
    read = list[bytes]()

    async def serve() -> None:
        await watch.readable(reading)
        read.append(os.read(reading, 1))

    waiting = [asyncio.create_task(serve()) for _ in range(3)]
    await asyncio.sleep(0)
    for n in range(3):
        os.write(writing, bytes([n]))
        await poll_async(lambda so_far=n: len(read) > so_far)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sum(task.done() for task in waiting) == len(read) == n + 1
    assert read == [b"\0", b"\1", b"\2"]


def test_all_who_wait_hear_of_the_end() -> None:
    """The loop of `chelonia` reports it once."""

    async def ended() -> None:
        watch = kernel.SessionWatch()
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
            two, _ = server.accept()
            waiting = [asyncio.create_task(watch.readable(one.fileno())) for _ in range(3)]
            await asyncio.sleep(0)
            two.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            two.close()
            told = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
            watch.end()
        gave_up = [each for each in told if isinstance(each, pyfuse3.asyncio.ClosedResourceError)]
        assert len(gave_up) == 2, "one reads what the kernel says of it"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ended())


def test_an_end_while_nobody_waits_is_found() -> None:
    """The loop of `chelonia` reports an error once, and then watches no more. An unmounted session is one, for good."""

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
    with pytest.raises(RuntimeError, match=r"^fsname=/lab noexec ro subtype=chelonia$"):
        await kernel.serve(None, ("/lab", "/m"), parse("ro,noexec"), list)
    # Its options are a list with commas, and ASCII.
    with pytest.raises(RuntimeError, match=r"^fsname=/a\\054b\\134c\\303\\244 subtype=chelonia$"):
        await kernel.serve(None, ("/a,b\\cä", "/m"), parse(""), list)


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
