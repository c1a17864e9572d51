"""The guard of a process with a frozen event loop, and nothing else, cuts its clients off.

To freeze, a test waits for its client's thread in the event loop itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chelonia.core.values import replace
from chelonia.hosting.doors import guarded as node_side
from chelonia.hosting.doors.connection_guard import BEAT, FORGET, HOLD, Guard, log_line, message, worked_ns
from chelonia.hosting.doors.guarded import START, Guarded, GuardParts
from chelonia.hosting.doors.http_server import HttpLimits, HttpServer, ListenSettings
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, text_answer
from tests.support.polling import patience, poll, poll_async
from tests.support.ports import free_ports
from tests.unit.hosting.listening import PLAIN, STOP_MS, talk

LIMIT_MS = 400
PATIENT_MS = 1000
"""For tests in which nothing may be cut, however slow the machine is."""
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PUT = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"
BYE = b"GET /bye HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
COUNTED = b"".join(number.to_bytes(4, "big") for number in range(1 << 18))
GONE = "nothing cuts clients' connections"


@dataclass
class Guards:
    """A node's guarded connections, the number cut of late, and a listener behind the guard."""

    guarded: Guarded
    cut: list[int]
    server: HttpServer
    taken: bytearray = field(default_factory=bytearray)
    ended: bool = False
    slow: int = 0

    def held(self) -> int:
        """Open sockets of the guard beside its standard streams."""
        own = Path(f"/proc/{self.guarded.pid}/fd")
        return sum(int(name) > 2 and os.readlink(own / name).startswith("socket:") for name in os.listdir(own))

    async def until_held(self, count: int) -> None:
        await poll_async(lambda: self.held() == count, tolerate=OSError, what=f"{count} held")


@asynccontextmanager
async def guards(limit_ms: int = LIMIT_MS, port: int = 0) -> AsyncIterator[Guards]:
    cut: list[int] = []
    guarded = Guarded(GuardParts(lambda: limit_ms, cut.append))

    async def door(request: HttpRequest) -> HttpResponse:
        if request.path == "/slow":
            time.sleep(LIMIT_MS / 1000 / 4)
            its.slow += 1
            return text_answer(200, "slow")
        if request.path == "/bye":
            return text_answer(200, "bye")
        if request.method == "GET":
            return HttpResponse(200, (), endless(), -1)
        try:
            async for chunk in request.body:
                its.taken += chunk
        finally:
            its.ended = True
        return text_answer(200, "all")

    server = HttpServer(
        door,
        ListenSettings("127.0.0.1", port, None, False),
        replace(PLAIN, guarded=guarded),
        HttpLimits(connections_per_address_max=1000, first_request_ms=600_000),
    )
    its = Guards(guarded, cut, server)
    await server.start()
    running = asyncio.create_task(guarded.run())
    try:
        await poll_async(lambda: guarded.pid, what="a guard runs")
        yield its
    finally:
        await server.stop(STOP_MS)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert guarded.pid == 0


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 100_000


