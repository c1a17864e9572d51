"""Simulated users who write in the middle of files, and move one over another, as programs on a mount do.

A file then consists of extents, which are read one after the other.
"""

from __future__ import annotations

import random
from functools import partial

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import INLINED, Change, Content, Inline, Move, Over, Splice, Want
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import look, reader
from tests.sim.front_ends import BytesFrom, FilesFrom
from tests.sim.model import NOTHING, Op
from tests.sim.users import Contents, User, dn_of
from tests.sim.world import World
from tests.support.door_parts import door_parts

SHARE = 0.35
"""The share of users' operations."""
KINDS = ("lay", "lay", "cut", "over", "over", "exchange")
OFFSET_MAX = 250


class Laying:
    """Draws users' operations, and reads their results."""

    def __init__(self, world: World, contents: Contents, rng: random.Random) -> None:
        self._world, self._contents, self._rng = world, contents, rng
        contents.laid = True

    def drawn(self, op: Op) -> Op:
        """Return the operation to do in place of the drawn one."""
        if self._rng.random() >= SHARE:
            return op
        kind, piece = self._rng.choice(KINDS), self._contents.new(self._rng, small=True)
        if kind not in ("lay", "cut"):
            return replace(op, kind=kind, content=NOTHING)
        size = len(self._contents.bytes_of(piece))
        at = self._rng.randint(0, OFFSET_MAX)
        end = at + self._rng.randint(1, size) if kind == "cut" else -1
        return replace(op, kind=kind, content=piece, after=partial(self._contents.after, piece=piece, at=at, end=end),
                       value=f"{at} {end}")  # fmt: skip

    def change(self, op: Op, place: LogicalName, other: LogicalName) -> Change:
        """The change to send to the cluster."""
        if op.kind in ("over", "exchange"):
            return Move(place, other, Over.REPLACE if op.kind == "over" else Over.EXCHANGE)
        data, (at, end) = self._contents.bytes_of(op.content), map(int, op.value.split())
        extent = Extent(at, len(data) if end < 0 else end - at, INLINED)
        return Splice(place, Content((extent,), size=end, inline=Inline(data, op.wanted)))

    async def read(self, user: User, place: LogicalName, call: Call) -> bytes:
        """A file of several blobs. Raises: CheloniaError."""
        parts = door_parts(FilesFrom(self._world, user), BytesFrom(self._world, user, call), dn_of(user.number), 2)
        there = await look(parts, call, place, Want.SOURCES)
        chunks = reader(parts, call, place).get(there, ByteRange(0, there.attributes.size))
        data = b"".join([chunk async for chunk in chunks])
        if len(data) != there.attributes.size:
            raise CheloniaError(Kind.INCOMPLETE)
        return data
