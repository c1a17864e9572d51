"""Every kind of damage to a store's files: the scrub finds it, and a replica ordered erased goes, in any state."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from chelonia.core.errors import Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import Authority
from chelonia.shepherd.store.blobs_files import FileBlobs, lay_out
from chelonia.shepherd.store.blobs_local import LocalBlobs
from tests.support import damages
from tests.support.damages import DAMAGES, Damage
from tests.support.failing import fails
from tests.support.shepherd import ADMINISTRATOR, LIBRARIAN, World

DATA, OTHER = b"d" * 80_000, b"another file"


class Harmed:
    """A Shepherd on real files with two replicas; `path`: of the first one's bytes."""

    def __init__(self, world: World, references: list[ReferenceId]) -> None:
        self.world = world
        self.reference, self.other, self.empty = references
        self.root: Path = world.blobs._root  # type: ignore[attr-defined]
        self.path, self.bystander, self.nothing = map(self.place, references)

    def place(self, reference: ReferenceId) -> Path:
        return self.root / "replicas" / reference[:2] / reference

    async def found(self, *references: ReferenceId) -> int:
        return await self.world.service.scrub(LIBRARIAN, references or (self.reference,))

    async def erase(self, *references: ReferenceId) -> list[str]:
        wanted = tuple((reference, reference) for reference in references)
        authority = Authority(self.world.librarian.position)
        return [o.status for o in await self.world.service.delete(LIBRARIAN, wanted, authority)]


@pytest.fixture
async def harmed(tmp_path: Path) -> AsyncIterator[Harmed]:
    world = World(min_free_bytes=0)
    blobs = FileBlobs(tmp_path / "store")
    world.blobs = blobs  # type: ignore[assignment]
    world.service = world._service()
    await world.start()
    while not world.service._node.disk.identity.cluster:  # on a busy machine an answer may come after the interval
        await world.service.beat()
    references = [await world.store(data, number) for number, data in enumerate((DATA, OTHER, b""), 1)]
    world.listed(*references)
    await world.service._node.settle()
    yield Harmed(world, references)
    blobs.close()


FOUND = [damage for damage in DAMAGES if damage not in (damages.grow, damages.swap_with_empty, damages.mode_0)]
"""All kinds that cost a byte: the others have tests of their own, and mode 0 does not stop root."""


@pytest.mark.parametrize("harm", FOUND)
async def test_the_scrub_finds_every_harm_and_an_order_then_leaves_nothing(
    harmed: Harmed, harm: Damage, expect_log: Callable[..., None]
) -> None:
    expect_log("replica is invalid|bytes behind the end|replica damaged")
    harm(harmed.path, harmed.bystander)
    assert await harmed.found() == 1
    assert await harmed.world.state_of(harmed.reference) == "invalid"
    await harmed.world.restart(crash=False)  # a start finds the same, and does not stumble
    unknown_here = harm in (
        damages.remove_both,
        damages.become_another,
    )  # the metadata know whose bytes there should be
    assert await harmed.found() == (0 if unknown_here else 1)
    assert await harmed.erase(harmed.reference) == ["deleted"]
    left = [path.name for path in harmed.path.parent.iterdir() if path.name.startswith(harmed.reference)]
    assert left == []
    kept = sorted(path.name for path in (harmed.root / "quarantine").iterdir())
    assert len(kept) == ("directory" in harm.__name__), "what nobody ordered erased is kept for a person"
    if harm is damages.full_directory:
        assert (harmed.root / "quarantine" / kept[0] / "somebody's").read_bytes() == b"work"


@pytest.mark.parametrize("what", ["header", "record", "data"])
async def test_harm_in_a_segment_is_found_and_told_and_costs_one_replica(
    tmp_path: Path, what: str, expect_log: Callable[..., None]
) -> None:
    expect_log("replica is invalid|damaged blocks|replica damaged", optional=True)
    world, store = World(min_free_bytes=0), LocalBlobs(tmp_path / "store")
    world.blobs = store  # type: ignore[assignment]
    world.service = world._service()
    await world.start()
    while not world.service._node.disk.identity.cluster:  # on a busy machine an answer may come after the interval
        await world.service.beat()
    references = [await world.store(bytes((number,)) * 5000, number) for number in (1, 2, 3)]
    place = store._segments.place(references[1])
    at = {"header": place.at + 20, "record": place.data_at - 5, "data": place.data_at + 2500}[what]
    with (tmp_path / "store/segments/00000001.segment").open("r+b") as file:
        file.seek(at)
        file.write(b"rot")
    assert await world.service.scrub(LIBRARIAN, tuple(references)) == 1
    assert [await world.state_of(each) for each in references] == ["alive", "invalid", "alive"]
    authority = Authority(world.librarian.position)
    erased = await world.service.delete(LIBRARIAN, ((references[1], references[1]),), authority)
    assert [outcome.status for outcome in erased] == ["deleted"]
    assert await world.service.scrub(LIBRARIAN, ()) == 0
    store.close()
    assert bytes((2,)) * 100 not in (tmp_path / "store/segments/00000001.segment").read_bytes()


