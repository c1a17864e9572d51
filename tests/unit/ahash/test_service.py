"""The service around the committer: order of answers, cancellation, gates, stopping."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chelonia.ahash.committer import READ_TOGETHER_MAX
from chelonia.ahash.service import (
    BRIEF_BYTES,
    BRIEF_ELEMENTS,
    BRIEF_MS,
    BRIEF_OBJECTS,
    HAND_OVER_FACTOR,
    AHashService,
    AHashSettings,
)
from chelonia.ahash.store import meta, store_threads
from chelonia.ahash.store.bdb import replicated
from chelonia.ahash.store.bdb.files import PeerIdentity
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.port import StoredState
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.core import bounds
from chelonia.core.bounds import VALUE_BYTES_MAX
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms, ObjectId, RequestKey
from chelonia.core.metadata import StoredObject
from tests.support.ahash import LIBRARIAN, SMALL, HandClock, add, check, delete, is_set, open_store, put, serving
from tests.support.failing import fails
from tests.support.memory_store import InlineExecutor, MemoryStore

T = TypeVar("T")
NO_KEY = RequestKey("")
SETTINGS = AHashSettings(cluster="test")


class HeldExecutor:
    """Runs read work at once, and write work when the test says so."""

    def __init__(self) -> None:
        self.inline = InlineExecutor()
        self.held: list[Callable[[], None]] = []
        self.hold = False

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if not self.hold:
            return self.inline.run_write(work)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.held.append(lambda: future.set_result(work()))
        return future

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self.inline.run_read(work)

    def waited(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class Gate:
    """A durability gate that the test opens."""

    term = None

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.asked: list[int] = []

    async def wait(self, position: Position) -> None:
        self.asked.append(position.sequence)
        await self.opened.wait()

    def holds(self, position: Position) -> bool:
        return self.opened.is_set()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_waits_while_the_committer_works_becomes_one_commit() -> None:
    executor = HeldExecutor()
    service = AHashService(MemoryStore(), executor, HandClock(), SETTINGS)
    await service.start()
    executor.hold = True
    tries = [asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))) for _ in range(9)]
    await turns()
    assert len(executor.held) == 1
    late = [asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))) for _ in range(5)]
    await turns()
    executor.hold = False
    executor.held[0]()
    assert {(await t).position.sequence for t in tries} == {1}
    assert {(await t).position.sequence for t in late} == {2}
    await service.close()


async def test_how_long_a_commit_is_waited_for_is_known() -> None:
    executor, clock = HeldExecutor(), HandClock()
    service = AHashService(MemoryStore(), executor, clock, SETTINGS)
    await service.start()
    executor.hold = True
    change = asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),)))
    await turns()
    clock.advance(70_000)
    assert service.committing_ms == 70_000
    executor.hold = False
    executor.held[0]()
    await change
    clock.advance(70_000)
    assert service.committing_ms == 0
    await service.close()


async def test_a_batch_holds_a_bounded_number_of_elements() -> None:
    settings = AHashSettings(cluster="test", batch_elements_max=10)
    async with serving(MemoryStore(), settings=settings) as service:
        sizes = (4, 4, 4, 30, 1)
        tries = [service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),) * size) for size in sizes]
        outcomes = await asyncio.gather(*tries)
    assert [o.position.sequence for o in outcomes] == [1, 1, 2, 3, 4]


async def test_no_answer_passes_before_the_gate_opens() -> None:
    gate = Gate()
    service = AHashService(MemoryStore(), InlineExecutor(), HandClock(), SETTINGS, gate)
    await service.start()
    answers = [
        asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "v"),))),
        asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (check("o", is_set("s", "q")),))),
        asyncio.create_task(service.change(LIBRARIAN, (put("o", "s", "p", "w"),))),
        asyncio.create_task(service.recall(LIBRARIAN, RequestKey("k"))),
    ]
    await turns()
    reading = asyncio.create_task(service.get(LIBRARIAN, (ObjectId("o"),)))
    await turns()
    assert not any(task.done() for task in (*answers, reading))
    assert set(gate.asked) == {1}
    gate.opened.set()
    await asyncio.gather(*answers, reading)
    assert reading.result()[0].value("s", "p") == "w"
    await service.close()


async def test_changes_gather_while_a_batch_waits_for_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.ahash.service.GATHER_MS", 60_000)
    gate = Gate()
    service = AHashService(MemoryStore(), InlineExecutor(), HandClock(), SETTINGS, gate)
    await service.start()
    tries = []
    for _ in range(5):
        tries.append(asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))))
        await turns()
    assert gate.asked == [1]
    gate.opened.set()
    assert [(await each).position.sequence for each in tries] == [1, 2, 2, 2, 2]
    await service.close()


async def test_changes_do_not_gather_for_long() -> None:
    gate = Gate()
    service = AHashService(MemoryStore(), InlineExecutor(), HandClock(), SETTINGS, gate)
    await service.start()
    tries = []
    for sequence in (1, 2, 3):
        tries.append(asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))))
        async with asyncio.timeout(10):
            while sequence not in gate.asked:
                await asyncio.sleep(0.001)
    gate.opened.set()
    assert [(await each).position.sequence for each in tries] == [1, 2, 3]
    await service.close()


async def test_a_caller_that_goes_away_disturbs_nobody() -> None:
    executor = HeldExecutor()
    service = AHashService(MemoryStore(), executor, HandClock(), SETTINGS)
    await service.start()
    executor.hold = True
    tries = [asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))) for _ in range(3)]
    await turns()
    tries[1].cancel()
    await turns()
    executor.hold = False
    executor.held[0]()
    assert (await tries[0]).applied
    assert (await tries[2]).applied
    (found,) = await service.get(LIBRARIAN, (ObjectId("o"),))
    assert found.value("s", "n") == "3"
    await service.close()


class BrokenStore(MemoryStore):
    """Fails in a forbidden way."""

    commits = 0
    breaks_after = 1 << 30

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        if self.commits >= self.breaks_after:
            raise ZeroDivisionError("a bug")
        super().commit(puts, deletes)
        self.commits += 1


class BugTellingExecutor(InlineExecutor):
    """Passes a bug on in the future, as threads do, where the inline executor raises it."""

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return super().run_write(work)
        except ZeroDivisionError as error:
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future


@pytest.mark.parametrize("executor", [InlineExecutor, BugTellingExecutor])
@pytest.mark.parametrize("good", [0, 1])
async def test_a_bug_in_the_committer_leaves_nobody_waiting(executor: type[InlineExecutor], good: int) -> None:
    store = BrokenStore()
    service = AHashService(store, executor(), HandClock(), AHashSettings(cluster="test", batch_max=1))
    await service.start()
    running = asyncio.create_task(service.run())
    store.breaks_after = store.commits + good
    tries = [asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))) for _ in range(5)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert [a.kind for a in answers if isinstance(a, CheloniaError)] == [Kind.OUTCOME_UNKNOWN] * (5 - good)
    with pytest.raises(ZeroDivisionError):
        await running
    with fails(Kind.UNAVAILABLE):
        await service.transact(LIBRARIAN, NO_KEY, ())
    await service.close()


async def test_run_returns_when_the_service_is_closed() -> None:
    service = AHashService(MemoryStore(), InlineExecutor(), HandClock(), SETTINGS)
    running = asyncio.create_task(service.run())
    await turns()
    assert (await service.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "v"),))).applied
    await service.close()
    await running


async def test_before_its_start_it_says_retry() -> None:
    service = AHashService(MemoryStore(), InlineExecutor(), HandClock(), SETTINGS)
    for call in (service.get(LIBRARIAN, (ObjectId("o"),)), service.transact(LIBRARIAN, NO_KEY, ())):
        with fails(Kind.UNAVAILABLE):
            await call


class TiredStore(MemoryStore):
    """Wants upkeep after every commit."""

    due = False
    done = 0

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        super().commit(puts, deletes)
        self.due = True

    def upkeep_due(self) -> bool:
        return self.due

    def upkeep(self) -> None:
        self.done += 1
        self.due = False
        if self.done == 2:
            raise CheloniaError(Kind.READ_ONLY, "ahash", "store", "no space for a checkpoint")
        if self.done == 3:
            raise OSError("a disk says what nobody expects")


@pytest.mark.expect_log("upkeep is tried again: .*no space for a checkpoint")
@pytest.mark.expect_log("job failed: upkeep")
async def test_upkeep_is_done_between_batches_and_its_failure_stops_nothing() -> None:
    store, clock = TiredStore(), HandClock()
    async with serving(store, clock) as service:
        await turns()
        assert store.done == 1, "after founding the store"
        for done in (2, 3, 3):
            await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))
            await turns()
            assert store.done == done, "after each commit; a mistake is not repeated at once"
        (job,) = service.jobs.views("ahash")
        assert (job.name, job.state, job.bugs) == ("upkeep", "failing", 1)
        assert "nobody expects" in job.last_error
        clock.advance(bounds.JOB_PAUSE_MS)
        await turns()
        assert store.done == 4
        store.due = True
        clock.advance(SETTINGS.upkeep_interval_ms)
        await turns()
        assert store.done == 5, "an idle store is looked after too"


async def test_nothing_is_committed_beside_upkeep_and_who_retires_waits_for_it() -> None:
    """The writer's thread may take long for it."""
    store, begun = TiredStore(), list[asyncio.Future[None]]()

    class Slow(InlineExecutor):
        def run_write(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
            if work != store.upkeep:
                return super().run_write(work)
            begun.append(asyncio.get_running_loop().create_future())
            return begun[-1]

    clock = HandClock()
    service = AHashService(store, Slow(), clock, SETTINGS)
    await service.start()
    await turns()
    clock.advance(400_000)
    assert (service.upkeep_ms, service.committing_ms) == (400_000, 0), "a watch can tell that it hangs"
    change = asyncio.ensure_future(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),)))
    await turns()
    assert (len(begun), change.done()) == (1, False)
    store.due = False
    begun[0].set_result(None)
    await turns(1)
    assert service.upkeep_ms == 0
    assert (await change).applied
    await turns()
    ending = asyncio.ensure_future(service.close())
    await turns()
    assert (len(begun), ending.done(), begun[1].cancelled()) == (2, False, False)
    store.due = False
    begun[1].set_result(None)
    await ending


