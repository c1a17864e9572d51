"""Checksums that a client wants: as measured before or, within bounds, over the bytes read here.

This node also checks the CRCs that a client sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Looked, Want
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, carrying, look, reader
from chelonia.hosting.doors.plain.sending import held_back
from chelonia.wire.crcs import Crc, hash_named
from chelonia.wire.web.digests import wanted

MEASURED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest file that is read for its checksum alone: a second of this node."""
CRCS: Final = ("crc32c", "crc64nvme")
"""CRCs that no Shepherd gets."""


async def checksums(parts: DoorParts, exchange: Exchange, entry: Looked) -> Checksums:
    """Return the known checksums of a file, and those that the request wants if the file is not too large."""
    headers, known = exchange.request.headers, entry.checksums
    names = wanted(headers.get("Want-Digest", ""), headers.get("Want-Repr-Digest", ""))
    if any(not getattr(known, name) for name in names):
        answer = await look(parts, carrying(parts, exchange.call), exchange.place, Want.MEASURED)
        known = answer.checksums if answer.attributes.etag == entry.attributes.etag else known
    missing = [name for name in names if not getattr(known, name)]
    size = entry.attributes.size
    if not missing or size > MEASURED_BYTES_MAX:
        return known
    sums = {name: hash_named(name) for name in missing}
    async with parts.measuring:  # one at a time, so that checksums hold up no other requests
        if size:
            if not entry.sources and entry.data is None:
                etag = entry.attributes.etag
                entry = await look(parts, carrying(parts, exchange.call), exchange.place, Want.SOURCES)
                if entry.attributes.etag != etag:  # other bytes than those that the answer describes
                    return known
            async for chunk in reader(parts, exchange.call, exchange.place).get(entry, ByteRange(0, size)):
                for each in sums.values():
                    each.update(chunk)
    return replace(known, **{name: each.hexdigest() for name, each in sums.items()})


def agreeing(body: AsyncIterator[bytes], announced: Checksums) -> AsyncIterator[bytes]:
    """Return the body, whose last piece comes once the whole has the announced CRCs. Raises: CHECKSUM."""
    return held_back(_compared(body, announced))


async def _compared(body: AsyncIterator[bytes], announced: Checksums) -> AsyncIterator[bytes]:
    wanted = {name: crc for name in CRCS if (crc := getattr(announced, name))}
    crcs = {name: Crc(name) for name in wanted}
    async for chunk in body:
        for crc in crcs.values():
            crc.update(chunk)
        yield chunk
    for name, crc in crcs.items():
        if (measured := crc.hexdigest()) != wanted[name]:
            cause = f"{name} is {measured}, announced was {wanted[name]}; send it again"
            raise CheloniaError(Kind.CHECKSUM, "PUT", cause=cause)
