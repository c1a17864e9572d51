"""`admin ahash ...`: the replicas of the A-Hash as they see themselves and each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.ports.ahash import AHash, AHashStatus, GroupChange, GroupStep, PeerView
from chelonia.core.timing.clock import stamp
from chelonia_clients.arguments import UsageError
from chelonia_clients.client import RETRY_MS, new_call
from chelonia_clients.output import record_facts, table
from chelonia_clients.session import Session

_LOOK_MS: Final = 500
"""Pause between two looks whether a new replica votes, or whether a change was made whose answer was lost."""
_ROUND_MS: Final = 50
"""Multiple to which a proposed `round_trip_ms` is rounded up."""
_NEXT: Final = frozenset({Kind.NETWORK, Kind.UNAVAILABLE, Kind.TIMEOUT})
"""Failures after which another A-Hash is tried: one that was removed knows of no master."""


async def status(session: Session) -> None:
    """Print the status of every replica, queried by itself, so that a missing master is explained (`ahash status`)."""
    statuses, silent = await ask_all(session.administrator().ahashes)
    for url, error in silent.items():
        session.out.write(f"{url}: does not answer: {error}")
        session.out.result(url=url, answers=False, cause=error.cause)
    if not statuses:
        raise next(iter(silent.values()))
    for url, found in statuses.items():
        session.out.result(url=url, answers=True, **_facts(found))
    best = max(statuses.values(), key=lambda found: (found.role == "master", _master_of(found) is not None))
    _show(session, best)
    if best.replica and _master_of(best) is None:
        session.out.write(*held(statuses.values()))
    session.out.write(*parted(statuses.values()), *too_far(statuses.values()))
    for url, found in statuses.items():
        _show_pages(session, url, found)


async def backup(session: Session, name: str) -> None:
    """Have one A-Hash copy its store, a follower where there is one (`ahash backup`)."""
    ahashes = session.administrator().ahashes
    statuses, silent = await ask_all(ahashes)
    if not statuses:
        raise next(iter(silent.values()))
    trouble: CheloniaError | None = None
    for url in sorted(statuses, key=lambda url: statuses[url].role != "client"):
        try:
            directory = await ahashes[url].backup(new_call(), name)
        except CheloniaError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            trouble = trouble or error  # it lacks what the group has, being filled or without the others
            continue
        session.out.write(f"{url}: backup made in its {directory}")
        session.out.result(url=url, directory=directory)
        return
    assert trouble is not None, "at least one A-Hash has told its status"
    raise trouble


async def add(session: Session, dn: str, address: str) -> AHashStatus:
    """Add a replica, which votes as soon as it holds what the others have (`ahash add`)."""
    found = await _regroup(session, GroupChange(GroupStep.ADD, dn=Dn(dn), address=address))
    new = next(view for view in found.replicas if view.dn == dn)
    session.out.write(f"replica {new.replica} at {address}: added; it votes when it holds what the group has")
    session.out.write(f"its own configuration: replica_id = {new.replica}, and an entry for it in `replicas`")
    session.out.result(replica=new.replica, dn=dn, address=address, added=True)
    return found


async def remove(session: Session, replica: str) -> None:
    """Remove a replica (`ahash remove`). Its node goes on requesting to join until it is stopped."""
    await _regroup(session, GroupChange(GroupStep.REMOVE, _id(replica)))
    session.out.write(f"replica {replica}: removed; its id is never used again. Stop its node")
    session.out.result(replica=_id(replica), removed=True)


async def replace(session: Session, replica: str, dn: str, address: str) -> None:
    """Add a replica, wait until it votes, and remove another (`ahash replace`). Given again, it continues."""
    old = _id(replica)
    found = await _strong_status(session)
    if not _is_taken_up(found, old, dn, address):
        found = await add(session, dn, address)
    new = next(view.replica for view in found.replicas if view.dn == dn)
    session.out.notify(
        f"start replica {new} on an empty directory now (replica_id = {new} in its configuration, and an entry for it "
        "in `replicas`), if it does not run yet; waiting until it votes"
    )
    while not any(view.replica == new and view.role in ("follower", "master") for view in found.replicas):
        await session.administrator().clock.sleep(_LOOK_MS)
        found = await _strong_status(session)
    if any(view.replica == old for view in found.replicas):
        await remove(session, replica)


def _is_taken_up(found: AHashStatus, old: int, dn: str, address: str) -> bool:
    """Whether a replacement was added before. Raises: EXISTS for a member that is no replacement, NOT_FOUND."""
    new = next((view for view in found.replicas if view.dn == dn), None)
    if new is None and all(view.replica != old for view in found.replicas):
        cause = "no member has this id: `chelonia admin ahash status` shows them"
        raise CheloniaError(Kind.NOT_FOUND, "replace", str(old), cause)
    if new is not None and (new.address != address or new.replica <= old):
        cause = (
            f"this is replica {new.replica} at {new.address}; what takes the place of another has a certificate and an"
            " address of its own. To give a replica another address, remove it, then add it with an empty directory"
        )
        raise CheloniaError(Kind.EXISTS, "replace", dn, cause)
    return new is not None


async def _regroup(session: Session, change: GroupChange) -> AHashStatus:
    """Request a change from one A-Hash after the other until one carries it out: any of them reaches the master.

    The answer may be lost although the change was made: a removed replica is cut off at once. So each repeat is
    preceded by a look at the group.
    """
    clock = session.administrator().clock
    give_up = clock.monotonic_ms() + RETRY_MS
    while True:
        try:
            return await _first(session, lambda ahash: ahash.regroup(new_call(), change))
        except CheloniaError as error:
            if error.kind not in _NEXT | {Kind.OUTCOME_UNKNOWN}:
                raise
            trouble, late = error, clock.monotonic_ms() >= give_up
        await clock.sleep(_LOOK_MS)
        with suppress(CheloniaError):
            found = await _strong_status(session)
            if _is_made(change, found):
                return found
        if late:
            raise trouble


def _is_made(change: GroupChange, found: AHashStatus) -> bool:
    if change.step is GroupStep.ADD:
        return any((view.dn, view.address) == (change.dn, change.address) for view in found.replicas)
    return all(view.replica != change.replica for view in found.replicas)


async def _strong_status(session: Session) -> AHashStatus:
    return await _first(session, lambda ahash: ahash.status(new_call().strongly()))


async def _first(session: Session, ask: Callable[[AHash], Awaitable[AHashStatus]]) -> AHashStatus:
    trouble: CheloniaError | None = None
    for ahash in session.administrator().ahashes.values():
        try:
            return await ask(ahash)
        except CheloniaError as error:
            if error.kind not in _NEXT:
                raise
            if trouble is None or trouble.kind is Kind.NETWORK:  # an answer says more than none
                trouble = error
    assert trouble is not None, "at least one A-Hash is known"
    raise trouble


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"a replica's id is a number; `chelonia admin ahash status` shows them, not {text!r}")
    return int(text)


async def ask_all(ahashes: Mapping[str, AHash]) -> tuple[dict[str, AHashStatus], dict[str, CheloniaError]]:
    """Return the status of each A-Hash that answers, and the errors of the others, by URL."""
    urls = list(ahashes)
    answers = await asyncio.gather(*(ahashes[url].status(new_call()) for url in urls), return_exceptions=True)
    statuses: dict[str, AHashStatus] = {}
    silent: dict[str, CheloniaError] = {}
    for url, answer in zip(urls, answers, strict=True):
        if isinstance(answer, CheloniaError):
            silent[url] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            statuses[url] = answer
    return statuses, silent


def _master_of(found: AHashStatus) -> PeerView | None:
    """The master that this replica knows; None while one is elected or opens its term."""
    master = next((view for view in found.replicas if view.role == "master"), None)
    return None if found.role == "opening" else master


def _show(session: Session, found: AHashStatus) -> None:
    write = session.out.write
    write(f"cluster    {found.position.cluster}")
    known = not found.replica or _master_of(found) is not None
    write(f"position   {found.position.generation}.{found.position.sequence if known else '? (a master tells)'}")
    write(f"objects    about {found.objects_estimate}")
    if not found.replica:
        write("replicas   none: this A-Hash is alone")
        return
    if found.role == "master":
        write(f"master     replica {found.replica}, term {found.term}, since {stamp(found.elected_ms)}")
        write(f"lease      {found.lease_ms} ms left{'' if found.writable else '; takes no changes now'}")
    elif master := _master_of(found):
        write(
            f"master     replica {master.replica} at {master.address}, says replica {found.replica}; its A-Hash does "
            "not answer here: name it in `ahash` of client.toml, or look at the way there"
        )
    else:
        write(
            f"master     none that replica {found.replica} ({found.role}) knows of; if it stays so, start the replicas "
            "that are away (docs/operate/ahash-replicas.md, Losing a majority)"
        )
    write(f"membership record {found.membership}")
    rows = [("REPLICA", "ROLE", "BEHIND", "ADDRESS", "DN")]
    rows += [
        (str(view.replica), view.role, "?" if view.lag < 0 else str(view.lag), view.address, view.dn)
        for view in found.replicas
    ]
    write(*table(rows, frozenset({0, 2})))


def held(statuses: Iterable[AHashStatus]) -> list[str]:
    """Return a line for each replica that answers: the acknowledged history it holds, and which holds the most."""
    have = {
        found.replica: (found.position.generation, found.vouched_term, found.vouched_sequence)
        for found in sorted(statuses, key=lambda found: found.replica)
    }
    most = max(have.values())
    return [
        f"replica {replica} holds {_held(*has)}"
        + (": the newest of those that answer" if has == most and has[0] else "")
        for replica, has in have.items()
    ]


def _held(generation: int, term: int, sequence: int) -> str:
    if not generation:  # it cannot be read, and the rest is of an earlier state
        return "nothing whole: it is empty, or was being filled"
    return f"generation {generation}, term {term}, commit {sequence}"


async def warn_parted(session: Session) -> bool:
    """Warn where the A-Hash's replicas have two histories. Returns: whether they have."""
    try:
        ahashes = session.administrator().ahashes
    except CheloniaError:  # none is known here
        return False
    statuses, _ = await ask_all(ahashes)
    lines = parted(statuses.values())
    session.out.notify(*lines)
    return bool(lines)


