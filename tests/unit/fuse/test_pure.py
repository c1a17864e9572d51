"""The mount's decisions without a kernel or a network: byte ranges, staging, inodes, options, errno, names."""

from __future__ import annotations

import errno
import stat
import tracemalloc
from itertools import pairwise
from unittest import mock
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.contents.extents import Extent, laid
from chelonia.core.errors import TABLE, CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Attributes
from chelonia_fuse.committing import conflict_name
from chelonia_fuse.errors import errno_of, line_of
from chelonia_fuse.inodes import ROOT, Inode, Inodes, number_of
from chelonia_fuse.options import INODES_MIN, Options, parse
from chelonia_fuse.staging import (
    LAID_MAX,
    MERGED_BYTES_MAX,
    MERGED_BYTES_MIN,
    PIECES_MAX,
    SMALL_BYTES_MAX,
    WHOLE_BYTES_MAX,
    Plan,
    Ranges,
    Staged,
    joined,
)
from chelonia_fuse.stats import mode_of, shown
from chelonia_fuse.xattrs import decoded, encoded

SPAN = 40
RANGE = st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(sorted)


# --- ranges ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), RANGE)), RANGE)
def test_ranges_are_a_set_of_offsets(steps: list[tuple[bool, list[int]]], asked: list[int]) -> None:
    ranges, model = Ranges(), set[int]()
    for adds, (start, end) in steps:
        (ranges.add if adds else ranges.remove)(start, end)
        model = model | set(range(start, end)) if adds else model - set(range(start, end))
    pairs = list(ranges)
    assert {n for start, end in pairs for n in range(start, end)} == model
    assert all(one[1] < other[0] for one, other in pairwise(pairs))
    start, end = asked
    assert {n for s, e in ranges.missing(start, end) for n in range(s, e)} == set(range(start, end)) - model
    assert {n for s, e in ranges.within(start, end) for n in range(s, e)} == set(range(start, end)) & model
    assert ranges.total == len(model)
    assert ranges.covers(start, end) == (set(range(start, end)) <= model)


@given(st.lists(RANGE.filter(lambda r: r[0] < r[1]), min_size=1), st.integers(1, 5))
def test_joined_ranges_are_few_and_hold_all(given_: list[list[int]], most: int) -> None:
    ranges = list(Ranges((start, end) for start, end in given_))
    out = joined(ranges, most)
    assert len(out) <= max(most, 1)
    assert all(any(s <= start and end <= e for s, e in out) for start, end in ranges)


# --- staging --------------------------------------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(0, SPAN), st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("resize"), st.integers(0, SPAN), st.just(b"")),
    st.tuples(st.just("read"), st.integers(0, SPAN), st.just(b"12345678")),
    st.tuples(st.just("commit"), st.just(0), st.just(b"")),
)


class Machine:
    """A staged file, its local bytes, and its base in the cluster."""

    def __init__(self, base: bytes) -> None:
        self.base = base
        self.local = bytearray(200)
        self.staged = Staged.of("0", len(base))
        self.model = bytearray(base)

    def fetch(self, start: int, end: int) -> None:
        for first, last in self.staged.missing(start, end):
            for s, e in self.staged.fetched(first, last):
                self.local[s:e] = self.base[s:e]

    def read(self, start: int, end: int) -> bytes:
        self.fetch(start, end)
        return bytes(self.local[start : min(end, self.staged.size)])

    def write(self, at: int, data: bytes) -> None:
        self.local[at : at + len(data)] = data
        self.staged.wrote(at, at + len(data), append=False)
        self.model.extend(bytes(max(0, at - len(self.model))))
        self.model[at : at + len(data)] = data

    def resize(self, size: int) -> None:
        self.local[size:] = bytes(200 - size)
        self.staged.resize(size)
        self.model = self.model[:size] + bytes(max(0, size - len(self.model)))

    def commit(self, *, anew: bool) -> None:
        """Carry a plan out, as the cluster does."""
        if not self.staged.changed:
            assert self.base == bytes(self.model)
            return
        plan = self.staged.plan(anew=anew)
        after = bytearray(b"" if plan.whole else self.base)[: plan.size]
        after += bytes(plan.size - len(after))
        for start, end in plan.ranges:
            self.fetch(start, end)
            after[start:end] = self.local[start:end]
        self.base = bytes(after)
        self.staged.committed(plan, "next")
        assert self.base == bytes(self.model)
        assert not self.staged.changed


@settings(max_examples=500)  # of a hundred one in ten missed that a cut was forgotten
@given(st.binary(max_size=SPAN), st.lists(STEP, max_size=12), st.booleans(), st.booleans())
def test_what_is_committed_is_what_was_written(
    base: bytes, steps: list[tuple[str, int, bytes]], anew: bool, large: bool
) -> None:
    small = 0 if large else SMALL_BYTES_MAX  # small files are written whole; large ones have pieces laid over them
    with mock.patch("chelonia_fuse.staging.SMALL_BYTES_MAX", small), mock.patch("chelonia_fuse.staging.LAID_MAX", 3):
        carry_out(Machine(base), steps, anew=anew)


