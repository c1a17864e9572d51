"""Whose log goes on from what is known to be acknowledged: of this replica, and of each that it is connected to. Pure.

A disk put back from an old copy takes part in elections like any other, and a majority of such disks goes on without
what was acknowledged since. Who knows better must not be cut back, and must say so. Each replica remembers the newest
commit that it knows to be acknowledged (`known`); each tells what its log went through (`Past`).
Decides: whether a master may be followed, and whom nobody can be brought together with. Never: what is durable.
Invariants: `known` stands in our log; while a majority keeps its disks every open term's log holds what anybody knows,
so nobody is `parted`. Why: docs/design/009-replication.md, Two histories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from chelonia.ahash.group.log_vouching import NOWHERE, OPEN_END, LogEnd, TermMark, VouchedCommit, holds
from chelonia.ahash.group.peer_messages import Beat, Past


@dataclass(frozen=True, slots=True)
class Remembers:
    """What a replica remembers beside its log, and what tells its process from all others.

    Attributes:
        trusted: whether the log holds all that it ever acknowledged (`ReplicatedEngine.trusted`).
        run: a number that no other process of any replica had.
        known: the newest commit that it knew to be acknowledged.
        engine_term: the newest term that the engine has heard of; of older ones it takes nothing.
        promised_ms: how long what it granted may last.
    """

    trusted: bool
    run: int = 0
    known: VouchedCommit = NOWHERE
    engine_term: int = 0
    promised_ms: int = 0


@dataclass(slots=True)
class Histories:
    """Of one replica; `run` tells its process from all others.

    Attributes:
        known: the newest commit that we know to be acknowledged.
        parted: with whom we cannot be brought together, and the newest commit that they know and our log lacks.
    """

    own: int
    run: int
    end: LogEnd
    known: VouchedCommit = NOWHERE
    parted: dict[int, VouchedCommit] = field(default_factory=dict)
    _told: dict[int, Past] = field(default_factory=dict)
    _heard: dict[int, Past] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        if self.end.mark is None:  # nothing of it is here: wiped, or begun anew from a backup
            self.known = NOWHERE

    def connected(self, peer: int) -> None:
        """A connection begins: what was told over another one counts no more."""
        self._told.pop(peer, None)
        self._heard.pop(peer, None)

    def began(self, term: int, end: LogEnd) -> TermMark:
        """Our term begins, our log ends at `end`."""
        assert end.sequence < OPEN_END, "no term begins while another of ours goes on"
        assert end.newest < (term, self.own), "the terms of a log rise"
        mark = TermMark(term, self.own, end.sequence + 1, end.vouched, self.run, end.history)
        self.end = LogEnd(mark, OPEN_END)
        return mark

    def ended(self, sequence: int) -> None:
        """Our term is over; our log ends at `sequence`."""
        mark = self.end.mark
        assert mark is not None, "only a term that began ends"
        assert mark.first - 1 <= sequence < OPEN_END, "a term takes nothing back of the log that it began with"
        self.end = LogEnd(self.end.mark, sequence)

    def knows(self, mark: TermMark, sequence: int) -> bool:
        """Our log has `sequence` of this term, and it is acknowledged. Returns: whether it is the first of its term."""
        if sequence <= mark.first:
            return False
        assert self.end.newest == (mark.term, mark.replica), "what we know stands in our log"
        assert sequence <= self.end.sequence, "what we know stands in our log"
        before, self.known = self.known, VouchedCommit(mark.term, mark.replica, mark.run, sequence)
        if (before.term, before.replica, before.run) == (mark.term, mark.replica, mark.run):
            return False
        for peer in self._heard:
            self._weigh(peer, counts=True)
        return True

    def mark_of(self, master: int, beat: Beat) -> TermMark:
        """What the first commit of a master's term writes, as far as we were told: its past comes first."""
        past = self._heard.get(master)
        if past is None or not past.held or (past.held[-1].term, past.held[-1].replica) != (beat.term, master):
            return TermMark(beat.term, master, beat.first, beat.base)
        return TermMark(beat.term, master, beat.first, beat.base, past.held[-1].run, past.held[:-1])

    def to_tell(self, peer: int, *, counts: bool) -> Past | None:
        """What `peer` has to hear of us now; None: it has. Who does not count knows nothing, unless it is parted."""
        known = self.known if counts or self.parted else NOWHERE
        now = Past(0, known, self.end.history if counts else ())
        if self._told.get(peer) == now:
            return None
        self._told[peer] = now
        self._number += 1
        return replace(now, number=self._number)

    def heard(self, peer: int, past: Past, *, counts: bool) -> None:
        """`peer` tells of its log; `counts`: what we know stands in ours."""
        before = self._heard.get(peer)
        if before is not None and before.number >= past.number:
            return
        self._heard[peer] = past
        self._weigh(peer, counts=counts)

    def _weigh(self, peer: int, *, counts: bool) -> None:
        past = self._heard[peer]
        lacks_ours, lacks_theirs = not holds(past.held, self.known), not holds(self.end.history, past.known)
        if lacks_ours and lacks_theirs and (counts or peer in self.parted):
            self.parted[peer] = past.known
        else:
            self.parted.pop(peer, None)

    def who_is_ahead(self, among: Iterable[int]) -> str:
        """Why another is to lead: it knows an acknowledged commit that our log lacks. Empty: nobody does."""
        pasts = {peer: self._heard[peer] for peer in among if peer in self._heard and peer not in self.parted}
        ahead = [peer for peer, past in pasts.items() if not holds(self.end.history, past.known)]
        return f"replicas {ahead} know of acknowledged changes that this one lacks" if ahead else ""

    def goes_on(self, mark: TermMark, durable: int) -> bool:
        """Whether a master with this mark has what we know. One that has not and is open (`durable`) parts us."""
        if holds(mark.until(OPEN_END), self.known):
            return True
        assert mark.replica != self.own, "we do not follow ourselves"
        if durable and mark.run:
            self.parted[mark.replica] = VouchedCommit(mark.term, mark.replica, mark.run, durable)
        return False
