"""Uploads in parts, and of streams, which are sent so.

Nothing has the target's name before all parts have arrived; then the whole file gets it at once. A part of a stream is
kept in memory until it has arrived, while others are read and sent. So each can be sent again, to other Shepherds. The
writer of the stream may pause for as long as he likes: no Shepherd waits for the middle of a part.
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
"""Size of a part, larger where a file would have too many: an upload that breaks off sends at most two again."""
STREAMED_BYTES: Final = 32 << 20
"""Size of a part of a stream: three are in memory."""
AT_ONCE: Final = 2
"""Parts on their way at once: one takes bytes while the one before is put on stable storage and named."""
ALMOST_BYTES: Final = 8 << 20
"""Bytes left of a part when the next one is begun, whose first byte comes two requests later."""
GROWING: Final = 2_000
"""Parts of a stream, whose length is not known, after which their size doubles, and again: 10 000 hold 2 TB."""
STARTS_MAX: Final = PATIENT
"""Fresh starts that are remembered at most: the patience of a front end, some seconds."""
FAREWELL_S: Final = 2
"""Time limit for having the cluster forget a failed stream, which it does anyway after a week."""


ArrivedParts = dict[int, tuple[int, str]]
"""Size and etag of the parts of an upload that have arrived, by number."""


class PartedUpload:
    """The uploads in parts of one file. `modified_ns`: its modification time; None: that of the upload."""

    def __init__(self, client: Client, ln: str, wish: UploadOptions, modified_ns: int | None = None) -> None:
        self.client = client
        self.files: Files = client.files
        self.place: LogicalName = parse_ln(ln)
        self.wish = wish
        self.ln = ln
        self._modified_ns = modified_ns
        self.starts = 0
        """Fresh starts that parts have taken: where Shepherds are busy each would begin with too little patience."""

    async def open(self) -> UploadId:
        above = LogicalName(self.place.start, self.place.parts[:-1])
        setting = Setting(modified_ns=self._modified_ns)
        return (await self.apply("put", Open(self.place, above, self.wish.replicas, setting))).upload

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
        """Send one part, with fresh starts. Returns: its etag."""
        aim = _PartAim(self, upload, number)
        await send(self.client, source, self.ln, aim, progress)
        self.starts = min(self.starts + aim.tries - 1, STARTS_MAX)
        return aim.etag

    async def send_each(
        self, upload: UploadId, parts: AsyncGenerator[tuple[int, Source], None], progress: Progress | None
    ) -> list[tuple[int, str]]:
        """Send parts, each once the one before has gone but for its end. Returns: numbers and etags.

        Raises: as `send`; errors of `parts`. The others are given up then.
        """
        etags, places, before = dict[int, str](), asyncio.Semaphore(AT_ONCE), _PartOnItsWay(0, None)

        async def one(number: int, part: Source, way: _PartOnItsWay) -> None:
            etags[number] = await self.send(upload, number, part, way.count)
            way.gone.set()
            places.release()

        try:
            async with aclosing(parts), asyncio.TaskGroup() as sending:
                async for number, part in parts:
                    await before.gone.wait()
                    await places.acquire()
                    before = _PartOnItsWay(part.size, progress)
                    sending.create_task(one(number, part, before))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return sorted(etags.items())

    async def seal(self, upload: UploadId, order: Sequence[tuple[int, str]]) -> None:
        """Give the parts, by numbers and etags, the file's name."""
        wish = self.wish
        change = Seal(self.place, upload, tuple(order), when=wish.when, user=dict(wish.user or {}), policy=wish.policy)
        await self.apply("commitPut", change)

    async def drop(self, upload: UploadId) -> None:
        """Have the cluster forget the parts; if that fails, they go after a week."""
        with suppress(CheloniaError):
            await self.apply("put", Drop(self.place, upload))

    async def apply(self, op: str, change: Change) -> Done:
        """Apply a change of an upload. Raises: as it fails."""
        return good(op, self.ln, await self.client.settled(self.files.apply, change))


class _PartOnItsWay:
    """A part that is being sent. `gone`: only its last `ALMOST_BYTES` are left."""

    def __init__(self, size: int, progress: Progress | None) -> None:
        self._left = size
        self._progress = progress
        self.gone = asyncio.Event()
        if not size:
            self.gone.set()

    def count(self, moved: int) -> None:
        """Count sent bytes; negative: they are sent again."""
        self._left -= moved
        if self._left <= ALMOST_BYTES:
            self.gone.set()
        if self._progress is not None:
            self._progress(moved)


class _PartAim:
    """The aim of one part of an upload. `etag`: once it has arrived."""

    def __init__(self, parted: PartedUpload, name: UploadId, number: int) -> None:
        self._parted = parted
        self._name = name
        self._number = number
        self.starts = parted.starts
        self.tries = 0
        self.etag = ""

    async def start(self, size: int) -> BegunUpload:
        self.tries += 1
        parted, part = self._parted, PartPlace(self._name, self._number)
        ask = Placing(parted.place, size, wanted=parted.wish.replicas, piece=True, part=part)
        placed = good("put", parted.ln, await parted.client.settled(parted.files.place, ask))
        return BegunUpload(placed.turl, placed.put)

    async def commit(self, begun: BegunUpload, words: Sequence[str]) -> None:
        part = Part(self._parted.place, self._name, self._number, Arrived(begun.put, tuple(words)))
        self.etag = (await self._parted.apply("commitPut", part)).etag


async def upload_local(
    client: Client, source: Source | Stream, ln: str, options: UploadOptions | None = None
) -> UploadResult:
    """Store a source or stream of `file_source`. Raises: as `upload`, and as `upload_stream`."""
    if isinstance(source, Source):
        return await upload(client, source, ln, options)
    return await upload_stream(client, source, ln, options or UploadOptions())


async def upload_stream(client: Client, stream: Stream, ln: str, wish: UploadOptions) -> UploadResult:
    """Store a stream under `ln`: a short one as any file, a longer one in parts.

    Raises: as `upload`; errors of the stream.
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
            order = await parted.send_each(name, _pieces(first, chunks, sizes := list[int]()), wish.progress)
            await parted.seal(name, order)
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await parted.drop(name)
            raise
    return UploadResult(ln, sum(sizes), "", note)


async def _begun(client: Client, ln: str, wish: UploadOptions) -> str:
    """Have an upload refused before it is read rather than at its end. Returns: a note for the user."""
    try:
        return (await FileAim(client, ln, wish).start(-1)).note
    except CheloniaError as error:
        if error.kind is Kind.NO_SHEPHERD:  # there may be one when bytes are there
            return ""
        raise


async def _pieces(
    first: Source, chunks: AsyncGenerator[bytes, None], sizes: list[int]
) -> AsyncGenerator[tuple[int, Source], None]:
    """The parts of a stream with their numbers; notes their sizes."""
    number, piece = 1, first
    while piece.size:
        sizes.append(piece.size)
        yield number, piece
        piece, number = await _piece(chunks, STREAMED_BYTES << number // GROWING), number + 1


async def _piece(chunks: AsyncGenerator[bytes, None], least: int) -> Source:
    """The next bytes of a stream: at least `least`, unless it ends."""
    held, size = list[bytes](), 0
    while size < least and (chunk := await anext(chunks, None)) is not None:
        held.append(chunk)
        size += len(chunk)
    return chunks_source(held)