async def test_a_store_that_crashed_comes_back_with_what_was_committed() -> None:
    store = MemoryStore()
    async with serving(store) as service:
        await service.transact(LIBRARIAN, RequestKey("k"), (put("o", "s", "p", "v"),), "note")
        after = store.reopened()
        with fails(Kind.UNAVAILABLE):
            await service.get(LIBRARIAN, (ObjectId("o"),))
        with pytest.raises(CheloniaError):
            await service.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "w"),))
    async with serving(after) as service:
        assert (await service.get(LIBRARIAN, (ObjectId("o"),)))[0].value("s", "p") == "v"
        recalled = await service.recall(LIBRARIAN, RequestKey("k"))
        assert recalled is not None
        assert recalled.memo == "note"


async def test_a_clock_that_is_set_forgets_no_request() -> None:
    """A retry whose key was forgotten would be carried out a second time."""

    class SetClock(HandClock):
        set_by = 0

        def now_ms(self) -> Ms:
            return Ms(self.now + self.set_by)

    clock = SetClock()
    async with serving(MemoryStore(), clock) as service:
        first = await service.transact(LIBRARIAN, RequestKey("k"), (add("o", "s", "n", 1),))
        for clock.set_by in (86_400_000, -86_400_000):
            await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "m", 1),))
            again = await service.transact(LIBRARIAN, RequestKey("k"), (add("o", "s", "n", 1),))
            assert (again.recalled, again.position) == (True, first.position)


