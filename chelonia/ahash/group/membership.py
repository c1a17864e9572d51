"""The members of the group, and the sets of replicas that decide: the membership record and its quorums.

The record is an object of the replicated store, so a majority acknowledges it like any other change. Members are voters
or learners; one step changes one member. During a change of voters the record keeps the voters before it (`former`),
and majorities of both decide. The same record without `former` ends the step; the master writes it only after the
first was acknowledged. A replica always goes by the newest record in its log, acknowledged or not.
Invariants: replica ids rise and are never used again; a record is valid only as the successor of the one in force.
Why: docs/design/009-replication.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.values import replace

RECORD_TAG: Final = b"\x01"
"""First byte of a record in the store: the number of its format."""


T = TypeVar("T", int, tuple[int, int])


@dataclass(frozen=True, slots=True)
class Member:
    """One replica: `dn` identifies its certificate, `address` is `host:port` of its replication listener."""

    replica: int
    dn: Dn
    address: str
    voter: bool


@dataclass(frozen=True, slots=True)
class Quorum:
    """Sets of voters, each of which must agree with a majority of its own."""

    sets: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Refuse an empty set: it has no majority, and could never decide."""
        assert all(self.sets or ((),)), "somebody decides"

    def voters(self) -> tuple[int, ...]:
        """Return every replica that counts, in order."""
        return tuple(sorted({voter for voters in self.sets for voter in voters}))

    def reached(self, replicas: Collection[int]) -> bool:
        """Return whether `replicas` hold a majority of every set."""
        return all(sum(voter in replicas for voter in voters) >= majority(len(voters)) for voters in self.sets)

    def agreed(self, values: Mapping[int, T]) -> T | None:
        """Return the highest value that a majority of every set has reached; None when some set lacks a majority."""
        lowest: T | None = None
        for voters in self.sets:
            ranked = sorted([values[voter] for voter in voters if voter in values], reverse=True)
            need = majority(len(voters))
            if len(ranked) < need:
                assert not self.reached(values), "what is agreed on was reached by as many"
                return None
            value = ranked[need - 1]
            lowest = value if lowest is None or value < lowest else lowest
        return lowest


def majority(voters: int) -> int:
    """Return the least number that is more than half of `voters`."""
    return voters // 2 + 1


