"""A group of three replicated A-Hashes in one process, on real engines: their answers, and the effect of a change of
master."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from chelonia.ahash.group import following, forwarding, mastership, membership, peer_messages
from chelonia.ahash.group import membership_steps as keeping
from chelonia.ahash.group import service as replicated
from chelonia.ahash.group.effects import GroupStatus, OpenTerm, PeerRole
from chelonia.ahash.group.forwarding import ForwardedCall
from chelonia.ahash.group.log_vouching import TermMark, Vouched
from chelonia.ahash.group.peer_messages import Beat, CallFrame
from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import Demoted, Event, Flushed, LogPosition, MasterHere, Ready
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ObjectId, RequestKey
from chelonia.core.ports.ahash import GroupChange, GroupStep, TransactOutcome
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemClock
from tests.support.ahash import LIBRARIAN, OTHER_LIBRARIAN, SMALL, add, is_value, no_panic, put
from tests.support.failing import fails
from tests.support.group import Group, group_of
from tests.support.polling import patience, poll_async

OBJECT = ObjectId("o")


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with group_of(tmp_path) as made:
        yield made


async def write(group: Group, replica: int, key: str, value: str) -> TransactOutcome:
    return await group.services[replica].transact(LIBRARIAN, RequestKey(key), (put("o", "s", "p", value),))


async def value_at(group: Group, replica: int, *, strong: bool = False, after: Position | None = None) -> str:
    call = structs.replace(LIBRARIAN, strong=strong, read_after=after)
    return (await group.services[replica].get(call, (OBJECT,)))[0].value("s", "p")


async def test_a_store_that_may_be_the_last_is_kept_by_whom_others_should_begin(tmp_path: Path) -> None:
    """It is as after `restored` in the directory of the last one, before its configuration names it alone."""
    store = BdbStore(tmp_path / "2", SMALL, no_panic)
    meta.prepare(store, "test")
    store.close()
    group = Group(tmp_path, 3, SystemClock())
    with fails(Kind.BAD_CONFIG, match=r"name nobody but this replica .* keep it"):
        await group.open(2)


async def test_every_replica_takes_every_request(group: Group) -> None:
    for replica in group.services:
        assert (await write(group, replica, f"k{replica}", str(replica))).applied
        for reader in group.services:
            assert await value_at(group, reader, strong=True) == str(replica)
    status = [await group.services[n].status(LIBRARIAN) for n in group.services]
    assert sorted(each.role for each in status) == ["client", "client", "master"]
    strong = await group.services[group.followers()[0]].status(LIBRARIAN.strongly())
    assert strong.replica == group.master()
    assert {view.role for view in strong.replicas} == {"master", "follower"}


@pytest.mark.parametrize("there", ["master", "elsewhere"])
async def test_a_read_that_sees_a_commit_before_it_is_told_goes_on_when_it_is(
    group: Group, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    """Between a commit and its report is a sync, or a few turns of the event loop: the read waited for 50 ms."""
    monkeypatch.setattr(replicated, "RETRY_MS", 60_000)
    master = group.master()
    reader = master if there == "master" else group.followers()[0]
    mastership, engine, told = group.masterships[master], group.engines[master], deque[Event]()
    before = engine.applied()
    with monkeypatch.context() as deaf:
        deaf.setattr(mastership, "_event", told.append)
        writing = asyncio.create_task(write(group, master, "k", "new"))
        await poll_async(lambda: engine.applied() > before, what="a commit")
        reading = asyncio.create_task(value_at(group, reader, strong=True))
        await poll_async(lambda: mastership._waits, what="a read that waits for it")
    for event in told:
        mastership._event(event)
    async with asyncio.timeout(20 * patience()):
        assert await reading == "new"
        assert (await writing).applied


@pytest.mark.expect_log("WARNING .*has vouched for nothing for .*it is opened again")
async def test_a_follower_that_stands_still_is_opened_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine may have got into any state that no other part notices: here it forgot that it is synchronised."""
    monkeypatch.setattr(following, "LOOK_MS", 20)
    monkeypatch.setattr(following, "STILL_MS", 200)
    follower = group.followers()[0]
    assert (await write(group, group.master(), "k1", "1")).applied
    cast(ReplicatedStore, group.engines[follower])._ready = False
    assert (await write(group, group.master(), "k2", "2")).applied
    position = group.services[group.master()]._parts.horizon.newest
    assert position is not None
    await poll_async(lambda: group.engines[follower].applied() >= position.sequence, 30, what="it acknowledges again")
    await group.settled()