async def test_work_on_threads_keeps_its_order_and_its_errors(tmp_path: Path) -> None:
    executor = ThreadExecutor(readers=2)
    seen: list[int] = []
    writes = [executor.run_write(lambda i=i: seen.append(i)) for i in range(100)]  # type: ignore[misc]
    reads = [executor.run_read(lambda i=i: i * i) for i in range(300)]  # type: ignore[misc]
    failing = executor.run_read(lambda: 1 // 0)
    cancelled = executor.run_read(lambda: 1)
    cancelled.cancel()
    assert await asyncio.gather(*reads) == [i * i for i in range(300)]
    with pytest.raises(ZeroDivisionError):
        await failing
    last = executor.run_write(lambda: "done")
    await executor.close()
    assert await last == "done"
    await asyncio.gather(*writes)
    assert seen == list(range(100))


async def told_of(monkeypatch: pytest.MonkeyPatch, begin: Callable[[ThreadExecutor], object]) -> list[str]:
    """The names of the threads reported as looping, after some looks."""
    monkeypatch.setattr(store_threads, "LOOK_S", 0.01)
    monkeypatch.setattr(store_threads, "ROUND_S", 0.1)
    told: list[str] = []
    executor = ThreadExecutor(readers=1, goes_round=told.append)
    begin(executor)
    await executor.close()
    return told


def use_cpu(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


async def test_a_thread_that_comes_to_no_end_of_its_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told_of(monkeypatch, lambda executor: executor.run_read(lambda: use_cpu(0.5))) == ["ahash-reader-0"]
    assert await told_of(monkeypatch, lambda executor: executor.run_write(lambda: use_cpu(0.5))) == ["ahash-committer"]


async def test_an_event_loop_that_does_not_turn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told_of(monkeypatch, lambda executor: use_cpu(0.5)) == ["MainThread"]


async def test_a_replication_thread_that_comes_to_no_end_is_told_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated, "REPLICATION_ROUND_S", 0.2)
    engine = ReplicatedStore(tmp_path, SMALL, PeerIdentity(1, "test", Dn("/CN=1")))
    engine.start(lambda event: None, lambda peer, control, record: None)

    def replicate(executor: ThreadExecutor) -> None:
        executor.watch(engine.replication)
        engine._work.put(lambda: use_cpu(0.15))
        engine._work.put(lambda: use_cpu(0.5))
        engine._work.put(done.set)
        done.wait()

    done = threading.Event()
    assert await told_of(monkeypatch, replicate) == ["ahash-replication"]
    engine.close()


async def test_who_has_much_to_do_or_waits_does_not_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def much(executor: ThreadExecutor) -> None:
        waits = threading.Event()
        executor.run_read(lambda: waits.wait(0.5))
        for _ in range(50):
            executor.run_write(lambda: use_cpu(0.01))

    assert await told_of(monkeypatch, much) == []


async def test_what_threads_hand_back_is_done_on_the_loop_in_order() -> None:
    executor, many = ThreadExecutor(), 500
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context.get("exception")))
    seen: list[tuple[object, bool]] = []
    here = threading.get_ident()

    def note(what: object) -> None:
        seen.append((what, threading.get_ident() == here))
        if what == 7:
            raise ArithmeticError

    def work() -> str:
        for number in range(many):
            executor.hand_back(lambda number=number: note(number), at_once=number % 3 == 0)  # type: ignore[misc]
        executor.hand_back(lambda: note("last"), at_once=False)
        return "result"

    result = executor.run_write(work)
    result.add_done_callback(lambda future: note(future.result()))
    await result
    await asyncio.sleep(0)
    assert seen == [(what, True) for what in (*range(many), "last", "result")]
    assert [type(error) for error in told] == [ArithmeticError]
    await executor.close()


