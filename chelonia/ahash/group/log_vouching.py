"""How far a replica vouches for its log, and whether it may follow a master: the rule that no election can break.

Berkeley DB lets a late winner take a higher generation than the master to whom the group acknowledged writes since. So
an election here is only a proposal. Each term's first commit carries a `TermMark`; until a majority holds it, the
master commits nothing else. A commit beyond the first thus proves that a majority joined its term: `LogEnd.vouched` is
the newest commit so proven. A replica follows only a master whose base reaches its `vouched`, or whose term is open.
Why this is enough: docs/design/009-replication.md.

Numbers alone do not name a commit: disks put back from old copies count the same numbers again. A `VouchedCommit` does,
by the run of the master's process, and a log names the terms in its past (`LogEnd.history`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

MARK_TAG: Final = b"\x02"
"""First byte of a mark in the store: the number of its format. Format 1 has no runs and no earlier terms."""
OPEN_END: Final = (1 << 64) - 1
"""Last sequence of a term that goes on."""


class Vouched(msgspec.Struct, frozen=True, order=True):
    """A commit of a term that was open: `sequence` in the term that `replica` held under the number `term`."""

    term: int
    replica: int
    sequence: int

    def goes_on_from(self, other: Vouched) -> bool:
        """Return whether a log that vouches for this has all of one that vouches for `other`, and more of its term."""
        return (self.term, self.replica) == (other.term, other.replica) and self.sequence > other.sequence


class VouchedCommit(msgspec.Struct, frozen=True, order=True):
    """A commit that no other history has: `sequence` in the term that this `run` of the process of `replica` held."""

    term: int
    replica: int
    run: int
    sequence: int


NOWHERE: Final = VouchedCommit(0, 0, 0, 0)
"""No commit is known."""


class TermMark(msgspec.Struct, frozen=True):
    """The record in the first commit of a term: its term and replica, own sequence, and `base`, vouched for before.

    It has one key in the store, so that a log always states its newest term. `run` identifies the process. `past`: the
    proven terms before, oldest first, each with its last commit; at most `bounds.TERMS_REMEMBERED_MAX`.
    """

    term: int
    replica: int
    first: int
    base: Vouched
    run: int = 0
    past: tuple[VouchedCommit, ...] = ()

    def until(self, sequence: int) -> tuple[VouchedCommit, ...]:
        """Return the history of a log that ends at `sequence` of this term."""
        if sequence <= self.first:
            return self.past
        return (*self.past, VouchedCommit(self.term, self.replica, self.run, sequence))[-bounds.TERMS_REMEMBERED_MAX :]


class LogEnd(msgspec.Struct, frozen=True):
    """The end of a replica's log: the newest mark in its store (None: none yet) and its last sequence."""

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
        """Whether the log ends with the first commit of a term, which perhaps nobody else ever held."""
        return self.mark is not None and self.sequence <= self.mark.first

    @property
    def history(self) -> tuple[VouchedCommit, ...]:
        """The proven terms in the log, oldest first, each with its last commit here."""
        return () if self.mark is None else self.mark.until(self.sequence)

    @property
    def newest(self) -> tuple[int, int]:
        """(term, replica) of the newest term in the log."""
        return (self.mark.term, self.mark.replica) if self.mark else (0, 0)


def may_join(own: Vouched, base: Vouched) -> bool:
    """Return whether a replica that vouches for `own` may follow a master that began at `base`, its term not open."""
    return own <= base


def holds(history: tuple[VouchedCommit, ...], known: VouchedCommit) -> bool:
    """Return whether a log with this `history` holds `known`; it is taken to hold terms older than a full history."""
    for each in reversed(history):
        if (each.term, each.replica, each.run) == (known.term, known.replica, known.run):
            return each.sequence >= known.sequence
    forgotten = len(history) >= bounds.TERMS_REMEMBERED_MAX and known.term < history[0].term
    return forgotten or known == NOWHERE


def encode_mark(mark: TermMark) -> bytes:
    """Encode a mark. Layout: docs/formats/replication.md."""
    base = mark.base
    past = [(each.term, each.replica, each.run, each.sequence) for each in mark.past]
    fields = (mark.term, mark.replica, mark.first, base.term, base.replica, base.sequence, mark.run, past)
    data = MARK_TAG + _ENCODER.encode(fields)
    assert decode_mark(data) == mark, "a mark is read as it was written"
    return data


def decode_mark(data: bytes) -> TermMark:
    """Decode a mark. Raises: INTERNAL when it is damaged or of a newer format."""
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
