"""Small bytes in messages of the port `Files`, written with the change that names them, or read with a look. They are
whole files, or pieces of larger ones.

A write is judged first, so that nobody stores bytes that he may not name. Then the bytes are stored, and the transact
that names them depends on the judged versions. A repeated try stores nothing again.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from chelonia.bartender.bulk import ElementCall, StoredBytes
from chelonia.bartender.client_metadata import FileFacts
from chelonia.bartender.files import writing
from chelonia.bartender.files.changing import done
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry
from chelonia.bartender.shepherds import taken
from chelonia.bartender.transfers import readable, unnamed
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, Location
from chelonia.core.contents.attributes import is_empty
from chelonia.core.contents.extents import ByteRange
from chelonia.core.contents.uploads import BeginPut, CommitFile, PiecePlace, are_placed
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.files import INLINED, Content, Done, Inline, Splice, Write
from chelonia.core.ports.shepherd import FetchOutcome, SmallBlob
from chelonia.core.timing.racing import Race, many
from chelonia.core.values import replace


async def write(ports: Ports, turn: ElementCall, change: Write, inline: Inline) -> Done:
    """Store bytes, and give them their name. Raises: as `Files.place`, `Files.apply`; TOO_LARGE, CHECKSUM."""
    begin = _begin(ports, turn, change, inline)
    ready, replaced = await writing.ready_to_write(ports, turn, change, begin)
    if not turn.stored:
        turn.stored.append(await _stored(ports, turn, ready, inline.data))
    (stored,) = turn.stored
    record = writing.record_type(inline.checksums)
    facts = FileFacts(begin.size, getattr(begin.checksums, record), record, begin.wanted)
    file = await writing.commit(
        ports, turn, change, facts, CommitFile(ready, stored.begun, stored.receipts, stored.begin.replaces != "")
    )
    if file.blob == stored.begun.blob:  # else an earlier try of this call has named its own copies
        ports.storing.named(stored.receipts)
    note = await ports.shepherds.shortage(turn.service, begin.wanted)
    return done(file.entry, made=replaced is None, note=note)


async def splice(ports: Ports, turn: ElementCall, change: Splice, inline: Inline) -> Done:
    """Store a piece, and lay it over a file. Raises: as `write`."""
    content, begin = change.content, _begin(ports, turn, change, inline)
    ready, replaced = await writing.ready_to_write(ports, turn, change, begin)
    ready = replace(ready, at=writing.placed_at(replaced, _spans(content, replaced, len(inline.data))))
    if not turn.stored:
        turn.stored.append(await _stored(ports, turn, ready, inline.data))
    (stored,) = turn.stored
    named = tuple(replace(extent, blob=stored.begun.blob) for extent in content.extents)
    placed = replace(change, content=replace(content, extents=named))
    entry = await writing.lay(ports, turn, placed, ready, (CommitFile(stored.begin, stored.begun, stored.receipts),))
    if isinstance(entry, StoredObject):  # else an earlier try of this call has named its own copies
        ports.storing.named(stored.receipts)
    return done(entry, made=replaced is None)


def _spans(content: Content, there: FoundEntry | None, size: int) -> tuple[ByteRange, ...]:
    """Return where a piece is laid over a file that keeps its other bytes, if its place can say that; else nothing."""
    spans = tuple(ByteRange(each.at, each.length) for each in content.extents)
    place = PiecePlace(spans=spans)
    said = place.length == size and place.extents(INLINED) == content.extents and are_placed(spans)
    if there is None or content.whole or not said:
        return ()
    return spans if content.size in (-1, max(writing.size_of(there), spans[-1].end)) else ()


def _begin(ports: Ports, turn: ElementCall, change: Write | Splice, inline: Inline) -> BeginPut:
    """Return the upload of these bytes. Raises: BAD_REQUEST, TOO_LARGE, CHECKSUM."""
    size, place = len(inline.data), change.place
    writing.check_wanted(place, inline.wanted)
    if size > bounds.INLINE_BYTES_MAX:
        cause = f"{size} bytes; more than {bounds.INLINE_BYTES_MAX} do not come in a message: place them first"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(place), cause=cause)
    begin = unnamed(ports, turn, place, inline.wanted, size, _measured(change, inline))
    return replace(begin, piece=True) if isinstance(change, Splice) else begin


def _measured(change: Write | Splice, inline: Inline) -> Checksums:
    """Return SHA-256 and Adler-32 of the bytes, and MD5 if it was announced. Raises: CHECKSUM when they differ."""
    announced, data = inline.checksums, inline.data
    measured = Checksums(
        hashlib.sha256(data).hexdigest(),
        hashlib.md5(data, usedforsecurity=False).hexdigest() if announced.md5 else "",
        f"{zlib.adler32(data):08x}",
    )
    if announced.conflicts(measured):
        cause = "the bytes that arrived have another checksum than announced; send them again"
        raise CheloniaError(Kind.CHECKSUM, subject=str(change.place), cause=cause)
    return measured


async def _stored(ports: Ports, turn: ElementCall, begin: BeginPut, data: bytes) -> StoredBytes:
    begun = await ports.librarian.begin_put(turn.service, begin)
    facts = begun.facts(begin, ports.clock.now_ms())
    facts = replace(facts, commit_within_ms=ports.settings.put_lifetime_ms)
    return StoredBytes(begin, begun, await ports.storing.store(turn.service, SmallBlob(facts, data)))


async def data_of(ports: Ports, turn: ElementCall, found: FoundEntry, size: int) -> bytes | None:
    """Return all bytes of a small file of one blob; None if they do not fit, or no Shepherd gives them."""
    if is_empty(found.object):
        return b""
    if found.section("content") or not found.section("blobs") or size > bounds.INLINE_BYTES_MAX:
        return None
    if not turn.room.carry(size):
        return None
    alive = await readable(ports, turn, found)
    return await _fetched(ports, turn.service, alive, size) if size and alive else (None if size else b"")


async def _fetched(ports: Ports, call: Call, locations: Sequence[Location], size: int) -> bytes | None:
    """Return the bytes of a small blob of that size, from the first Shepherd that gives them; None when none does."""
    first, *waiting = await ports.shepherds.nearest(call, locations, ports.fetching.leaving)
    answer = await ports.fetching.ask(call, first.shepherd, first.reference, size)
    if isinstance(answer, FetchOutcome) and answer.data is not None:
        return answer.data

    async def fetch(location: Location) -> FetchOutcome:
        answer = await ports.fetching.ask(call, location.shepherd, location.reference, size)
        return answer if isinstance(answer, FetchOutcome) else await answer

    return await _raced(ports, fetch, waiting, None if isinstance(answer, FetchOutcome) else answer)


async def _raced(
    ports: Ports,
    fetch: Callable[[Location], Coroutine[Any, Any, FetchOutcome]],
    waiting: list[Location],
    silent: asyncio.Future[FetchOutcome] | None,
) -> bytes | None:
    """Return the bytes that one of those `waiting`, or a `silent` one, gives first; None when none does."""
    more = 1
    async with Race[str, FetchOutcome](ports.clock) as race:
        if silent is not None:
            race.begin("silent", silent)
        while race.running or waiting:
            for location in taken(waiting, more):
                race.begin(location.shepherd, fetch(location))
            ended = await race.ended(ports.settings.hedge_ms if waiting else ports.settings.shepherd_timeout_ms)
            if ended is not None and (data := ended[1].result().data) is not None:
                return data
            more = many(silent=ended is None, of_use=False)
    return None
