"""Small files of the SDK: one message up, one down, and the long way where needed."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Guid, RequestKey
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import NameRequest, Outcome
from chelonia.core.ports.files import (
    Attributes,
    Change,
    Done,
    Failure,
    Files,
    Listed,
    Listing,
    Look,
    Looked,
    Make,
    Want,
)
from chelonia.hosting.transfer.call_batches import CALL_FILES_MAX, CallBatches
from chelonia.hosting.transfer.download import read
from chelonia.hosting.transfer.upload import UploadOptions, bytes_source, upload
from chelonia_clients.client import Client
from chelonia_clients.throttle import limit
from chelonia_clients.transfers import TreeOptions, get_tree, put_tree
from tests.support.bartender import FakeBartender
from tests.support.failing import fails
from tests.support.stage import JOE
from tests.unit.clients.faking import client_on

DATA = b"small bytes"


class AsJoe:
    """The port on joe's connection. `applied`: how many changes each call had; `fails`: the number of the call that
    fails. `trouble`: changes that first fail with the passing error `met`. `calm`: calls are repeated only while it is
    set."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.applied: list[tuple[RequestKey, int]] = []
        self.trouble, self.met = 0, Kind.OUTCOME_UNKNOWN
        self.fails = 0
        self.calm: asyncio.Event | None = None

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if self.applied and self.calm is not None:
            await self.calm.wait()
        self.applied.append((call.request_key, len(changes)))
        if len(self.applied) == self.fails:
            raise CheloniaError(Kind.UNAVAILABLE, "apply", cause="nobody answers")
        answers = await self._files.apply(msgspec.structs.replace(call, dn=JOE.dn), changes)
        await asyncio.sleep(0.01)
        lost = self.trouble
        self.trouble = 0
        return (*(Failure(self.met),) * lost, *answers[lost:])

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def ask(call: Call, *args: Any) -> Awaitable[Any]:
            asked: Awaitable[Any] = getattr(self._files, method)(msgspec.structs.replace(call, dn=JOE.dn), *args)
            return asked

        return ask


@pytest.fixture
def client(fake: FakeBartender) -> Client:
    made = client_on(fake)
    made.files = cast(Files, AsJoe(fake.cluster))
    return made


async def got(client: Client, ln: str) -> bytes:
    return b"".join([chunk async for chunk in read(client, ln)])


async def test_a_small_file_goes_up_and_comes_down_in_a_message(client: Client, fake: FakeBartender) -> None:
    moved: list[int] = []
    wish = UploadOptions(mtime_s=5.25, user={"a": "b"}, progress=moved.append)
    result = await upload(client, bytes_source(DATA), "/f", wish)
    assert (result.size, moved) == (len(DATA), [len(DATA)])
    assert await got(client, "/f") == DATA
    assert fake.store.asked == []
    assert fake.calls == []


async def test_of_wrong_bytes_in_a_message_right_ones_are_asked_of_a_shepherd(fake: FakeBartender) -> None:
    fake.add_file("/f", DATA)
    client = client_on(fake)
    sources = fake.cluster.looked("/f", Want.SOURCES).sources
    known = Attributes(Guid("g"), "file", 1, JOE.dn, len(DATA), "etag", 10**18)
    sums = Checksums(hashlib.sha256(DATA).hexdigest())

    async def look(call: Call, look: Look, answer_bytes: int = 0) -> Looked:
        if Want.BYTES in look.want:
            return Looked(known, checksums=sums, data=DATA[::-1])
        return Looked(known, checksums=sums, sources=sources)

    cast(Any, client).looks = SimpleNamespace(send=look)
    assert await got(client, "/f") == DATA
    assert fake.store.asked == [("GET", "s1", "")]


async def test_what_is_there_stays_unless_it_is_to_be_replaced(client: Client) -> None:
    await upload(client, bytes_source(DATA), "/f")
    with fails(Kind.EXISTS):
        await upload(client, bytes_source(b"others"), "/f")
    assert await got(client, "/f") == DATA
    await upload(client, bytes_source(b"others"), "/f", UploadOptions(replace=True))
    assert await got(client, "/f") == b"others"