def carry_out(machine: Machine, steps: list[tuple[str, int, bytes]], *, anew: bool) -> None:
    for what, at, data in steps:
        match what:
            case "write":
                machine.write(at, data)
            case "resize":
                machine.resize(at)
            case "read":
                assert machine.read(at, at + len(data)) == bytes(machine.model[at : at + len(data)])
            case _:
                machine.commit(anew=anew)
        assert machine.staged.size == len(machine.model)
    machine.commit(anew=anew)
    assert machine.read(0, 200) == bytes(machine.model)


def test_a_write_in_the_middle_of_a_large_file_sends_that_write_alone() -> None:
    staged = Staged.of("e", 1 << 30)
    staged.wrote(5000, 6000, append=False)
    assert staged.plan() == Plan(1 << 30, ((5000, 6000),))


def test_a_commit_states_its_place_if_it_keeps_the_file_and_is_in_few_pieces() -> None:
    staged = Staged.of("e", 1 << 30)
    staged.wrote(5000, 6000, append=False)
    assert staged.plan().adds
    staged.resize(1 << 20)
    assert not staged.plan().adds, "it cuts the file"
    staged.wrote((1 << 30) + 5, (1 << 30) + 9, append=False)
    assert staged.plan().adds, "zeros are sent for what was cut"
    staged.resize(1 << 31)
    assert not staged.plan().adds, "no piece says that zeros follow"
    staged.resize((1 << 30) + 9)
    assert staged.plan().adds
    for n in range(bounds.PLACED_SPANS_MAX):
        staged.wrote(10_000 * n, 10_000 * n + 1, append=False)
    assert not staged.plan().adds
    fresh = Staged.of("e", 0)
    fresh.wrote(1 << 30, (1 << 30) + 5, append=False)
    assert not fresh.plan().adds, "nothing is there that it is laid over"


def test_a_new_file_with_holes_sends_what_was_written_and_not_the_holes() -> None:
    staged = Staged.of("e", 0)
    staged.wrote(1 << 30, (1 << 30) + 5, append=False)
    assert staged.plan() == Plan((1 << 30) + 5, ((1 << 30, (1 << 30) + 5),), whole=True)
    staged.committed(staged.plan(), "f")
    assert staged.laid == 1, "it is of pieces, as if that had been laid over it"


@pytest.mark.parametrize(("written", "whole"), [(500_000, True), (499_999, False)])
def test_a_file_of_which_half_was_written_goes_anew_if_all_of_it_is_here(written: int, whole: bool) -> None:
    staged = Staged.of("e", 1_000_000)
    staged.wrote(0, written, append=False)
    assert not staged.plan().whole
    assert list(staged.fetched(0, 1_000_000)) == [(written, 1_000_000)]
    assert staged.plan().whole is whole


def test_of_bytes_that_were_on_their_way_when_a_file_was_cut_none_beyond_the_cut_are_kept() -> None:
    staged = Staged.of("e", 100)
    staged.resize(50)
    staged.resize(80)
    assert list(staged.fetched(0, 100)) == [(0, 50)]


def test_a_last_piece_that_is_not_here_any_more_is_not_fetched_to_be_written_anew() -> None:
    staged = Staged.of("e", 1 << 20)
    for here in (True, False):
        start = staged.size
        staged.wrote(start, start + 100, append=True)
        staged.committed(staged.plan(), "f")
        staged.wrote(start + 100, start + 200, append=True)
        if not here:
            staged.valid.remove(0, start + 100)
        assert staged.plan().ranges == ((start if here else start + 100, start + 200),)
        staged.committed(staged.plan(), "g")


@pytest.mark.parametrize(
    "sizes", [[4096], [100], [70_000], [300_000], [100, 30_000, 4096], list(range(60_000, 10_000, -50))]
)
def test_appends_leave_few_pieces_and_send_few_bytes_again(sizes: list[int]) -> None:
    base = 1 << 20
    staged, pieces, size, sent, long = Staged.of("e", base), (Extent(0, base, BlobId("b")),), base, 0, 0
    for n in range(2000):
        length = sizes[n % len(sizes)]
        staged.wrote(size, size + length, append=True)
        size += length
        ((start, end),) = (plan := staged.plan()).ranges
        assert end == plan.size == size
        staged.committed(plan, str(n))
        sent += end - start
        pieces = laid(pieces, [Extent(start, end - start, BlobId(str(n)))], size)
        assert len(pieces) <= size / WHOLE_BYTES_MAX + 16
        long += end - start > bounds.INLINE_BYTES_MAX
    assert min(staged.tails) >= size - 2 * MERGED_BYTES_MAX, "others are never written anew"
    assert sent <= 5 * (size - base) + 2000 * MERGED_BYTES_MIN
    assert long <= 2 * (size - base) / MERGED_BYTES_MAX or sizes[0] > bounds.INLINE_BYTES_MAX