async def test_closing_waits_for_work_apart() -> None:
    executor, go_on = ThreadExecutor(), threading.Event()
    apart = asyncio.create_task(executor.run_apart(lambda: go_on.wait(30)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(executor.close())
    done, _ = await asyncio.wait((closing,), timeout=0.3)
    go_on.set()
    await closing
    assert (done, await apart) == (set(), True)


async def test_closing_answers_what_was_taken(tmp_path: Path) -> None:
    async with serving(open_store("bdb", tmp_path)) as service:
        tries = [asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))) for _ in range(600)]
        await asyncio.sleep(0)
        await service.close()
        assert all([(await t).applied for t in tries])
    async with serving(open_store("bdb", tmp_path)) as service:
        assert (await service.get(LIBRARIAN, (ObjectId("o"),)))[0].value("s", "n") == "600"


class SlowStore(MemoryStore):
    """A store whose brief reads take `took_ms`."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock, self.took_ms = clock, 0

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:
        self.clock.now += self.took_ms
        return super().at_once(work)


class CountingExecutor(InlineExecutor):
    """Counts the reads of readers; `disk`: whether others wait for it."""

    disk = False
    reads = 0

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self.reads += 1
        return super().run_read(work)

    def waited(self) -> bool:
        return self.disk


async def test_after_a_read_that_waited_for_the_disk_the_next_ones_are_the_readers() -> None:
    clock, executor = HandClock(), CountingExecutor()
    store = SlowStore(clock)
    service = AHashService(store, executor, clock, SETTINGS)
    await service.start()

    async def by_readers(count: int = 1) -> bool:
        before = executor.reads
        await service.get(LIBRARIAN, tuple(ObjectId(f"o{n}") for n in range(count)))
        return executor.reads > before

    store.took_ms = BRIEF_MS
    assert not [await by_readers() for _ in range(3)][-1], "slow for want of a processor: readers want it too"
    executor.disk = True
    assert not await by_readers(), "this one waits for the disk"
    store.took_ms = 0
    assert await by_readers()
    clock.advance(BRIEF_MS * HAND_OVER_FACTOR)
    assert not await by_readers()
    assert await by_readers(BRIEF_OBJECTS + 1), "nor is what is large read between other requests"
    await service.close()


async def test_what_is_not_durable_is_not_told_at_once() -> None:
    gate = Gate()
    service = AHashService(MemoryStore(), InlineExecutor(), HandClock(), SETTINGS, gate)
    await service.start()
    ids: tuple[ObjectId, ...] = (ObjectId("o"),)
    assert service.at_once(LIBRARIAN, "get", (ids, ())) is None
    gate.opened.set()
    assert service.at_once(LIBRARIAN, "get", (ids, ())) == (StoredObject(ids[0], 0),)
    with fails(Kind.DENIED):
        service.at_once(Call(), "get", (ids, ()))
    await service.close()


class LateStore(MemoryStore):
    """A store that commits on the event loop and syncs later; `steps`: the calls to it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.takes, self.brief = True, True

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        return work() if self.takes else None

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        self.steps.append("commit")
        super().commit(puts, deletes)

    def sync_at_once(self) -> bool:
        self.steps.append("sync at once" if self.brief else "no sync")
        return self.brief

    def sync(self) -> None:
        self.steps.append("sync")


