"""The histories of this replica's log and of those it is connected to: which hold all acknowledged commits. Pure.

Disks put back from old copies take part in elections like any other. A majority of them would go on without the commits
acknowledged since. A replica that has these must not be rolled back, and must report it. So each replica remembers the
newest commit that it knows to be acknowledged (`known`), and sends the history of its log (`Past`).
Decides: whether we may follow a master, and which replicas are `parted`: irreconcilable. Never: what is durable.
Invariants: `known` is in our log. While a majority keeps its disks, the log of every open term holds all known commits,
and nobody is `parted`. Why: docs/design/009-replication.md, Two histories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from chelonia.ahash.group.log_vouching import NOWHERE, OPEN_END, LogEnd, TermMark, VouchedCommit, holds
from chelonia.ahash.group.peer_messages import Beat, Past


@dataclass(frozen=True, slots=True)
class Remembers:
    """Facts that a replica remembers beside its log, and the number of its process.

    Attributes:
        trusted: whether the log holds all that it ever acknowledged (`ReplicatedEngine.trusted`).
        run: a number that no other process of any replica had.
        known: the newest commit that it knew to be acknowledged.
        engine_term: the newest term that the engine has heard of; it takes nothing of older ones.
        promised_ms: how long its earlier grants may last.
    """

    trusted: bool
    run: int = 0
    known: VouchedCommit = NOWHERE
    engine_term: int = 0
    promised_ms: int = 0


@dataclass(slots=True)
class Histories:
    """The histories as one replica knows them; `run` identifies its process.

    Attributes:
        known: the newest commit that we know to be acknowledged.
        parted: the irreconcilable replicas, each with the newest commit that it knows and our log lacks.
    """

    own: int
    run: int
    end: LogEnd
    known: VouchedCommit = NOWHERE
    parted: dict[int, VouchedCommit] = field(default_factory=dict)
    _sent: dict[int, Past] = field(default_factory=dict)
    _received: dict[int, Past] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        if self.end.mark is None:  # our log lacks it: wiped, or begun anew from a backup
            self.known = NOWHERE

    def connected(self, peer: int) -> None:
        """Begin a connection: forget the messages of an earlier one."""
        self._sent.pop(peer, None)
        self._received.pop(peer, None)

    def began(self, term: int, end: LogEnd) -> TermMark:
        """Begin our term after a log that ends at `end`; return its mark."""
        assert end.sequence < OPEN_END, "no term begins while another of ours goes on"
        assert end.newest < (term, self.own), "the terms of a log rise"
        mark = TermMark(term, self.own, end.sequence + 1, end.vouched, self.run, end.history)
        self.end = LogEnd(mark, OPEN_END)
        return mark

    def ended(self, sequence: int) -> None:
        """End our term; our log ends at `sequence`."""
        mark = self.end.mark
        assert mark is not None, "only a term that began ends"
        assert mark.first - 1 <= sequence < OPEN_END, "a term takes nothing back of the log that it began with"
        self.end = LogEnd(self.end.mark, sequence)

    def knows(self, mark: TermMark, sequence: int) -> bool:
        """Note that `sequence` of this term is acknowledged and in our log. Returns: whether it is its term's first."""
        if sequence <= mark.first:
            return False
        assert self.end.newest == (mark.term, mark.replica), "what we know stands in our log"
        assert sequence <= self.end.sequence, "what we know stands in our log"
        before, self.known = self.known, VouchedCommit(mark.term, mark.replica, mark.run, sequence)
        if (before.term, before.replica, before.run) == (mark.term, mark.replica, mark.run):
            return False
        for peer in self._received:
            self._weigh(peer, counts=True)
        return True

    def mark_of(self, master: int, beat: Beat) -> TermMark:
        """Return the mark of a master's term, as far as its messages say; its `Past` comes before its beats."""
        past = self._received.get(master)
        if past is None or not past.held or (past.held[-1].term, past.held[-1].replica) != (beat.term, master):
            return TermMark(beat.term, master, beat.first, beat.base)
        return TermMark(beat.term, master, beat.first, beat.base, past.held[-1].run, past.held[:-1])

    def to_send(self, peer: int, *, counts: bool) -> Past | None:
        """Return the `Past` to send to `peer` now; None: it has it. Unless we count or are parted it has no `known`."""
        known = self.known if counts or self.parted else NOWHERE
        now = Past(0, known, self.end.history if counts else ())
        if self._sent.get(peer) == now:
            return None
        self._sent[peer] = now
        self._number += 1
        return replace(now, number=self._number)

    def received(self, peer: int, past: Past, *, counts: bool) -> None:
        """Take the `Past` of `peer`, unless it is old. `counts`: our log holds the commits that we know."""
        before = self._received.get(peer)
        if before is not None and before.number >= past.number:
            return
        self._received[peer] = past
        self._weigh(peer, counts=counts)

    def _weigh(self, peer: int, *, counts: bool) -> None:
        past = self._received[peer]
        peer_lacks, we_lack = not holds(past.held, self.known), not holds(self.end.history, past.known)
        if peer_lacks and we_lack and (counts or peer in self.parted):
            self.parted[peer] = past.known
        else:
            self.parted.pop(peer, None)

    def why_behind(self, among: Iterable[int]) -> str:
        """Return why another must lead: it knows an acknowledged commit that our log lacks. Empty: nobody does."""
        pasts = {peer: self._received[peer] for peer in among if peer in self._received and peer not in self.parted}
        ahead = [peer for peer, past in pasts.items() if not holds(self.end.history, past.known)]
        return f"replicas {ahead} know of acknowledged changes that this one lacks" if ahead else ""

    def goes_on(self, mark: TermMark, durable: int) -> bool:
        """Return whether a master with this mark has `known`. If not, an open one (`durable`) becomes `parted`."""
        if holds(mark.until(OPEN_END), self.known):
            return True
        assert mark.replica != self.own, "we do not follow ourselves"
        if durable and mark.run:
            self.parted[mark.replica] = VouchedCommit(mark.term, mark.replica, mark.run, durable)
        return False