def test_a_small_file_that_many_commits_were_laid_over_is_written_anew() -> None:
    staged = Staged.of("e", WHOLE_BYTES_MAX)
    for n in range(LAID_MAX):
        staged.wrote(5000 * n, 5000 * n + 10, append=False)
        assert staged.plan() == Plan(WHOLE_BYTES_MAX, ((5000 * n, 5000 * n + 10),))
        staged.committed(staged.plan(), str(n))
    staged.wrote(0, 10, append=False)
    whole = staged.plan()
    assert whole.plain
    staged.committed(whole, "whole")
    staged.wrote(0, 10, append=False)
    assert not staged.plan().whole


def test_a_commit_never_has_more_pieces_than_one_change_takes() -> None:
    staged = Staged.of("e", 1 << 30)
    for n in range(3 * PIECES_MAX):
        staged.wrote(n * 10_000, n * 10_000 + 1, append=False)
    assert len(staged.plan().ranges) == PIECES_MAX


def test_appends_move_behind_what_somebody_else_appended() -> None:
    staged = Staged.of("d", 90)
    staged.wrote(90, 100, append=True)
    staged.committed(staged.plan(), "e")
    staged.wrote(100, 110, append=True)
    assert staged.appended
    assert staged.tails == [90]
    staged = staged.moved_on("f", 130)
    assert staged.tails == [], "its last pieces are others'"
    assert (staged.size, list(staged.dirty), staged.missing(0, 200)) == (140, [(130, 140)], [(0, 130)])
    staged.wrote(3, 4, append=True)
    assert not staged.appended


# --- inodes ---------------------------------------------------------------------------------------------------------

GUIDS = [Guid(f"5d9b7a52-0c7c-4c3e-9a3f-0b8f6f0e7f{n:02x}") for n in range(4)]


def entry(guid: Guid, kind: str = "file", version: int = 1, **more: object) -> Attributes:
    return Attributes(guid, kind, version, Dn("/CN=x"), **more)  # type: ignore[arg-type]


def test_numbers_stay_and_never_collide() -> None:
    inodes = Inodes(entry(Guid("0"), "collection"), parse_ln("/lab"))
    one = inodes.seen(entry(GUIDS[0]))
    assert one.number == number_of(GUIDS[0]) == UUID(GUIDS[0]).int % (1 << 62)
    twin = Guid(GUIDS[0].replace("5", "d", 1))  # the same low bits
    assert number_of(twin) == number_of(GUIDS[0])
    assert inodes.seen(entry(twin)).number != one.number
    assert inodes.seen(entry(GUIDS[0])) is one


def test_places_follow_names_and_fall_back_to_guids() -> None:
    inodes = Inodes(entry(Guid("0"), "collection"), parse_ln("/lab"))
    folder = inodes.seen(entry(GUIDS[0], "collection"), ROOT, "run")
    file = inodes.seen(entry(GUIDS[1]), folder.number, "data")
    assert str(inodes.place(file)) == "/lab/run/data"
    inodes.name(folder, ROOT, "old")
    inodes.unname(ROOT, "run")
    assert str(inodes.place(file)) == "/lab/old/data"
    inodes.unname(folder.number, "data")
    assert str(inodes.place(file)) == GUIDS[1]


def test_an_inode_goes_when_the_kernel_and_the_files_let_go() -> None:
    inodes = Inodes(entry(Guid("0"), "collection"), parse_ln("/"))
    inode = inodes.seen(entry(GUIDS[0]), ROOT, "f")
    inode.lookups, inode.opens = 3, 1
    assert inodes.forget(inode.number, 3) is None
    inode.opens = 0
    assert inodes.drop(inode) is inode
    assert inodes.named(ROOT, "f") is None
    assert inodes.forget(ROOT, 5) is None


def test_of_too_many_files_the_oldest_go_that_are_not_in_use() -> None:
    inodes = Inodes(entry(Guid("0"), "collection"), parse_ln("/"), 100)
    inodes.seen(entry(Guid(str(UUID(int=7))), "collection"), ROOT, "directory")
    inodes.seen(entry(Guid(str(UUID(int=8)))), ROOT, "open").opens = 1
    most = 0
    for n in range(1000):
        inodes.seen(entry(Guid(str(UUID(int=100 + n)))), ROOT, f"f{n}").lookups = 1
        for parent, name in inodes.too_many():
            named = inodes.named(parent, name)
            assert named is not None
            inodes.forget(named.number, 1)
        most = max(most, len(inodes))
    assert most < 115
    assert all(inodes.named(ROOT, name) for name in ("directory", "open", "f999"))


