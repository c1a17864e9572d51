"""Copies that take longer than their claim: made once while bytes arrive, given up when none do, whatever is
reported."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import HealAction, HealOrder
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ObjectId, ReferenceId, blob_object
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.ahash import AHash
from chelonia.core.timing.jobs import CAUSE
from chelonia.core.values import replace
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN
from tests.support.paper import FILE_BYTES, Paper, paper

PATIENT = replace(LibrarianSettings.dev(ADMIN.dn), claim_ms=3_000, claim_bytes_per_s_min=0)
LONG_S = 14.0
"""Two seconds for each of its bytes."""
Tells = Callable[[float, float], int]


def taking(p: Paper) -> int:
    """Copies that are under way."""
    return sum(shepherd.in_flight for shepherd in p.shepherds.values())


def begun(p: Paper) -> int:
    """Copies that were ever begun."""
    return sum(shepherd.put_calls for shepherd in p.shepherds.values())


async def a_long_copy(p: Paper, copy_s: float = LONG_S, tells: Tells | None = None) -> BlobId:
    """Begin a copy that takes long; the later ones take no time."""
    await asyncio.sleep(1)
    blob: BlobId = (await p.upload("a", copies=2))[1]
    for shepherd in p.shepherds.values():
        shepherd.copy_s = copy_s
        shepherd.tells = tells or shepherd.tells
    p.shepherds[p.b.shepherds[0]].up = False

    async def under_way() -> bool:
        return taking(p) == 1

    await p.until(under_way)
    for shepherd in p.shepherds.values():
        shepherd.copy_s = 0.05
    return blob


def there(p: Paper, blob: BlobId) -> Callable[[], object]:
    async def two() -> bool:
        return len(p.holding(blob)) == 2

    return two


@pytest.mark.parametrize(("first", "then"), [(0, 0), (1, 0), (10**9, 1)])
@virtual
async def test_a_copy_whose_bytes_arrive_is_made_once_however_long_it_takes(first: int, then: int) -> None:
    """The rate of healing at its beginning, and later, makes no difference."""

    async with paper(shepherds=4, settings=PATIENT) as p:
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RATE, first))
        blob = await a_long_copy(p)
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RATE, then))
        took = await p.until(there(p, blob))  # type: ignore[arg-type]
        assert took == pytest.approx(1000 * LONG_S, abs=500)
        assert begun(p) == 1


@pytest.mark.parametrize(
    ("tells", "settings", "limit_ms"),
    [
        (lambda passed_s, copy_s: 0, PATIENT, 7_000),
        (lambda passed_s, copy_s: 3, PATIENT, 10_000),
        (lambda passed_s, copy_s: round(1000 * passed_s) % FILE_BYTES, PATIENT, 24_000),
        (lambda passed_s, copy_s: 1 + round(FILE_BYTES * passed_s), PATIENT, 10_000),
        (lambda passed_s, copy_s: round(passed_s), replace(PATIENT, claim_bytes_per_s_min=2), 10_000),
    ],
    ids=["nothing arrives", "it has stopped", "it goes up and down", "more than there is", "too slow"],
)
@virtual
async def test_a_copy_that_comes_no_farther_is_made_anew(
    tells: Tells, settings: LibrarianSettings, limit_ms: int
) -> None:
    async with paper(shepherds=4, settings=settings) as p:
        blob = await a_long_copy(p, 3_600, tells)
        assert await p.until(there(p, blob), limit_ms) >= settings.claim_ms - 500  # type: ignore[arg-type]
        assert begun(p) == 2


class Refusing:
    """An A-Hash in front of another: it refuses the reads that `refused` selects."""

    def __init__(self, inner: AHash, refused: Callable[[Sequence[ObjectId], Filter], bool]) -> None:
        self._inner = inner
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        if self._refused(ids, needed):
            raise CheloniaError(Kind.UNAVAILABLE, "get", ids[0])
        return await self._inner.get(call, ids, needed)


class Behind:
    """An A-Hash in front of another: reads for renewals of claims that are not strong get the blobs' first state."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self._first: dict[ObjectId, StoredObject] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        found = await self._inner.get(call, ids, needed)
        first = tuple(self._first.setdefault(each.id, each) if each.exists else each for each in found)
        return first if CAUSE.get() == "renew claims" and not call.strong else found


@virtual
async def test_a_copy_is_renewed_by_what_its_claim_is_now() -> None:
    async with paper(4, PATIENT, wrap=Behind) as p:  # type: ignore[arg-type]
        blob = await a_long_copy(p)
        await p.until(there(p, blob))  # type: ignore[arg-type]
        assert begun(p) == 1


@virtual
async def test_a_copy_of_which_nothing_can_be_asked_for_long_goes_on() -> None:
    def of_claims(ids: Sequence[ObjectId], needed: Filter) -> bool:
        return any(need.section == "claims" for need in needed)

    async with paper(4, PATIENT, wrap=lambda inner: Refusing(inner, of_claims)) as p:  # type: ignore[arg-type,return-value]
        blob = await a_long_copy(p)
        await p.until(there(p, blob))  # type: ignore[arg-type]
        assert begun(p) == 1


@virtual
async def test_what_a_shepherd_makes_up_does_not_keep_the_copies_of_others_from_being_renewed() -> None:
    def of_no_id(ids: Sequence[ObjectId], needed: Filter) -> bool:
        return blob_object(BlobId("made up")) in ids

    async with paper(4, PATIENT, wrap=lambda inner: Refusing(inner, of_no_id)) as p:  # type: ignore[arg-type,return-value]
        blob = await a_long_copy(p)
        for shepherd in p.shepherds.values():
            if not shepherd.taking:
                shepherd.takes(ReferenceId("r"), BlobId("made up"), LONG_S)
        await p.until(there(p, blob))  # type: ignore[arg-type]
        assert begun(p) == 1


@virtual
async def test_a_copy_that_its_taker_reports_is_waited_for_no_longer() -> None:
    """The sender's answer may be lost, on a connection that was silent for days."""

    async with paper(shepherds=4, settings=PATIENT) as p:
        for shepherd in p.shepherds.values():
            shepherd.reports_s = 1.0
        blob = await a_long_copy(p, 3_600)
        await p.until(lambda: p.settled(blob, copies=3), 3_000)

        async def slots_are_free() -> bool:
            return (await p.b.service.health(ADMIN)).copying == 0

        await p.until(slots_are_free, PATIENT.claim_ms + 500)
        assert taking(p) == 0
        assert begun(p) == 1


class Away:
    """An A-Hash in front of another, out of reach while `away`."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self.away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any) -> Any:
            if self.away:
                raise CheloniaError(Kind.NETWORK, name, cause="connection refused")
            return await method(*arguments)

        return call


@pytest.mark.parametrize("sooner_ms", range(0, 200, 20))
@virtual
async def test_a_claim_that_ran_out_while_the_metadata_were_out_of_reach_is_renewed_before_anything_is_planned(
    sooner_ms: int,
) -> None:
    """This holds whenever they are back between two ticks; an earlier plan would begin the copy anew."""
    metadata: list[Away] = []

    def wrap(inner: AHash) -> Any:
        metadata.append(Away(inner))
        return metadata[0]

    async with paper(4, PATIENT, wrap=wrap) as p:
        blob = await a_long_copy(p)
        metadata[0].away = True
        await asyncio.sleep((2 * PATIENT.claim_ms - sooner_ms) / 1000)
        metadata[0].away = False
        p.b.service._parts.healer.consider((blob,))
        await p.until(there(p, blob))  # type: ignore[arg-type]
        assert begun(p) == 1