async def test_large_files_take_the_long_way(fake: FakeBartender) -> None:
    await upload(client_on(fake), bytes_source(bytes(bounds.INLINE_BYTES_MAX + 1)), "/large")
    assert [each[0] for each in fake.store.asked] == ["PUT"]


async def test_what_is_written_about_a_file_and_its_rules_go_along(client: Client) -> None:
    about = UploadOptions(user={"colour": "green"}, policy={"ALL": "+read"})
    await upload(client, bytes_source(DATA), "/f", about)
    [there] = await client.files.look(client.new_call(), (Look(parse_ln("/f"), Want.USER | Want.POLICY),))
    assert isinstance(there, Looked)
    assert (there.user, there.policy) == ({"colour": "green"}, {"ALL": "+read"})


async def test_files_that_come_together_share_their_calls(client: Client) -> None:
    files = cast(AsJoe, client.files)
    await upload(client, bytes_source(DATA), "/f7")
    uploads = [upload(client, bytes_source(str(n).encode()), f"/f{n}") for n in range(40)]
    done = await asyncio.gather(*uploads, return_exceptions=True)
    failed = {n: each for n, each in enumerate(done) if isinstance(each, BaseException)}
    assert [getattr(each, "kind", each) for each in failed.values()] == [Kind.EXISTS]
    assert list(failed) == [7]
    assert len(files.applied) <= 4
    assert await got(client, "/f39") == b"39"