def parted(statuses: Iterable[AHashStatus]) -> list[str]:
    """Return a line for each two replicas that have two histories, by the report of either."""
    pairs = {
        (min(found.replica, view.replica), max(found.replica, view.replica))
        for found in statuses
        for view in found.replicas
        if view.role == "parted"
    }
    return [
        f"ERROR: replicas {one} and {other} of the A-Hash have two histories: each holds acknowledged changes that the "
        "other lacks, as old copies of disks were put back; choose one (docs/operate/ahash-replicas.md, Two histories)"
        for one, other in sorted(pairs)
    ]


def too_far(statuses: Iterable[AHashStatus]) -> list[str]:
    """Return a line, with the cure, for each two replicas farther apart than their group's `round_trip_ms`."""
    lines: dict[tuple[int, ...], str] = {}
    for found in statuses:
        for view in found.replicas:
            if found.round_trip_ms and view.round_trip_ms > found.round_trip_ms:
                enough = min((view.round_trip_ms // _ROUND_MS + 1) * _ROUND_MS, bounds.ROUND_TRIP_MS_MAX)
                lines[tuple(sorted((found.replica, view.replica)))] = (
                    f"WARNING: from replica {found.replica} to {view.replica} and back takes {view.round_trip_ms} ms, "
                    f"ahash.tuning.round_trip_ms is {found.round_trip_ms}: masters may be given up, none be elected; "
                    f"set it to {enough} on every replica (docs/operate/ahash-replicas.md, Replicas at several sites)"
                )
    return [lines[pair] for pair in sorted(lines)]


def _show_pages(session: Session, url: str, found: AHashStatus) -> None:
    seen = found.pages
    if seen is None:
        session.out.write(f"{url}: its pages are not scrubbed (ahash.tuning.page_scrub_interval_ms)")
        return
    if not seen.pages:
        session.out.write(f"{url}: its pages have not been looked at since its start")
        return
    ended = f"all checked at {stamp(seen.ended_ms)}" if seen.ended_ms else "no whole round yet"
    session.out.write(f"{url}: {seen.checked} of {seen.pages} pages scrubbed in this round, {ended}; {_damage(found)}")


def _damage(found: AHashStatus) -> str:
    if found.pages is None or not found.pages.damaged:
        return "none damaged"
    page = "ahash-replicas.md, Replace a replica" if found.replica else "backup-and-restore.md"
    return f"{found.pages.damaged} DAMAGED: see docs/operate/{page}"


def _facts(found: AHashStatus) -> dict[str, object]:
    facts = record_facts(found)
    facts["objects"] = facts.pop("objects_estimate")
    facts["vouched"] = {"term": facts.pop("vouched_term"), "sequence": facts.pop("vouched_sequence")}
    return facts
