"""A running upload load, and the judgement afterwards: nothing acknowledged is lost, nothing else is there in part."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.metadata import Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import GetFileRequest, PutFileRequest
from chelonia.core.ports.files import INLINED, Arrived, Content, Inline, Placing, Splice
from chelonia.hosting.net.http_client import Sending, raise_for_status
from chelonia.hosting.transfer import download as downloads
from chelonia.hosting.transfer import upload as uploads
from chelonia_clients.client import Client, new_call
from chelonia_clients.parted import PartedUpload
from tests.cluster.harness import Away, Cluster
from tests.support.polling import NotReached, poll_async

SMALL, LARGE = 3_000, 5_000_000
WANTED = 2
LOCATIONS_DEADLINE_S = 90.0
TURNS = 100_000
IN_PARTS, APPENDING = PIECED = (2, 3)
"""Writers whose files are of several blobs."""


@dataclass
class Load:
    """Eight writers, two of them the original's way, one in parts, one that appends. `acknowledged` and `refused`:
    Logical Name to content's seed."""

    cluster: Cluster
    collection: str
    writers: int = 8
    acknowledged: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    retry_ms: int = 3_000
    stopping: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Load:
        async with self.cluster.client("user") as client:
            await client.make_collection(self.collection)
        self.tasks = [asyncio.create_task(self._write(number)) for number in range(self.writers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.finish()

    async def finish(self) -> None:
        """Begin nothing more and wait for what has begun."""
        self.stopping = True
        await asyncio.gather(*self.tasks)

    async def until_acknowledged(self, more: int, deadline: float = 90.0) -> None:
        """Wait for so many more acknowledged files."""
        goal = len(self.acknowledged) + more
        await poll_async(lambda: len(self.acknowledged) >= goal, deadline, what=f"{goal} acknowledged ({self.reasons})")

    async def _write(self, writer: int) -> None:
        async with self.cluster.client("user", retry_ms=self.retry_ms) as client:
            for turn in range(TURNS):
                if self.stopping:
                    return
                seed = writer * TURNS + turn
                ln = f"{self.collection}/w{writer}-{turn}"
                try:
                    await WAYS.get(writer, put)(client, ln, content(seed))
                    self.acknowledged[ln] = seed
                except CheloniaError as error:
                    self.refused[ln] = seed
                    self.reasons[str(error)[:160]] += 1
                    await asyncio.sleep(0.05)

    async def judge(self, live: int = WANTED) -> None:
        """Check every file of the load: whole, identical, with its wanted live copies; or not there at all."""
        async with self.cluster.client("user") as client:
            gate = asyncio.Semaphore(8)

            async def check(ln: str, seed: int, *, acknowledged: bool) -> str:
                async with gate:
                    return await self._fault(client, ln, seed, acknowledged=acknowledged)

            checks = [check(ln, seed, acknowledged=True) for ln, seed in self.acknowledged.items()]
            checks += [check(ln, seed, acknowledged=False) for ln, seed in self.refused.items()]
            faults = [fault for fault in await asyncio.gather(*checks) if fault]
            assert not faults, f"{len(faults)} of {len(checks)}: {faults[:10]}; refusals: {self.reasons}"
            end = asyncio.get_running_loop().time() + LOCATIONS_DEADLINE_S
            for ln, seed in self.acknowledged.items():
                if seed // TURNS in PIECED:
                    continue  # `stat` shows the copies of one blob
                left = max(end - asyncio.get_running_loop().time(), 0.5)
                await until_live(client, ln, live, deadline=left)

    async def _fault(self, client: Client, ln: str, seed: int, *, acknowledged: bool) -> str:
        async def read() -> tuple[bytes, CheloniaError | None]:
            try:
                return await fetch(client, ln), None
            except CheloniaError as error:
                if error.meaning.retryable:  # its Shepherds may count as away for a while, on a machine busy enough
                    raise NotReached(str(error)) from error
                return b"", error

        try:
            got, failed = await poll_async(read, LOCATIONS_DEADLINE_S, interval=1.0, tolerate=NotReached, what=ln)
        except NotReached as never:
            return f"{ln} acknowledged={acknowledged}: {never}"
        if failed is not None:
            missing = failed.kind is Kind.NOT_FOUND and not acknowledged
            return "" if missing else f"{ln} acknowledged={acknowledged}: {failed}"
        begun = not acknowledged and seed // TURNS == APPENDING and got == content(seed)[: len(got)]
        return "" if got == content(seed) or begun else f"{ln} acknowledged={acknowledged}: other bytes"


def content(seed: int) -> bytes:
    """The bytes of a file of the load: one in four is large."""
    return random.Random(seed).randbytes(LARGE if seed % 4 == 3 else SMALL + seed % 100)


async def put(client: Client, ln: str, data: bytes, replicas: int = WANTED, *, replace: bool = False) -> None:
    """Store bytes, bytes first."""
    options = uploads.UploadOptions(replicas=replicas, replace=replace)
    await uploads.upload(client, uploads.bytes_source(data), ln, options)


async def put_in_parts(client: Client, ln: str, data: bytes) -> None:
    """Store bytes as two parts, sealed in one step."""
    parted, half = PartedUpload(client, ln, uploads.UploadOptions(replicas=WANTED)), len(data) // 2
    upload, order = await parted.open(), list[tuple[int, str]]()
    for number, part in enumerate((data[:half], data[half:]), 1):
        order.append((number, await parted.send(upload, number, uploads.bytes_source(part), None)))
    await parted.seal(upload, order)


async def put_and_append(client: Client, ln: str, data: bytes) -> None:
    """Store the first half of some bytes; then append the rest in pieces, inline or uploaded first."""
    at = len(data) // 2
    await put(client, ln, data[:at])
    for size in cycle((60_000, 300_000)):
        if not (piece := data[at : at + size]):
            return
        if len(piece) > bounds.INLINE_BYTES_MAX:
            await uploads.send(client, uploads.bytes_source(piece), ln, _Piece(client, ln, at))
        else:
            await append(client, ln, at, piece)
        at += len(piece)


async def append(client: Client, ln: str, at: int, data: bytes) -> None:
    """Lay a few bytes over a file of `at` bytes, in one message."""
    await _laid(client, ln, Content((Extent(at, len(data), INLINED),), inline=Inline(data)))


@dataclass
class _Piece:
    """Bytes that are stored first, and then laid over a file."""

    client: Client
    ln: str
    at: int
    starts: int = 0
    extent: Extent | None = None

    async def start(self, size: int) -> uploads.BegunUpload:
        ask = Placing(parse_ln(self.ln), size, wanted=WANTED, piece=True, at=(ByteRange(self.at, size),))
        placed = uploads.good("put", self.ln, await self.client.settled(self.client.files.place, ask))
        self.extent = Extent(self.at, size, placed.blob)
        return uploads.BegunUpload(placed.turl, placed.put)

    async def commit(self, begun: uploads.BegunUpload, words: Sequence[str]) -> None:
        assert self.extent is not None
        await _laid(self.client, self.ln, Content((self.extent,), (Arrived(begun.put, tuple(words)),)))


async def _laid(client: Client, ln: str, content: Content) -> None:
    uploads.good("append", ln, await client.settled(client.files.apply, Splice(parse_ln(ln), content)))


NO_SHEPHERD_TRIES = 16
"""A busy machine makes a Shepherd miss its one second of lease; it is back half a second later."""


async def put_as_original(client: Client, ln: str, data: bytes, replicas: int = WANTED) -> None:
    """Store bytes the original's way: putFile, then PUT to the TURL."""
    turl = await turl_for_put(client, ln, data, replicas)
    answer = await client.http.request(Sending("PUT", turl, {}, uploads.bytes_source(data).open(), len(data)))
    raise_for_status(answer.status, answer.headers, answer.body, "put")
    if answer.status != 201:
        raise CheloniaError(Kind.INCOMPLETE, "put", ln, f"HTTP {answer.status}")


async def turl_for_put(client: Client, ln: str, data: bytes, replicas: int = WANTED, *, size: int | None = None) -> str:
    """putFile, repeated while no Shepherd is free for a moment, as any client would; returns the TURL."""
    triples = (
        Triple("states", "size", str(len(data) if size is None else size)),
        Triple("states", "checksum", hashlib.md5(data).hexdigest()),
        Triple("states", "checksumType", "md5"),
        Triple("states", "neededReplicas", str(replicas)),
    )
    for _ in range(NO_SHEPHERD_TRIES):
        [answer] = await client.bartender.put_file(new_call(), (PutFileRequest("0", ln, triples, ("http",)),))
        if answer.kind != Kind.NO_SHEPHERD.value:
            break
        await asyncio.sleep(0.5)
    if answer.kind:
        raise CheloniaError(kind_from_wire(answer.kind), "putFile", ln, answer.cause or answer.status)
    return answer.turl


async def turl_for_get(client: Client, ln: str) -> str:
    [answer] = await client.bartender.get_file(new_call(), (GetFileRequest("0", ln, ("http",)),))
    assert answer.turl, answer
    return answer.turl


WAYS = {0: put_as_original, 1: put_as_original, IN_PARTS: put_in_parts, APPENDING: put_and_append}
"""How writers store a file; the others: `put`."""


async def fetch(client: Client, ln: str) -> bytes:
    """Read a file, verified by the SDK."""
    return b"".join([chunk async for chunk in downloads.read(client, ln)])


async def locations(client: Client, ln: str) -> dict[str, str]:
    """The replicas of a file: `<Shepherd> <reference>` to state."""
    return dict((await client.stat(ln)).get("locations", {}))


async def until_live(client: Client, ln: str, live: int, deadline: float = 60.0) -> dict[str, str]:
    """Wait until a file has exactly `live` replicas, all alive; returns them."""
    last: dict[str, str] = {}

    async def exact() -> bool:
        last.clear()
        last.update(await locations(client, ln))
        return sorted(last.values()) == ["alive"] * live

    try:
        await poll_async(exact, deadline, interval=0.1, tolerate=Away)
    except AssertionError as error:
        raise AssertionError(f"{ln}: wanted {live} alive and nothing else, has {last}") from error
    return last