@contextmanager
def connected(server: HttpServer, request: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        client.sendall(request)
        yield client


def read_to_the_end(client: socket.socket) -> None:
    while client.recv(1 << 20):
        pass


def send_without_end(client: socket.socket) -> None:
    while True:
        client.sendall(COUNTED)


def stand_still(client: socket.socket, work: Callable[[socket.socket], None]) -> list[Exception | None]:
    """Do the client's work in a thread, and block the rest of this process until it has ended."""
    ended: list[Exception | None] = []

    def run() -> None:
        try:
            work(client)
            ended.append(None)
        except OSError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(8 * patience())
    return ended


async def test_a_reader_is_cut_off_when_the_loop_stands_still() -> None:
    async with guards() as its:
        with connected(its.server, GET) as client:
            await its.until_held(1)
            [ended] = stand_still(client, read_to_the_end)
        assert ended is None or isinstance(ended, ConnectionError)
        await poll_async(lambda: its.cut == [1], what="it was told")
        await poll_async(lambda: its.server.connections == 0, what="the server has noticed")


async def test_a_writer_is_cut_off_though_it_listens_to_nothing() -> None:
    async with guards() as its:
        with connected(its.server, PUT) as client:
            await its.until_held(1)
            [ended] = stand_still(client, send_without_end)
        assert isinstance(ended, ConnectionError)
        await poll_async(lambda: its.ended, what="the upload is given up")
        await poll_async(lambda: its.cut == [1], what="it was told")
        whole = COUNTED * (len(its.taken) // len(COUNTED) + 1)
        assert its.taken == whole[: len(its.taken)], "nothing was read with a gap in it"


def come_to(server: HttpServer) -> None:
    while True:
        with (
            socket.create_connection(("127.0.0.1", server.port), 10) as client,
            suppress(ConnectionResetError, BrokenPipeError),
        ):
            client.sendall(GET)
            client.recv(1)


async def test_who_comes_while_the_loop_stands_still_is_refused() -> None:
    async def served() -> bool:
        return (await talk(its.server, BYE)).endswith(b"bye")

    async with guards(port=free_ports(1)[0]) as its:
        for turn in (1, 2):
            await its.until_held(1)  # what listens: whoever was served before has gone
            with connected(its.server, GET) as client:
                await its.until_held(2)
                [ended] = stand_still(client, lambda _: come_to(its.server))
            assert isinstance(ended, ConnectionRefusedError)
            await poll_async(served, tolerate=OSError, what="it listens again")
            await poll_async(lambda turn=turn: its.cut == [1] * turn, what="what listens is not counted")  # type: ignore[misc]


async def test_who_stands_still_again_before_anybody_came_listens_again_too() -> None:
    async with guards(port=free_ports(1)[0]) as its:
        with connected(its.server, GET) as client:
            await its.until_held(2)
            for _ in (1, 2):
                [ended] = stand_still(client, lambda _: come_to(its.server))
                assert isinstance(ended, ConnectionRefusedError)
                await its.until_held(1)


async def test_who_comes_after_a_standstill_is_guarded_as_well() -> None:
    async with guards() as its:
        for turn in (1, 2):
            with connected(its.server, GET) as client:
                await its.until_held(1)
                assert stand_still(client, read_to_the_end)
            await poll_async(lambda turn=turn: its.cut == [1] * turn, what=f"cut {turn} times")  # type: ignore[misc]


async def test_a_loop_that_turns_is_left_alone_and_ended_connections_are_forgotten() -> None:
    async with guards(PATIENT_MS) as its:
        with connected(its.server, GET) as client:
            await its.until_held(1)
            await asyncio.sleep(1.25 * PATIENT_MS / 1000)
            assert not its.cut
            assert its.held() == 1
            client.close()
        await its.until_held(0)


async def test_a_loop_that_serves_many_in_one_turn_stands_not_still() -> None:
    async with guards() as its:
        clients = [socket.create_connection(("127.0.0.1", its.server.port), 10) for _ in range(10)]
        await its.until_held(len(clients))
        for client in clients:
            client.sendall(SLOW)
        time.sleep(0.05)  # all have come before the loop looks
        await poll_async(lambda: its.slow == len(clients), what="all were served")
        await asyncio.sleep(LIMIT_MS / 1000 / 4)
        assert not its.cut
        for client in clients:
            client.close()


@pytest.mark.expect_log(GONE)
async def test_a_guard_that_was_killed_is_followed_by_one_that_holds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_side, "PAUSE_MS", 10)
    async with guards() as its:
        with connected(its.server, GET) as client:
            await its.until_held(1)
            before = its.guarded.pid
            os.kill(before, signal.SIGKILL)
            await poll_async(lambda: its.guarded.pid not in (0, before), what="another guard")
            await its.until_held(1)
            assert stand_still(client, read_to_the_end)
        await poll_async(lambda: its.cut == [1])


async def test_a_frozen_guard_holds_up_nobody_and_cuts_nobody_when_it_goes_on() -> None:
    async with guards(PATIENT_MS) as its:
        with connected(its.server, GET):
            await its.until_held(1)
            os.kill(its.guarded.pid, signal.SIGSTOP)
            try:
                assert (await talk(its.server, BYE)).endswith(b"bye"), "the end came, though the guard has a duplicate"
                await asyncio.sleep(1.25 * PATIENT_MS / 1000)
            finally:
                os.kill(its.guarded.pid, signal.SIGCONT)
            await its.until_held(1)
            assert not its.cut


@pytest.mark.expect_log(f"{GONE}.*it took nothing in")
async def test_many_connections_fill_no_frozen_guard_and_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_side, "PAUSE_MS", 10)
    async with guards(round(PATIENT_MS * patience())) as its:
        before = its.guarded.pid
        os.kill(before, signal.SIGSTOP)
        clients = [socket.create_connection(("127.0.0.1", its.server.port), 10) for _ in range(400)]
        try:
            await poll_async(lambda: its.server.connections == 400)
            assert (await talk(its.server, BYE)).endswith(b"bye")
            await poll_async(lambda: its.guarded.pid not in (0, before), what="another guard")
            await its.until_held(400)
            clients.pop().close()
            await its.until_held(399)
        finally:
            for client in clients:
                client.close()
        await its.until_held(0)