async def test_whoever_shows_a_position_sees_what_stood_there(group: Group) -> None:
    for turn in range(20):
        replica = 1 + turn % 3
        done = await write(group, replica, f"k{turn}", str(turn))
        for reader in group.services:
            assert await value_at(group, reader, after=done.position) == str(turn)


@pytest.mark.parametrize("absurd", [Position("test", 1, 10**17), Position("test", 99, 1), Position("other", 9, 9)])
async def test_an_absurd_position_does_no_harm(group: Group, absurd: Position) -> None:
    await write(group, 1, "k", "v")
    for reader in group.services:
        assert await value_at(group, reader, after=absurd) == "v"
        assert await value_at(group, reader) == "v"


async def test_a_key_used_at_one_replica_is_known_at_the_others(group: Group) -> None:
    key, elements = RequestKey("k"), (add("o", "s", "n", 1),)
    outcomes = [await service.transact(LIBRARIAN, key, elements) for service in group.services.values()]
    outcomes += [await service.transact(OTHER_LIBRARIAN, key, elements) for service in group.services.values()]
    assert [outcome.recalled for outcome in outcomes] == [False] + [True] * 5
    assert {outcome.position for outcome in outcomes} == {outcomes[0].position}
    recalled = [await service.recall(LIBRARIAN, key) for service in group.services.values()]
    assert recalled == [replace(outcomes[0], recalled=True)] * 3


async def test_a_new_master_serves_what_the_old_one_acknowledged(group: Group) -> None:
    old = group.master()
    await write(group, old, "before", "before")
    group.switch.isolate(old)
    other = next(n for n in group.services if n != old)
    assert (await write_until(group, other, "after", "after")).applied
    assert await value_at(group, other, strong=True) == "after"
    assert (await group.services[other].recall(LIBRARIAN, RequestKey("before"))) is not None
    group.switch.heal()
    await group.settled()
    for reader in group.services:
        assert await value_at(group, reader, strong=True) == "after"


async def write_until(group: Group, replica: int, key: str, value: str) -> TransactOutcome:
    """Write as a client does: repeat with the same key while the answer is `retry`."""

    async def attempt() -> TransactOutcome:
        return await write(group, replica, key, value)

    return await poll_async(attempt, 20, tolerate=CheloniaError, what="a write")


async def test_an_isolated_master_answers_nothing_and_its_writes_are_unknown(group: Group) -> None:
    old = group.master()
    await write(group, old, "before", "before")
    group.switch.isolate(old)
    with pytest.raises(CheloniaError) as caught:
        await write(group, old, "lost", "lost")
    assert caught.value.kind in (Kind.OUTCOME_UNKNOWN, Kind.UNAVAILABLE)
    await poll_async(lambda: not group.masterships[old].may_read(), 10, what="the isolated master reads nothing")
    refused = put("o", "s", "q", "1", is_value("s", "p", "?"))
    told = await asyncio.gather(  # each is held for a while
        value_at(group, old),
        value_at(group, old, strong=True),
        group.services[old].transact(LIBRARIAN, RequestKey("x"), (refused,)),
        return_exceptions=True,
    )
    assert all(isinstance(each, CheloniaError) for each in told), told