def test_an_inode_takes_a_kibibyte() -> None:
    names = [f"file{n:07d}.dat" for n in range(2000)]
    listing = msgspec.msgpack.encode(
        [entry(Guid(str(UUID(int=1 << 70 | n))), etag=str(UUID(int=n))) for n in range(2000)]
    )
    inodes = Inodes(entry(Guid("0"), "collection"), parse_ln("/"))
    tracemalloc.start()
    try:
        for name, told in zip(names, msgspec.msgpack.decode(listing, type=list[Attributes]), strict=True):
            inodes.listed(told, ROOT, name, 1)
        assert tracemalloc.get_traced_memory()[0] < 2000 * 1024
    finally:
        tracemalloc.stop()


def test_older_news_change_nothing() -> None:
    inode = Inode(7, entry(GUIDS[0], version=5, size=10))
    inode.learn(entry(GUIDS[0], version=4, size=3))
    assert inode.attributes.size == 10
    inode.learn(entry(GUIDS[0], version=6, size=11))
    assert inode.attributes.size == 11


def test_what_nobody_set_is_chosen_and_what_is_set_is_kept() -> None:
    told = shown(Inode(7, entry(GUIDS[0])), Options(), uid=12, gid=13)
    assert (told.mode, told.uid, told.gid) == (stat.S_IFREG | 0o644, 12, 13)
    told = shown(
        Inode(7, entry(GUIDS[0], "collection", mode=0o2770, uid=1, gid=2)), Options(umask=0o22), uid=12, gid=13
    )
    assert (told.mode, told.uid, told.gid) == (stat.S_IFDIR | 0o2750, 1, 2)
    assert mode_of(entry(GUIDS[0], "special", mode=stat.S_IFCHR | 0o600)) == stat.S_IFCHR | 0o600
    assert stat.S_ISLNK(mode_of(entry(GUIDS[0], "mountpoint", target="gsiftp://se/x")))


# --- options, errors, names, values ---------------------------------------------------------------------------------


def test_options_are_read_and_what_is_no_option_is_told() -> None:
    options = parse("ro,uid=5,umask=027,cache=/x,cache_size=2G,strict,_netdev,x-systemd.automount")
    assert options == Options(read_only=True, uid=5, umask=0o27, cache="/x", cache_bytes=2 << 30, strict=True)
    assert [parse(text).noexec for text in ("users,noexec", "noexec,exec", "exec,noexec")] == [True, False, True]
    assert (parse("inodes=50000").inodes, parse("inodes=7").inodes) == (50_000, INODES_MIN)
    for size, said in ((512 << 20, "512M"), (10 << 30, "10GiB"), (10 << 30, "10gb"), (4096, "4096")):
        assert parse(f"cache_size={said}").cache_bytes == size
    for bad in ("sync_read", "uid=me", "inodes=few", "cache_size=much", "ro=1"):
        with pytest.raises(CheloniaError, match=bad.split("=")[0]):
            parse(bad)


@pytest.mark.parametrize("kind", TABLE)
def test_every_failure_has_an_errno_that_programs_know(kind: Kind) -> None:
    assert errno_of(CheloniaError(kind)) in {
        errno.EIO, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY,
        errno.EXDEV, errno.EBUSY, errno.ENOSPC, errno.EDQUOT, errno.ENOSYS, errno.ENOTSUP, errno.EFBIG, errno.ESTALE,
        errno.EINTR, errno.EPROTONOSUPPORT,
    }  # fmt: skip


def test_the_log_names_the_path_and_the_cure_and_is_silent_where_nothing_is_wrong() -> None:
    line = line_of(CheloniaError(Kind.DENIED, cause="+read is missing"), "open", "/lab/f")
    assert "/lab/f" in line
    assert "chelonia policy" in line
    assert line_of(CheloniaError(Kind.NOT_FOUND), "lookup", "/lab/f") == ""
    assert errno_of(CheloniaError(Kind.BAD_NAME, cause="a name has 1 to 255 bytes, this has 256")) == errno.ENAMETOOLONG


def test_the_name_of_a_conflict_obeys_the_name_law() -> None:
    assert conflict_name("notes.txt", "host", 0.5) == "notes.txt.conflict-host-19700101T000000500"
    long = conflict_name("ü" * 127, "h" * 80, 1e9)
    assert len(long.encode()) <= 255
    assert long.startswith("ü" * 50)


@given(st.binary(max_size=40))
def test_values_of_attributes_come_back(value: bytes) -> None:
    assert decoded(encoded(value)) == value
    assert encoded(value).isprintable()