def test_the_process_obeys_numbers_and_ends_with_the_other_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(node_side.__file__).parents[3])
    argv = [sys.executable, "-I", "-S", "-c", START, root, "json", 'a "node"']
    with subprocess.Popen(argv, stdin=theirs.fileno(), stderr=subprocess.PIPE) as process:
        theirs.close()
        pairs = [socket.socketpair() for _ in range(3)]
        for number, (held, _) in enumerate(pairs, 7):
            socket.send_fds(ours, [message(HOLD, number)], [held.fileno()])
            held.close()
        ours.send(message(FORGET, 8))
        ours.send(message(FORGET, 99))
        pairs[1][1].settimeout(10 * patience())
        assert pairs[1][1].recv(1) == b"", "forgotten, and so closed"
        ours.send(message(BEAT, 100))
        for _, client in (pairs[0], pairs[2]):
            client.settimeout(10 * patience())
            assert client.recv(1) == b"", "cut"
        ours.settimeout(10 * patience())
        assert int.from_bytes(ours.recv(8), "big") == 2
        ours.close()
        _, said = process.communicate(timeout=10 * patience())
        assert process.returncode == 0
    line = json.loads(said)
    assert (line["node"], line["level"], line["at"]) == ('a "node"', "INFO", "chelonia.guard")
    assert "2 clients' connections were cut" in line["message"]
    for _, client in pairs:
        client.close()


def test_who_waits_for_a_cpu_works_and_who_is_stopped_is_known_to_be() -> None:
    def works() -> bool:
        return worked_ns(process.pid) != worked_ns(process.pid)

    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            assert poll(works)
            os.kill(process.pid, signal.SIGSTOP)
            poll(lambda: worked_ns(process.pid) is None, what="it is stopped")
            os.kill(process.pid, signal.SIGCONT)
            assert poll(works)
        finally:
            process.kill()
    assert worked_ns(process.pid) == 0


def test_clients_of_a_process_that_was_stopped_do_not_wait_for_its_limit() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held, client = socket.socketpair()
    with ours, theirs, client, subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        guard = threading.Thread(target=Guard(theirs, lambda line: None, process.pid).run)
        guard.start()
        try:
            with held:
                socket.send_fds(ours, [message(HOLD, 1)], [held.fileno()])
            os.kill(process.pid, signal.SIGSTOP)
            ours.send(message(BEAT, 3_600_000))
            client.settimeout(10 * patience())
            assert client.recv(1) == b"", "cut"
        finally:
            process.kill()
            ours.close()
            guard.join()


def test_its_lines_look_as_the_others_in_the_log() -> None:
    assert log_line("so", "s1", 1_700_000_000_007, as_json=False) == (
        "time=2023-11-14T22:13:20.007Z level=INFO node=s1 at=chelonia.guard so"
    )


@pytest.mark.expect_log(f"{GONE}.*ended with -9")
@pytest.mark.expect_log(f"{GONE}.*No such file")
async def test_without_a_guard_all_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node_side, "PAUSE_MS", 10)
    async with guards() as its:
        with connected(its.server, GET) as client:
            await its.until_held(1)
            with monkeypatch.context() as nothing:
                nothing.setattr(sys, "executable", str(tmp_path / "none"))
                os.kill(its.guarded.pid, signal.SIGKILL)
                await poll_async(lambda: its.guarded.pid == 0, what="no guard")
                assert (await talk(its.server, BYE)).endswith(b"bye")
                await asyncio.sleep(0.1)
                assert its.guarded.pid == 0
            await its.until_held(1)
            assert stand_still(client, read_to_the_end), "guarded again"
