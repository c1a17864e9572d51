"""Bodies under way: their kept part can be read again, whatever happens to the receiver. Their time is the client's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.doors.plain.sending import PassingBody
from tests.unit.hosting.doors.test_plain_door import Bench


async def of(queue: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    """A client that sends the chunks of the queue. b"": no more; "gone": it has failed."""
    while chunk := await queue.get():
        if chunk == b"gone":
            raise CheloniaError(Kind.INCOMPLETE, "PUT", cause="the client has gone")
        yield chunk


def client(*chunks: bytes) -> asyncio.Queue[bytes]:
    queue = asyncio.Queue[bytes]()
    for chunk in chunks:
        queue.put_nowait(chunk)
    return queue


async def whole(body: PassingBody) -> bytes:
    return b"".join([chunk async for chunk in body.chunks()])


async def test_a_body_that_is_kept_is_had_again_from_its_first_byte() -> None:
    body = PassingBody(of(client(b"one", b"two", b"")), is_kept=True)
    first = body.chunks()
    assert await anext(first) == b"one"
    assert await whole(body) == b"onetwo"
    assert await anext(first) == b"two", "nor does a reading that goes on take anything from another"
    assert await whole(body) == b"onetwo"
    assert not body.is_gone
    await body.close()


async def test_who_is_cut_off_while_the_client_is_slow_takes_no_byte_along() -> None:
    slow = client(b"one")
    body = PassingBody(of(slow), is_kept=True)
    first = body.chunks()
    assert await anext(first) == b"one"
    cut_off = asyncio.ensure_future(anext(first))
    await asyncio.sleep(0)
    cut_off.cancel()
    await asyncio.wait((cut_off,))
    again = asyncio.create_task(whole(body))
    await asyncio.sleep(0)
    slow.put_nowait(b"two")
    slow.put_nowait(b"")
    assert await again == b"onetwo"


async def test_a_client_that_fails_has_failed_for_every_reading() -> None:
    body = PassingBody(of(client(b"one", b"gone")), is_kept=True)
    for _ in range(2):
        with pytest.raises(CheloniaError, match="has gone"):
            await whole(body)
    assert body.is_gone


async def test_what_is_not_kept_is_had_once() -> None:
    body = PassingBody(of(client(b"one", b"")), is_kept=False)
    assert not body.is_gone, "nothing of it was taken"
    assert await whole(body) == b"one"
    assert body.is_gone
    await body.close()


async def test_nothing_waits_for_a_slow_client_once_it_is_closed() -> None:
    body = PassingBody(of(client(b"one")), is_kept=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(whole(body), 0.01)
    await body.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_client_gives_the_time_of_its_file() -> None:
    bench = Bench()
    for status in (201, 204):
        made = bench.ask("PUT", "/f", b"hello", X_OC_Mtime="1600000000")
        assert (made.status, made.headers["X-OC-Mtime"]) == (status, "accepted")
        assert bench.ask("HEAD", "/f").headers["Last-Modified"] == "Sun, 13 Sep 2020 12:26:40 GMT"
    for bad in ("-1", "1.5", "yesterday", "\u0661", "9" * 13):
        refused = bench.ask("PUT", "/g", b"hello", X_OC_Mtime=bad)
        assert (refused.status, "X-OC-Mtime" in refused.text) == (400, True), bad
    assert bench.ask("HEAD", "/g").status == 404
    assert "X-OC-Mtime" not in bench.ask("PUT", "/g", b"hello").headers
