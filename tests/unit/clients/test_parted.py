"""Streams: short ones are stored as any file, long ones go in parts, each kept until it has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Files, Look, Looked, UploadParts, Uploads, Want
from chelonia.core.timing.clock import Clock
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer import upload as sending
from chelonia.hosting.transfer.stall_watch import StallWatch
from chelonia.hosting.transfer.upload import UploadOptions
from chelonia_clients import parted
from chelonia_clients.client import Client
from chelonia_clients.parted import upload_stream
from tests.support.bartender import FakeBartender, Fault
from tests.unit.clients.faking import client_on

DATA = bytes(range(256)) * 14
"""Four parts of chunks of 300 bytes."""
PLAIN = UploadOptions()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted, "STREAMED_BYTES", 1000)


def stream(upto: int = len(DATA), *, then: Callable[[], object] = lambda: None) -> parted.Stream:
    """A stream of so many bytes, which calls `then` at its end."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        for at in range(0, upto, 300):
            yield DATA[at : min(at + 300, upto)]
        then()

    return chunks


def on(fake: FakeBartender) -> tuple[Client, Files]:
    fake.new = True
    return client_on(fake), fake.files


async def opened(files: Files) -> int:
    return len((await files.uploads(Call(), Uploads(parse_ln("/")))).uploads)


async def arrived(files: Files) -> int:
    """The number of parts that an upload has, once there is one."""
    there = (await files.uploads(Call(), Uploads(parse_ln("/")))).uploads
    return sum([len((await files.parts(Call(), UploadParts(parse_ln("/big"), each.upload))).parts) for each in there])


def sent(fake: FakeBartender) -> int:
    return sum(method == "PUT" for method, _, _ in fake.store.asked)


async def test_a_long_stream_goes_in_parts_and_each_is_sent_again_where_it_fails(fake: FakeBartender) -> None:
    """5.8 GB of a tar were lost with one connection."""
    client, files = on(fake)
    fake.store.faults = [Fault(), Fault(after=1, kind=Kind.NETWORK), Fault(flip=True)]
    moved: list[int] = []
    stored = await upload_stream(client, stream(), "/big", UploadOptions(progress=moved.append, mtime_s=1000.0))
    assert (stored.size, sum(moved), sent(fake)) == (len(DATA), len(DATA), 3 + 2)
    [looked] = await files.look(Call(), (Look(parse_ln("/big")),))
    there = cast(Looked, looked).attributes
    assert (there.size, there.modified_ns) == (len(DATA), 1000 * 10**9)
    assert await opened(files) == 0


async def test_a_part_has_the_patience_that_those_before_it_needed(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy cluster each part began anew, some more than once."""
    patience: list[int] = []

    class Noting(StallWatch):
        def __init__(self, http: HttpClient, clock: Clock, start: int, moved: Callable[[], int]) -> None:
            patience.append(start)
            super().__init__(http, clock, start, moved)

    monkeypatch.setattr(sending, "StallWatch", Noting)
    monkeypatch.setattr(parted, "AT_ONCE", 1)
    fake.store.faults = [Fault(), Fault(after=1, kind=Kind.NETWORK)]
    await upload_stream(on(fake)[0], stream(), "/big", PLAIN)
    assert patience == [0, 0, 1, 1]


@pytest.mark.parametrize("size", [999, len(DATA)])
async def test_a_stream_has_the_policy_and_the_metadata_that_were_asked_for(fake: FakeBartender, size: int) -> None:
    client, files = on(fake)
    wish = UploadOptions(user={"colour": "red"}, policy={"/CN=eve": "-read"})
    await upload_stream(client, stream(size), "/f", wish)
    looked = (await files.look(Call(), (Look(parse_ln("/f"), Want.USER | Want.POLICY),)))[0]
    assert isinstance(looked, Looked)
    assert (dict(looked.user), dict(looked.policy)) == ({"colour": "red"}, {"/CN=eve": "-read"})


async def test_a_short_stream_is_sent_again_and_is_one_blob(fake: FakeBartender) -> None:
    fake.store.faults = [Fault(after=1, kind=Kind.NETWORK)]
    stored = await upload_stream(client_on(fake), stream(999), "/f", PLAIN)
    assert (stored.size, fake.data("/f")) == (999, DATA[:999])


async def test_while_the_writer_of_a_stream_pauses_no_upload_waits_for_it(fake: FakeBartender) -> None:
    """A Shepherd cut such an upload off after half a minute."""
    client, files = on(fake)
    writes = asyncio.Event()

    async def paused() -> AsyncGenerator[bytes, None]:
        async for chunk in stream(2200)():
            yield chunk
        await writes.wait()
        yield DATA[2200:]

    storing = asyncio.ensure_future(upload_stream(client, paused, "/big", PLAIN))
    while await arrived(files) < 2:
        await asyncio.sleep(0)
    assert sent(fake) == 2, "the third part has begun to be read, not to be sent"
    writes.set()
    assert (await storing).size == len(DATA)


@pytest.mark.parametrize("fault", ["the cluster", "the stream", "the user"])
async def test_what_was_sent_of_a_stream_that_fails_goes_and_nobody_waits_for_its_writer(
    fake: FakeBartender, fault: str
) -> None:
    client, files = on(fake)
    ever = asyncio.Event()

    async def broken() -> AsyncGenerator[bytes, None]:
        async for chunk in stream(2700)():
            yield chunk
        if fault == "the stream":
            raise OSError("read error")
        await ever.wait()

    if fault == "the cluster":
        fake.store.faults = [Fault(), Fault(after=1000, kind=Kind.QUOTA)]
    storing = asyncio.ensure_future(upload_stream(client, broken, "/big", PLAIN))
    while sent(fake) < 2 and not storing.done():
        await asyncio.sleep(0)
    if fault == "the user":
        storing.cancel()
    expected = {"the cluster": CheloniaError, "the stream": OSError, "the user": asyncio.CancelledError}[fault]
    with pytest.raises(expected):
        await storing
    assert await opened(files) == 0


async def test_what_would_be_refused_at_the_end_is_refused_before_a_byte_is_read(fake: FakeBartender) -> None:
    fake.add_file("/f", b"old")
    read: list[bool] = []
    with pytest.raises(CheloniaError) as refused:
        await upload_stream(client_on(fake), stream(0, then=lambda: read.append(True)), "/f", PLAIN)
    assert (refused.value.kind, read) == (Kind.EXISTS, [])


async def test_too_few_shepherds_for_a_moment_do_not_refuse_a_stream(fake: FakeBartender) -> None:
    fake.failures = [Kind.NO_SHEPHERD] * 3
    await upload_stream(client_on(fake), stream(900), "/f", PLAIN)
    assert fake.data("/f") == DATA[:900]