@pytest.mark.parametrize("harm", [damages.remove, damages.directory, damages.dangling_symlink])
async def test_an_empty_replica_that_is_gone_is_found_too(
    harmed: Harmed, harm: Damage, expect_log: Callable[..., None]
) -> None:
    expect_log("replica is invalid")
    harm(harmed.nothing, harmed.bystander)
    assert await harmed.found(harmed.empty) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_bytes_behind_the_end_are_cut_off_and_told(
    harmed: Harmed, expect_log: Callable[..., None], restarted: bool
) -> None:
    expect_log("bytes behind the end of a replica cut off.* size=80000 cut=100")
    expect_log("bytes behind the end of a replica cut off.* size=0 cut=80000")
    harmed.path.write_bytes(DATA + bytes(100))
    harmed.nothing.write_bytes(DATA)
    if restarted:
        expect_log("replica damaged .*; it will be checked")
        await harmed.world.restart(crash=False)
        await harmed.world.service.tidy()
        assert await harmed.world.state_of(harmed.reference) == "invalid"
    await harmed.found(harmed.reference, harmed.empty)
    assert await harmed.found(harmed.reference, harmed.empty) == 0
    assert (harmed.path.read_bytes(), harmed.nothing.read_bytes()) == (DATA, b"")
    assert await harmed.world.state_of(harmed.reference) == await harmed.world.state_of(harmed.empty) == "alive"
    assert (await harmed.world.service.status(ADMINISTRATOR)).damaged >= 2


async def test_bytes_behind_a_damaged_replica_change_nothing(harmed: Harmed, expect_log: Callable[..., None]) -> None:
    expect_log("replica is invalid")
    harmed.path.write_bytes(b"x" + DATA[1:] + bytes(100))
    assert await harmed.found() == 1
    assert harmed.path.stat().st_size == len(DATA) + 100


async def test_what_is_in_the_way_of_an_erasure_is_named_and_counted(
    harmed: Harmed, expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_log("erasure failed .* cannot be removed: Device or resource busy")
    damages.directory(harmed.path, harmed.bystander)
    real = os.replace

    def busy(source: Path, target: Path) -> None:
        if source == harmed.path:
            raise OSError(16, "Device or resource busy", str(source))
        real(source, target)

    monkeypatch.setattr(os, "replace", busy)
    status, other = await harmed.erase(harmed.reference, harmed.other)
    assert (status.startswith("nosuchfile: "), other) == (True, "deleted")
    assert str(harmed.path) in status
    assert "disk" not in status
    assert harmed.world.service.erasures_failed == 1
    await harmed.world.restart(crash=False)  # what is in the way of one erasure stops no start
    monkeypatch.undo()
    assert await harmed.erase(harmed.reference) == ["deleted"]


@pytest.mark.parametrize("below", ["nothing", "a mount point"])
async def test_a_store_whose_replicas_are_away_is_missing_and_comes_back_by_itself(
    harmed: Harmed, expect_log: Callable[..., None], below: str
) -> None:
    world, replicas = harmed.world, harmed.root / "replicas"
    expect_log("the store is not there any more: its replicas/ is gone")
    away = replicas.rename(harmed.root / "away")
    if below == "a mount point":
        replicas.mkdir()
    for _ in range(3):
        await world.service.beat()
        with fails(Kind.UNAVAILABLE):
            await harmed.found()
        await world.service.tidy()
    assert "replicas/ is gone" in world.librarian.beats[-1].trouble
    assert (await world.service.status(ADMINISTRATOR)).replicas == 3
    if below == "a mount point":
        replicas.rmdir()
    away.rename(replicas)
    harmed.bystander.unlink()  # what comes back is not all that was there
    expect_log("replica damaged")
    await world.service.beat()
    assert world.librarian.beats[-1].trouble == ""
    await world.service.tidy()
    assert [await world.state_of(r) for r in (harmed.reference, harmed.other)] == ["alive", "invalid"]


def test_a_start_without_its_replicas_is_refused_and_makes_none(tmp_path: Path) -> None:
    """A start must not take the empty mount point for the disk's contents."""
    lay_out(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 1}')
    for folder in (tmp_path / "replicas").iterdir():
        folder.rmdir()
    with fails(Kind.BAD_CONFIG, match="replicas/ is gone"):
        FileBlobs(tmp_path)
    assert os.listdir(tmp_path / "replicas") == []
