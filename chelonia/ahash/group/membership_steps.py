"""The master's work on the membership: it writes the first record, promotes learners and finishes begun steps.

It runs on every replica and acts only as master of an open term. It promotes a learner that has reported to hold what
the group has. Each step is one record; the next one follows only when it is durable. A master whose disk is nearly full
makes way for one that may have room.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from chelonia.ahash.group import membership
from chelonia.ahash.group.forwarding import NotCarriedOut
from chelonia.ahash.group.mastership import Mastership
from chelonia.ahash.group.membership import Membership
from chelonia.ahash.store import layout
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.ahash import GroupChange, GroupStep
from chelonia.core.timing.clock import Clock

_LOG = logging.getLogger(__name__)

LOOK_MS: Final = 200
"""Between two looks for work: a promotion may take a few."""
FULL_REST_MS: Final = 30_000
"""Least time between two hand-overs for want of space: the disks of the others may be as full."""


class Writer(Protocol):
    """Writes records of the store's own."""

    @property
    def serving(self) -> bool:
        """Whether a term of ours is open and served."""

    @property
    def has_room(self) -> bool:
        """Whether the disk takes changes, as of the last look."""

    async def put_record(self, key: bytes, value: bytes) -> Position:
        """Write a record as master. Return its position once it is durable."""


async def keep(mastership: Mastership, writer: Writer, clock: Clock) -> None:
    """Do the steps of the membership, and hand over when the disk is full, until cancelled."""
    rest_until_ms = 0
    while True:
        try:
            if writer.serving:
                async with mastership.regrouping:
                    await step(mastership, writer)
                    if not writer.has_room and clock.monotonic_ms() >= rest_until_ms:
                        rest_until_ms = clock.monotonic_ms() + FULL_REST_MS
                        await make_way(mastership)
        except CheloniaError as error:
            _LOG.info("membership waits: %s", error)
        await clock.sleep(LOOK_MS)


async def step(mastership: Mastership, writer: Writer) -> None:
    """Do the next step, if there is one. Raises: UNAVAILABLE, OUTCOME_UNKNOWN, CONFLICT."""
    record = mastership.replica.membership
    if not mastership.recorded:
        await _write(mastership, writer, record)
        mastership.recorded = True
    if record.former:
        await _finish(mastership, writer, mastership.members_at)
        return
    for learner in (member.replica for member in record.members if not member.voter):
        if mastership.holds_all(learner):
            await change(mastership, writer, membership.promote(record, learner))
            return


async def make_way(mastership: Mastership) -> None:
    """Hand over if there is another voter: this master takes no changes."""
    if len(mastership.replica.membership.voters) > 1:
        await mastership.hand_over("its disk is nearly full: another takes over")


async def regroup(mastership: Mastership, writer: Writer, wanted: GroupChange) -> None:
    """Carry out an administrator's change. A voter loses its vote before it is removed; a master hands over before.

    Raises: as `core.ports.ahash.AHash.regroup`; `NotCarriedOut` when the caller has to ask another.
    """
    async with mastership.regrouping:
        record = mastership.replica.membership
        if wanted.step is GroupStep.ADD:
            _check_address(wanted.address)
            await change(mastership, writer, membership.add(record, wanted.dn, wanted.address))
            return
        member = record.member(wanted.replica)
        if member is not None and member.voter:
            await _check_left(mastership, membership.demote(record, wanted.replica), wanted.replica)
            if member.replica == mastership.own and len(record.voters) > 1:
                await mastership.hand_over("it is to be removed: another takes over")
                raise NotCarriedOut(Kind.UNAVAILABLE, "regroup", str(wanted.replica), "it was the master: retry")
            record = await change(mastership, writer, membership.demote(record, wanted.replica))
        await change(mastership, writer, membership.remove(record, wanted.replica))


async def _check_left(mastership: Mastership, left: Membership, replica: int) -> None:
    """Refuse a record if too few of its voters answer. Raises: CONFLICT, UNAVAILABLE."""
    # Without their acknowledgement nobody would be master, who could take it back.
    if not await mastership.is_answered_by(left):
        cause = (
            f"without replica {replica} nothing could be changed any more: of {', '.join(map(str, left.voters))} too"
            " few answer. Bring back who is away (`chelonia admin ahash status`), or remove that one first"
        )
        raise CheloniaError(Kind.CONFLICT, "regroup", str(replica), cause)


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise CheloniaError(Kind.BAD_REQUEST, "regroup", address[:80], "an address is host:port")


async def change(mastership: Mastership, writer: Writer, record: Membership) -> Membership:
    """Make one change of the membership, to its end. Return the record then in force.

    Raises: UNAVAILABLE (not master), CONFLICT, OUTCOME_UNKNOWN (read the membership to see).
    """
    assert mastership.regrouping.locked(), "one change at a time, to its end"
    mastership.replica.propose(record)
    position = await _write(mastership, writer, record)
    if not record.former:
        return record
    return await _finish(mastership, writer, position.sequence)


async def _finish(mastership: Mastership, writer: Writer, sequence: int) -> Membership:
    record = mastership.replica.finish(sequence)
    await _write(mastership, writer, record)
    return record


async def _write(mastership: Mastership, writer: Writer, record: Membership) -> Position:
    """Commit a record that the protocol goes by already; resign if that fails."""
    mastership.go_by(record)
    try:
        position = await writer.put_record(layout.META_MEMBERS, membership.encode(record))
    except CheloniaError as error:
        mastership.resign(f"membership record {record.number} could not be written: {error}")
        raise
    _LOG.info("membership record %d: voters %s, members %s", record.number, record.voters, record.replicas)
    mastership.members_at = position.sequence
    return position
