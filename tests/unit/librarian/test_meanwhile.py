"""A Librarian's decision holds only as long as its basis: here another change always comes in between."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import REPAIR_OBJECT, BlobId, Ms, RequestKey, blob_object
from chelonia.core.ports.ahash import AHash, Element, TransactOutcome
from chelonia.librarian.metadata import blobs
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.presence.health import Transition
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN, BARTENDER, LIBRARIAN, bench, shepherd_call
from tests.support.paper import Paper, paper

Meanwhile = Callable[[], Awaitable[None]]


class Meddling:
    """An A-Hash in front of another: once, before the transact that `when` selects, something happens."""

    def __init__(self, inner: AHash) -> None:
        self.inner = inner
        self.when: Callable[[Sequence[Element]], bool] = lambda elements: False
        self.meanwhile: Meanwhile | None = None
        self.outcomes: list[TransactOutcome] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        if self.meanwhile is None or not self.when(elements):
            return await self.inner.transact(call, key, elements, memo)
        meanwhile, self.meanwhile = self.meanwhile, None
        await meanwhile()
        self.outcomes.append(await self.inner.transact(call, key, elements, memo))
        return self.outcomes[-1]

    def expect(self, when: Callable[[Sequence[Element]], bool], meanwhile: Meanwhile) -> None:
        self.when, self.meanwhile = when, meanwhile

    async def write(self, *elements: Element) -> None:
        assert (await self.inner.transact(LIBRARIAN, RequestKey(""), elements)).applied


def refuses():  # type: ignore[no-untyped-def]
    return pytest.raises(CheloniaError, check=lambda error: error.kind is Kind.BAD_REQUEST)


def meddling(made: list[Meddling]) -> Callable[[AHash], AHash]:
    def wrap(inner: AHash) -> AHash:
        made.append(Meddling(inner))
        return made[-1]  # type: ignore[return-value]

    return wrap


# --- uploads ----------------------------------------------------------------------------------------------------------


@virtual
async def test_receipts_of_another_upload_make_no_file() -> None:
    async with bench() as b:
        other = await b.service.begin_put(BARTENDER, b.begin("other", named=True))
        mine = await b.service.begin_put(BARTENDER, b.begin("mine", named=True))
        receipts = tuple(b.receipt(other.blob, shepherd) for shepherd in b.shepherds[:2])
        for sent in (receipts, (b.receipt(mine.blob, b.shepherds[0]), receipts[1])):
            with refuses():
                await b.service.commit_put(shepherd_call(b.shepherds[0]), mine.guid, sent)
        assert await b.names() == {}


@virtual
async def test_agreed_receipts_are_of_the_blob() -> None:
    async with bench() as b:
        receipt = b.receipt(BlobId("one"), b.shepherds[0])
        with refuses():
            blobs.agreed((receipt,), BlobId("two"), -1, Checksums())


@virtual
async def test_an_expired_upload_that_is_committed_meanwhile_stays() -> None:
    made: list[Meddling] = []

    async with paper(shepherds=3, wrap=meddling(made)) as p:
        soon = Ms(p.b.clock.now_ms() + 2_000)
        begun = await p.b.service.begin_put(BARTENDER, p.b.begin("f", named=True, expires_ms=soon))

        async def commit() -> None:
            receipts = tuple(p.b.receipt(begun.blob, shepherd) for shepherd in p.b.shepherds[:2])
            for shepherd in p.b.shepherds[:2]:
                p.shepherd(shepherd).replicas[receipts[0].location.reference] = begun.blob
            await p.b.service.commit_put(shepherd_call(p.b.shepherds[0]), begun.guid, receipts)

        made[-1].expect(lambda elements: any(e.object == begun.guid for e in elements), commit)
        await p.until(lambda: _met(made[-1]))
        assert await p.b.names() == {"f": begun.guid}
        assert (await p.b.stored(begun.guid)).value("entry", "type") == "file"


@virtual
async def test_an_expired_upload_goes_only_while_it_is_one_whatever_became_of_its_name() -> None:
    made: list[Meddling] = []

    async with paper(shepherds=3, wrap=meddling(made)) as p:
        soon = Ms(p.b.clock.now_ms() + 2_000)
        begun = await p.b.service.begin_put(BARTENDER, p.b.begin("f", named=True, expires_ms=soon))

        async def is_a_file() -> None:
            await made[-1].write(put(begun.guid, "entry", "type", "file"))

        made[-1].expect(lambda elements: any(e.object == begun.guid for e in elements), is_a_file)
        await p.until(lambda: _met(made[-1]))
        assert not made[-1].outcomes[0].applied
        assert (await p.b.stored(begun.guid)).exists


async def _met(ahash: Meddling) -> bool:
    return bool(ahash.outcomes)


@pytest.mark.parametrize("decision", ["maintenance_until_ms", "drain_ms"])
@virtual
async def test_what_is_decided_about_a_shepherd_leaves_what_was_written_of_it_meanwhile(decision: str) -> None:
    """The decision undid the change. The leader then recorded again that the Shepherd is away, and since now, and its
    sections were later replaced by as many."""
    made: list[Meddling] = []

    async with bench(wrap=meddling(made)) as b:
        nodes, shepherd = b.service._parts.nodes, b.shepherds[0]

        async def goes_away() -> None:
            nodes.written(Transition(shepherd, "offline", "alive"), Ms(7), Ms(0))

        made[-1].expect(lambda elements: any(e.property == decision for e in elements), goes_away)
        if decision == "drain_ms":
            await b.service.drain(ADMIN, shepherd, True)
        else:
            await b.service.maintenance(ADMIN, shepherd, Ms(1))
        found = nodes.table.stored(shepherd)
        assert found is not None
        assert (found.state, found.since_ms, getattr(found, decision) > 0) == ("offline", 7, True)


# --- healing ----------------------------------------------------------------------------------------------------------


def of_locations(blob: BlobId) -> Callable[[Sequence[Element]], bool]:
    """Transacts that remove locations of this blob."""

    def found(elements: Sequence[Element]) -> bool:
        return any(e.object == blob_object(blob) and e.section == "locations" and not e.value for e in elements)

    return found


async def surplus(p: Paper) -> BlobId:
    """A file with a copy more than it wants."""
    _, blob = await p.upload("f", copies=3, wanted=2)
    return blob


@virtual
async def test_nothing_is_trimmed_of_a_blob_that_has_changed_since_it_was_looked_at() -> None:
    made: list[Meddling] = []

    async with paper(shepherds=4, wrap=meddling(made)) as p:
        blob = await surplus(p)

        async def wants_more() -> None:
            await made[-1].write(put(blob_object(blob), "blob", "wanted", "3"))

        made[-1].expect(of_locations(blob), wants_more)
        await p.until(lambda: _met(made[-1]), 120_000)
        assert not made[-1].outcomes[0].applied
        assert len(await p.b.locations(blob)) == 3


@virtual
async def test_what_a_leader_writes_does_not_apply_once_another_leads() -> None:
    made: list[Meddling] = []

    async with paper(shepherds=3, wrap=meddling(made)) as p:
        silent = p.b.shepherds[0]

        async def another_leads() -> None:
            await made[-1].write(
                put(REPAIR_OBJECT, "lease", "holder", "https://other/Librarian"),
                put(REPAIR_OBJECT, "lease", "term", "99"),
            )

        made[-1].expect(lambda elements: any(_calls_away(e) for e in elements), another_leads)
        p.shepherd(silent).up = False
        await p.until(lambda: _met(made[-1]), 60_000)
        assert not made[-1].outcomes[0].applied
        assert (await p.b.stored(f"sys:shepherd:{silent}")).value("node", "state") == "alive"


def _calls_away(element: Element) -> bool:
    return (element.section, element.property, element.value) == ("node", "state", "offline")
