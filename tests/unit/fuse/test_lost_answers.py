"""Commits that applied although their answer was lost: what was written is there once, and others' bytes stay."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.ports.files import Change, Over, Setting
from chelonia_fuse import cluster, committing
from chelonia_fuse.copies import EARLIER_MAX
from chelonia_fuse.filesystem import Handle
from chelonia_fuse.staging import PIECES_MAX
from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import Trial, mounted, names

LARGE = bytes(range(256)) * 4096
APPEND = os.O_WRONLY | os.O_APPEND


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "PAUSE_MS_MAX", 0)
    monkeypatch.setattr(cluster, "_AWAY", ())  # it answers looks, so it is never long away


@contextmanager
def unheard(memory: MemoryCluster, *, applied: bool = True) -> Iterator[None]:
    """All changes apply, or none, and no answer comes back."""
    apply = memory.apply

    async def lost(*args: Any) -> None:
        if applied:
            await apply(*args)
        raise CheloniaError(Kind.NETWORK, "apply", cause="the connection broke")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "apply", lost)
        patch.setattr(committing, "GIVE_UP_S", -1.0)
        yield


def lost_once(
    memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, then: Callable[[], Awaitable[None]] | None = None
) -> None:
    """The next change applies, and its answer is lost."""
    apply = memory.apply

    async def lost(*args: Any) -> None:
        monkeypatch.setattr(memory, "apply", apply)
        await apply(*args)
        if then is not None:
            await then()
        raise CheloniaError(Kind.OUTCOME_UNKNOWN, cause="the connection broke")

    monkeypatch.setattr(memory, "apply", lost)


async def appended(trial: Trial, handle: Handle, data: bytes) -> None:
    await trial.system.write(handle, 0, data)
    await trial.system.flush(handle)


@pytest.mark.parametrize(("old", "size"), [(LARGE, 1), (LARGE, 100_000), (b"", 1), (b"old", 1), (b"old", 100_000)])
async def test_what_others_append_behind_a_commit_whose_answer_was_lost_is_not_written_over(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, old: bytes, size: int
) -> None:
    await mount.write("f", old)
    handle = await mount.open("f", APPEND)
    lost_once(memory, monkeypatch, lambda: other.write("f", b"2", flags=APPEND))
    await appended(mount, handle, b"1" * size)
    await appended(mount, handle, b"3")
    await mount.close(handle)
    assert await other.read("f") == await mount.read("f") == old + b"1" * size + b"23"


@pytest.mark.expect_log("will be committed later")
@pytest.mark.parametrize(
    ("old", "others"), [(b"", b""), (b"old ", b""), (LARGE, b""), *((old, b"2") for old in (b"", b"old ", LARGE))]
)
async def test_an_append_whose_answer_was_lost_is_there_once_though_more_is_appended(
    mount: Trial, other: Trial, memory: MemoryCluster, old: bytes, others: bytes
) -> None:
    await mount.write("f", old)
    handle = await mount.open("f", APPEND)
    with unheard(memory):
        await appended(mount, handle, b"1")
    if others:
        await other.write("f", others, flags=APPEND)
    await appended(mount, handle, b"3")
    await mount.close(handle)
    assert await names(other) == ["f"]
    assert await other.read("f") == await mount.read("f") == old + b"1" + others + b"3"


@pytest.mark.expect_log("will be committed later")
@pytest.mark.parametrize("commits", [1, 3])
async def test_a_write_in_the_middle_whose_answer_was_lost_is_no_conflict_with_the_next_one(
    mount: Trial, other: Trial, memory: MemoryCluster, commits: int
) -> None:
    await mount.write("f", LARGE)
    handle, model = await mount.open("f"), bytearray(LARGE)
    for number in range(commits):
        at = 1000 * number
        for data in (b"first", b"S"):
            await mount.system.write(handle, at, data)
            model[at : at + len(data)] = data
            with unheard(memory) if data == b"first" else nullcontext():
                await mount.system.flush(handle)
    await mount.close(handle)
    assert (await names(other), mount.committer.conflicts) == (["f"], 0)
    assert await other.read("f") == await mount.read("f") == model


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_an_append_whose_answer_an_earlier_mount_never_heard_is_there_once_though_more_was_appended(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("f", LARGE)
    handle = await mount.open("f", APPEND)
    with unheard(memory):
        await appended(mount, handle, b"1")
    for number in range(3 * EARLIER_MAX):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "apply", failing)
            patch.setattr(committing, "GIVE_UP_S", -1.0)
            await appended(mount, handle, b"%d " % number)
    mount.system._cluster.is_away = True
    await appended(mount, handle, b"end")
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await names(other) == ["f"]
    written = b"1" + b"".join(b"%d " % number for number in range(3 * EARLIER_MAX)) + b"end"
    assert await other.read("f", len(LARGE)) == await again.read("f", len(LARGE)) == written


async def failing(*args: object) -> None:
    raise CheloniaError(Kind.NETWORK, "apply", cause="the network is away")


@pytest.mark.expect_log("will be committed later")
async def test_a_mode_that_was_set_after_a_commit_whose_answer_was_lost_is_kept(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    with unheard(memory):
        await appended(mount, handle, b"bytes")
    await mount.system.set(handle.inode, Setting(mode=0o600))
    await mount.close(handle)
    assert await names(other) == ["f"]
    assert (await other.find("f")).attributes.mode == 0o600
    assert await other.read("f") == await mount.read("f") == b"bytes"


@pytest.mark.parametrize("size", [0, 1 << 19, 1 << 21])
async def test_a_file_whose_size_was_set_has_it_though_the_answer_was_lost(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    await mount.write("f", LARGE)
    known = await mount.find("f")
    lost_once(memory, monkeypatch)
    await mount.system.resize(known, size, by_name=True)
    assert await names(other) == ["f"]
    assert await other.read("f") == await mount.read("f") == (LARGE + bytes(1 << 20))[:size]


@pytest.mark.expect_log("will be committed later")
async def test_whatever_is_done_after_a_commit_whose_answer_was_lost_is_what_is_read(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    """Small files are written anew, so their etag shows that nobody else has changed them."""
    for number in range(12):
        chosen, name = random.Random(number), f"f{number}"
        model = bytearray(chosen.randbytes(chosen.randrange(200)))
        await mount.write(name, bytes(model))
        handle = await mount.open(name)
        for step in range(6):
            for _ in range(chosen.randrange(1, 4)):
                at, data = chosen.randrange(300), chosen.randbytes(chosen.randrange(1, 40))
                if chosen.random() < 0.4:
                    await mount.system.resize(handle.inode, at, by_name=False)
                    model[:] = (model + bytes(at))[:at]
                else:
                    await mount.system.write(handle, at, data)
                    model += bytes(max(0, at - len(model)))
                    model[at : at + len(data)] = data
            if chosen.random() < 0.5 and step < 5:
                with unheard(memory):
                    await mount.system.flush(handle)
            assert await mount.system.read(handle, 0, 1000) == model, number
        await mount.close(handle)
        assert await other.read(name) == await mount.read(name) == model, number
    assert mount.committer.conflicts == 0


class Flaky:
    """The changes of a cluster over a network that loses requests, and answers, with a probability."""

    def __init__(self, memory: MemoryCluster, chosen: random.Random) -> None:
        self._apply, self._chosen, self.loses = memory.apply, chosen, 0.0
        memory.apply = self  # type: ignore[assignment, method-assign]

    async def __call__(self, *args: Any) -> Any:
        drawn = self._chosen.random()
        if drawn < self.loses / 2:
            raise CheloniaError(Kind.NETWORK, cause="the request was lost")
        answer = await self._apply(*args)
        if drawn < self.loses:
            raise CheloniaError(self._chosen.choice([Kind.NETWORK, Kind.OUTCOME_UNKNOWN]), cause="the answer was lost")
        return answer


@pytest.mark.expect_log("will be committed later|is committed now", optional=True)
@pytest.mark.parametrize("seed", range(8))
async def test_what_two_mounts_append_over_a_network_that_loses_answers_is_there_once(
    memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Mounts die in between, too. A small file is written anew with each commit."""
    old = bytes(200_000) if seed % 2 else b""
    monkeypatch.setattr(committing, "GIVE_UP_S", 0.02)
    chosen = random.Random(seed)
    network = Flaky(memory, chosen)
    trials = [await mounted(memory, tmp_path / str(number)) for number in range(2)]
    await trials[0].write("f", old)
    handles = [await trial.open("f", APPEND) for trial in trials]
    closed = list[bytes]()
    for number in range(25):
        who, network.loses = chosen.randrange(2), chosen.choice([0.0, 0.0, 0.5, 1.0])
        trial, handle = trials[who], handles[who]
        with suppress(CheloniaError):
            match chosen.choice(["append", "append", "append", "sync", "work off", "chmod", "read", "die", "away"]):
                case "append":
                    await appended(trial, handle, b"<%d>" % number)
                    closed.append(b"<%d>" % number)
                case "sync":
                    await trial.system.sync(handle)
                case "work off":
                    await trial.committer.work_off()
                case "chmod":
                    await trial.system.set(handle.inode, Setting(mode=0o600 + number))
                case "read":
                    await trial.system.read(handle, 0, 1 << 20)
                case "away":
                    trial.system._cluster.is_away = chosen.choice([False, True])
                case "die":
                    network.loses = 0.0
                    trials[who] = await mounted(memory, tmp_path / str(who))
                    handles[who] = await trials[who].open("f", APPEND)
    network.loses = 0.0
    for trial, handle in zip(trials, handles, strict=True):
        trial.system._cluster.is_away = False
        await trial.close(handle)
        await trial.committer.work_off()
    third = await mounted(memory, tmp_path / "third")
    assert await names(third) == ["f"]
    data = await third.read("f", len(old))
    lines = re.findall(rb"<\d+>", data)
    assert (b"".join(lines), len(set(lines))) == (data, len(lines))
    assert set(closed) <= set(lines)


