"""Checksums that a client asks for and nobody has measured yet: read and summed here, within bounds."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from typing import Final

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.ports.files import Looked, Want
from chelonia.core.ports.shepherd import ByteRange
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, carrying, look, reader
from chelonia.wire.web.digests import wanted

MEASURED_BYTES_MAX: Final = 256 * 1024 * 1024
"""A file that is read for its checksum alone: a second of this node."""


async def checksums(parts: DoorParts, exchange: Exchange, there: Looked) -> Checksums:
    """The checksums known of a file, and those that the request wants, where the file is not too large for that."""
    headers, known = exchange.request.headers, there.checksums
    names = wanted(headers.get("Want-Digest", ""), headers.get("Want-Repr-Digest", ""))
    missing = [name for name in names if not getattr(known, name)]
    size = there.attributes.size
    if not missing or size > MEASURED_BYTES_MAX:
        return known
    sums = {name: hashlib.new(name, usedforsecurity=False) for name in missing if name != "adler32"}
    adler = 1
    async with parts.measuring:  # one at a time, so that asking for checksums costs nobody his turn
        if size:
            there = (
                there
                if there.sources or there.data is not None
                else await look(parts, carrying(parts, exchange.call), exchange.place, Want.SOURCES)
            )
            async for chunk in reader(parts, exchange.call, exchange.place).get(there, ByteRange(0, size)):
                adler = zlib.adler32(chunk, adler)
                for each in sums.values():
                    each.update(chunk)
    measured = {name: each.hexdigest() for name, each in sums.items()}
    if "adler32" in missing:
        measured["adler32"] = f"{adler:08x}"
    return replace(known, **measured)