class NotingExecutor(InlineExecutor):
    """Notes in the store's steps what goes to the writer, and when results are handed back."""

    def __init__(self, store: LateStore) -> None:
        self.steps = store.steps

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self.steps.append("writer")
        return super().run_write(work)

    def catch_up(self) -> None:
        self.steps.append("catch up")


async def test_a_brief_batch_is_committed_on_the_loop_and_synced_when_it_has_left() -> None:
    store, gate = LateStore(), Gate()
    service = AHashService(store, NotingExecutor(store), HandClock(), SETTINGS, gate)
    await service.start()
    store.steps.clear()
    tries = [asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))) for _ in range(5)]
    await turns()
    assert store.steps == ["commit", "catch up", "sync at once", "catch up"]
    assert not any(each.done() for each in tries)
    gate.opened.set()
    assert {(await each).position.sequence for each in tries} == {1}
    await service.close()


async def test_on_a_slow_disk_the_writer_syncs() -> None:
    store = LateStore()
    service = AHashService(store, NotingExecutor(store), HandClock(), SETTINGS)
    await service.start()
    store.steps.clear()
    store.brief = False
    await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))
    assert store.steps == ["commit", "catch up", "no sync", "writer", "sync"]
    await service.close()


async def test_a_large_batch_and_one_that_would_wait_are_the_writers() -> None:
    store = LateStore()
    service = AHashService(store, NotingExecutor(store), HandClock(), SETTINGS)
    await service.start()
    store.steps.clear()
    await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),) * (BRIEF_ELEMENTS + 1))
    large = put("o", "s", "p", "x" * VALUE_BYTES_MAX)
    await service.transact(LIBRARIAN, NO_KEY, (large,) * (BRIEF_BYTES // VALUE_BYTES_MAX + 1))
    await asyncio.gather(*(service.transact(LIBRARIAN, NO_KEY, (large,)) for _ in range(BRIEF_ELEMENTS)))
    store.takes = False
    await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))
    assert store.steps == ["writer", "commit"] * 4
    await service.close()


