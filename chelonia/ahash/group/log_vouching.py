"""How far a log can be vouched for, and whether a replica may follow a master: the rule that no election can break.

Berkeley DB lets a late winner take a higher generation than the master that the group has since acknowledged writes to.
So an election here is only a proposal. Each term's first commit carries a `TermMark`; until a majority holds it the
master commits nothing else. A commit beyond the first therefore proves that its term was joined: `LogEnd.vouched` is
the newest commit that is proven in this way. A replica follows a master whose base reaches what it vouches for itself,
or whose term is open already; nobody else. Why this is enough: docs/design/009-replication.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chelonia.core.errors import CheloniaError, Kind

MARK_TAG: Final = b"\x01"
"""First byte of a mark in the store: the number of its format."""


class Vouched(msgspec.Struct, frozen=True, order=True):
    """A commit of a term that was open: `sequence` in the term that `replica` held under the number `term`."""

    term: int
    replica: int
    sequence: int


class TermMark(msgspec.Struct, frozen=True):
    """What the first commit of a term writes: whose term it is, its own sequence, and what the log vouched for before.

    It is kept under one key of the store, so that a log always tells its newest term.
    """

    term: int
    replica: int
    first: int
    base: Vouched


class LogEnd(msgspec.Struct, frozen=True):
    """Where the log of a replica ends: the newest mark in its store (None: none yet) and its last sequence."""

    mark: TermMark | None
    sequence: int

    @property
    def vouched(self) -> Vouched:
        """The newest commit here that belongs to a term proven open."""
        if self.mark is None:
            return Vouched(0, 0, self.sequence)
        if self.sequence > self.mark.first:
            return Vouched(self.mark.term, self.mark.replica, self.sequence)
        return self.mark.base

    @property
    def unproven(self) -> bool:
        """Whether the log ends with the first commit of a term: perhaps nobody else ever held it."""
        return self.mark is not None and self.sequence <= self.mark.first

    @property
    def newest(self) -> tuple[int, int]:
        """(term, replica) of the newest term in the log."""
        return (self.mark.term, self.mark.replica) if self.mark else (0, 0)


def may_join(own: Vouched, base: Vouched, *, opened: bool) -> bool:
    """Whether a replica that vouches for `own` may follow a master that began at `base`.

    A term that is `opened` has a majority that agreed: what this replica has beyond it was never acknowledged.
    """
    return opened or own <= base


def encode_mark(mark: TermMark) -> bytes:
    """The record of a mark. Layout: docs/formats/replication.md."""
    base = mark.base
    fields = (mark.term, mark.replica, mark.first, base.term, base.replica, base.sequence)
    return MARK_TAG + _ENCODER.encode(fields)


def decode_mark(data: bytes) -> TermMark:
    """Read the record of a mark. Raises: INTERNAL when it is damaged or of a newer format."""
    try:
        if data[:1] != MARK_TAG:
            raise ValueError("unknown format")
        term, replica, first, *base = _DECODER.decode(data[1:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheloniaError(Kind.INTERNAL, "ahash", "term mark", f"cannot be read: {error}") from error
    return TermMark(term, replica, first, Vouched(*base))


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, int, int, int, int, int])
