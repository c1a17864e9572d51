"""Uploads of one Shepherd that are not stored yet, by owner and state: reserved, begun or idle.

Space is reserved for an upload until it begins; one that does not begin in time is idle and keeps only its ticket. Most
idle ones are spare places that a sender did not need. There is about one for each upload, so each costs constant work.
Decides which upload is refused, which becomes idle, and which is forgotten, so that its owner needs a new ticket.
Invariants: an upload that has begun is neither idle nor forgotten. An owner has room while one of his own has not
begun. No upload is forgotten for the sake of an owner who has more.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.ids import Dn, ReferenceId

NOBODY = Dn("")
"""Owner of copies that the metadata have claimed: they count for no user, and are expected to come."""


class Crowd(enum.Enum):
    """A limit of begun uploads that is reached, by its name."""

    OF_OWNER = "uploads_open_per_owner"
    OF_ALL = "uploads_open"


class _State(enum.Enum):
    RESERVED = enum.auto()
    BEGUN = enum.auto()
    IDLE = enum.auto()


@dataclass(frozen=True, slots=True)
class TicketedUpload:
    """An upload with a ticket. `bytes`: announced, 0 when not; `reserved_until_ms`: monotonic."""

    reference: ReferenceId
    owner: Dn
    bytes: int
    reserved_until_ms: int


class OpenUploads:
    """The table. Each upload is in one state; in each state, of all and of each owner, the earliest come first."""

    def __init__(self) -> None:
        self._states: dict[ReferenceId, _State] = {}
        self._all: dict[_State, dict[ReferenceId, TicketedUpload]] = {state: {} for state in _State}
        self._own: defaultdict[Dn, dict[_State, dict[ReferenceId, TicketedUpload]]]
        self._own = defaultdict(lambda: {state: {} for state in _State})
        self.bytes_max = 0
        """Bytes announced by uploads that are reserved or begun: an upper bound of the space they still need."""
        self._forgotten: list[ReferenceId] = []

    def __iter__(self) -> Iterator[ReferenceId]:
        """Iterate over the uploads that are reserved or begun."""
        yield from self._all[_State.RESERVED]
        yield from self._all[_State.BEGUN]

    def crowded(self, owner: Dn, now_ms: int) -> Crowd | None:
        """Make a place for one more upload; the earliest reserved ones may become idle. Returns the limit that refuses
        it, None when there is a place."""
        reserved, begun = self._all[_State.RESERVED], self._all[_State.BEGUN]
        while reserved and (first := next(iter(reserved.values()))).reserved_until_ms <= now_ms:
            self._set_idle(first)
        own = self._own.get(owner, {}) if owner != NOBODY else {}
        waiting = own.get(_State.RESERVED, {})
        if len(waiting) + len(own.get(_State.BEGUN, ())) >= bounds.UPLOADS_OPEN_PER_OWNER_MAX:
            if not waiting:
                return Crowd.OF_OWNER
            self._set_idle(next(iter(waiting.values())))
        if len(reserved) + len(begun) >= bounds.UPLOADS_OPEN_MAX:
            if not reserved:
                return Crowd.OF_ALL
            self._set_idle(next(iter(reserved.values())))
        return None

    def add(self, upload: TicketedUpload) -> None:
        """Add an upload with a new ticket, as reserved; a claimed copy counts as begun."""
        self.end(upload.reference)
        self._put(upload, _State.BEGUN if upload.owner == NOBODY else _State.RESERVED)

    def begin(self, reference: ReferenceId) -> None:
        """Note that its bytes are coming."""
        self._put(self._take(reference), _State.BEGUN)

    def broke_off(self, reference: ReferenceId) -> None:
        """Make an upload idle that broke off with nothing kept: it may begin anew. Without effect for a claimed copy,
        and for one that was withdrawn meanwhile."""
        upload = self._all[self._states[reference]][reference] if reference in self._states else None
        if upload is not None and upload.owner != NOBODY:
            self._set_idle(upload)

    def end(self, reference: ReferenceId) -> None:
        """Remove an upload that is stored, withdrawn, or whose ticket is over. Without effect for an unknown one."""
        if reference in self._states:
            self._take(reference)

    def forgotten(self) -> list[ReferenceId]:
        """Return the uploads forgotten since the last call: their tickets are no longer good."""
        references, self._forgotten = self._forgotten, []
        return references

    def _set_idle(self, upload: TicketedUpload) -> None:
        self._put(self._take(upload.reference), _State.IDLE)
        while (most := self._most_idle(upload.owner)) is not None:
            earliest = next(iter(self._own[most][_State.IDLE]))
            self._take(earliest)
            self._forgotten.append(earliest)

    def _most_idle(self, owner: Dn) -> Dn | None:
        """The owner who has to lose an idle upload, None when there are not too many."""
        if len(self._own[owner][_State.IDLE]) > bounds.UPLOADS_OPEN_PER_OWNER_MAX:
            return owner
        if len(self._all[_State.IDLE]) > bounds.UPLOADS_OPEN_MAX:
            return max(self._own, key=lambda dn: len(self._own[dn][_State.IDLE]))
        return None

    def _put(self, upload: TicketedUpload, state: _State) -> None:
        assert upload.reference not in self._states, "an upload is in one state"
        self._states[upload.reference] = state
        self._all[state][upload.reference] = self._own[upload.owner][state][upload.reference] = upload
        self.bytes_max += 0 if state is _State.IDLE else upload.bytes

    def _take(self, reference: ReferenceId) -> TicketedUpload:
        state = self._states.pop(reference)
        upload = self._all[state].pop(reference)
        own = self._own[upload.owner]
        del own[state][reference]
        if not any(own.values()):
            del self._own[upload.owner]
        self.bytes_max -= 0 if state is _State.IDLE else upload.bytes
        assert self.bytes_max >= 0, "no more is given back than was promised"
        return upload
