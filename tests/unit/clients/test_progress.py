"""A progress bar of a tree knows the whole."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from types import AsyncGeneratorType

import pytest

from chelonia_clients import progress
from chelonia_clients.output import Output
from chelonia_clients.progress import ERASE, Bar, Sizes, add_up, counting
from chelonia_clients.steps import TransferResult
from chelonia_clients.transfers import listed_sizes, local_sizes
from chelonia_clients.verbs import transfer as verbs_transfer
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command, client_on


class Noted(Bar):
    """A visible bar that notes its expected totals."""

    def __init__(self) -> None:
        super().__init__("x")
        self._enabled = True
        self.totals: list[tuple[int, int]] = []

    def expect(self, total: int, files: int = 0) -> None:
        self.totals.append((files, total))
        super().expect(total, files)


async def test_the_whole_of_an_upload_is_that_of_the_local_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("f", "a/g", "a/b/h"):
        (tmp_path / name).write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("f")
    bar = Noted()
    await add_up(bar, local_sizes(tmp_path))
    assert bar.totals == [(3, 300)]


async def test_the_whole_of_a_download_is_that_of_the_listing(fake: FakeBartender) -> None:
    fake.add_collection("/c")
    fake.add_collection("/c/d")
    for ln in ("/c/f", "/c/d/g", "/other"):
        fake.add_file(ln, b"x" * 100)
    bar = Noted()
    await add_up(bar, listed_sizes(client_on(fake), "/c"))
    assert bar.totals == [(2, 200)]


async def test_a_whole_that_cannot_be_known_is_not_told(fake: FakeBartender) -> None:
    bar = Noted()
    await add_up(bar, listed_sizes(client_on(fake), "/none"))
    assert bar.totals == []


async def test_nothing_is_counted_when_nobody_sees_it_and_the_count_ends_with_the_work() -> None:
    bar, ended = Noted(), []

    async def sizes() -> Sizes:
        try:
            while True:
                yield 1, 1
                await bar_moves()
        finally:
            ended.append(True)

    async def bar_moves() -> None:
        await asyncio.sleep(0)

    bar.enabled = False
    async with counting(bar, sizes()):
        await bar_moves()
    assert ended == []
    bar.enabled = True
    async with counting(bar, sizes()):
        await bar_moves()
    assert ended == [True]


def test_a_bar_of_what_does_not_tell_its_size_waits_for_the_end(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: dict[str, int] = {}

    def noted(title: str, total: int = -1, *, beside: Output | None) -> Bar:
        totals[title] = total
        return Bar(title, total, beside=beside)

    monkeypatch.setattr(verbs_transfer, "Bar", noted)
    Path("f").write_bytes(b"x")
    Path("empty").touch()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as pipe:
        pipe.write(b"x")
        pipe.close()
        assert chelonia("put", f"/dev/fd/{reading}", "/pipe").code == 0
    for source in ("f", "empty", "/proc/self/limits", "none"):
        chelonia("put", source, f"/{Path(source).name}")
    assert totals == {str(reading): -1, "f": 1, "empty": 0, "limits": -1, "none": -1}


def test_every_verb_of_trees_counts(chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def counting_too(bar: Bar, sizes: Sizes) -> object:
        assert isinstance(sizes, AsyncGeneratorType)
        counted.append(sizes.__name__)
        return counting(bar, sizes)

    monkeypatch.setattr(verbs_transfer, "counting", counting_too)
    Path("d").mkdir()
    Path("d/f").write_bytes(b"x")
    for words in (("put", "-r", "d", "/d"), ("get", "-r", "/d", "e"), ("cp", "-r", "chelonia:/d", "chelonia:/e")):
        assert chelonia(*words).code == 0
    assert counted == ["local_sizes", "listed_sizes", "listed_sizes"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch, columns: str = "80") -> Terminal:
    """A terminal that shows each bar at once, and each step of it."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "AGAIN_S", 0.0)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    return made


async def test_a_bar_of_a_tree_tells_files_beside_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def done() -> AsyncGenerator[TransferResult, None]:
        yield TransferResult("collection", "t", "/t")
        yield TransferResult("file", "t/a", "/t/a", 20)
        yield TransferResult("file", "/t/b", "")  # removed

    terminal = terminal_of(monkeypatch)
    with Bar("t", beside=Output(terminal, terminal)) as bar:
        bar.advance(10)
        assert "file" not in terminal.getvalue(), "nobody knows yet how many"
        bar.expect(3_000, 1_234)
        _ = [each async for each in bar.tally(done())]
        bar.advance(2_000)
    assert "t: 1 of 1234 files" in terminal.getvalue()
    assert "3.0 kB" in terminal.getvalue()


@pytest.mark.parametrize("columns", ["80", "10"])
def test_lines_that_come_while_a_bar_is_drawn_have_their_own_place(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """They were written behind the bar, which stayed there."""
    terminal = terminal_of(monkeypatch, columns)
    out = Output(terminal, terminal)
    with Bar("a title[/b]", 100, beside=out) as bar:
        for number in range(3):
            bar.advance(10)
            out.write(f"line {number}")
            out.notify(f"note {number}")
    assert columns == "10" or "a title[/b]" in terminal.getvalue()
    for number in range(3):
        assert f"{ERASE}line {number}\n{ERASE}note {number}\n" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 7, "a bar is one line; the last one is left, and taken away"
    out.write("after")
    assert terminal.getvalue().endswith("after\n")
    assert not terminal.getvalue().endswith(f"{ERASE}after\n")