async def test_what_a_term_refused_is_not_done_by_what_an_older_master_kept(group: Group) -> None:
    """A master that wrote alone comes back when its successor, which refused an unseen change, is gone."""
    old = group.master()
    needs_first = (put("o", "s", "second", "2", is_value("s", "p", "1")),)
    group.switch.isolate(old)
    alone = [
        asyncio.create_task(group.services[old].transact(LIBRARIAN, RequestKey(key), elements))
        for key, elements in (("first", (put("o", "s", "p", "1"),)), ("second", needs_first))
    ]
    await poll_async(lambda: group.master() not in (0, old), 20, what="another master")
    new = group.master()
    refused = await group.services[new].transact(LIBRARIAN, RequestKey("second"), needs_first)
    assert not refused.applied
    assert await group.services[new].recall(LIBRARIAN, RequestKey("first")) is None
    group.switch.heal()
    group.switch.isolate(new)
    (third,) = (n for n in group.services if n not in (old, new))
    await poll_async(lambda: group.master() not in (0, new), 20, what="a master without it")
    (found,) = await group.services[third].get(LIBRARIAN.strongly(), (OBJECT,))
    for task in alone:
        task.cancel()
    assert found.value("s", "second") == ""
    assert await group.services[third].recall(LIBRARIAN, RequestKey("second")) is None


async def test_writers_who_wait_when_the_master_goes_apply_once(group: Group) -> None:
    old = group.master()
    others = [n for n in group.services if n != old]

    async def count(n: int) -> None:
        async def attempt() -> TransactOutcome:
            return await group.services[others[n % 2]].transact(
                LIBRARIAN, RequestKey(f"k{n}"), (add("o", "s", "n", 1),)
            )

        await poll_async(attempt, 20, tolerate=CheloniaError, what="a count")

    counting = [asyncio.create_task(count(n)) for n in range(40)]
    await asyncio.sleep(0)
    group.switch.isolate(old)
    await asyncio.gather(*counting)
    (found,) = await group.services[others[0]].get(LIBRARIAN.strongly(), (OBJECT,))
    assert found.value("s", "n") == "40"
    group.switch.heal()
    await group.settled()


async def test_a_replica_that_was_away_catches_up(group: Group) -> None:
    away = group.followers()[0]
    await group.close(away)
    other = next(iter(group.services))
    for turn in range(50):
        done = await write(group, other, f"k{turn}", str(turn))
    await group.open(away)
    await group.settled()
    assert await value_at(group, away, strong=False, after=done.position) == "49"


async def test_a_master_that_stops_hands_over(group: Group) -> None:
    old = group.master()
    await group.close(old)
    new = await group.settled(beside=old, voters=3)
    assert (await write_until(group, new, "k", "v")).applied
    await group.open(old)
    await group.settled()


