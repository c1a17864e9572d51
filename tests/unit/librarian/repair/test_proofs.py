"""The evidence for giving up a good copy: holders that prove to have the bytes, and confirm each other."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import SetWanted
from chelonia.core.values import replace
from chelonia.librarian.repair.plan.decide import BlobPlan, Removal
from chelonia.librarian.repair.proofs import decide as proofs
from tests.sim.virtual_loop import run_virtual, virtual
from tests.support.librarian import BARTENDER
from tests.support.paper import paper


def place(number: int, shepherd: int | None = None) -> Location:
    return Location(ServiceId(f"s{number if shepherd is None else shepherd}"), ReferenceId(f"r{number}"))


@pytest.mark.parametrize(
    ("answers", "believed"),
    [
        ("xx", "01"),
        ("xxx", "012"),
        ("xyx", "02"),  # one that has not the bytes
        ("x.x", "02"),  # one that does not answer
        ("xy", ""),  # nobody knows which
        ("x.", ""),
        ("x", ""),
        ("..", ""),
        ("xyz", ""),
        ("xxyy", ""),  # two that lie alike, or two that have rotted alike: nobody is believed
        ("xxxyy", ""),
        ("", ""),
    ],
)
def test_who_is_believed(answers: str, believed: str) -> None:
    given_ = {place(n): "" if answer == "." else answer for n, answer in enumerate(answers)}
    assert proofs.agreed(given_) == {place(int(n)) for n in believed}


def test_a_shepherd_does_not_confirm_itself() -> None:
    assert proofs.agreed({place(1, 7): "x", place(2, 7): "x"}) == frozenset()


@given(size=st.integers(-1, 10**12), draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8))
def test_what_is_asked_for_is_there_and_bounded(size: int, draws: list[float]) -> None:
    asked = proofs.spans(size, itertools.cycle(draws).__next__)
    assert sum(span.length for span in asked) == min(max(size, 0), bounds.PROOF_BYTES_MAX)
    assert all(span.offset >= 0 and span.offset + span.length <= size for span in asked)


def test_every_byte_may_be_asked_for() -> None:
    for draw, end in ((0.0, 0), (1 - 2**-53, 10**9)):
        span = proofs.spans(10**9, lambda draw=draw: draw)[0]  # type: ignore[misc]
        assert end in (span.offset, span.offset + span.length)


def test_only_good_copies_that_go_need_proofs() -> None:
    plan = BlobPlan(BlobId("b"), 1, 3, 2, Ms(0), witnesses=(place(1), place(2)))
    damaged, surplus = Removal(place(3), "invalid"), Removal(place(4), "surplus")
    assert not proofs.needed(replace(plan, removals=(damaged,)))
    both = replace(plan, removals=(damaged, surplus))
    assert proofs.needed(both)
    assert proofs.questioned(both) == (place(1), place(2), place(4))


def honest_copies_left(wanted: int) -> int:
    """Good copies after trimming, where of one copy more than wanted one is missing though its Shepherd reports it."""

    async def scenario() -> int:
        async with paper(shepherds=4) as p:
            guid, blob = await p.upload("f", copies=wanted + 1)
            liar = p.shepherds[p.b.shepherds[0]]
            liar.broken = "lies"
            await p.b.service.set_wanted(BARTENDER, SetWanted(guid, wanted))
            await asyncio.sleep(60)
            return sum(s is not liar and blob in s.replicas.values() for s in p.shepherds.values())

    return run_virtual(scenario())


@pytest.mark.parametrize("wanted", [1, 2])
def test_nobody_gives_up_a_good_copy_for_one_that_is_not_there(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The liar answers `stat` for its copy as an honest one would; it only lacks the bytes."""
    assert honest_copies_left(wanted) == wanted
    monkeypatch.setattr(proofs, "needed", lambda _: False)
    assert honest_copies_left(wanted) < wanted, "this would be no test if its word were enough"


@virtual
async def test_honest_copies_are_trimmed_after_proving_themselves() -> None:
    async with paper(shepherds=4) as p:
        guid, blob = await p.upload("f", copies=4)
        await p.b.service.set_wanted(BARTENDER, SetWanted(guid, 2))
        await p.until(lambda: p.settled(blob, copies=2))
        assert sum(len(s.proven) for s in p.shepherds.values()) == 4 + 3, "all that stay and the one that goes"
        assert not any(s.scrubbed for s in p.shepherds.values())


@virtual
async def test_the_copy_that_is_not_as_the_others_is_checked() -> None:
    async with paper(shepherds=4) as p:
        guid, blob = await p.upload("f", copies=4)
        odd = p.shepherds[p.b.shepherds[1]]
        odd.broken = "lies"
        await p.b.service.set_wanted(BARTENDER, SetWanted(guid, 2))

        async def checked() -> bool:
            return bool(odd.scrubbed)

        await p.until(checked)
        assert odd.scrubbed[0] == f"{blob}@{odd.id}"
        assert not any(s.scrubbed for s in p.shepherds.values() if s is not odd)