@dataclass(frozen=True, slots=True)
class Membership:
    """One membership record.

    Args:
        number: rises with every record.
        members: in order of their ids.
        next_replica: the id that the next member gets.
        former: the voters before a change that is not yet finished; empty: none is.
    """

    number: int
    members: tuple[Member, ...]
    next_replica: int
    former: tuple[int, ...] = ()

    @property
    def voters(self) -> tuple[int, ...]:
        """Ids of the voters, in order."""
        return tuple(member.replica for member in self.members if member.voter)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Ids of all members, in order."""
        return tuple(member.replica for member in self.members)

    @property
    def quorum(self) -> Quorum:
        """The sets of voters that decide under this record."""
        return Quorum((self.voters, self.former) if self.former else (self.voters,))

    def member(self, replica: int) -> Member | None:
        """Return the member of this id, or None."""
        return next((member for member in self.members if member.replica == replica), None)


def found(members: tuple[tuple[Dn, str], ...]) -> Membership:
    """Return the first record of a group: the first of `members` (DN, address) votes, the others begin as learners."""
    numbered = tuple(Member(id_, dn, address, id_ == 1) for id_, (dn, address) in enumerate(members, start=1))
    return _checked(Membership(1, numbered, len(numbered) + 1))


def add(record: Membership, dn: Dn, address: str) -> Membership:
    """Add a learner. Raises: CONFLICT (a change is under way), EXISTS (DN or address is a member's)."""
    _refuse_unfinished(record)
    new = Member(record.next_replica, dn, address, voter=False)
    members = (*record.members, new)
    grown = _checked(replace(record, number=record.number + 1, members=members, next_replica=new.replica + 1))
    assert grown.quorum == record.quorum, "who is added decides nothing before he is promoted"
    return grown


def promote(record: Membership, replica: int) -> Membership:
    """Make a learner a voter, once it has reported that it is synchronised. Raises: CONFLICT, NOT_FOUND."""
    return _vote(record, replica, voter=True)


def demote(record: Membership, replica: int) -> Membership:
    """Make a voter a learner. Raises: CONFLICT (also for the last voter), NOT_FOUND."""
    return _vote(record, replica, voter=False)


def remove(record: Membership, replica: int) -> Membership:
    """Take a learner out. Raises: CONFLICT (also for a voter: its word may be needed to demote it), NOT_FOUND."""
    _refuse_unfinished(record)
    if _find(record, replica).voter:
        raise _conflict(f"replica {replica} votes: demote it first")
    left = _succeed(record, tuple(member for member in record.members if member.replica != replica))
    assert left.quorum == record.quorum, "who is taken out has decided nothing"
    return left


def finish(record: Membership) -> Membership:
    """Return the record that ends a change of voters; write it only once `record` itself was acknowledged."""
    assert record.former, "nothing is under way"
    assert record.former != record.voters, "a change of voters changes them"
    return replace(record, number=record.number + 1, former=())


def shows_end(record: Membership, replica: int, *, votes: bool) -> bool:
    """Return whether the change of voters in `record` is over: `replica`, which loses its vote by it, has none now.

    Its log holds ours and more. It votes until the record that ends the change, written only once `record` is durable.
    So the new voters count alone, though perhaps only the log of `replica` has that last record.
    """
    return not votes and replica in record.former and replica not in record.voters


def check_successor(old: Membership, new: Membership) -> None:
    """Refuse `new` unless it may follow `old`: one step, or the end of the step under way.

    Raises: CONFLICT.
    """
    _checked(new)
    ended = replace(new, number=old.number, former=old.former) == old and not new.former
    if new.number != old.number + 1 or new.next_replica < old.next_replica:
        raise _conflict(f"record {new.number} does not follow record {old.number}")
    if old.former and not ended:
        raise _conflict(f"the change of record {old.number} is not finished: wait for it")
    changed = set(old.members) ^ set(new.members)
    if not old.former and len({member.replica for member in changed}) > 1:
        raise _conflict("one replica at a time")
    if not old.former and new.former != (old.voters if old.voters != new.voters else ()):
        raise _conflict("a change of voters names the voters before it")
    assert len(set(old.voters) ^ set(new.voters)) <= 1, "every majority before and every one after share a replica"


def encode(record: Membership) -> bytes:
    """Encode a record for the store. Layout: docs/formats/replication.md."""
    members = [(member.replica, member.dn, member.address, member.voter) for member in record.members]
    data = RECORD_TAG + _ENCODER.encode((record.number, members, record.next_replica, record.former))
    assert decode(data) == record, "a record is read as it was written"
    return data


def decode(data: bytes) -> Membership:
    """Decode a record. Raises: INTERNAL when it is damaged or of a newer format."""
    try:
        if data[:1] != RECORD_TAG:
            raise ValueError("unknown format")
        number, members, next_replica, former = _DECODER.decode(data[1:])
        return _checked(Membership(number, tuple(Member(*fields) for fields in members), next_replica, former))
    except (msgspec.MsgspecError, ValueError, CheloniaError) as error:
        raise CheloniaError(Kind.INTERNAL, "ahash", "membership record", f"cannot be read: {error}") from error


def _vote(record: Membership, replica: int, *, voter: bool) -> Membership:
    _refuse_unfinished(record)
    member = _find(record, replica)
    if member.voter == voter:
        raise _conflict(f"replica {replica} is {'a voter' if voter else 'a learner'} already")
    changed = replace(member, voter=voter)
    new = _succeed(record, tuple(changed if each.replica == replica else each for each in record.members))
    assert new.quorum.sets == (new.voters, record.voters), "both decide until the change is over"
    return new


def _succeed(record: Membership, members: tuple[Member, ...]) -> Membership:
    new = replace(record, number=record.number + 1, members=members)
    return _checked(replace(new, former=record.voters if new.voters != record.voters else ()))


def _find(record: Membership, replica: int) -> Member:
    member = record.member(replica)
    if member is None:
        raise CheloniaError(Kind.NOT_FOUND, "membership", str(replica), "no member has this id")
    return member


def _refuse_unfinished(record: Membership) -> None:
    if record.former:
        raise _conflict(f"the change of record {record.number} is not finished: wait for it")


def _checked(record: Membership) -> Membership:
    ids = record.replicas
    if not record.voters:
        raise _conflict("a group keeps at least one voter")
    if list(ids) != sorted(set(ids)) or ids[0] < 1 or ids[-1] >= record.next_replica:
        raise _conflict("ids rise and lie below the next one")
    if not set(record.former) <= set(ids):
        raise _conflict("the voters before a change stay members until it is finished")
    if len(ids) > bounds.REPLICAS_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "membership", "", f"at most {bounds.REPLICAS_MAX} replicas")
    for field in ("dn", "address"):
        if len({getattr(member, field) for member in record.members}) < len(ids):
            raise CheloniaError(Kind.EXISTS, "membership", field, f"two members have the same {field}")
    return record


def _conflict(cause: str) -> CheloniaError:
    return CheloniaError(Kind.CONFLICT, "membership", "", cause)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, Dn, str, bool]], int, tuple[int, ...]])