def noted_looks(client: Client) -> list[int]:
    """The number of files in each later call."""
    counts, look = list[int](), client.files.look

    async def counting(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        counts.append(len(asks))
        return await look(call, asks)

    cast(Any, client.files).look = counting
    return counts


async def test_a_thousand_small_files_are_one_call_of_the_sdk_and_few_of_the_wire(
    client: Client, tmp_path: Path
) -> None:
    files, source = cast(AsJoe, client.files), tmp_path / "s"
    source.mkdir()
    for number in range(1_000):
        (source / f"f{number}").write_bytes(f"bytes of {number}".encode())
    await client.files.apply(client.new_call(), (Make(parse_ln("/t"), TYPE_COLLECTION),))
    files.applied.clear()
    done = [each async for each in put_tree(client, source, "/t", TreeOptions())]
    assert [each.error for each in done] == [None] * 1_001
    assert sum(count for _, count in files.applied) == 1_000
    assert len(files.applied) <= 2 * 1_000 // CALL_FILES_MAX, "few, however the files come off the disk"
    looked = noted_looks(client)
    assert [each.error async for each in get_tree(client, "/t", tmp_path / "t", TreeOptions())] == [None] * 1_001
    read = {each.name: each.read_bytes() for each in (tmp_path / "t").iterdir()}
    assert read == {each.name: each.read_bytes() for each in source.iterdir()}
    assert sum(looked) == 1_000
    assert len(looked) <= 2 * 1_000 // bounds.LOOKED_TOGETHER_MAX


async def test_large_answers_are_cut_and_files_of_unknown_size_may_be_large(client: Client, tmp_path: Path) -> None:
    large = bytes(bounds.INLINE_BYTES_MAX)
    await client.files.apply(client.new_call(), (Make(parse_ln("/t"), TYPE_COLLECTION),))
    await asyncio.gather(*(upload(client, bytes_source(large), f"/t/f{n}") for n in range(40)))
    fit, looked = bounds.INLINE_CALL_BYTES_MAX // bounds.INLINE_BYTES_MAX, noted_looks(client)
    assert [each.error async for each in get_tree(client, "/t", tmp_path / "t", TreeOptions())] == [None] * 41
    assert (sum(looked), max(looked)) == (40, fit)
    await asyncio.gather(*(got(client, f"/t/f{n}") for n in range(40)))
    assert (sum(looked), max(looked)) == (80, fit)


async def test_stats_that_come_together_share_their_calls(client: Client, fake: FakeBartender) -> None:
    fake.add_file("/f", DATA)
    told = await asyncio.gather(*(client.stat(("/f", "/none")[n % 2]) for n in range(40)), return_exceptions=True)
    assert [getattr(each, "kind", "") for each in told] == ["", Kind.NOT_FOUND] * 20
    assert len({call.request_key for _, call in fake.calls}) <= 4


async def test_deletions_that_come_together_share_their_calls_and_are_settled_under_their_keys() -> None:
    asked: list[tuple[RequestKey, int]] = []

    async def del_file(call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        unknown = not asked
        asked.append((call.request_key, len(requests)))
        await asyncio.sleep(0.01)
        kind, cause = (Kind.OUTCOME_UNKNOWN.value, "no answer") if unknown else ("", "")
        return tuple(Outcome(each.request_id, "" if unknown else "deleted", kind, cause) for each in requests)

    made = Client(cast(Any, SimpleNamespace(stat=None, unlink=None, del_file=del_file)), *cast(Any, (None, None)))
    assert set(await asyncio.gather(*(made.del_file(f"/f{n}") for n in range(40)))) == {"deleted"}
    assert len(asked) <= 6
    first = asked[0]
    assert asked.count(first) == 2, "what may have applied is asked again under its key"


async def test_what_was_refused_is_not_done_once_its_owner_knows() -> None:
    there, trouble = {"/b"}, [Kind.OUTCOME_UNKNOWN.value]

    def deleted(request: NameRequest) -> Outcome:
        kind = trouble.pop() if trouble and request.ln == "/b" else "" if request.ln in there else Kind.NOT_FOUND.value
        there.difference_update(() if kind else (request.ln,))
        return Outcome(request.request_id, "" if kind else "deleted", kind, kind)

    async def del_file(call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        return tuple(deleted(each) for each in requests)

    made = Client(cast(Any, SimpleNamespace(stat=None, unlink=None, del_file=del_file)), *cast(Any, (None, None)))

    async def anew() -> None:
        with pytest.raises(CheloniaError, match=Kind.NOT_FOUND.value):
            await made.del_file("/a")
        there.add("/a")

    await asyncio.gather(anew(), made.del_file("/b"))
    assert there == {"/a"}


@pytest.mark.parametrize("met", [Kind.OUTCOME_UNKNOWN, Kind.NO_SHEPHERD])
async def test_a_call_that_meets_a_passing_trouble_is_made_again_under_its_key(client: Client, met: Kind) -> None:
    """The change may apply all the same: of two Bartenders with the request, one may be cut off from all Shepherds."""
    files = cast(AsJoe, client.files)
    files.trouble, files.met = 1, met
    wish = UploadOptions(replace=True)
    await asyncio.gather(*(upload(client, bytes_source(DATA), f"/f{n}", wish) for n in range(3)))
    assert len(files.applied) == 2
    assert files.applied[0] == files.applied[1]


async def test_the_trouble_of_one_holds_back_nobody_else(client: Client) -> None:
    files = cast(AsJoe, client.files)
    files.trouble, files.calm = 1, asyncio.Event()
    wish = UploadOptions(replace=True)
    uploads = [asyncio.create_task(upload(client, bytes_source(DATA), f"/f{n}", wish)) for n in range(3)]
    await asyncio.wait_for(asyncio.gather(*uploads[1:]), 20)
    assert not uploads[0].done()
    files.calm.set()
    await uploads[0]


async def test_who_tries_again_himself_is_told_of_the_trouble_at_once(client: Client) -> None:
    files = cast(AsJoe, client.files)
    files.trouble = 1
    batches: CallBatches[Change, Done | Failure] = CallBatches(files.apply, client.clock, again_ms=0)
    change = Make(parse_ln("/c"), TYPE_COLLECTION)
    assert await batches.send(client.new_call(), change) == Failure(Kind.OUTCOME_UNKNOWN)
    assert len(files.applied) == 1


async def test_large_calls_are_cut(client: Client) -> None:
    files = cast(AsJoe, client.files)
    large = bytes(bounds.INLINE_BYTES_MAX)
    await asyncio.gather(*(upload(client, bytes_source(large), f"/f{n}") for n in range(20)))
    assert max(count for _, count in files.applied) * len(large) <= bounds.INLINE_CALL_BYTES_MAX // 2


async def test_a_later_call_that_fails_fails_nothing_that_was_stored(client: Client) -> None:
    files = cast(AsJoe, client.files)
    files.trouble, files.fails = 1, 2
    uploads = [upload(client, bytes_source(DATA), f"/f{n}") for n in range(3)]
    done = await asyncio.gather(*uploads, return_exceptions=True)
    assert [isinstance(each, CheloniaError) for each in done] == [True, False, False]


async def test_what_nobody_waits_for_any_more_is_not_sent(client: Client) -> None:
    files = cast(AsJoe, client.files)
    tasks = [asyncio.create_task(upload(client, bytes_source(DATA), f"/f{n}")) for n in range(100)]
    while not files.applied:
        await asyncio.sleep(0)
    for task in tasks[60:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(count for _, count in files.applied) == 60


async def test_names_come_page_by_page_with_types_sizes_and_times(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ln in ("/a", "/c", "/c/b", "/d"):
        if ln == "/c":
            await client.files.apply(client.new_call(), (Make(parse_ln(ln), TYPE_COLLECTION),))
        else:
            await upload(client, bytes_source(DATA), ln, UploadOptions(mtime_s=1_700_000_000.125))
    listed, asked = client.files.list, list[str]()

    async def paged(call: Call, ask: Listing) -> Listed:
        asked.append(ask.after)
        return await listed(call, msgspec.structs.replace(ask, limit=2))

    monkeypatch.setattr(client.files, "list", paged, raising=False)
    seen = [(each.name, each.type, each.size) async for each in client.names("/", recursive=True)]
    assert seen == [("a", "file", 11), ("c", "collection", -1), ("c/b", "file", 11), ("d", "file", 11)]
    assert {each.modified_s async for each in client.names("/") if each.type == "file"} == {1_700_000_000.125}
    assert asked[:2] == ["", "c/"]
    with fails(Kind.NOT_FOUND):
        _ = [each async for each in client.names("/missing")]


async def test_the_next_page_is_asked_for_while_one_is_in_use(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in it comes once the names before it were yielded; a caller who stops early never gets it."""
    for name in ("a", "b", "c"):
        await client.files.apply(client.new_call(), (Make(parse_ln(f"/{name}"), TYPE_COLLECTION),))
    listed, asked = client.files.list, list[str]()

    async def paged(call: Call, ask: Listing) -> Listed:
        asked.append(ask.after)
        if ask.after == "b/":
            raise CheloniaError(Kind.DENIED, "list", "/")
        return await listed(call, msgspec.structs.replace(ask, limit=1))

    monkeypatch.setattr(client.files, "list", paged, raising=False)
    seen = dict[str, tuple[str, ...]]()

    async def use() -> None:
        async for each in client.names("/"):
            seen[each.name] = tuple(asked)

    with fails(Kind.DENIED):
        await use()
    assert seen == {"a": ("", "a/"), "b": ("", "a/", "b/")}
    async with aclosing(client.names("/")) as names:
        assert [(await anext(names)).name, (await anext(names)).name] == ["a", "b"]
    gc.collect()
    await asyncio.sleep(0)
    said = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert not said, "nobody is told of the error that he did not wait for"


async def test_a_limit_holds_for_small_files_too(client: Client) -> None:
    """They travel in messages, not in bodies, and were not counted."""
    limit(client, 100_000)
    began, data = client.clock.monotonic_ms(), b"x" * 50_000
    for number in range(4):
        await upload(client, bytes_source(data), f"/f{number}")
    assert 2000 <= client.clock.monotonic_ms() - began <= 2100
    for number in range(4):
        assert await got(client, f"/f{number}") == data
    assert 4000 <= client.clock.monotonic_ms() - began <= 4200
