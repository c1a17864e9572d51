"""How far a log can be vouched for, and whether a replica may follow a master: the rule that no election can break.

Berkeley DB lets a late winner take a higher generation than the master that the group has since acknowledged writes to.
So an election here is only a proposal. Each term's first commit carries a `TermMark`; until a majority holds it the
master commits nothing else. A commit beyond the first therefore proves that its term was joined: `LogEnd.vouched` is
the newest commit that is proven in this way. A replica follows a master whose base reaches what it vouches for itself,
or whose term is open already; nobody else. Why this is enough: docs/design/009-replication.md.

Numbers alone do not name a commit: disks put back from old copies count the same numbers again. A `VouchedCommit` does,
by the run of the process that was master, and a log names the terms that it went through (`LogEnd.history`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

MARK_TAG: Final = b"\x02"
"""First byte of a mark in the store: the number of its format. The first one named no runs and no earlier terms."""
OPEN_END: Final = (1 << 64) - 1
"""For the last sequence of a term that goes on."""


class Vouched(msgspec.Struct, frozen=True, order=True):
    """A commit of a term that was open: `sequence` in the term that `replica` held under the number `term`."""

    term: int
    replica: int
    sequence: int

    def goes_on_from(self, other: Vouched) -> bool:
        """Whether a log that vouches for this one holds all of one that vouches for `other`, and more of its term."""
        return (self.term, self.replica) == (other.term, other.replica) and self.sequence > other.sequence


class VouchedCommit(msgspec.Struct, frozen=True, order=True):
    """A commit that no other history has: `sequence` in the term that this `run` of the process of `replica` held."""

    term: int
    replica: int
    run: int
    sequence: int


NOWHERE: Final = VouchedCommit(0, 0, 0, 0)
"""Nothing is known."""


class TermMark(msgspec.Struct, frozen=True):
    """What the first commit of a term writes: whose term it is, its own sequence, and what the log vouched for before.

    It is kept under one key of the store, so that a log always tells its newest term. `run` tells the process from all
    others; `past`: the proven terms before, oldest first, each with its last commit, as far as they are remembered.
    """

    term: int
    replica: int
    first: int
    base: Vouched
    run: int = 0
    past: tuple[VouchedCommit, ...] = ()

    def until(self, sequence: int) -> tuple[VouchedCommit, ...]:
        """The terms that a log went through which ends at `sequence` of this term."""
        if sequence <= self.first:
            return self.past
        return (*self.past, VouchedCommit(self.term, self.replica, self.run, sequence))[-bounds.TERMS_REMEMBERED_MAX :]


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
    def history(self) -> tuple[VouchedCommit, ...]:
        """The proven terms that the log went through, oldest first, each with its last commit here."""
        return () if self.mark is None else self.mark.until(self.sequence)

    @property
    def newest(self) -> tuple[int, int]:
        """(term, replica) of the newest term in the log."""
        return (self.mark.term, self.mark.replica) if self.mark else (0, 0)


def may_join(own: Vouched, base: Vouched) -> bool:
    """Whether a replica that vouches for `own` may follow a master that began at `base` and has not opened its term."""
    return own <= base


def holds(history: tuple[VouchedCommit, ...], known: VouchedCommit) -> bool:
    """Whether a log that went through `history` holds the commit `known`.

    Of terms longer ago than are remembered nothing can be said: those are taken to be there, as their numbers are.
    """
    for each in reversed(history):
        if (each.term, each.replica, each.run) == (known.term, known.replica, known.run):
            return each.sequence >= known.sequence
    forgotten = len(history) >= bounds.TERMS_REMEMBERED_MAX and known.term < history[0].term
    return forgotten or known == NOWHERE


def encode_mark(mark: TermMark) -> bytes:
    """The record of a mark. Layout: docs/formats/replication.md."""
    base = mark.base
    past = [(each.term, each.replica, each.run, each.sequence) for each in mark.past]
    fields = (mark.term, mark.replica, mark.first, base.term, base.replica, base.sequence, mark.run, past)
    data = MARK_TAG + _ENCODER.encode(fields)
    assert decode_mark(data) == mark, "a mark is read as it was written"
    return data


def decode_mark(data: bytes) -> TermMark:
    """Read the record of a mark. Raises: INTERNAL when it is damaged or of a newer format."""
    try:
        if data[:1] == _FIRST_TAG:
            term, replica, first, *base = _FIRST_DECODER.decode(data[1:])
            return TermMark(term, replica, first, Vouched(*base))
        if data[:1] != MARK_TAG:
            raise ValueError("unknown format")
        term, replica, first, *base, run, past = _DECODER.decode(data[1:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheloniaError(Kind.INTERNAL, "ahash", "term mark", f"cannot be read: {error}") from error
    return TermMark(term, replica, first, Vouched(*base), run, tuple(VouchedCommit(*each) for each in past))


_FIRST_TAG: Final = b"\x01"
_ENCODER: Final = msgspec.msgpack.Encoder()
_FIRST_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, int, int, int, int, int])
_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, int, int, int, int, int, int, list[tuple[int, int, int, int]]])
