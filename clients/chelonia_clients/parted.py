"""Uploads in parts: nothing has the target's name before all of them have arrived, and then the whole file has it at
once; and streams, which are sent so.

Of a stream a part is kept in memory until it has arrived, while others are read and sent. So each can be sent again, to
others, and whoever writes into it may pause for as long as he likes: nobody waits for the middle of a part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Final

from chelonia.core.contents.parts import PartPlace, UploadId
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.bytes import PATIENT
from chelonia.core.ports.files import (
    Arrived,
    Change,
    Done,
    Drop,
    Files,
    Open,
    Part,
    Placed,
    Placing,
    Seal,
    Setting,
    UploadParts,
)
from chelonia.hosting.transfer.requester import Progress
from chelonia.hosting.transfer.upload import (
    BegunUpload,
    FileAim,
    Source,
    UploadOptions,
    UploadResult,
    chunks_source,
    good,
    send,
    upload,
)
from chelonia_clients.client import Client
from chelonia_clients.local_sources import Stream

PART_BYTES: Final = 64 << 20
"""What an upload that breaks off sends again, at most; more only where a file would have too many parts."""
STREAMED_BYTES: Final = 32 << 20
"""A part of a stream: three are in memory."""
AT_ONCE: Final = 2
"""Of them sent at once: one takes bytes while the other waits until it is on stable storage."""
GROWING: Final = 2_000
"""After so many parts of a stream, whose length nobody knows, they are twice as large: 10 000 hold 2 TB."""
STARTS_MAX: Final = PATIENT
"""So many fresh starts are remembered: the patience of a front end, some seconds."""
FAREWELL_S: Final = 2
"""So long is tried to have the cluster forget what was sent of a stream; else it does after a week."""


ArrivedParts = dict[int, tuple[int, str]]
"""Size and etag of the parts of an upload that have arrived, by number."""


class PartedUpload:
    """What can be done with the uploads in parts of one file. `modified_ns`: its time; None: that of the upload."""

    def __init__(self, client: Client, ln: str, wish: UploadOptions, modified_ns: int | None = None) -> None:
        self.client = client
        self.files: Files = client.files
        self.place: LogicalName = parse_ln(ln)
        self.wish = wish
        self.ln = ln
        self._modified_ns = modified_ns
        self.starts = 0
        """Fresh ones that parts have taken: where Shepherds are busy each would begin with too little patience."""

    async def open(self) -> UploadId:
        above = LogicalName(self.place.start, self.place.parts[:-1])
        setting = Setting(modified_ns=self._modified_ns)
        return (await self._apply("put", Open(self.place, above, self.wish.replicas, setting))).upload

    async def arrived(self, upload: UploadId) -> ArrivedParts:
        found: ArrivedParts = {}
        after = 0
        while True:
            page = await self.files.parts(self.client.new_call(), UploadParts(self.place, upload, after))
            found.update({part.number: (part.size, part.etag) for part in page.parts})
            after = page.after
            if not after:
                return found

    async def send(self, upload: UploadId, number: int, source: Source, progress: Progress | None) -> str:
        """Send one part, as often as it takes. Returns: its etag."""
        aim = _PartAim(self, upload, number)
        await send(self.client, source, self.ln, aim, progress)
        self.starts = min(self.starts + aim.tries - 1, STARTS_MAX)
        return aim.etag

    async def seal(self, upload: UploadId, order: Sequence[tuple[int, str]]) -> None:
        """Give all parts, numbers and etags, their name."""
        await self._apply("commitPut", Seal(self.place, upload, tuple(order), when=self.wish.when))

    async def drop(self, upload: UploadId) -> None:
        """Let the cluster forget what was sent; what it does not hear of goes after a week."""
        with suppress(CheloniaError):
            await self._apply("put", Drop(self.place, upload))

    async def placed(self, size: int, part: PartPlace) -> Placed:
        """Where a part may go."""
        ask = Placing(self.place, size, wanted=self.wish.replicas, piece=True, part=part)
        return good("put", self.ln, await self.client.settled(self.files.place, ask))

    async def part(self, upload: UploadId, number: int, arrived: Arrived) -> str:
        """Make bytes that have arrived a part. Returns: its etag."""
        return (await self._apply("commitPut", Part(self.place, upload, number, arrived))).etag

    async def _apply(self, op: str, change: Change) -> Done:
        return good(op, self.ln, await self.client.settled(self.files.apply, change))


class _PartAim:
    """One part of an upload; `etag`: once it has arrived."""

    def __init__(self, parted: PartedUpload, name: UploadId, number: int) -> None:
        self._parted = parted
        self._name = name
        self._number = number
        self.starts = parted.starts
        self.tries = 0
        self.etag = ""

    async def start(self, size: int) -> BegunUpload:
        self.tries += 1
        placed = await self._parted.placed(size, PartPlace(self._name, self._number))
        return BegunUpload(placed.turl, placed.put)

    async def commit(self, begun: BegunUpload, words: Sequence[str]) -> None:
        self.etag = await self._parted.part(self._name, self._number, Arrived(begun.put, tuple(words)))


async def upload_local(
    client: Client, source: Source | Stream, ln: str, options: UploadOptions | None = None
) -> UploadResult:
    """Store what `file_source` has found. Raises: as `upload`, and as `upload_stream`."""
    if isinstance(source, Source):
        return await upload(client, source, ln, options)
    return await upload_stream(client, source, ln, options or UploadOptions())


async def upload_stream(client: Client, stream: Stream, ln: str, wish: UploadOptions) -> UploadResult:
    """Store what can be read once under `ln`: a short one as any file, a longer one in parts.

    Raises: as `upload`, what the stream raises.
    """
    note = await _begun(client, ln, wish)
    async with aclosing(stream()) as chunks:
        first = await _piece(chunks, STREAMED_BYTES)
        if first.size < STREAMED_BYTES:
            return await upload(client, first, ln, wish)
        modified_ns = None if wish.mtime_s is None else round(wish.mtime_s * 1e9)
        parted = PartedUpload(client, ln, wish, modified_ns)
        name = await parted.open()
        try:
            size = await _sent(parted, name, first, chunks)
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await parted.drop(name)
            raise
    return UploadResult(ln, size, "", note)


async def _begun(client: Client, ln: str, wish: UploadOptions) -> str:
    """Have refused before it is read what would be refused at the end. Returns: what the user is to know."""
    try:
        return (await FileAim(client, ln, wish).start(-1)).note
    except CheloniaError as error:
        if error.kind is Kind.NO_SHEPHERD:  # there may be one when bytes are there
            return ""
        raise


async def _sent(parted: PartedUpload, name: UploadId, piece: Source, chunks: AsyncGenerator[bytes, None]) -> int:
    """Send a stream whose first part is `piece`, and give it its name. Returns: its size."""
    etags, number, size = dict[int, str](), 0, 0
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, part: Source) -> None:
        etags[number] = await parted.send(name, number, part, parted.wish.progress)
        places.release()

    try:
        async with asyncio.TaskGroup() as sending:
            while piece.size:
                await places.acquire()
                number, size = number + 1, size + piece.size
                sending.create_task(one(number, piece))
                piece = await _piece(chunks, STREAMED_BYTES << number // GROWING)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    await parted.seal(name, sorted(etags.items()))
    return size


async def _piece(chunks: AsyncGenerator[bytes, None], least: int) -> Source:
    """The next bytes of a stream: at least so many, unless it ends."""
    held, size = list[bytes](), 0
    while size < least and (chunk := await anext(chunks, None)) is not None:
        held.append(chunk)
        size += len(chunk)
    return chunks_source(held)