@pytest.mark.expect_log("will be committed later|is committed now|is kept as|cannot be committed", optional=True)
@pytest.mark.parametrize("seed", range(8))
async def test_what_two_mounts_write_over_a_network_that_loses_answers_is_in_the_file_or_beside_it_once(
    memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Mounts die in between, too. Each write has a place of its own in the file."""
    width = 4_000 if seed % 2 else 8
    monkeypatch.setattr(committing, "GIVE_UP_S", 0.02)
    chosen = random.Random(seed)
    network = Flaky(memory, chosen)
    trials = [await mounted(memory, tmp_path / str(number)) for number in range(2)]
    await trials[0].write("f", b"." * 40 * width)
    handles, written, closed = [await trial.open("f") for trial in trials], [set[bytes](), set[bytes]()], set[bytes]()
    for number in range(40):
        who, network.loses = chosen.randrange(2), chosen.choice([0.0, 0.0, 0.5, 1.0])
        trial, handle = trials[who], handles[who]
        trial.system._cluster.is_away = chosen.choice([False, False, True])
        with suppress(CheloniaError):
            match chosen.choice(["write", "write", "write", "flush", "flush", "sync", "work off", "die"]):
                case "write":
                    await trial.system.write(handle, number * width, b"<%02d>" % number)
                    written[who].add(b"<%02d>" % number)
                case "work off":
                    await trial.committer.work_off()
                case "die":
                    network.loses, written[who] = 0.0, set()
                    trials[who] = await mounted(memory, tmp_path / str(who))
                    handles[who] = await trials[who].open("f")
                case end:
                    await (trial.system.flush(handle) if end == "flush" else trial.system.sync(handle))
                    closed |= written[who]
    network.loses = 0.0
    for trial, handle in zip(trials, handles, strict=True):
        trial.system._cluster.is_away = False
        await trial.close(handle)
        await trial.committer.work_off()
    third = await mounted(memory, tmp_path / "third")
    versions = [await third.read(name) for name in await names(third)]
    assert {len(version) for version in versions} == {40 * width}
    assert len(set(versions)) == len(versions)
    assert closed <= {found for version in versions for found in re.findall(rb"<\d+>", version)}


@pytest.mark.expect_log("will be committed later")
@pytest.mark.parametrize("old", [b"old", LARGE])
@pytest.mark.parametrize("applied", [True, False])
async def test_what_is_cut_off_again_after_a_commit_whose_answer_was_lost_is_not_there(
    mount: Trial, other: Trial, memory: MemoryCluster, old: bytes, applied: bool
) -> None:
    await mount.write("f", old)
    handle = await mount.open("f", APPEND)
    with unheard(memory, applied=applied):
        await appended(mount, handle, b"1")
    await mount.system.resize(handle.inode, len(old), by_name=False)
    await mount.close(handle)
    assert await names(other) == ["f"]
    assert await other.read("f") == await mount.read("f") == old


@pytest.mark.parametrize("old", [b"old", LARGE])
async def test_what_others_append_before_a_repeated_commit_is_answered_is_not_written_over(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, old: bytes
) -> None:
    await mount.write("f", old)
    handle, apply = await mount.open("f", APPEND), memory.apply

    async def twice(call: Call, *args: Any) -> Any:
        monkeypatch.setattr(memory, "apply", apply)
        keyed = call.keyed(RequestKey("one"))
        await apply(keyed, *args)
        await other.write("f", b"2", flags=APPEND)
        return await apply(keyed, *args)

    monkeypatch.setattr(memory, "apply", twice)
    await appended(mount, handle, b"1")
    await appended(mount, handle, b"3")
    await mount.close(handle)
    assert await other.read("f") == await mount.read("f") == old + b"123"


@pytest.mark.expect_log("will be committed later")
@pytest.mark.parametrize("size", [0, 5, 3_000, 1 << 19, 1 << 21])
@pytest.mark.parametrize("old", [b"old", LARGE])
@pytest.mark.parametrize("cut", [-1, 2])
async def test_a_size_whose_answer_was_lost_is_no_conflict_with_what_is_done_next(
    mount: Trial, other: Trial, memory: MemoryCluster, old: bytes, size: int, cut: int
) -> None:
    await mount.write("f", old)
    handle = await mount.open("f")
    with unheard(memory):
        await mount.system.resize(handle.inode, size, by_name=False)
        await mount.system.flush(handle)
    model = old[:size].ljust(size, b"\0")
    if cut < 0:
        await mount.system.write(handle, 1, b"S")
        model = model[:1].ljust(1, b"\0") + b"S" + model[2:]
    else:
        await mount.system.resize(handle.inode, cut, by_name=False)
        model = model[:cut].ljust(cut, b"\0")
    await mount.close(handle)
    assert await names(other) == ["f"]
    assert await other.read("f") == await mount.read("f") == model


@pytest.mark.expect_log("will be committed later|was changed by somebody else")
async def test_what_others_write_behind_a_commit_whose_answer_was_lost_is_no_base_of_the_next_one(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    """A splice over a file that was written anew looks as one over its earlier bytes would."""
    await mount.write("f", bytes(100_000))
    handle = await mount.open("f")
    with unheard(memory):
        await mount.system.write(handle, 0, b"1" * 90_000)
        await mount.system.flush(handle)
    await other.write("f", b"2", at=95_000)
    await mount.system.write(handle, 10, b"3")
    await mount.close(handle)
    kept = bytearray(b"1" * 90_000 + bytes(10_000))
    kept[95_000:95_001] = b"2"
    assert await other.read("f") == await mount.read("f") == kept
    assert len(await names(other)) == 2


async def test_a_commit_is_not_taken_for_one_of_the_file_that_has_its_name_by_now(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", LARGE)
    handle = await mount.open("f")

    async def renamed() -> None:
        await other.system.rename((other.root, "f"), (other.root, "g"), Over.REFUSE)
        await other.write("f", b"another")

    lost_once(memory, monkeypatch, renamed)
    await mount.system.write(handle, 0, b"1")
    await mount.system.flush(handle)
    await mount.system.write(handle, 1, b"2")
    await mount.close(handle)
    assert (await other.read("g"), await other.read("f")) == (b"12" + LARGE[2:], b"another")
    assert await names(other) == ["f", "g"]


async def test_what_others_remove_behind_a_commit_whose_answer_was_lost_does_not_come_back(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", b"old")
    handle = await mount.open("f")
    lost_once(memory, monkeypatch, lambda: other.system.remove(other.root, "f", directory=False))
    await mount.system.write(handle, 0, b"new")
    await mount.close(handle)
    assert (await names(other), mount.committer.conflicts) == ([], 0)


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_a_size_whose_answer_an_earlier_mount_never_heard_is_no_conflict_though_the_file_was_renamed(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("f", LARGE)
    handle = await mount.open("f")
    with unheard(memory):
        await mount.system.resize(handle.inode, 1 << 19, by_name=False)
        await mount.system.flush(handle)
    await other.system.rename((other.root, "f"), (other.root, "g"), Over.REFUSE)
    again = await mounted(memory, tmp_path / "one")
    handle = await again.open("g")
    await again.system.write(handle, 0, b"S")
    await again.close(handle)
    assert (await names(other), again.committer.conflicts) == (["g"], 0)
    assert await other.read("g") == b"S" + LARGE[1 : 1 << 19]


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_a_commit_out_of_the_journal_is_known_to_the_next_mount(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("f", b"old")
    mount.system._cluster.is_away = True  # so this one is not tried before it is kept
    await mount.write("f", b"new", flags=os.O_RDWR)
    with unheard(memory):
        await mount.committer.work_off()
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert (await names(other), again.committer.conflicts) == (["f"], 0)
    assert await other.read("f") == b"new"


@pytest.mark.expect_log("will be committed later")
@pytest.mark.parametrize("by", ["write", "remove"])
async def test_what_is_as_it_was_before_a_commit_that_never_arrived_is_no_conflict_with_others(
    mount: Trial, other: Trial, memory: MemoryCluster, by: str
) -> None:
    await mount.write("f", b"old")
    handle = await mount.open("f", APPEND)
    with unheard(memory, applied=False):
        await appended(mount, handle, b"1")
    await mount.system.resize(handle.inode, 3, by_name=False)
    if by == "write":
        await other.write("f", b"theirs")
        written_ns = (await other.find("f")).attributes.modified_ns
    else:
        await other.system.remove(other.root, "f", directory=False)
    await mount.close(handle)
    assert (await names(other), mount.committer.conflicts) == (["f"] if by == "write" else [], 0)
    if by == "write":
        assert (await mount.find("f")).attributes.modified_ns == written_ns, "and it stays as it is"


@pytest.mark.expect_log("will be committed later")
async def test_a_file_whose_mode_was_set_after_an_unheard_commit_does_not_come_back_when_others_remove_it(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    await mount.write("f", b"old")
    handle = await mount.open("f", APPEND)
    with unheard(memory):
        await appended(mount, handle, b"1")
    await mount.system.set(handle.inode, Setting(mode=0o600))
    await other.system.remove(other.root, "f", directory=False)
    await mount.close(handle)
    assert (await names(other), mount.committer.conflicts) == ([], 0)


@pytest.mark.expect_log("is kept as")
@pytest.mark.parametrize("size", [4, 100_000])
async def test_what_is_kept_beside_a_file_is_there_once_though_the_answer_was_lost(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    await mount.write("f", b"base")
    handle, apply = await mount.open("f"), memory.apply
    await mount.system.write(handle, 0, b"m" * size)
    await other.write("f", b"HERS", at=1)

    async def lost(call: Call, changes: tuple[Change, ...]) -> Any:
        answer = await apply(call, changes)
        if changes[0].when.absent and not changes[0].when.present:
            monkeypatch.setattr(memory, "apply", apply)
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, cause="the connection broke")
        return answer

    monkeypatch.setattr(memory, "apply", lost)
    await mount.close(handle)
    (kept,) = [name for name in await names(other) if name != "f"]
    assert (await other.read("f"), await other.read(kept)) == (b"bHERS", b"m" * size)


@pytest.mark.expect_log("is kept as")
async def test_what_is_kept_beside_a_file_does_not_take_the_name_of_what_was_kept_before(
    mount: Trial, other: Trial
) -> None:
    """Programs that copy set times, so two versions may have the same."""
    await mount.write("f", b"base")
    for data in (b"one", b"two"):
        handle = await mount.open("f")
        await mount.system.write(handle, 0, data)
        await mount.system.set(handle.inode, Setting(modified_ns=10**18))
        await other.write("f", b"HERS", at=1)
        await mount.close(handle)
    kept = [name for name in await names(other) if name != "f"]
    assert sorted([await other.read(name) for name in kept]) == [b"onee", b"twoRS"]


@pytest.mark.expect_log("is kept as|will be committed later")
async def test_what_is_written_after_an_unheard_copy_beside_is_not_taken_for_that(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    """The commit was refused before anything of it was sent, and a program has set the same time on both versions."""
    await other.write("f", LARGE)
    handle, apply = await mount.open("f", os.O_WRONLY), memory.apply
    for at in range(PIECES_MAX + 1):  # more than one commit has, so bytes between them are fetched
        await mount.system.write(handle, 2 * at, b"1")
    await other.write("f", b"2", at=len(LARGE) - 1)

    async def lost(call: Call, changes: tuple[Change, ...]) -> Any:
        answer = await apply(call, changes)
        if changes[0].when.absent and not changes[0].when.present:
            raise CheloniaError(Kind.NETWORK, cause="the connection broke")
        return answer

    for data in (b"1", b"3"):
        await mount.system.write(handle, 1000, data)
        await mount.system.set(handle.inode, Setting(modified_ns=10**18))
        with pytest.MonkeyPatch.context() as patch:
            if data == b"1":
                patch.setattr(memory, "apply", lost)
                patch.setattr(committing, "GIVE_UP_S", -1.0)
            await mount.system.flush(handle)
    await mount.close(handle)
    kept = [await other.read(name) for name in await names(other) if name != "f"]
    assert sorted(version[1000:1001] for version in kept) == [b"1", b"3"]