async def test_a_master_hands_over_when_the_others_hold_all_that_it_has(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica with less would lose the election to it."""
    old = group.masterships[group.master()]
    status, lag = old.replica.status, [1]

    def behind(now_ms: int) -> GroupStatus:
        told = status(now_ms)
        return structs.replace(told, head=told.head + lag[0])

    monkeypatch.setattr(mastership, "HAND_OVER_MS", 3_600_000)
    monkeypatch.setattr(old.replica, "status", behind)
    async with old.regrouping:
        handing = asyncio.create_task(old.hand_over("it is full"))
        for _ in range(3):
            await old.changed(mastership.EVENT_MS)
        assert (old.replica.role, old.may_write(), handing.done()) == (PeerRole.MASTER, False, False)
        lag[0] = 0
        await handing
    assert old.replica.role is not PeerRole.MASTER


async def test_who_has_stopped_takes_in_nothing_more(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node closes its store before its links: a late message ended in an ERROR that it cannot go on."""
    follower, kept = group.followers()[0], list[tuple[int, bytes]]()
    mastership, engine = group.masterships[follower], group.engines[follower]
    take = mastership.message

    def message(peer: int, data: bytes) -> None:
        if isinstance(peer_messages.decode(data), Beat):
            kept.append((peer, data))  # it would record which commits the master reports as acknowledged
        else:
            take(peer, data)

    monkeypatch.setattr(mastership, "message", message)
    done = await write(group, group.master(), "k", "v")
    await poll_async(lambda: engine.applied() >= done.position.sequence, what="it has the commit")
    kept.clear()
    await poll_async(lambda: kept, what="a beat that tells of it")
    await group.close(follower)
    take(*kept[-1])


async def test_without_a_majority_requests_are_held_and_then_refused(group: Group) -> None:
    master = group.master()
    for replica in [n for n in group.services if n != master]:
        await group.close(replica)
    with pytest.raises(CheloniaError) as caught:
        await write(group, master, "k", "v")
    assert caught.value.kind in (Kind.OUTCOME_UNKNOWN, Kind.UNAVAILABLE)


@pytest.mark.expect_log("WARNING chelonia.ahash.service ahash is read-only")
async def test_a_master_whose_disk_is_nearly_full_hands_over(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    full = group.master()
    monkeypatch.setattr(group.engines[full], "free_bytes", lambda: 0)
    new = next(n for n in group.services if n != full)
    assert (await write_until(group, new, "k", "v")).applied
    assert group.master() != full


@pytest.mark.expect_log("WARNING chelonia.ahash.service ahash is read-only")
async def test_where_all_disks_are_nearly_full_masters_stay(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another master would be no better: that is tried now and then, and refusals of changes name the reason."""
    caplog.set_level(logging.INFO, "chelonia.ahash.group.mastership")
    monkeypatch.setattr(keeping, "FULL_REST_MS", 3_600_000)
    for engine in group.engines.values():
        monkeypatch.setattr(engine, "free_bytes", lambda: 0)

    async def refusal(replica: int) -> Kind:
        with pytest.raises(CheloniaError) as caught:
            await write(group, replica, "k", "v")
        return caught.value.kind

    for turn in range(30):
        assert await refusal(1 + turn % 3) in (Kind.READ_ONLY, Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)
        await asyncio.sleep(0.05)
    await group.settled()

    async def for_the_reason() -> bool:
        return await refusal(1) is Kind.READ_ONLY

    await poll_async(for_the_reason, 20, what="a refusal that tells why")
    handed_over = [each for each in caplog.messages if "ended: its disk is nearly full" in each]
    assert 1 <= len(handed_over) <= 3, handed_over


async def test_followers_write_their_pages_before_the_master_makes_a_checkpoint(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = group.master()
    asked: list[int] = []
    for replica, engine in group.engines.items():
        monkeypatch.setattr(engine, "write_pages", partial(asked.append, replica))
    for turn in range(SMALL.checkpoint_log_bytes // (20 * 50_000) + 1):
        assert asked == [], f"after {turn} MB"
        elements = tuple(put(f"o{turn}", "s", f"p{number}", "x" * 50_000) for number in range(20))
        await group.services[master].transact(LIBRARIAN, RequestKey(""), elements)

    async def all_others() -> bool:
        return sorted(asked) == [replica for replica in sorted(group.services) if replica != master]

    await poll_async(all_others, 20, what="both followers")


async def test_a_backup_of_a_replica_begins_a_group_of_its_own(group: Group, tmp_path: Path) -> None:
    await write(group, 1, "k", "v")
    for replica in (group.master(), group.followers()[0]):
        name = f"copy{replica}"
        await asyncio.to_thread(group.engines[replica].backup, str(tmp_path / name))
        copy = await asyncio.to_thread(BdbStore, tmp_path / name, SMALL, no_panic)
        assert meta.read_number(copy, layout.META_GENERATION) > 1
        assert copy.get(layout.META_MEMBERS) is None
        copy.close()


# --- membership -------------------------------------------------------------------------------------------------------

ADMIN = Call(Dn("/CN=admin"), (Role.ADMINISTRATOR,))


def voters(group: Group) -> tuple[int, ...]:
    return group.masterships[group.master()].replica.membership.voters


async def test_a_replica_is_added_and_another_removed_while_the_group_serves(group: Group) -> None:
    await write(group, 1, "before", "before")
    group.count = 4
    asked = group.services[group.followers()[0]]
    status = await asked.regroup(ADMIN, GroupChange(GroupStep.ADD, dn=Dn("/CN=4"), address="h4:1"))
    assert [view.role for view in status.replicas if view.replica == 4] == ["away"]
    await group.open(4)
    await group.settled()
    assert voters(group) == (1, 2, 3, 4)
    assert await value_at(group, 4) == "before"
    gone = group.followers()[0]
    status = await group.services[4].regroup(ADMIN, GroupChange(GroupStep.REMOVE, gone))
    assert gone not in [view.replica for view in status.replicas]
    await group.close(gone)
    await group.settled(voters=3)
    assert (await write_until(group, 4, "after", "after")).applied


async def test_the_record_in_a_log_is_gone_by_though_the_store_refuses_to_be_read(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that had acknowledged the record of its promotion took itself for a learner, and there was no
    candidate."""
    master, follower = group.master(), group.followers()[0]
    engine = group.engines[follower]
    get = engine.get

    def refuse(key: bytes) -> bytes | None:
        if key == layout.META_MEMBERS:
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", "this replica is being synchronised: retry")
        return get(key)

    monkeypatch.setattr(engine, "get", refuse)
    await group.services[master].regroup(ADMIN, GroupChange(GroupStep.ADD, dn=Dn("/CN=4"), address="h4:1"))
    replicas = [group.masterships[each].replica for each in (master, follower)]
    await poll_async(lambda: replicas[0].membership == replicas[1].membership, what="the record is gone by")


async def test_whoever_is_no_master_goes_by_the_record_in_its_log(group: Group) -> None:
    """It does so whatever its engine reports, and whether it follows a master just then or not."""
    follower = group.followers()[0]
    group.switch.isolate(follower)
    mastership = group.masterships[follower]
    replica = mastership.replica
    await poll_async(lambda: replica.role is PeerRole.ALONE, 20, what="it follows nobody")
    telling: tuple[Callable[[bytes], Event], ...] = (
        lambda members: Flushed(LogPosition(1, 1, 1), 1, members),
        Ready,
        Demoted,
        lambda members: MasterHere(replica.term + 1, StoreState(1, 0), None, members),
    )
    for tell in telling:
        record = membership.add(replica.membership, Dn(f"/CN={replica.membership.next_replica}"), f"h{tell}:1")
        mastership._engine_reports(tell(membership.encode(record)))
        await poll_async(lambda record=record: replica.membership == record, what="the record is gone by")


async def test_a_record_that_a_master_never_wrote_is_forgotten_with_its_term(group: Group) -> None:
    """It named voters without which no replica would have become master again."""
    master = group.master()
    replica = group.masterships[master].replica
    in_log = replica.membership
    never_written = membership.add(in_log, Dn("/CN=4"), "h4:1")
    async with group.masterships[master].regrouping:
        replica.propose(never_written)
        group.masterships[master].go_by(never_written)  # else the record of a group that began anew counts as gone by
        group.switch.isolate(master)
        await poll_async(lambda: replica.membership == in_log, 20, what="the record in its log is gone by")


async def test_a_first_commit_that_comes_when_the_term_is_over_is_refused_and_no_more(group: Group) -> None:
    """A disk delayed its writer, and the replica follows another master by now. Its process ended, because the log's
    end was elsewhere."""
    follower = group.followers()[0]
    mastership = group.masterships[follower]
    before = group.engines[follower].applied()
    mastership._carry_out(OpenTerm(TermMark(99, follower, before + 7, Vouched(0, 0, 0))))
    await asyncio.gather(*mastership._tasks)
    assert mastership.may_read()
    assert group.engines[follower].applied() == before


async def test_the_master_itself_may_be_removed(group: Group) -> None:
    old = group.master()
    other = group.followers()[0]

    async def attempt() -> bool:
        status = await group.services[other].regroup(ADMIN, GroupChange(GroupStep.REMOVE, old))
        return old not in [view.replica for view in status.replicas]

    await poll_async(attempt, 20, tolerate=CheloniaError, what="the master is removed")
    await group.close(old)
    assert old not in voters(group)
    assert (await write_until(group, other, "after", "after")).applied


async def test_nobody_is_removed_without_whom_the_group_would_stand_still(group: Group) -> None:
    """With one away the other follower is as needed as the master; only the absent one may go."""
    master, (away, needed) = group.master(), group.followers()
    await group.close(away)
    for replica in (needed, master):
        with fails(Kind.CONFLICT, match=f"without replica {replica} nothing could be changed"):
            await group.services[needed].regroup(ADMIN, GroupChange(GroupStep.REMOVE, replica))
    assert group.master() == master
    assert (await write(group, needed, "k", "v")).applied
    await group.services[needed].regroup(ADMIN, GroupChange(GroupStep.REMOVE, away))
    assert voters(group) == tuple(sorted((master, needed)))
    await group.services[needed].regroup(ADMIN, GroupChange(GroupStep.REMOVE, needed))
    assert voters(group) == (master,)


async def test_a_replica_of_a_newer_program_does_not_migrate_the_group(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = group.followers()[0]
    await group.close(follower)
    monkeypatch.setattr(layout, "FORMAT", layout.FORMAT + 1)
    with pytest.raises(CheloniaError, match="a group is not migrated while it runs: stop all replicas"):
        await group.open(follower)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (GroupChange(GroupStep.ADD, dn=Dn("/CN=2"), address="h9:1"), Kind.EXISTS),
        (GroupChange(GroupStep.ADD, dn=Dn("/CN=9"), address="h2:1"), Kind.EXISTS),
        (GroupChange(GroupStep.ADD, dn=Dn("/CN=9"), address="nowhere"), Kind.BAD_REQUEST),
        (GroupChange(GroupStep.ADD, dn=Dn("/CN=9"), address="h9:" + 5000 * "1"), Kind.BAD_REQUEST),
        (GroupChange(GroupStep.REMOVE, 9), Kind.NOT_FOUND),
    ],
)
async def test_a_change_of_the_group_that_makes_no_sense_is_refused(
    group: Group, change: GroupChange, kind: Kind
) -> None:
    for service in group.services.values():
        with fails(kind):
            await service.regroup(ADMIN, change)
    with fails(Kind.DENIED):
        await group.services[1].regroup(LIBRARIAN, change)
    assert voters(group) == (1, 2, 3)


@pytest.mark.expect_log("ERROR chelonia.ahash.group.service work of the replicated A-Hash failed")
async def test_what_nobody_expected_in_a_forwarded_call_ends_the_master(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it ended only the caller's link."""
    master, follower = group.master(), group.followers()[0]

    def fail() -> bool:
        raise RuntimeError("planted")

    monkeypatch.setattr(group.masterships[master], "may_write", fail)
    asking = asyncio.create_task(write(group, follower, "k", "v"))
    async with asyncio.timeout(20 * patience()):
        with pytest.raises(CheloniaError, match="planted"):
            await group.running[master]
    asking.cancel()


@pytest.mark.parametrize("readable", [True, False])
async def test_a_replica_that_asks_too_much_or_what_cannot_be_read_is_one_line_in_the_log(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expect_log: Callable[..., None],
    readable: bool,
) -> None:  # fmt: skip
    master, follower = group.master(), group.followers()[0]
    if readable:
        monkeypatch.setattr(bounds, "FORWARDED_MAX", 0)
    why = "it asks for more than 0 calls at once" if readable else "it asks what cannot be read: .*a forwarded call"
    expect_log(f"a call of replica {follower} is refused: {why}")
    body = forwarding.encode_request(ForwardedCall("get", LIBRARIAN, ((OBJECT,), ()))) if readable else bytes(200)
    for number in range(1, 4):
        group.masterships[master].message(follower, peer_messages.encode(CallFrame(number, body)))
    await poll_async(lambda: "is refused" in caplog.text, what="a line in the log")
    assert caplog.text.count("is refused") == 1
    assert group.services[master].limits.reached.get("calls_forwarded", 0) == (3 if readable else 0)


async def test_only_a_librarian_may_ask_any_replica(group: Group) -> None:
    for service in group.services.values():
        for asked in (
            service.get(structs.replace(LIBRARIAN, roles=()), (OBJECT,)),
            service.recall(structs.replace(LIBRARIAN, roles=()), RequestKey("k")),
        ):
            with fails(Kind.DENIED):
                await asked


async def test_a_call_in_the_hands_of_a_frozen_master_is_asked_of_the_next(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated, "ANSWER_MS", 3_600_000)
    follower = group.followers()[0]
    group.switch.frozen = {group.master()}
    assert (await write_until(group, follower, "k", "v")).applied
    assert await value_at(group, follower, strong=True) == "v"
    group.switch.frozen = set()


async def test_a_read_that_hangs_holds_up_the_commit_that_is_watched(group: Group) -> None:
    """So the watch of commits (`ahash_replica.disk_watch`) ends a master whose reads hang as well."""
    service, engine = group.services[group.master()], group.engines[group.master()]
    began, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        with engine.reading():
            began.set()
            assert go_on.wait(30)

    reading = asyncio.create_task(asyncio.to_thread(hang))
    await poll_async(began.is_set, what="a read")
    writing = asyncio.create_task(write(group, group.master(), "k", "v"))
    await poll_async(lambda: service.committing_ms >= 100, what="a commit that waits")
    go_on.set()
    await reading
    assert (await writing).applied


async def test_an_answer_to_the_process_before_answers_no_call_of_this_one(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both counted their calls from 1: a refused change was reported as done."""
    master, follower = group.master(), group.followers()[0]
    carry_out, carried_out = group.services[master]._execute, list[str]()
    answers = {"old": asyncio.Event(), "new": asyncio.Event()}

    async def late(reign: replicated._Serving, request: ForwardedCall) -> object:
        answer, key = await carry_out(reign, request), str(request.arguments[0])
        carried_out.append(key)
        await answers[key].wait()
        return answer

    monkeypatch.setattr(group.services[master], "_execute", late)
    old = asyncio.create_task(write(group, follower, "old", "1"))
    await poll_async(lambda: carried_out == ["old"], what="the call of the process that ends")
    old.cancel()
    await group.close(follower)
    await group.open(follower)
    await group.settled()
    change = put("o", "s", "p", "2", is_value("s", "p", "another"))
    asking = group.services[follower].transact(LIBRARIAN, RequestKey("new"), (change,))
    new = asyncio.create_task(asking)
    await poll_async(lambda: carried_out == ["old", "new"], what="the call of the next process")
    answers["old"].set()
    await poll_async(lambda: group.services[master]._carrying_out == 1, what="the late answer on its way")
    answers["new"].set()
    assert not (await new).applied


async def test_frames_leave_in_turns_and_others_have_theirs_between(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catching-up replica lacks tens of thousands of frames: a master that sent all at once would lose its lease."""
    mastership, follower = group.masterships[group.master()], group.followers()[0]
    data = [b"%d" % number for number in range(3 * bounds.REPLICA_FRAMES_PER_TURN_MAX)]
    left: list[bytes] = []

    def send(peer: int, frame: bytes) -> bool:
        if frame in known:
            left.append(frame)
        return True

    known = set(data)
    monkeypatch.setattr(mastership._links, "send", send)
    mastership._frames.extend((follower, frame) for frame in data)
    mastership._send_frames()
    for turn in (1, 2, 3):
        assert len(left) == turn * bounds.REPLICA_FRAMES_PER_TURN_MAX
        await asyncio.sleep(0)
    assert left == data
