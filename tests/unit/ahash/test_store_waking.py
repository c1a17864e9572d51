"""Handing over between threads and the event loop."""

import asyncio
import itertools
import os
import queue
import threading
from collections.abc import AsyncIterator

import pytest

from chelonia.ahash.store_waking import Bell, Inbox, LoopInbox
from tests.support.polling import poll, poll_async

MANY = 2000


def test_what_several_threads_put_in_comes_out_once_and_in_the_order_of_each() -> None:
    inbox: Inbox[tuple[int, int]] = Inbox()
    seen: list[tuple[int, int]] = []

    def take() -> None:
        while len(seen) < 3 * MANY:
            seen.append(inbox.get(10_000))

    def give(name: int) -> None:
        for number in range(MANY):
            inbox.put((name, number))

    threads = [threading.Thread(target=take), *(threading.Thread(target=give, args=(name,)) for name in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [[number for name, number in seen if name == who] for who in range(3)] == [list(range(MANY))] * 3


def test_each_is_woken_who_waits_for_the_other() -> None:
    here: Inbox[int] = Inbox()
    there: Inbox[int] = Inbox()

    def answer() -> None:
        for _ in range(MANY):
            here.put(there.get(10_000) + 1)

    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(MANY):
        there.put(number)
        assert here.get(10_000) == number + 1
    thread.join(60)


def test_an_empty_inbox_is_waited_for_as_long_as_was_asked() -> None:
    inbox: Inbox[int] = Inbox()
    with pytest.raises(queue.Empty):
        inbox.get(1)
    inbox.put(7)  # rings for nobody
    assert len(inbox) == 1
    assert inbox.get(0) == 7
    with pytest.raises(queue.Empty):
        inbox.get(1)


def test_a_ring_before_anybody_waits_is_heard() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)


@pytest.fixture
async def to_loop() -> AsyncIterator[LoopInbox]:
    inbox = LoopInbox()
    yield inbox
    inbox.close()


async def test_work_of_threads_is_done_on_the_loop_in_order(to_loop: LoopInbox) -> None:
    seen: list[tuple[int, bool]] = []
    here = threading.get_ident()

    def give() -> None:
        for number in range(MANY):
            to_loop.put(lambda number=number: seen.append((number, threading.get_ident() == here)))  # type: ignore[misc]

    thread = threading.Thread(target=give)
    thread.start()
    await poll_async(lambda: len(seen) == MANY)
    thread.join()
    assert seen == [(number, True) for number in range(MANY)]


async def test_what_is_not_urgent_goes_along_with_what_is(to_loop: LoopInbox) -> None:
    seen: list[str] = []
    to_loop.put(lambda: seen.append("first"), at_once=False)
    for _ in range(10):
        await asyncio.sleep(0)
    assert seen == []
    to_loop.put(lambda: seen.append("second"))
    await poll_async(lambda: seen == ["first", "second"])


async def test_a_failure_is_told_and_the_rest_is_done(to_loop: LoopInbox) -> None:
    told: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context.get("exception")))
    seen: list[int] = []
    to_loop.put(lambda: seen.append(1), at_once=False)
    to_loop.put(lambda: seen.append(1 // 0), at_once=False)
    to_loop.put(lambda: seen.append(3))
    await poll_async(lambda: seen == [1, 3])
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_what_is_left_at_the_end_is_done() -> None:
    inbox, seen = LoopInbox(), itertools.count()
    inbox.put(lambda: next(seen) and None, at_once=False)
    inbox.close()
    assert next(seen) == 1
    await asyncio.to_thread(inbox.put, lambda: None)  # nobody listens; that is no error


def test_a_bell_leaves_no_file_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    bells = [Bell() for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) >= before + 50
    bells.clear()
    poll(lambda: len(os.listdir("/proc/self/fd")) <= before)
