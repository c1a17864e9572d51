"""The lease of the repair leader: a record in the A-Hash, judged without comparing anybody's clocks.

A state machine with monotonic time passed in. A lease counts as abandoned when its record has not changed for a whole
lease of this Librarian's own watching. The leader stops leading when it could not renew for a lease, counted from
before it asked. Every write of a leader carries its holder and term as a condition, so that of two who both believe to
lead one cannot write.
"""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core.ids import REPAIR_OBJECT, Ms, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.elements import LEASE, as_read, check, is_, put

RENEWALS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """The lease record as stored; all empty when there is none. `until_ms` is wall-clock time, for people."""

    holder: str = ""
    until_ms: str = ""
    term: str = ""


def parse(stored: StoredObject) -> LeaderLease:
    """Return the lease record of the repair object."""
    return LeaderLease(*(stored.value("lease", prop) for prop in ("holder", "until_ms", "term")))


@dataclass(frozen=True, slots=True)
class Bid:
    """An attempt to take or keep the lease: the record seen, the record to write, and the time of the decision."""

    seen: LeaderLease
    wanted: LeaderLease
    at_ms: Ms

    def elements(self) -> list[Element]:
        """Return the conditional change."""
        seen, wanted = self.seen, self.wanted
        conditions = (
            as_read("lease", "holder", seen.holder),
            as_read("lease", "until_ms", seen.until_ms),
            as_read("lease", "term", seen.term),
        )
        return [
            put(REPAIR_OBJECT, "lease", "holder", wanted.holder, *conditions),
            put(REPAIR_OBJECT, "lease", "until_ms", wanted.until_ms),
            put(REPAIR_OBJECT, "lease", "term", wanted.term),
        ]


class Leadership:
    """One Librarian's part in the lease."""

    def __init__(self, me: ServiceId, lease_ms: int) -> None:
        self._me = me
        self._lease_ms = lease_ms
        self._seen: LeaderLease | None = None
        self._seen_since = Ms(0)
        self._held: LeaderLease | None = None
        self._renewed_ms = Ms(0)

    @property
    def holder(self) -> str:
        """Holder of the lease when it was last read."""
        return self._seen.holder if self._seen else ""

    @property
    def term(self) -> str:
        """The term this Librarian leads in, "" when it does not lead; it rises whenever leading was interrupted."""
        return self._held.term if self._held else ""

    def leading(self, now: Ms) -> bool:
        """Return whether this Librarian leads: it holds the lease and has renewed it in time."""
        return self._held is not None and now - self._renewed_ms < self._lease_ms

    def check(self) -> Element:
        """Return the condition that everything a leader writes carries."""
        held = self._held or LeaderLease(self._me, "", "-")
        return check(
            REPAIR_OBJECT, is_("lease", "holder", held.holder), is_("lease", "term", held.term), change_id=LEASE
        )

    def observe(self, lease: LeaderLease, now: Ms) -> None:
        """Note the record as just read."""
        if self._seen != lease:
            self._seen, self._seen_since = lease, now
        if self._held is not None and (lease.holder, lease.term) != (self._held.holder, self._held.term):
            self._held = None

    def bid(self, now: Ms, wall: Ms) -> Bid | None:
        """Return what to try now, after `observe`: take a free or abandoned lease, renew the own one, or nothing."""
        seen = self._seen
        if seen is None:
            return None
        until = str(wall + self._lease_ms)
        if self.leading(now):
            assert (seen.holder, seen.term) == (self._me, self.term), "a leader sees its own lease"
            due = now - self._renewed_ms >= self._lease_ms // RENEWALS_PER_LEASE
            return Bid(seen, LeaderLease(self._me, until, seen.term), now) if due else None
        abandoned = now - self._seen_since >= self._lease_ms
        if seen.holder in ("", self._me) or abandoned:
            term = int(seen.term) + 1 if seen.term.isdecimal() else 1
            return Bid(seen, LeaderLease(self._me, until, str(term)), now)
        return None

    def won(self, bid: Bid) -> None:
        """Note that the bid was written. A later bid may have been noted before; then this one says nothing new."""
        assert bid.wanted.holder == self._me, "a bid is for oneself"
        assert bid.wanted.term.isdecimal(), "a lease is held in a term: who leads none writes under another"
        held = self._held
        if held is not None and (int(bid.wanted.term), bid.at_ms) < (int(held.term), self._renewed_ms):
            return
        self._held, self._renewed_ms = bid.wanted, bid.at_ms
        self._seen, self._seen_since = bid.wanted, bid.at_ms

    def lost(self) -> None:
        """Note that another Librarian leads."""
        self._held = None
