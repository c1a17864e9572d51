"""The strength of the Librarian's reads: strong before an irreversible step, else the caller's position."""

from typing import Any, cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.contents.uploads import SpliceFile
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ROOT
from chelonia.core.ports.ahash import AHash
from tests.support.librarian import BARTENDER, bench, shepherd_call, shepherd_id, sound

READS = ("get", "walk", "scan", "status")


class Noting:
    """An A-Hash that notes the strength of each read."""

    def __init__(self, ahash: AHash) -> None:
        self._ahash = ahash
        self.reads: list[tuple[str, Call]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ahash, name)

        async def noted(call: Call, *args: Any, **named: Any) -> Any:
            if name in READS:
                self.reads.append((name, call))
            return await method(call, *args, **named)

        return noted


class Wrapped:
    """Puts a `Noting` between a bench's Librarian and its A-Hash."""

    noting: Noting

    def __call__(self, ahash: AHash) -> AHash:
        self.noting = Noting(ahash)
        return cast(AHash, self.noting)

    def taken(self) -> list[bool]:
        """Whether each read since the last look was strong."""
        taken, self.noting.reads = self.noting.reads, []
        return [call.strong for _, call in taken]


async def test_namespace_reads_stand_where_their_caller_stands() -> None:
    wrapped = Wrapped()
    async with bench(wrap=wrapped) as b:
        wrapped.taken()
        after = Position("test", 1, 1)
        await b.service.get(Call(BARTENDER.dn, BARTENDER.roles, read_after=after), (ROOT,))
        assert {(call.read_after, call.strong) for _, call in wrapped.noting.reads} == {(after, False)}
        await b.service.get(BARTENDER.strongly(), (ROOT,))
        assert wrapped.taken()[-1] is True


async def test_what_shepherds_report_commit_and_compare_is_read_strongly() -> None:
    wrapped = Wrapped()
    async with bench(wrap=wrapped) as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        receipts = tuple(b.receipt(begun.blob, shepherd) for shepherd in b.shepherds[:2])
        shepherd = shepherd_id(1)
        wrapped.taken()
        await b.service.commit_put(shepherd_call(shepherd), begun.guid, receipts)
        assert set(wrapped.taken()) == {True}
        await b.report(shepherd, (begun.blob, receipts[0].location.reference, ReplicaState.INVALID))
        assert set(wrapped.taken()) == {True}
        await b.service.inventory(shepherd_call(shepherd), shepherd, "", 10)
        assert set(wrapped.taken()) == {True}


async def test_an_empty_file_is_made_without_a_read_unless_its_name_is_taken() -> None:
    wrapped = Wrapped()
    async with bench(wrap=wrapped) as b:
        wrapped.taken()
        await b.service.splice(BARTENDER, SpliceFile(b.begin("f"), (), (), 0))
        assert wrapped.taken() == []
        with pytest.raises(CheloniaError, match="exists"):
            await b.service.splice(BARTENDER, SpliceFile(b.begin("f"), (), (), 0))
        await sound(b)
