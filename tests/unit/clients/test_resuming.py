"""Large files go in parts, and an upload that broke off goes on where it was."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any, cast

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.parts import UploadId
from chelonia.core.errors import Kind
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import (
    Change,
    Done,
    Drop,
    Failure,
    Inline,
    Look,
    Looked,
    Seal,
    Uploads,
    Write,
)
from chelonia.hosting.net.http_client import Received, Sending
from chelonia.hosting.transfer.upload import TRIES
from chelonia_clients import resuming, transfers
from chelonia_clients.client import Client
from chelonia_clients.parted import AT_ONCE
from chelonia_clients.resuming import PART_BYTES, noted, part_bytes
from chelonia_clients.transfers import TransferResult, TreeOptions, copy_file, put_file
from tests.support.bartender import FakeBartender, Fault
from tests.unit.clients.faking import client_on

DATA = bytes(range(256)) * 14
"""Four parts."""
BROKEN = [Fault(after=1, kind=Kind.NETWORK)] * (AT_ONCE * TRIES)
"""Every part sent at once fails, as often as it is repeated."""


class Trial:
    def __init__(self, fake: FakeBartender, path: Path) -> None:
        self.fake = fake
        self.path = path
        fake.new = True
        self.files: Any = fake.files
        self.said: list[str] = []
        self.moved = 0
        self.account = "https://one:1/Bartender /CN=joe"

    def client(self) -> Client:
        client = client_on(self.fake)
        client.remark = self.said.append
        client.account = self.account
        return client

    async def put(self, *, force: bool = False) -> TransferResult:
        self.fake.store.asked.clear()
        self.moved = 0
        return await put_file(self.client(), self.path, "/big", TreeOptions(replace=force, progress=self._progress))

    async def broken_after(self, parts: int) -> None:
        """Break an upload off after this many parts."""
        self.fake.store.faults = [*([Fault()] * parts), *BROKEN]
        done = await self.put()
        assert done.error is not None
        assert done.error.kind is Kind.NETWORK
        self.fake.store.faults = []

    def _progress(self, count: int) -> None:
        self.moved += count

    @property
    def sent(self) -> int:
        return sum(method == "PUT" for method, _, _ in self.fake.store.asked)

    async def there(self) -> Looked:
        [looked] = await self.files.look(Call(), (Look(parse_ln("/big")),))
        return cast(Looked, looked)

    async def open_uploads(self) -> int:
        return len((await self.files.uploads(Call(), Uploads(parse_ln("/")))).uploads)


@pytest.fixture
def trial(fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(transfers, "PARTED_BYTES", 2000)
    monkeypatch.setattr(resuming, "PART_BYTES", 1000)
    monkeypatch.setattr(resuming, "MIB", 1)
    path = tmp_path / "big"
    path.write_bytes(DATA)
    return Trial(fake, path)


@pytest.mark.parametrize(("time_s", "kept_s"), [(-5, 0), (bounds.TIME_S_MAX + 5, bounds.TIME_S_MAX)])
async def test_a_file_of_a_time_that_the_cluster_cannot_keep_is_uploaded_with_the_nearest(
    trial: Trial, time_s: int, kept_s: int
) -> None:
    os.utime(trial.path, (time_s, time_s))
    if int(os.stat(trial.path).st_mtime) != time_s:
        pytest.skip("this file system does not keep such a time")
    done = await trial.put()
    assert done.error is None
    assert (await trial.there()).attributes.modified_ns == kept_s * 10**9


async def test_a_broken_upload_sends_only_what_is_missing(trial: Trial, tmp_path: Path) -> None:
    await trial.broken_after(2)
    assert list((tmp_path / "state" / "chelonia" / "uploads").iterdir())

    done = await trial.put()
    assert (done.error, done.size, trial.sent, trial.moved) == (None, len(DATA), 2, len(DATA))
    assert trial.said == ["/big: 2.0 KiB of 3.5 KiB had arrived; the upload goes on"]
    looked = await trial.there()
    assert looked.attributes.size == len(DATA)
    assert looked.attributes.modified_ns == os.stat(trial.path).st_mtime_ns
    assert await trial.open_uploads() == 0
    assert not list((tmp_path / "state" / "chelonia" / "uploads").iterdir())


async def test_a_part_is_sent_while_the_one_before_is_put_on_stable_storage(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, begun = trial.fake.store.request, list[asyncio.Event]()

    async def slow_to_sync(sending: Sending) -> Received:
        assert trial.moved == 1000 * len(begun), "no two parts share the way"
        number, next_begun = len(begun), asyncio.Event()
        begun.append(next_begun)
        if number:
            begun[number - 1].set()
        answer = await request(sending)
        if number < 3:
            async with asyncio.timeout(20):
                await next_begun.wait()
        return answer

    monkeypatch.setattr(trial.fake.store, "request", slow_to_sync)
    assert (await trial.put()).error is None
    assert (len(begun), (await trial.there()).attributes.size) == (4, len(DATA))


async def test_a_file_that_changed_since_begins_anew_and_what_was_sent_goes(trial: Trial) -> None:
    await trial.broken_after(1)
    found = os.stat(trial.path)
    trial.path.write_bytes(DATA[::-1])
    os.utime(trial.path, ns=(found.st_atime_ns, found.st_mtime_ns))  # only the time of change betrays it
    assert (await trial.put()).error is None
    assert (trial.sent, trial.said) == (4, [])
    assert await trial.open_uploads() == 0


async def test_an_upload_that_goes_on_asks_room_for_what_is_missing(trial: Trial) -> None:
    await trial.broken_after(2)
    asked: list[int] = []
    place = trial.files.place

    async def noting(call: Call, asks: Any) -> Any:
        asked.extend(ask.size for ask in asks if not ask.piece)
        return await place(call, asks)

    trial.files.place = noting
    assert (await trial.put()).error is None
    assert asked == [len(DATA) - 2000]


async def test_another_user_or_cluster_does_not_go_on_with_it(trial: Trial) -> None:
    await trial.broken_after(1)
    trial.account = "https://other:1/Bartender /CN=joe"
    assert (await trial.put()).error is None
    assert (trial.sent, trial.said) == (4, [])
    assert await trial.open_uploads() == 1  # the first one's, which may still go on


async def test_parts_that_went_meanwhile_are_given_up_with_their_upload(trial: Trial) -> None:
    apply = trial.files.apply

    async def losing(call: Call, changes: Any) -> Any:
        if isinstance(changes[0], Seal):
            return (Failure(Kind.INCOMPLETE, "/big", "a part is gone"),)
        return await apply(call, changes)

    trial.files.apply = losing
    assert (await trial.put()).error is not None
    assert await trial.open_uploads() == 0


def test_old_notes_go_but_not_those_in_use_nor_those_another_process_has_just_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {name: tmp_path / name for name in ("idle", "used", "vanishing")}
    for path in old.values():
        path.touch()
        os.utime(path, (1, 1))
    listed = list(tmp_path.iterdir())
    with old["used"].open("a+") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        old["vanishing"].unlink()
        monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))
        with noted(tmp_path, "this") as note:
            note.keep(UploadId("u1"), "facts")
            monkeypatch.undo()
            assert [path.name for path in tmp_path.iterdir() if path.name in old] == ["used"]
    with noted(tmp_path, "this") as note:
        assert (note.upload, note.facts) == ("u1", "facts")


def test_a_note_that_was_removed_while_it_was_waited_for_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, list[Path]()

    def removing(file: Any, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removing)
    with noted(tmp_path, "this") as note:
        note.keep(UploadId("u1"), "facts")
        assert removed[0].exists()


async def test_an_upload_that_the_cluster_gave_up_begins_anew(trial: Trial) -> None:
    await trial.broken_after(1)
    (upload,) = (await trial.files.uploads(Call(), Uploads(parse_ln("/")))).uploads
    await trial.files.apply(Call(), (Drop(parse_ln("/big"), upload.upload),))
    assert (await trial.put()).error is None
    assert (trial.sent, trial.moved) == (4, len(DATA))


async def test_a_file_that_changes_while_it_is_sent_gets_no_name(trial: Trial) -> None:
    place = trial.files.place

    async def changing(call: Call, asks: Any) -> Any:
        os.utime(trial.path, (2, 2))
        return await place(call, asks)

    trial.files.place = changing
    done = await trial.put()
    assert done.error is not None
    assert "changed while it was sent" in done.error.cause
    assert await trial.open_uploads() == 0
    assert not isinstance(await trial.there(), Looked)


async def test_a_name_that_is_taken_is_refused_before_a_byte_is_sent(trial: Trial) -> None:
    await trial.files.apply(Call(), (Write(parse_ln("/big"), inline=Inline(b"other")),))
    done = await trial.put()
    assert done.error is not None
    assert (done.error.kind, trial.sent) == (Kind.EXISTS, 0)
    assert (await trial.put(force=True)).error is None


async def test_who_loses_the_name_to_another_at_the_end_leaves_no_parts(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = trial.files.apply

    async def overtaken(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Seal):
            await apply(call, (Write(changes[0].place, inline=Inline(b"another's")),))
        return await apply(call, changes)

    monkeypatch.setattr(trial.files, "apply", overtaken)
    done = await trial.put()
    assert done.error is not None
    assert (done.error.kind, await trial.open_uploads()) == (Kind.EXISTS, 0)
    assert not list((tmp_path / "state" / "chelonia" / "uploads").iterdir())
    assert (await trial.there()).attributes.size == len(b"another's")


async def test_where_no_note_can_be_written_it_is_an_upload_all_the_same(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert (await trial.put()).error is None


def test_parts_are_few_enough() -> None:
    assert part_bytes(PART_BYTES * 20) == PART_BYTES
    huge = 5_000 * PART_BYTES * bounds.PARTS_MAX // 1_000
    assert huge / part_bytes(huge) <= bounds.PARTS_MAX


async def test_a_copy_inside_the_cluster_sends_nothing_and_keeps_what_is_there(trial: Trial) -> None:
    await trial.put()
    trial.fake.store.asked.clear()
    options = TreeOptions(progress=trial._progress)
    moved, trial.moved = trial.moved, 0
    done = await copy_file(trial.client(), "/big", "/copy", options, 7.5)
    assert (done.error, done.size, trial.moved) == (None, len(DATA), moved)
    assert trial.fake.store.asked == []
    (copy,) = await trial.files.look(Call(), (Look(parse_ln("/copy")),))
    assert (copy.attributes.size, copy.attributes.modified_ns) == (len(DATA), 7_500_000_000)
    refused = await copy_file(trial.client(), "/big", "/copy", TreeOptions(), None)
    assert refused.error is not None
    assert (refused.error.kind, "-f" in refused.error.cause) == (Kind.EXISTS, True)
    assert (await copy_file(trial.client(), "/big", "/copy", TreeOptions(replace=True), None)).error is None


@pytest.mark.parametrize("said", [None, 3, 2])
async def test_a_copy_by_reference_has_the_copies_that_were_asked_for_or_those_of_its_source(
    trial: Trial, said: int | None
) -> None:
    await put_file(trial.client(), trial.path, "/big", TreeOptions(replicas=2))
    trial.fake.store.asked.clear()
    done = await copy_file(trial.client(), "/big", "/copy", TreeOptions(replicas=said), None)
    assert (done.error, trial.fake.store.asked) == (None, [])
    assert trial.fake.found("/copy")["states"]["neededReplicas"] == ("3" if said == 3 else "2")


async def test_a_copy_through_this_machine_has_the_copies_and_the_user_metadata_of_its_source(trial: Trial) -> None:
    trial.fake.new = False
    trial.fake.add_file("/f", b"bytes", wanted=2, note="x")
    done = await copy_file(client_on(trial.fake), "/f", "/g", TreeOptions(), None)
    assert (done.error, trial.fake.data("/g")) == (None, b"bytes")
    copy = trial.fake.found("/g")
    assert (copy["metadata"], copy["states"]["neededReplicas"]) == ({"note": "x"}, "2")