@pytest.mark.parametrize("objects", [10, 1])
@pytest.mark.parametrize("before", [0, READ_TOGETHER_MAX])
async def test_a_batch_that_rewrites_large_objects_is_the_writers(objects: int, before: int) -> None:
    """Each is written anew with all that it has. 200 small changes of entries with 110 KB took 0.24 s of CPU.
    The beats of a master waited."""
    store = LateStore()
    service = AHashService(store, NotingExecutor(store), HandClock(), SETTINGS)
    await service.start()
    for n in range(objects):
        await service.transact(LIBRARIAN, NO_KEY, tuple(put(f"o{n}", "s", p, "x" * 60_000) for p in "pq"))

    async def change(count: int) -> list[str]:
        store.steps.clear()
        others = [(check(f"none{n}"),) for n in range(before)]
        changes = [*others, *((add(f"o{n % objects}", "s", "n", 1),) for n in range(count))]
        assert all(
            each.applied for each in await asyncio.gather(*(service.transact(LIBRARIAN, NO_KEY, e) for e in changes))
        )
        return store.steps

    assert "writer" not in await change(4)
    assert (await change(10)).count("writer") == 1
    found = await service.get(LIBRARIAN, tuple(ObjectId(f"o{n}") for n in range(objects)))
    assert sum(int(each.value("s", "n")) for each in found) == 14
    await service.close()


async def test_what_deletes_objects_is_the_writers() -> None:
    """One deletion takes a thousand properties along; two hundred held the event loop up for 1.3 s."""
    store = LateStore()
    service = AHashService(store, NotingExecutor(store), HandClock(), SETTINGS)
    await service.start()
    store.steps.clear()
    for ask in (partial(service.transact, LIBRARIAN, NO_KEY), partial(service.change, LIBRARIAN)):
        await ask((put("o", "s", "p", "v"),))
        assert "writer" not in store.steps
        store.steps.clear()
        await ask((put("other", "s", "p", "v"), delete("o")))
        assert store.steps == ["writer", "commit"]
        store.steps.clear()
    await service.close()


async def test_a_sync_that_fails_leaves_the_outcome_unknown() -> None:
    store = LateStore()

    def fail() -> bool:
        raise CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", "store", "no space")

    service = AHashService(store, NotingExecutor(store), HandClock(), SETTINGS)
    await service.start()
    store.sync_at_once = fail  # type: ignore[method-assign]
    with fails(Kind.OUTCOME_UNKNOWN):
        await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))


async def test_what_the_loop_hands_back_itself_keeps_its_place() -> None:
    executor = ThreadExecutor()
    seen: list[int] = []
    executor.hand_back(lambda: seen.append(1))
    executor.hand_back(lambda: seen.append(2), at_once=False)
    assert seen == []
    executor.catch_up()
    assert seen == [1, 2]
    executor.hand_back(lambda: seen.append(3))
    await asyncio.sleep(0)
    assert seen == [1, 2, 3]
    await executor.close()


async def test_after_a_batch_that_waited_for_a_disk_the_writer_commits() -> None:
    class OnDisk(NotingExecutor):
        def waited(self) -> bool:
            return True

    store, clock = LateStore(), HandClock()

    def write_slowly(work: Callable[[], T]) -> T | None:
        clock.now += BRIEF_MS
        return work()

    service = AHashService(store, OnDisk(store), clock, SETTINGS)
    await service.start()
    store.write_at_once = write_slowly  # type: ignore[method-assign]
    store.steps.clear()
    await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))
    await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))
    assert store.steps[-2:] == ["writer", "commit"]
    clock.now += BRIEF_MS * HAND_OVER_FACTOR
    await service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),))
    assert store.steps[-1] == "catch up"
    await service.close()


class MovingStore(MemoryStore):
    """While others change it, a read without a hold of it finds nothing, as beside a page that is being split."""

    held = True

    @contextmanager
    def reading(self) -> Iterator[None]:
        self.held = True
        yield
        self.held = False

    def get(self, key: bytes) -> bytes | None:
        return super().get(key) if self.held else None


async def test_who_follows_begins_with_one_state_of_a_store_that_others_change() -> None:
    store = MovingStore()
    meta.prepare(store, "test")
    position = meta.read_position(store)
    store.held = False
    service = AHashService(store, InlineExecutor(), HandClock(), SETTINGS)
    await service.follow()
    assert service.position == position
