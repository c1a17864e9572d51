"""Listings of several pages: the entries they keep, and the lookups they serve."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Guid
from chelonia.core.ports.files import Attributes, Named, Setting
from chelonia_fuse import listings
from chelonia_fuse.directories import OpenDirectory
from chelonia_fuse.listings import LargeListing
from chelonia_fuse.names import NOTHING
from tests.unit.fuse.mounts import HOUR_S, OWNER, WHO, Trial, names
from tests.unit.fuse.test_filesystem import bound


async def test_a_listing_begins_with_the_directory_and_the_one_above(
    mount: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyfuse3, told = pytest.importorskip("pyfuse3"), list[tuple[bytes, int]]()
    monkeypatch.setattr(pyfuse3, "readdir_reply", lambda _, name, __, following: not told.append((name, following)))  # type: ignore[func-returns-value]
    binding, made = bound(mount), await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    opened = await binding.opendir(made.number, None)
    mount.network.asked.clear()
    for start in (0, 2):  # the kernel asks until there is no more
        await binding.readdir(opened, start, None)
    assert (told, mount.network.asked) == ([(b".", 1), (b"..", 2)], ["list"])
    await mount.system.create(made, "f", os.O_WRONLY, 0o644, OWNER)
    for start, names_told in ((0, [b".", b"..", b"f"]), (2, [b"f"]), (3, [])):
        told.clear()
        await binding.readdir(opened, start, None)
        assert [name for name, _ in told] == names_told


async def test_a_long_listing_is_not_kept_and_goes_back_all_the_same(
    mount: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 3)
    for name in "abcdefghijk":
        await mount.write(name, b"")
    listing = OpenDirectory(mount.root)

    async def walk(start: int) -> str:
        seen: list[str] = []
        await mount.system.entries(listing, start, lambda entry, *_: not seen.append(entry.name))  # type: ignore[func-returns-value]
        return "".join(seen)

    assert await walk(0) == "abcdefghijk"
    assert len(listing.shown) <= 6
    assert [await walk(start) for start in (10, 7, 11, 4, 0, 8)] == ["k", "hijk", "", "efghijk", "abcdefghijk", "ijk"]


@pytest.mark.parametrize("back", [0, 3, 6, 13, 16])
async def test_names_that_stay_come_once_though_others_come_and_go_between_the_pages(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch, back: int
) -> None:
    """`back`: the position to which the reader goes back, as `seekdir` does: the begin of a page, or in a kept one."""
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 3)
    stay = [f"{letter}-stays" for letter in "abcdefghijkl"]
    for name in (*stay, "b-goes", "e-goes", "h-goes", "k-goes"):
        await mount.write(name, b"")
    listing, seen = OpenDirectory(mount.root), list[str]()

    async def read(start: int, most: int) -> None:
        del seen[start:]

        def accept(entry: Named, *_: object) -> bool:
            seen.append(entry.name)
            return len(seen) < start + most

        await mount.system.entries(listing, start, accept)

    for turn, letter in enumerate("behk"):
        await read(len(seen), 4)
        await other.find(f"{letter}-goes")
        await other.system.remove(other.root, f"{letter}-goes", directory=False)
        for made in (f"a-made-{turn}", f"c-made-{turn}", f"{letter}-made"):
            await other.write(made, b"")
    await read(back, 100)
    assert [name for name in seen if name.endswith("stays")] == stay


async def test_a_long_listing_serves_for_the_lookups_after_it(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 2)
    monkeypatch.setattr(listings, "SERVES", 10**9)
    monkeypatch.setattr(listings, "FRESH_NS", HOUR_S * 1e9)
    for name in "abc":
        await mount.write(name, b"")
    await names(other)
    other.network.asked.clear()
    await mount.write("new", b"")
    await mount.write("b", b"changed")
    assert [(await other.find(name)).attributes.size for name in "abc"] == [0, 0, 0]
    assert other.network.asked == []
    await other.find("new")
    assert await other.read("b") == b"changed"
    await other.system.remove(other.root, "a", directory=False)
    with pytest.raises(CheloniaError):
        await other.find("a")
    monkeypatch.setattr(listings, "FRESH_NS", 0)
    other.network.asked.clear()
    other.root.children.part = NOTHING
    await other.find("c")
    assert other.network.asked


async def test_a_long_listing_serves_for_what_is_known_no_more_unless_it_was_changed_here(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 40)
    monkeypatch.setattr(listings, "SERVES", 10**9)
    monkeypatch.setattr(listings, "FRESH_NS", HOUR_S * 1e9)
    await other.system.make_directory(other.root, "n", 0o755, OWNER)
    for n in range(100):
        await mount.write(f"n{n:03d}", b"")
    await names(other)
    other.root.children.part = NOTHING
    changed = await other.find("n050")
    await other.system.set(changed, Setting(mode=0o600))
    for n in range(100):
        inode = other.system.inodes.named(other.root.number, f"n{n:03d}")
        assert inode is not None
        other.system.forget(inode.number, inode.lookups)
    other.network.asked.clear()
    found = [await other.find(name) for name in ("n", *(f"n{n:03d}" for n in range(100) if n != 50))]
    assert len({inode.guid for inode in found}) == 100
    assert other.network.asked == []
    assert (await other.find("n050")).attributes.mode & 0o777 == 0o600
    assert other.network.asked


async def test_attributes_that_a_listing_told_a_moment_ago_are_not_asked_for(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chelonia_fuse.filesystem.VALID_S", HOUR_S)
    await mount.write("f", b"")
    await names(other)
    inode = other.system.inodes.named(other.root.number, "f")
    assert inode is not None
    other.network.asked.clear()
    assert await other.system.refresh(inode) > 0
    assert other.network.asked == []
    other.system.inodes.doubt(inode)
    await other.system.refresh(inode)
    assert other.network.asked == ["look"]


def test_what_is_changed_while_it_is_listed_is_not_served(tmp_path: Path) -> None:
    listing = LargeListing(os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT), 0)
    listing.add(_told("abc"), 5, 10)
    listing.change("b", 11)
    listing.change("e", 11)
    listing.add(_told("def"), 10, 20)
    for name in "be":
        assert listing.find(name, 21) is None
    assert listing.find("c", 21) == (Attributes(Guid("c"), "file", 0, WHO), 5)
    assert listing.find("d", 21) == (Attributes(Guid("d"), "file", 0, WHO), 10)
    assert listing.find("d", 121) is None
    listing.close()


def _told(names: Iterable[str]) -> list[Named]:
    return [Named(name, Attributes(Guid(name), "file", 0, WHO)) for name in names]


def test_one_that_is_too_large_or_finds_no_room_serves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = _told(f"{n:04d}" for n in range(100))
    monkeypatch.setattr(listings, "LISTED_MAX", 150)
    for descriptor, pages in (
        (os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT), 2),
        (os.open("/dev/full", os.O_RDWR), 1),
    ):
        listing = LargeListing(descriptor, 0)
        for _ in range(pages):
            listing.add(entries, 5, 10)
        assert listing.find("0007", 11) is None


async def test_while_too_many_are_known_a_listing_makes_no_more_known(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 40)
    other.system.inodes._kept_max = 80
    for n in range(200):
        await mount.write(f"n{n:03d}", b"")
    assert await names(other) == [f"n{n:03d}" for n in range(200)]
    assert len(other.system.inodes) == 101
